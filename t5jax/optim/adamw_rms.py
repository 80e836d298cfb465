"""AdamW whose step on a matrix is proportional to the matrix's root mean square (nanoT5).

    m <- b1 m + (1 - b1) g
    v <- b2 v + (1 - b2) g^2
    u  = sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps)
    p <- p - lr * max(1e-3, RMS(p)) * u        RMS of the old p, per original matrix
    p <- p - lr * weight_decay * p             on the result, not scaled by RMS

`eps` is added before the bias correction, as transformers' AdamW does; `optax.scale_by_adam` adds it
after. The RMS scaling is Adafactor's; Adafactor's clipping of the update is not part of it.

Source: nanoT5 (arXiv:2309.02373) section 3.2 and its `AdamWScale`, rederived.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from t5jax.optim.lib import (bias_correction, decay_updated_weights, scale_by_param_rms,
                             zeros_like_f32)
from t5jax.optim.patterns import NOT_DECAYED, decay_mask
from t5jax.settings import DECAY, NON_NEGATIVE, POSITIVE, check_numbers


class ScaleByAdamState(NamedTuple):
  """count: int32 scalar, updates done. mu, nu: float32 in the parameters' shapes."""

  count: jax.Array
  mu: optax.Updates
  nu: optax.Updates


def scale_by_adam(b1, b2, eps):
  """Adam's direction with `eps` inside the uncorrected denominator; see the module's formulas."""

  def init(params):
    return ScaleByAdamState(
        jnp.zeros([], jnp.int32), zeros_like_f32(params), zeros_like_f32(params))

  def update(grads, state, params=None):
    del params
    count = state.count + 1
    mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
    nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.nu, grads)
    correction = jnp.sqrt(bias_correction(b2, count)) / bias_correction(b1, count)
    updates = jax.tree.map(lambda m, v: correction * m / (jnp.sqrt(v) + eps), mu, nu)
    return updates, ScaleByAdamState(count, mu, nu)

  return optax.GradientTransformation(init, update)


def adamw_rms(learning_rate, b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.0,
              weight_decay_exclude=NOT_DECAYED, min_rms=1e-3):
  """Returns AdamW with parameter-RMS scaling; the defaults are nanoT5's.

  Args:
    learning_rate: float or float32 scalar, a relative step size (nanoT5's peak is 2e-2).
    b1: decay of the first moment, in (0, 1).
    b2: decay of the second moment, in (0, 1).
    eps: added to the root of the uncorrected second moment.
    weight_decay: per unit of learning rate.
    weight_decay_exclude: patterns of the parameters exempt from it, see patterns.py.
    min_rms: least RMS that scales a step, so that a zero matrix can move.
  """
  check_numbers("adamw_rms", b1=(b1, DECAY), b2=(b2, DECAY), eps=(eps, POSITIVE),
                weight_decay=(weight_decay, NON_NEGATIVE), min_rms=(min_rms, NON_NEGATIVE))
  return optax.chain(
      scale_by_adam(b1, b2, eps),
      scale_by_param_rms(min_rms),
      optax.scale_by_learning_rate(learning_rate),
      decay_updated_weights(learning_rate * weight_decay,
                            decay_mask("adamw_rms", weight_decay_exclude)))
