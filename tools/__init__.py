"""Command lines over library calls: `python -m t5jax.tools.NAME` or `python tools/NAME.py`."""
