"""What is particular to one optimizer."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5jax import optim, sharding, state as states
from t5jax.optim.adafactor import FactoredRmsState
from t5jax.optim.patterns import decay_mask
from tests import tiny
from tests.optim import references, trees
from tests.optim.test_battery import RATES, run


@pytest.mark.parametrize("optimizer", [optim.adafactor, optim.adafactor_hf])
def test_adafactor_keeps_little(optimizer):
  params = {"layers": {"a": {"kernel": np.ones((3, 256, 512), np.float32)}}}
  numbers = sum(x.size for x in jax.tree.leaves(optimizer(0.1).init(params)))
  assert numbers < 0.01 * params["layers"]["a"]["kernel"].size


@pytest.mark.parametrize("moments", ["fresh", "old"])
@pytest.mark.parametrize("optimizer", [optim.adafactor, optim.adafactor_hf])
def test_adafactor_is_finite_at_step_one_million(optimizer, moments):
  """Resumed there, or begun anew with the count of the run it goes on from; gradients of any size."""
  params = trees.parameters()
  update = jax.jit(lambda grads, state, params: optimizer(0.01).update(grads, state, params))
  state = optimizer(0.0).init(params)
  if moments == "old":
    _, state = update(trees.gradients(0), state, params)
  is_counted = lambda x: "count" in getattr(x, "_fields", ())
  state = jax.tree.map(
      lambda x: x._replace(count=jnp.int32(1_000_000)) if is_counted(x) else x, state,
      is_leaf=is_counted)
  for scale in (0.0, 1e-12, 1.0, 1e12):
    grads = jax.tree.map(lambda g, scale=scale: scale * g, trees.gradients(1))
    updates, state = update(grads, state, params)
    assert all(np.isfinite(u).all() for u in jax.tree.leaves(updates))
  assert next(int(s.count) for s in state if isinstance(s, FactoredRmsState)) == 1_000_004


def test_the_average_of_schedule_free_adamw():
  memories = {}

  def one(key, p, g, t, lr, memory):
    memories[key] = memory
    return references.schedule_free_adamw(key, p, g, t, lr, memory)

  for _ in references.trajectory(one, RATES):
    pass
  *_, (params, state) = run("schedule_free_adamw", 0)
  for nested in (state, {"a": (state, jnp.zeros(3))}):
    for key, x in trees.original_matrices(optim.eval_params(nested, params)).items():
      np.testing.assert_allclose(x, memories[key]["x"], atol=5e-6 * np.abs(memories[key]["x"]).max())


def test_without_a_schedule_free_state_parameters_are_evaluated_as_they_are():
  params = trees.parameters()
  assert optim.eval_params(optim.adamw(0.1).init(params), params) == params


def test_sophia_keeps_its_curvature_until_there_is_another():
  """In the chain of the train step, whose clip is for the training gradient alone."""
  params, grads = trees.parameters(), trees.gradients(0)
  chain = states.transformation(tiny.model(), optim.sophia_g, 0.1, max_grad_norm=1.0)
  update = jax.jit(chain.update)
  _, state = update(grads, chain.init(params), params, curvature_gradients=grads, curvature_scale=7)
  _, later = update(grads, state, params)
  for g, h, kept in zip(*map(jax.tree.leaves, (grads, state[1].nu, later[1].nu)), strict=True):
    np.testing.assert_allclose(h, 0.01 * 7 * g ** 2, rtol=1e-5)
    np.testing.assert_array_equal(kept, h)
  with pytest.raises(ValueError, match="curvature_scale"):
    update(grads, state, params, curvature_gradients=grads)


def test_muon_takes_the_hidden_matrices_of_a_t5():
  params = states.abstract_params(tiny.model())
  groups = jax.eval_shape(optim.muon(0.1).init, params).inner_states
  taken = {name: {path for path, x in trees.flatten(groups[name].inner_state[0].mu).items()
                  if not isinstance(x, optax.MaskedNode)} for name in groups}
  assert taken["muon"] | taken["adamw"] == set(trees.flatten(params))
  assert {path[-1] for path in taken["muon"]} == {"kernel"} and not any(
      "logits_dense" in path for path in taken["muon"])
  assert {path[-1] for path in taken["adamw"]} == {"embedding", "kernel", "rel_embedding", "scale"}


def test_decay_can_be_kept_from_other_parameters():
  mask = trees.flatten(decay_mask("adamw", [r"embedding$", "^encoder/layers"])(trees.parameters()))
  assert {path for path, decayed in mask.items() if decayed} == {
      ("logits_dense", "kernel"), ("encoder", "encoder_norm", "scale")}


@pytest.mark.parametrize("mesh", [dict(fsdp=8), dict(data=2, fsdp=2, tensor=2)], ids=str)
@pytest.mark.parametrize("optimizer", [
    optim.muon, optim.adamw, optim.schedule_free_adamw,
    optim.grouped(optim.muon, frozen=["^token_embedder/"], learning_rates={"^encoder/": 0.5}),
    optim.grouped(optim.adamw, learning_rates={"^encoder/": 0.5})], ids=range(5))
def test_moments_lie_like_their_parameters(mesh, optimizer):
  """Also inside Optax's partitions: whatever has a parameter's path and shape."""
  mesh = sharding.MeshConfig(**mesh).make()
  state = states.abstract(tiny.model(), optimizer, 1.0, mesh)
  layouts = {path: (x.shape, x.sharding) for path, x in trees.flatten(state.params).items()}
  found = 0
  for path, leaf in jax.tree_util.tree_leaves_with_path(state.opt_state):
    names = tuple(key.key for key in path if isinstance(key, jax.tree_util.DictKey))
    own = next((names[i:] for i in range(len(names)) if names[i:] in layouts), None)
    if own is None:
      assert leaf.ndim <= 1
    else:
      found += 1
      assert (leaf.shape, leaf.sharding) == layouts[own], path
  assert found >= len(layouts) - 1
  assert any(not x.sharding.is_fully_replicated for x in jax.tree.leaves(state.opt_state))
