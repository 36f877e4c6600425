"""Handing a model to a server: NVIDIA Triton model repositories."""
