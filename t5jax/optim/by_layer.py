"""An optimizer's update one layer at a time, for states that are kept in the host's memory.

A layer's states come to the device, are updated there and go back before the next layer's come, so
that a device holds one layer's at a time. (ZeRO-Offload, arXiv:2101.06840, keeps them on the host as
well, and computes there too.) Layers are stacked in one array; what is not stacked, such as the
embedding, is a step of its own. The result is that of one update of everything, since optimizers
here treat each original matrix by itself; one that does not is refused.
"""

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters import partial_eval

from t5jax.optim.matrices import names
from t5jax.settings import SettingError

_REST = ()  # The part of all parameters that are not stacked.


def owner(path, params):
  """Returns the path of the parameter that a state's leaf belongs to, or None.

  Args:
    path: of the leaf.
    params: paths, as `names` gives them; the leaf's own ends in one of them.
  """
  parts = names(path)
  return next((parts[start:] for start in range(len(parts)) if parts[start:] in params), None)


def part_of(path, params):
  """Returns what the leaf at a path is updated together with: the path of a stack of layers, () for all
  that is in none, or None for what belongs to no parameter. Arguments as of `owner`."""
  parameter = owner(path, params)
  return None if parameter is None else _part(parameter)


def is_on_host(x):
  """True for an array, or a tracer of one, in the host's memory."""
  return jax.typeof(x).memory_space == jax.memory.Space.Host


def update_by_layer(update, kept, read):
  """Applies `update` to what is not stacked, then to each layer of each stack, in place.

  Args:
    update: function (kept, read, layer) -> (new kept, measures). It gets stacked leaves as one layer,
      [1, ...], the number `layer`, int32, and everything in the device's memory.
    kept: (params, opt_state); may be partly in the host's memory, and stays where it is.
    read: tree of what is only read; leaves below a parameter's path are cut like it.

  Returns:
    (new kept, sum of `measures`): measures are a tree of float32 scalars, one for each parameter.

  Raises:
    SettingError: the update of a layer needs others.
  """
  paths, structure = jax.tree_util.tree_flatten_with_path((kept, read))
  leaves = [leaf for _, leaf in paths]
  params = {names(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(kept[0])}
  parts = [part_of(path, params) for path, _ in paths]
  new, total = jax.tree.leaves(kept), jnp.float32(0)
  for part, num_layers in _num_layers(params).items():
    is_cut = [part != _REST and p == part and x.shape[:1] == (num_layers,)
              for p, x in zip(parts, leaves)]
    # What belongs to no parameter, such as a count, is read by every part and updated once.
    own = [i for i, p in enumerate(parts[:len(new)]) if p == part or (p is None and part == _REST)]
    function, inputs = _of_part(update, structure, leaves, parts, part, is_cut, own)

    def one_layer(layer, carry):
      own_leaves, total = carry
      now = {**dict(enumerate(leaves)), **dict(zip(own, own_leaves))}
      *results, measure = function(layer, *(_take(now[i], layer, is_cut[i]) for i in inputs))
      return [_put(whole, result, layer, is_cut[i])
              for i, whole, result in zip(own, own_leaves, results)], total + measure

    start = [leaves[i] for i in own], total
    results, total = (one_layer(jnp.int32(0), start) if part == _REST else
                      jax.lax.fori_loop(0, num_layers, one_layer, start))
    for i, leaf in zip(own, results):
      new[i] = leaf
  return jax.tree.structure(kept).unflatten(new), total


def _part(parameter):
  return parameter[:parameter.index("layers") + 1] if "layers" in parameter else _REST


def _num_layers(params):
  """Maps parts to the number of their layers."""
  return {_REST: 1, **{_part(path): len(x) for path, x in params.items() if _part(path) != _REST}}


def _of_part(update, structure, leaves, parts, part, is_cut, own):
  """Returns what of `update` matters to one part: a function of (layer, some leaves), and which.

  It returns the part's own new leaves and the sum of its measures.
  """
  def everything(layer, *leaves):
    kept, measures = update(*structure.unflatten(leaves), layer)
    new = jax.tree.leaves(kept)
    of_part = [x for path, x in jax.tree_util.tree_leaves_with_path(measures)
               if _part(names(path)) == part]
    return [new[i] for i in own], sum(of_part, jnp.float32(0))

  shapes = [jax.ShapeDtypeStruct((1, *x.shape[1:]) if cut else x.shape, x.dtype)
            for x, cut in zip(leaves, is_cut)]
  traced = jax.make_jaxpr(everything)(jax.ShapeDtypeStruct((), jnp.int32), *shapes)
  pruned, used = partial_eval.dce_jaxpr(
      traced.jaxpr, [True] * len(traced.jaxpr.outvars), instantiate=[True] + [False] * len(leaves))
  inputs = [i for i, is_used in enumerate(used[1:]) if is_used]
  if any(parts[i] not in (part, None) for i in inputs):
    raise SettingError("Trainer.optimizer_memory", "host",
                       "'device': this optimizer's update of a parameter depends on others")
  return jaxpr_as_fun(ClosedJaxpr(pruned, traced.consts)), inputs


def _take(x, layer, cut):
  """A layer of a stack [1, ...], or all of what is none, in the device's memory."""
  taken = jax.lax.dynamic_slice_in_dim(x, layer, 1) if cut else x
  return jax.device_put(taken, jax.memory.Space.Device) if is_on_host(x) else taken


def _put(whole, new, layer, cut):
  """`whole` with a layer replaced, or all of what is no stack, in the memory where it was."""
  new = jax.device_put(new, jax.memory.Space.Host) if is_on_host(whole) else new
  return jax.lax.dynamic_update_slice_in_dim(whole, new, layer, 0) if cut else new
