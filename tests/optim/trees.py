"""A parameter tree with every kind of leaf an optimizer must tell apart, and gradients for it."""

import functools

import numpy as np

CURVATURE = 500  # gradients(CURVATURE + i) are the curvature gradients of step i.
CURVATURE_BATCH_SIZE = 1000

SHAPES = {
    "token_embedder": {"embedding": (160, 130)},  # both dims >= 128: factored
    "logits_dense": {"kernel": (12, 20)},
    "encoder": {
        "layers": {"mlp": {"wo": {"kernel": (3, 130, 140)}},  # a stack of factored matrices
                   "attention": {"query": {"kernel": (3, 16, 12)}},  # a stack of small ones
                   "pre_mlp_layer_norm": {"scale": (3, 12)}},  # a stack of vectors
        "relpos_bias": {"rel_embedding": (4, 32)},
        "encoder_norm": {"scale": (12,)}},
}


def map_shapes(fn, shapes=None, path=()):
  """Maps fn(path, shape) over the nested dict of shapes."""
  shapes = SHAPES if shapes is None else shapes
  return {name: map_shapes(fn, value, (*path, name)) if isinstance(value, dict)
          else fn((*path, name), value) for name, value in shapes.items()}


def parameters(seed=0):
  """float32 parameters; the matrices of one stack have very different sizes."""
  rng = np.random.default_rng(seed)

  def make(path, shape):
    x = rng.normal(size=shape)
    if "layers" in path:
      x *= np.array([0.01, 1.0, 30.0]).reshape(-1, *[1] * (len(shape) - 1))
    return x.astype(np.float32)

  return map_shapes(make)


@functools.lru_cache
def gradients(step):
  """float32 gradients, reproducible per step, with a row that is always zero."""
  rng = np.random.default_rng(1000 + step)

  def make(path, shape):
    g = rng.normal(size=shape) * rng.uniform(0.1, 3, size=shape[-1])
    g[..., 0] = 0
    return g.astype(np.float32)

  return map_shapes(make)


def flatten(tree, path=()):
  """Nested dict -> {path: leaf}."""
  flat = {}
  for name, value in tree.items():
    flat.update(flatten(value, (*path, name)) if isinstance(value, dict) else {(*path, name): value})
  return flat


def original_matrices(tree):
  """{(path, layer or None): float64 array}: stacks taken apart into what the papers call tensors."""
  apart = {}
  for path, value in flatten(tree).items():
    layers = enumerate(value) if "layers" in path else [(None, value)]
    for layer, matrix in layers:
      apart[path, layer] = np.asarray(matrix, np.float64)
  return apart
