"""How parameters are kept between steps: in float32, or in bfloat16 that still learns.

bfloat16 has 8 significant bits, so that a step of less than 1/512 of a weight is rounded away. With t
the float32 result of a step and `near` the rounding to nearest even, these policies save memory:

    bfloat16_stochastic  p <- t rounded up or down, E[p] = t                     2 bytes a parameter
    bfloat16_kahan       t <- t + c,  p <- near(t),  c <- near(t - p)            4 bytes: 16 bits in two
    bfloat16_master      m <- m + u,  p <- near(m), m in float32                 6 bytes
    bfloat16_nearest     p <- near(t): for comparison, small steps are lost      2 bytes

In all of them the optimizer works on float32 casts of parameters and gradients, so its moments and
reductions are float32 whatever the policy. Stochastic rounding is that of arXiv:2010.06192, which
also names the compensated one.
"""

import zlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from t5jax.optim.matrices import is_stacked, path_name, tree_map

POLICIES = ("float32", "bfloat16_stochastic", "bfloat16_kahan", "bfloat16_master",
            "bfloat16_nearest")


class PrecisionState(NamedTuple):
  """State of a policy that keeps bfloat16 parameters.

  Attributes:
    inner: the optimizer's state.
    kept: in the parameters' shapes, what they cannot hold: bfloat16 compensation of
      bfloat16_kahan, float32 master copy of bfloat16_master. Empty for the others.
  """

  inner: optax.OptState
  kept: optax.Params


def param_dtype(policy):
  """The dtype in which a policy keeps parameters."""
  return jnp.float32 if policy == "float32" else jnp.bfloat16


def as_float32(tree):
  """Casts every bfloat16 leaf to float32."""
  return jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x, tree)


def round_to_nearest(x):
  """float32 -> the nearest bfloat16 numbers, still float32.

  Not by a cast there and back, which the compiler may take for excess precision and leave out.
  """
  return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def round_stochastically(x, key):
  """float32 -> one of the two bfloat16 neighbours, still float32; nearer is likelier, E[result] = x.

  What bfloat16 holds exactly stays as it is. Infinities and NaN pass.
  """
  noise = jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
  bits = (jax.lax.bitcast_convert_type(x, jnp.uint32) + noise) & np.uint32(0xFFFF0000)
  return jnp.where(jnp.isfinite(x), jax.lax.bitcast_convert_type(bits, jnp.float32), x)


def keep_parameters(transformation, policy):
  """Returns `transformation` for parameters kept by `policy`, one of POLICIES.

  It must be the outermost of a chain. Its update takes `key`, the step's random key, of which each
  parameter folds in its own path, and its `layer` where that is all there is of a stack: the random
  bits depend on nothing else, neither on the mesh nor on what ran before. Updates are float32, and
  `optax.apply_updates` makes of them exactly the rounded parameters.
  """
  inner = optax.with_extra_args_support(transformation)
  if policy == "float32":
    return inner

  def values(params, kept):
    if policy == "bfloat16_master":
      return kept
    params = as_float32(params)
    return jax.tree.map(jnp.add, params, as_float32(kept)) if policy == "bfloat16_kahan" else params

  def keep(target, rounded):
    if policy == "bfloat16_master":
      return target
    if policy == "bfloat16_kahan":
      return jax.tree.map(lambda t, p: (t - p).astype(jnp.bfloat16), target, rounded)
    return optax.EmptyState()

  def init(params):
    exact = as_float32(params)
    return PrecisionState(inner.init(exact), keep(exact, exact))

  def update(grads, state, params, *, key=None, layer=None, **extra):
    old = values(params, state.kept)
    updates, inner_state = inner.update(as_float32(grads), state.inner, old, **as_float32(extra))
    target = jax.tree.map(jnp.add, old, updates)
    if policy == "bfloat16_stochastic":
      rounded = tree_map(
          lambda path, t: round_stochastically(t, _key_of(path, key, layer)), target)
    else:
      rounded = jax.tree.map(round_to_nearest, target)
    updates = jax.tree.map(jnp.subtract, rounded, as_float32(params))
    return updates, PrecisionState(inner_state, keep(target, rounded))

  return optax.GradientTransformationExtraArgs(init, update)


def _key_of(path, key, layer):
  key = jax.random.fold_in(key, np.uint32(zlib.crc32(path_name(path).encode())))
  return jax.random.fold_in(key, layer) if layer is not None and is_stacked(path) else key
