"""t5jax: pretrain, fine-tune and publish a T5 with JAX on the hardware a lab has."""

import pathlib

__version__ = "0.1.0"

# A checkout keeps tasks/, tools/ and gin/ beside this package, an installation inside it:
# `t5jax.tasks` and its siblings are the same names in both.
_checkout = pathlib.Path(__file__).resolve().parent.parent
if (_checkout / "setup.py").is_file() and (_checkout / "tasks").is_dir():
  __path__.append(str(_checkout))
del pathlib, _checkout
