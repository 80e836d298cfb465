"""Pieces shared by the optimizers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from t5jax.optim.matrices import is_decayed, rms, tree_map


def bias_correction(decay, count):
  """1 - decay**count as float32, accurate to the last digit also for decay near 1.

  The plain formula subtracts nearly equal numbers: at count 1 and decay 0.999 it is off by 5e-5.
  """
  return -jnp.expm1(count.astype(jnp.float32) * np.float32(np.log(decay)))


def scale_by_param_rms(min_rms=1e-3):
  """Multiplies each original matrix's update by max(min_rms, RMS of its old parameters).

  `optax.scale_by_param_block_rms` is the same for unstacked parameters only. Stateless.
  """

  def update(updates, state, params):
    scale = lambda path, u, p: u * jnp.maximum(rms(path, p), min_rms)
    return tree_map(scale, updates, params), state

  return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def decay_updated_weights(learning_rate, weight_decay):
  """After the step p + u, takes away learning_rate * weight_decay of the result.

  This is the order of transformers' AdamW. Norm scales and relative position tables are exempt.
  Must stand last in a chain: it expects the final (negative) updates. Stateless.
  """

  def update(updates, state, params):
    def decay(path, u, p):
      return u - learning_rate * weight_decay * (p + u) if is_decayed(path) else u

    return tree_map(decay, updates, params), state

  return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def zeros_like_f32(params):
  """float32 zeros in the shapes of `params`."""
  return jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
