"""Twenty steps of each optimizer against formulas written out in float64, matrix by matrix.

Tolerance: float32 arithmetic carries 6e-8 per operation; twenty steps of about ten operations stay
below 1e-5 of the largest entry of each matrix.
"""

import functools

import jax
import numpy as np
import optax
import pytest

from t5jax import optim
from tests.optim import trees

STEPS = 20
RATES = [0.02 * (0.5 + i / STEPS) for i in range(STEPS)]
NOT_DECAYED = ("scale", "rel_embedding")


def rms(x):
  return np.sqrt(np.mean(x * x))


def reference_adamw_rms(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.0):
  params = trees.original_matrices(trees.parameters())
  m = {k: 0.0 for k in params}
  v = {k: 0.0 for k in params}
  for t, lr in enumerate(RATES, start=1):
    grads = trees.original_matrices(trees.gradients(t - 1))
    for k, p in params.items():
      g = grads[k]
      m[k] = b1 * m[k] + (1 - b1) * g
      v[k] = b2 * v[k] + (1 - b2) * g ** 2
      size = lr * max(1e-3, rms(p)) * np.sqrt(1 - b2 ** t) / (1 - b1 ** t)
      p = p - size * m[k] / (np.sqrt(v[k]) + eps)
      if k[0][-1] not in NOT_DECAYED:
        p = p - lr * weight_decay * p
      params[k] = p
    yield dict(params)


def reference_adafactor(beta1=None, weight_decay=0.0):
  params = trees.original_matrices(trees.parameters())
  row, col, v, m = {}, {}, {}, {}
  for t, lr in enumerate(RATES, start=1):
    beta = 1 - t ** -0.8
    grads = trees.original_matrices(trees.gradients(t - 1))
    for k, p in params.items():
      g = grads[k]
      square = g ** 2 + 1e-30
      if p.ndim == 2 and min(p.shape) >= 128:
        row[k] = beta * row.get(k, 0) + (1 - beta) * square.mean(axis=1)
        col[k] = beta * col.get(k, 0) + (1 - beta) * square.mean(axis=0)
        update = g / np.sqrt(np.outer(row[k], col[k]) / row[k].mean())
      else:
        v[k] = beta * v.get(k, 0) + (1 - beta) * square
        update = g / np.sqrt(v[k])
      update = update / max(1, rms(update))
      delta = lr * max(1e-3, rms(p)) * update
      if beta1 is not None:
        m[k] = beta1 * m.get(k, 0) + (1 - beta1) * delta
        delta = m[k]
      decay = lr * weight_decay if k[0][-1] not in NOT_DECAYED else 0
      params[k] = p - delta - decay * p
    yield dict(params)


@pytest.mark.parametrize("name, settings", [
    ("adamw_rms", {}), ("adamw_rms", dict(weight_decay=0.1)), ("adamw_rms", dict(b1=0.8, b2=0.95)),
    ("adafactor", {}), ("adafactor", dict(beta1=0.9)), ("adafactor", dict(weight_decay=0.1))])
def test_trajectory(run_optimizer, name, settings):
  reference = dict(adamw_rms=reference_adamw_rms, adafactor=reference_adafactor)[name]
  optimizer = functools.partial(getattr(optim, name), **settings)
  for ours, theirs in zip(run_optimizer(optimizer, RATES), reference(**settings), strict=True):
    for key, matrix in trees.original_matrices(ours).items():
      np.testing.assert_allclose(matrix, theirs[key], rtol=0, atol=1e-5 * np.abs(theirs[key]).max(),
                                 err_msg=str(key))


@pytest.mark.parametrize("name", ["adamw_rms", "adafactor"])
def test_decay_without_gradient_spares_norms_and_position_tables(name):
  params = trees.parameters()
  transformation = getattr(optim, name)(0.1, weight_decay=0.5)
  zeros = trees.map_shapes(lambda path, shape: np.zeros(shape, np.float32))
  updates, _ = transformation.update(zeros, transformation.init(params), params)
  moved = optax.apply_updates(params, updates)
  for path, old in trees.flatten(params).items():
    new = np.asarray(trees.flatten(moved)[path])
    if path[-1] in NOT_DECAYED:
      np.testing.assert_array_equal(new, old)
    else:
      np.testing.assert_allclose(new, old * 0.95, rtol=1e-6)


def test_adafactor_keeps_little():
  params = {"a": {"kernel": np.ones((3, 256, 512), np.float32)}}
  state = optim.adafactor(0.1).init({"layers": params})
  numbers = sum(x.size for x in jax.tree.leaves(state))
  assert numbers < 0.01 * params["a"]["kernel"].size


def test_adafactor_is_finite_at_step_one_million():
  params = {"kernel": np.ones((130, 130), np.float32), "scale": np.ones((8,), np.float32)}
  transformation = optim.adafactor(0.01)
  state = transformation.init(params)
  late = (state[0]._replace(count=np.int32(1_000_000)), *state[1:])
  grads = {"kernel": np.full((130, 130), 1e-3, np.float32), "scale": np.zeros((8,), np.float32)}
  for _ in range(3):
    updates, late = transformation.update(grads, late, params)
    assert all(np.isfinite(u).all() for u in updates.values())


@pytest.mark.parametrize("name, setting", [
    ("adamw_rms", dict(b1=1.0)), ("adamw_rms", dict(eps=0.0)), ("adamw_rms", dict(b2="x")),
    ("adafactor", dict(beta1=0.0)), ("adafactor", dict(decay_rate=-0.8)),
    ("adafactor", dict(clipping_threshold=0)), ("adafactor", dict(multiply_by_parameter_scale=2))])
def test_impossible_settings_are_refused_by_name(name, setting):
  with pytest.raises(ValueError, match=f"{name}.{next(iter(setting))}"):
    getattr(optim, name)(0.1, **setting)
