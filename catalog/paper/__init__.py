"""The world of the Coral paper (arXiv 2605.04357 §6), as data, for reproducing its evaluation."""
