"""An optimizer's step layer by layer, so that it works on one layer's numbers at a time.

Our optimizers treat the original matrices one by one (optim/matrices.py), so a stack's layers can be
updated in turn, in a loop. States that lie in the host's memory are brought to the device for their
layer's turn and taken back: all that the device holds of them is a layer. ZeRO-Offload (arXiv:2101.06840)
keeps them there too, but also updates there; a device is fast enough for what the link can bring.
"""

import jax
import jax.numpy as jnp
import optax

from t5jax.optim.matrices import is_stacked, tree_map
from t5jax.optim.precision import as_float32

_HOST, _DEVICE = jax.memory.Space.Host, jax.memory.Space.Device


def step_by_layer(transformation, grads, state, params, key, **extra):
  """Like transformation.update and optax.apply_updates together.

  The result is that of the whole at once, but for random bits, which each layer draws anew, and for an
  optimizer that mixes matrices, as optax's global norms do.

  Args:
    transformation: of optim/precision.py.
    grads: like params.
    state: its state; leaves may lie in the host's memory, and stay there.
    params: nested dict of arrays, the layers of each stack under <stack>/layers.
    key: the step's random key.
    **extra: further arguments of the update, trees like params or scalars.

  Returns:
    (new params, new state, float32 square of the norm of the updates).
  """
  stacks = [name for name, part in params.items() if "layers" in part]
  whole = dict(grads=grads, state=state, params=params, extra=extra)

  def step(part, key):
    updates, new = transformation.update(
        part["grads"], part["state"], part["params"], key=key, **part["extra"])
    changed = optax.apply_updates(part["params"], updates)
    return dict(params=changed, state=new), jnp.square(optax.tree.norm(as_float32(updates)))

  unlayered = _select(whole, params, lambda tree: {
      name: {key: x for key, x in part.items() if key != "layers"} for name, part in tree.items()})
  rest, norm = step(jax.tree.map(_to_device, unlayered), key)
  rest["state"] = jax.tree.map(_to_place, unlayered["state"], rest["state"])
  layered = []
  for name in stacks:
    part = _select(whole, params, lambda tree: {name: {"layers": tree[name]["layers"]}})
    changed, norms = _in_turn(step, part, key)
    layered.append(changed)
    norm += jnp.sum(norms)

  def merge(tree, *parts):
    if not _is_like(params)(tree):
      return tree
    return {**tree, **{name: {**tree[name], **part[name]} for name, part in zip(stacks, parts)}}

  merged = jax.tree.map(merge, rest, *layered, is_leaf=_is_like(params))
  return merged["params"], merged["state"], norm


def _in_turn(step, part, key):
  """Returns step(part, key) of a stack, from a call for each layer; the norms are stacked."""
  count = len(jax.tree.leaves(part["params"])[0])
  layered = tree_map(lambda path, x: is_stacked(path) and x.ndim > 0 and len(x) == count, part)

  def one(_, turn):
    number, layer = turn
    own = jax.tree.map(lambda is_layered, x, mine: _to_device(mine)[None] if is_layered else x,
                       layered, part, layer)
    new, norm = step(own, jax.random.fold_in(key, number))
    # The loop stacks them again.
    new = {name: jax.tree.map(lambda is_layered, old, x: _to_place(old, x[0] if is_layered else x),
                              layered[name], part[name], tree) for name, tree in new.items()}
    return None, (new, norm)

  layers = jax.tree.map(lambda is_layered, x: x if is_layered else None, layered, part)
  _, (stacked, norms) = jax.lax.scan(one, None, (jnp.arange(count), layers))
  last = {name: jax.tree.map(lambda is_layered, x: x if is_layered else x[-1], layered[name], tree)
          for name, tree in stacked.items()}
  return last, norms


def _is_like(params):
  return lambda tree: isinstance(tree, dict) and tree.keys() == params.keys()


def _select(whole, params, choose):
  """Applies `choose` to each tree like params within `whole`."""
  is_like = _is_like(params)
  return jax.tree.map(lambda x: choose(x) if is_like(x) else x, whole, is_leaf=is_like)


def _is_on_host(x):
  return jax.typeof(x).memory_space == _HOST


def _to_device(x):
  return jax.device_put(x, _DEVICE) if _is_on_host(x) else x


def _to_place(old, x):
  """Where `old` lies."""
  return jax.device_put(x, _HOST) if _is_on_host(old) else x
