"""Adafactor as T5X runs it (arXiv:1804.04235), per original matrix.

    beta = 1 - t^-0.8                                     t counts updates from 1
    s    = g^2 + 1e-30
    large matrices, both dims >= 128: only the means of s over rows and over columns are kept,
        r <- beta r + (1 - beta) mean_columns(s)          c <- beta c + (1 - beta) mean_rows(s)
        u  = g / sqrt(r c / mean(r))
    all others: v <- beta v + (1 - beta) s,               u = g / sqrt(v)
    u <- u / max(1, RMS(u) / clipping_threshold)
    d  = lr * max(1e-3, RMS(p)) * u
    m <- beta1 m + (1 - beta1) d,  d = m                  only with beta1: the paper's order, momentum
                                                          on the finished step, learning rate included
    p <- p - d - lr * weight_decay * p
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from t5jax.optim.lib import scale_by_param_rms
from t5jax.optim.matrices import is_stacked, rms, tree_map
from t5jax.optim.patterns import NOT_DECAYED, decay_mask
from t5jax.settings import DECAY, NON_NEGATIVE, POSITIVE, Range, check_choice, check_numbers

_SQUARE_EPS = 1e-30  # Keeps the moment of an unused row positive.


class FactoredRmsState(NamedTuple):
  """Second moments, float32. What a parameter does not use is a placeholder of shape [1].

  Attributes:
    count: int32 scalar, updates done.
    v_row: [..., rows] of a factored [..., rows, columns].
    v_col: [..., columns].
    v: in the parameter's shape where it is not factored.
  """

  count: jax.Array
  v_row: optax.Updates
  v_col: optax.Updates
  v: optax.Updates


def _is_factored(path, shape, min_dim_size_to_factor):
  is_matrix = len(shape) - is_stacked(path) == 2
  return is_matrix and min(shape[-2:]) >= min_dim_size_to_factor


def scale_by_factored_rms(decay_rate, min_dim_size_to_factor):
  """Divides gradients by the root of their factored second moments; see the module's formulas."""

  def init(params):
    def zeros(used_shape):
      def make(path, p):
        factored = _is_factored(path, p.shape, min_dim_size_to_factor)
        return jnp.zeros(used_shape(p.shape, factored) or (1,), jnp.float32)
      return tree_map(make, params)

    return FactoredRmsState(
        count=jnp.zeros([], jnp.int32),
        v_row=zeros(lambda shape, factored: factored and shape[:-1]),
        v_col=zeros(lambda shape, factored: factored and (*shape[:-2], shape[-1])),
        v=zeros(lambda shape, factored: not factored and shape))

  def update(grads, state, params=None):
    del params
    count = state.count + 1
    new_weight = count.astype(jnp.float32) ** -decay_rate  # 1 - beta

    def moving(old, new):
      return old + new_weight * (new - old)

    def one(path, g, v_row, v_col, v):
      square = jnp.square(g) + _SQUARE_EPS
      if not _is_factored(path, g.shape, min_dim_size_to_factor):
        v = moving(v, square)
        return g * jax.lax.rsqrt(v), v_row, v_col, v
      v_row = moving(v_row, jnp.mean(square, axis=-1))
      v_col = moving(v_col, jnp.mean(square, axis=-2))
      row = jax.lax.rsqrt(v_row / jnp.mean(v_row, axis=-1, keepdims=True))
      return g * row[..., None] * jax.lax.rsqrt(v_col)[..., None, :], v_row, v_col, v

    # One pass over the leaves gives four results each; take them apart into four trees.
    results = tree_map(one, grads, state.v_row, state.v_col, state.v)
    updates, *moments = (
        jax.tree.map(lambda _, result, i=i: result[i], grads, results) for i in range(4))
    return updates, FactoredRmsState(count, *moments)

  return optax.GradientTransformation(init, update)


def clip_by_matrix_rms(threshold):
  """Scales each original matrix's update down to a root mean square of at most `threshold`."""

  def update(updates, state, params=None):
    del params
    clip = lambda path, u: u / jnp.maximum(1.0, rms(path, u) / threshold)
    return tree_map(clip, updates), state

  return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def adafactor(learning_rate, beta1=None, decay_rate=0.8, clipping_threshold=1.0,
              multiply_by_parameter_scale=True, weight_decay=0.0,
              weight_decay_exclude=NOT_DECAYED, min_rms=1e-3, min_dim_size_to_factor=128):
  """Returns Adafactor; the defaults are T5X's.

  Args:
    learning_rate: float or float32 scalar; relative to each matrix's RMS when
      multiply_by_parameter_scale is on.
    beta1: momentum, in (0, 1), or None for none (and no state for it).
    decay_rate: exponent of the second moment's decay, in (0, 1].
    clipping_threshold: largest RMS of an update before scaling, or None.
    multiply_by_parameter_scale: scale the step by max(min_rms, RMS(p)).
    weight_decay: per unit of learning rate.
    weight_decay_exclude: patterns of the parameters exempt from it, see patterns.py.
    min_rms: least RMS that scales a step.
    min_dim_size_to_factor: matrices with a smaller dim keep full second moments.
  """
  check_numbers(
      "adafactor", beta1=(beta1, DECAY), decay_rate=(decay_rate, Range(0, 1, open_low=True)),
      clipping_threshold=(clipping_threshold, POSITIVE), weight_decay=(weight_decay, NON_NEGATIVE),
      min_rms=(min_rms, NON_NEGATIVE), min_dim_size_to_factor=(min_dim_size_to_factor, POSITIVE))
  check_choice("adafactor.multiply_by_parameter_scale", multiply_by_parameter_scale, (True, False))
  parts = [scale_by_factored_rms(decay_rate, min_dim_size_to_factor)]
  if clipping_threshold is not None:
    parts.append(clip_by_matrix_rms(clipping_threshold))
  if multiply_by_parameter_scale:
    parts.append(scale_by_param_rms(min_rms))
  parts.append(optax.scale_by_learning_rate(learning_rate))
  if beta1 is not None:
    parts.append(optax.ema(beta1, debias=False, accumulator_dtype=jnp.float32))
  parts.append(optax.add_decayed_weights(
      -learning_rate * weight_decay, decay_mask("adafactor", weight_decay_exclude)))
  return optax.chain(*parts)
