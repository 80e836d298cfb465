"""Pieces shared by the optimizers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from t5jax.optim.matrices import rms, tree_map


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


def decay_updated_weights(rate, mask):
  """After the step p + u, takes away `rate` of the result where `mask(params)` is True.

  This is the order of transformers' AdamW. Must stand last in a chain: it expects the final
  (negative) updates. Stateless.
  """

  def update(updates, state, params):
    return jax.tree.map(lambda u, p: u - rate * (p + u), updates, params), state

  return optax.masked(
      optax.GradientTransformation(lambda params: optax.EmptyState(), update), mask)


def in_float32(transformation):
  """Lets `transformation` see parameters and gradients in float32 only, so that its states are.

  Optax's moments otherwise take the parameters' dtype.
  """
  transformation = optax.with_extra_args_support(transformation)
  cast = lambda tree: optax.tree.cast(tree, jnp.float32)

  def update(grads, state, params=None, **extra_args):
    return transformation.update(cast(grads), state, cast(params), **extra_args)

  return optax.GradientTransformationExtraArgs(
      lambda params: transformation.init(cast(params)), update)


def zeros_like_f32(params):
  """float32 zeros in the shapes of `params`."""
  return jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
