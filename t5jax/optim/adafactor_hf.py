"""Adafactor with the settings of Hugging Face transformers' `Adafactor`.

Second moments, their clipping and the order of momentum are those of adafactor.py. What differs:

    every matrix is factored, whatever its size
    r  = 1 / sqrt(t), at most 0.01, or with warmup_init at most 1e-6 t; 1 without relative_step
    a  = lr * r * max(1e-3, RMS(p))                      lr * r without scale_parameter
    p <- p - a * u - a * weight_decay * p                the decay is scaled by RMS as well

transformers takes either a learning rate or relative steps. Here there always is a learning rate: with
relative_step it is a factor on them, 1.0 for transformers' own. For a schedule from outside, switch
relative_step off; nanoT5's Adafactor runs (arXiv:2309.02373) did so.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from t5jax.optim.adafactor import clip_by_matrix_rms, scale_by_factored_rms
from t5jax.optim.lib import zeros_like_f32
from t5jax.optim.matrices import rms, tree_map
from t5jax.optim.patterns import NOT_DECAYED, decay_mask
from t5jax.settings import (DECAY, NON_NEGATIVE, POSITIVE, Range, SettingError, check_choice,
                            check_numbers)


class RelativeStepState(NamedTuple):
  """count: int32 scalar, updates done. mu: momentum, float32 like the parameters, or EmptyState."""

  count: jax.Array
  mu: Any


def _relative_step(count, warmup_init):
  t = count.astype(jnp.float32)
  return jnp.minimum(1e-6 * t if warmup_init else 1e-2, jax.lax.rsqrt(t))


def _take_step(step_size, beta1, weight_decay, mask):
  """Scales updates by step_size(path, p, count), averages them, adds the decay."""

  def init(params):
    mask(params)  # Raises on patterns that match nothing.
    mu = optax.EmptyState() if beta1 is None else zeros_like_f32(params)
    return RelativeStepState(jnp.zeros([], jnp.int32), mu)

  def update(updates, state, params):
    count = state.count + 1
    sizes = tree_map(lambda path, p: step_size(path, p, count), params)
    steps = jax.tree.map(jnp.multiply, updates, sizes)
    mu = state.mu
    if beta1 is not None:
      steps = mu = jax.tree.map(lambda m, d: beta1 * m + (1 - beta1) * d, mu, steps)

    def finish(d, a, p, decayed):
      return -d - a * weight_decay * p if decayed else -d

    return jax.tree.map(finish, steps, sizes, params, mask(params)), RelativeStepState(count, mu)

  return optax.GradientTransformation(init, update)


def adafactor_hf(learning_rate, beta1=None, decay_rate=0.8, clipping_threshold=1.0,
                 scale_parameter=True, relative_step=True, warmup_init=False, weight_decay=0.0,
                 weight_decay_exclude=NOT_DECAYED, min_rms=1e-3):
  """Returns Adafactor; the defaults are transformers' (whose decay_rate is written -0.8).

  Args:
    learning_rate: float or float32 scalar; with relative_step a factor, else the step size.
    beta1: momentum, in (0, 1), or None for none (and no state for it).
    decay_rate: exponent of the second moment's decay, in (0, 1].
    clipping_threshold: largest RMS of an update before scaling.
    scale_parameter: scale the step by max(min_rms, RMS(p)).
    relative_step: let the step fall with the square root of the updates done.
    warmup_init: let the relative step rise from 1e-6 first.
    weight_decay: per unit of step size.
    weight_decay_exclude: patterns of the parameters exempt from it, see patterns.py.
    min_rms: least RMS that scales a step.
  """
  owner = "adafactor_hf"
  check_numbers(
      owner, beta1=(beta1, DECAY), decay_rate=(decay_rate, Range(0, 1, open_low=True)),
      clipping_threshold=(clipping_threshold, POSITIVE), weight_decay=(weight_decay, NON_NEGATIVE),
      min_rms=(min_rms, NON_NEGATIVE))
  for name, value in (("scale_parameter", scale_parameter), ("relative_step", relative_step),
                      ("warmup_init", warmup_init)):
    check_choice(f"{owner}.{name}", value, (True, False))
  if warmup_init and not relative_step:
    raise SettingError(f"{owner}.warmup_init", warmup_init, "False where relative_step is False")

  def step_size(path, p, count):
    size = learning_rate * _relative_step(count, warmup_init) if relative_step else learning_rate
    return size * (jnp.maximum(rms(path, p), min_rms) if scale_parameter else 1.0)

  return optax.chain(
      scale_by_factored_rms(decay_rate, min_dim_size_to_factor=1),
      clip_by_matrix_rms(clipping_threshold),
      _take_step(step_size, beta1, weight_decay, decay_mask(owner, weight_decay_exclude)))
