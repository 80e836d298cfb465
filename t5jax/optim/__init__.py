"""Optimizers in Optax's form, one algorithm a file.

Each is a function of the learning rate, `f(learning_rate, **settings) -> GradientTransformation`,
as Optax's own are: the step calls it with a traced scalar, so that a schedule in any unit needs no
state and no recompilation, and any optimizer of Optax can stand in its place.
"""

from t5jax.optim.adafactor import adafactor
from t5jax.optim.adafactor_hf import adafactor_hf
from t5jax.optim.adamw import adamw
from t5jax.optim.adamw_rms import adamw_rms
from t5jax.optim.groups import grouped
from t5jax.optim.lion import lion, lion_rms
from t5jax.optim.momentum import momentum
from t5jax.optim.muon import muon
from t5jax.optim.quantized import quantized
from t5jax.optim.schedule_free import eval_params, schedule_free_adamw
from t5jax.optim.sophia import sophia_g, sophia_g_rms, takes_curvature

__all__ = ["adafactor", "adafactor_hf", "adamw", "adamw_rms", "eval_params", "grouped", "lion",
           "lion_rms", "momentum", "muon", "quantized", "schedule_free_adamw", "sophia_g",
           "sophia_g_rms", "takes_curvature"]
