"""What "a parameter" means to an optimizer: one original matrix, not a stack of them.

Scanned layers hold all their matrices in one array with a leading `layers` axis. Every statistic
that a paper takes per parameter (root mean square, factored moments) is taken here per slice of it.
"""

import jax
import jax.numpy as jnp


def names(path):
  """The keys of a tree path as a tuple of strings, whatever kind of node each belongs to."""
  return tuple(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)


def path_name(path):
  """The tree path as one string, "encoder/layers/mlp/wo/kernel"."""
  return "/".join(names(path))


def is_stacked(path):
  """True if the parameter at this tree path carries a leading `layers` axis."""
  return "layers" in names(path)


def matrix_axes(path, ndim):
  """Returns the axes of one original matrix within the array at `path`, as negative numbers."""
  return tuple(range(-(ndim - is_stacked(path)), 0))


def rms(path, x):
  """Root mean square of each original matrix of `x`, float32, broadcastable against `x`."""
  mean_square = jnp.mean(jnp.square(x), axis=matrix_axes(path, x.ndim), keepdims=True)
  return jnp.sqrt(mean_square)


def tree_map(fn, tree, *rest):
  """`jax.tree.map` whose function gets the path first: fn(path, leaf, *leaves)."""
  return jax.tree_util.tree_map_with_path(fn, tree, *rest)
