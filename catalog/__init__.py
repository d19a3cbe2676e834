"""The shipped catalogue, as data: GPUs, configurations, instance types with prices, models."""
