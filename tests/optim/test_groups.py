"""Frozen parameters and learning rates of their own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5jax import checkpoint, optim, state as states
from tests.optim import references, trees
from tests.optim.test_battery import CASES, Nowhere

FROZEN = [r"^token_embedder/", r"rel_embedding$"]
FACTORS = {r"^encoder/layers/": 0.5, r"^logits_dense/": 2.0}


def grouped(name):
  return optim.grouped(getattr(optim, name), FROZEN, FACTORS)


def train(optimizer, steps=3, **further):
  """Returns the parameters, flat, and the state after some steps; they compile once."""
  params = jax.device_put(trees.parameters())
  state = optimizer(0.0).init(params)
  traces = []

  @jax.jit
  def step(params, state, grads, learning_rate):
    traces.append(1)
    updates, state = optimizer(learning_rate).update(grads, state, params, **further)
    return optax.apply_updates(params, updates), state

  for i in range(steps):
    params, state = step(params, state, trees.gradients(i), np.float32(0.02 + 0.01 * i))
  assert len(traces) == 1
  return trees.flatten(params), state


def factor(path):
  name = "/".join(path)
  if name.startswith("token_embedder/") or name.endswith("rel_embedding"):
    return 0
  return 0.5 if name.startswith("encoder/layers/") else 2 if name.startswith("logits_dense") else 1


@pytest.mark.parametrize("name", ["adafactor", "lion", "muon", "schedule_free_adamw", "sophia_g"])
def test_each_group_is_trained_as_if_alone_at_its_rate(name):
  further = {}
  if "sophia" in name:
    further = dict(curvature_gradients=trees.gradients(trees.CURVATURE), curvature_scale=100.0)
  params, _ = train(grouped(name), **further)
  whole = {rate: train(lambda lr, rate=rate: getattr(optim, name)(lr * rate), **further)[0]
           for rate in (0.5, 1, 2)}
  for path, old in trees.flatten(trees.parameters()).items():
    if factor(path) == 0:
      np.testing.assert_array_equal(params[path], old)
    else:  # The same program but for fusion: a few units of rounding.
      expected = whole[factor(path)][path]
      np.testing.assert_allclose(params[path], expected, atol=2e-6 * np.abs(expected).max())
      assert not np.array_equal(params[path], old)


def test_frozen_parameters_have_no_state():
  kept = jax.tree.leaves(grouped("adamw")(0.0).init(trees.parameters()))
  trained = sum(x.size for path, x in trees.flatten(trees.parameters()).items() if factor(path))
  assert sum(x.size for x in kept if x.ndim) == 2 * trained


def test_states_of_groups_come_back_as_they_were(tmp_path):
  params, opt_state = train(grouped("muon"))
  state = states.TrainState(jnp.int32(3), {"all": params["logits_dense", "kernel"]}, opt_state)
  abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
  with checkpoint.Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(state, {}, Nowhere())
    restored, _ = checkpoints.restore(abstract, Nowhere())
  assert jax.tree.structure(restored) == jax.tree.structure(state)
  jax.tree.map(np.testing.assert_array_equal, restored, state)


def test_averages_of_all_groups_are_evaluated():
  params, state = train(grouped("schedule_free_adamw"))
  averages = trees.flatten(optim.eval_params(state, unflatten(params)))
  whole_params, whole_state = train(lambda lr: optim.schedule_free_adamw(lr * 0.5))
  whole = trees.flatten(optim.eval_params(whole_state, unflatten(whole_params)))
  for path, average in averages.items():
    assert np.array_equal(average, params[path]) == (factor(path) == 0), path
    if factor(path) == 0.5:
      np.testing.assert_allclose(average, whole[path], atol=2e-6 * np.abs(whole[path]).max())


def unflatten(flat):
  return trees.map_shapes(lambda path, _: flat[path])


@pytest.mark.parametrize("frozen, factors, message", [
    (["encodr/layers"], {}, "grouped.frozen = 'encodr/layers'.*Did you mean 'encoder/layers'"),
    ([], {"wi_0/kernal": 0.5}, "grouped.learning_rates = 'wi_0/kernal'.*'wo/kernel'"),
    (["^encoder/"], {"kernel": 0.5}, "'kernel' is not valid.*encoder/layers/.*'\\^encoder/' matches"),
    ([], {"kernel": 0.5, "wo": 2.0}, "'wo' is not valid.*wo/kernel as well, which 'kernel' matches")])
def test_patterns_that_match_nothing_or_overlap_are_refused(frozen, factors, message):
  with pytest.raises(ValueError, match=message):
    optim.grouped(optim.adamw, frozen, factors)(0.0).init(trees.parameters())


@pytest.mark.parametrize("frozen, factors, message", [
    ("encoder", {}, "grouped.frozen = 'encoder'"), (["("], {}, "grouped.frozen"),
    (["encoder"], {"encoder": 0.5}, "grouped.learning_rates = 'encoder'.*frozen"),
    ([], {"encoder": 0}, "grouped.learning_rates.'encoder'. = 0"), ([], ["encoder"], "learning_rates")])
def test_impossible_settings_are_refused_by_name(frozen, factors, message):
  with pytest.raises(ValueError, match=message):
    optim.grouped(optim.adamw, frozen, factors)


def test_freezing_everything_is_refused():
  with pytest.raises(ValueError, match="grouped.frozen.*something to train"):
    jax.eval_shape(optim.grouped(optim.adamw, frozen=[".*"])(0.1).init, trees.parameters())


def test_all_in_one_group():
  """The rest is empty, and every optimizer bears an empty tree."""
  for name in CASES:
    optimizer = optim.grouped(getattr(optim, name), [], {"embedding|kernel|scale": 1.0})
    params, _ = jax.eval_shape(functools.partial(one_step, optimizer), trees.parameters())
    assert jax.tree.structure(params) == jax.tree.structure(trees.parameters())


def one_step(optimizer, params):
  updates, state = optimizer(0.1).update(params, optimizer(0.1).init(params), params)
  return optax.apply_updates(params, updates), state
