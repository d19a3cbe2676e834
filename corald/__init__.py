"""corald: an autoscaler for serving several LLMs on rented GPUs of many kinds."""

__version__ = "0.1.0"
