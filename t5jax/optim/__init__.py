"""Optimizers in Optax's form, one algorithm a file.

Each is a function of the learning rate, `f(learning_rate, **settings) -> GradientTransformation`,
as Optax's own are: the step calls it with a traced scalar, so that a schedule in any unit needs no
state and no recompilation, and any optimizer of Optax can stand in its place.
"""

from t5jax.optim.adafactor import adafactor
from t5jax.optim.adamw_rms import adamw_rms
from t5jax.optim.quantized import quantized

__all__ = ["adafactor", "adamw_rms", "quantized"]
