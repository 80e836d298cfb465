"""The T5 encoder-decoder: configuration, layers, attention and its floating-point cost.

The only package, with sharding.py, that knows flax.linen; all others see nested dicts of arrays.
"""
