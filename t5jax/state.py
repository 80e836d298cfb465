"""The training state: what it holds, its shapes without memory, its sharded initialisation."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from t5jax import sharding
from t5jax.model.t5 import T5
from t5jax.optim import eval_params, precision
from t5jax.optim.by_layer import owner
from t5jax.optim.matrices import names


class TrainState(NamedTuple):
  """Arrays only.

  Attributes:
    step: int32 scalar, optimizer updates done.
    params: nested dict of arrays, in the dtype of the model's param_precision.
    opt_state: the optimizer's own tree.
  """

  step: jax.Array
  params: Any
  opt_state: Any

  def eval_params(self):
    """The parameters to evaluate and export: an average, where the optimizer keeps one."""
    return eval_params(self.opt_state, self.params)


def clip(grads, max_grad_norm, norm=None):
  """Scales a tree of gradients down to a global L2 norm of at most `max_grad_norm`, if not None.

  `norm` is that of all gradients, if it is known or if `grads` are not all.
  """
  if max_grad_norm is None:
    return grads
  norm = optax.tree.norm(grads) if norm is None else norm
  return jax.tree.map(lambda g: jnp.where(norm < max_grad_norm, g, g / norm * max_grad_norm), grads)


def transformation(model, optimizer, learning_rate, max_grad_norm=None):
  """Returns the optax chain of one step: clip by the global norm, `optimizer`, then round.

  Its update takes the norm of all gradients as `grad_norm`, and what precision.py says.

  Args:
    model: T5Config; its param_precision says how.
    optimizer: a function of the learning rate alone.
    learning_rate: number or traced scalar; the state's shape does not depend on it.
    max_grad_norm: largest global L2 norm of the gradient, or None.
  """
  def update(grads, state, params=None, *, grad_norm=None, **extra):
    return clip(grads, max_grad_norm, grad_norm), state

  clipped = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
  return precision.keep_parameters(
      optax.chain(clipped, optimizer(learning_rate)), model.param_precision)


def abstract_params(model):
  """Returns the parameters of a T5Config in float32, as a nested dict of ShapeDtypeStructs."""
  return sharding.unbox(_abstract_boxed(_for_shapes(model)))


@functools.lru_cache
def _abstract_boxed(model):
  tokens = jax.ShapeDtypeStruct((1, 8), jnp.int32)
  return jax.eval_shape(T5(model).init, jax.random.key(0), tokens, tokens)["params"]


def initialise(model, key):
  """Fresh parameters in the dtype of the model's param_precision, boxed with their logical axes."""
  tokens = jnp.ones((1, 8), jnp.int32)
  return _cast(T5(_for_shapes(model)).init(key, tokens, tokens)["params"], model)


def _for_shapes(model):
  """The config without what changes no parameter: all that it leaves the same share one program."""
  return dataclasses.replace(model, dtype="float32", remat="none", decoder_remat=None, attention="xla",
                             dropout_rate=0.0, param_precision="float32")


def _cast(boxed, model):
  return jax.tree.map(lambda x: x.astype(precision.param_dtype(model.param_precision)), boxed)


def abstract(model, optimizer, max_grad_norm, mesh, optimizer_memory="device"):
  """Returns the state as ShapeDtypeStructs that carry their shardings; nothing is allocated.

  A leaf of the optimizer's state whose path ends in a parameter's path and that has its rank is laid
  out like the parameter, as far as its dims allow, and kept in the host's memory if
  `optimizer_memory` is "host"; every other leaf is replicated.
  """
  def initial(boxed):
    boxed = _cast(boxed, model)
    opt_state = transformation(model, optimizer, 0.0, max_grad_norm).init(sharding.unbox(boxed))
    return TrainState(jnp.zeros([], jnp.int32), boxed, opt_state)

  state = jax.eval_shape(initial, _abstract_boxed(_for_shapes(model)))
  shardings = jax.tree_util.tree_leaves_with_path(sharding.of_parameters(state.params, mesh))
  by_path = {names(path): layout for path, layout in shardings}

  def lay_out(path, leaf):
    layout = by_path.get(owner(path, by_path), sharding.replicated(mesh))
    fitted = sharding.fit(layout, leaf.shape)
    if optimizer_memory == "host" and path[0].name == "opt_state" and len(layout.spec) == leaf.ndim > 0:
      fitted = fitted.with_memory_kind(sharding.HOST_MEMORY)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=fitted)

  state = state._replace(params=sharding.unbox(state.params))
  return jax.tree_util.tree_map_with_path(lay_out, state)


def create(model, optimizer, max_grad_norm, mesh, seed, optimizer_memory="device"):
  """Returns an initialised TrainState, each device making only its own part.

  The numbers depend on `seed` alone, not on the mesh.
  """
  layout = jax.tree.map(lambda leaf: leaf.sharding,
                        abstract(model, optimizer, max_grad_norm, mesh, optimizer_memory))
  # Apart, so that drawing the parameters, which takes long to compile, is one program for all optimizers.
  params = jax.jit(lambda key: sharding.unbox(initialise(model, key)),
                   out_shardings=layout.params)(jax.random.key(seed))
  opt_state = jax.jit(transformation(model, optimizer, 0.0, max_grad_norm).init,
                      out_shardings=layout.opt_state)(params)
  return TrainState(jax.device_put(jnp.zeros([], jnp.int32), layout.step), params, opt_state)
