"""Optimizer states in the host's memory: the same updates, a layer at a time."""

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5jax import memory, optim, sharding, state as states, step as steps
from t5jax.optim.by_layer import is_on_host
from t5jax.settings import SettingError
from tests import tiny
from tests.test_step import OPTIMIZERS


def make(model, optimizer, where, shape=None):
  """Returns a mesh, and a state on it with its optimizer's part in the memory `where`."""
  mesh = sharding.MeshConfig(**shape or {}).make(jax.devices()[:8 if shape else 1])
  with sharding.use(mesh):
    return mesh, states.create(model, optimizer, 1.0, mesh, 0, where)


def after_three_updates(where, model, optimizer, shape=None, is_sophia=False):
  """Returns the state after updates with given gradients, clipped, and the norms of the updates."""
  mesh, state = make(model, optimizer, where, shape)
  layout = jax.tree.map(lambda x: x.sharding, state)
  update = jax.jit(
      functools.partial(steps.apply_gradients, model=model, optimizer=optimizer, max_grad_norm=1.0),
      donate_argnums=0, out_shardings=(layout, None))
  norms = []
  with sharding.use(mesh):
    for i in range(3):
      rng = np.random.default_rng(i)
      grads = jax.tree.map(lambda x: jnp.asarray(rng.standard_normal(x.shape), x.dtype), state.params)
      extra = dict(key=jax.random.key(i), grad_norm=optax.tree.norm(grads).astype(jnp.float32))
      if is_sophia:
        extra |= dict(curvature_gradients=grads, curvature_scale=jnp.float32(9.0))
      state, norm = update(state, grads, np.float32(0.01), extra)
      norms.append(float(norm))
  assert jax.tree.map(lambda x: x.sharding, state) == layout
  return state, norms


ALL = {**OPTIMIZERS, "grouped": optim.grouped(
    optim.adamw, frozen=["^decoder/layers/mlp"], learning_rates={"^token_embedder": 0.1})}
OFTEN = ("adamw_rms", "adafactor", "muon", "sophia_g", "adamw_8bit", "grouped")


@pytest.mark.parametrize("name, precision, shape", [
    *(pytest.param(name, "float32", None, marks=[] if name in OFTEN else pytest.mark.slow)
      for name in ALL),
    ("adamw", "bfloat16_kahan", None), ("adamw", "bfloat16_master", None),
    ("adamw_rms", "float32", dict(data=2, fsdp=2, tensor=2))], ids=str)
def test_updates_do_not_depend_on_where_states_are_kept(name, precision, shape):
  """A sum in another order is off by a few 1e-7 of a matrix's largest entry, after Muon's products of
  matrices by a few 1e-6. An 8-bit code, and a bfloat16 number, may fall to its neighbour now and then;
  with compensation, a number has 16 bits."""
  arguments = tiny.model(param_precision=precision), ALL[name], shape, "sophia" in name
  (device, norms), (host, host_norms) = (
      after_three_updates(where, *arguments) for where in ("device", "host"))
  assert any(map(is_on_host, jax.tree.leaves(host.opt_state)))
  assert not any(map(is_on_host, jax.tree.leaves((host.params, device))))
  np.testing.assert_allclose(host_norms, norms, rtol=1e-5)
  tolerance = 1e-5 if name == "muon" else 2e-6
  if precision == "bfloat16_kahan":
    device, host = map(compensated, (device, host))
    tolerance = 2 ** -16
  for a, b in zip(*map(jax.tree.leaves, jax.device_get((device, host))), strict=True):
    difference, largest = np.abs(np.float32(a) - np.float32(b)), np.abs(np.float32(a)).max()
    if a.dtype in (np.int8, np.uint8, jnp.bfloat16):
      assert np.mean(difference > 0) < 1e-3
      assert difference.max() <= (largest / 128 if a.dtype == jnp.bfloat16 else 1)
    else:
      assert difference.max() <= tolerance * largest


def compensated(state):
  """The parameters of bfloat16_kahan with what they cannot hold, float32, and the moments."""
  params, kept = jax.device_get((state.params, state.opt_state.kept))
  return jax.tree.map(lambda p, c: np.float32(p) + np.float32(c), params, kept), state.opt_state.inner


def test_layers_are_rounded_by_bits_of_their_own():
  """The mean of many roundings is right, and no two layers are rounded alike."""
  model = tiny.model(param_precision="bfloat16_stochastic")
  mesh, state = make(model, optim.momentum, "host")
  state = state._replace(params=jax.tree.map(jnp.ones_like, state.params))
  grads = jax.tree.map(lambda x: jnp.full(x.shape, -2.0 ** -10, x.dtype), state.params)
  update = jax.jit(functools.partial(steps.apply_gradients, model=model, optimizer=optim.momentum))
  with sharding.use(mesh):
    new, _ = update(state, grads, np.float32(1), dict(key=jax.random.key(0), grad_norm=jnp.float32(1)))
  layers = np.float32(new.params["encoder"]["layers"]["mlp"]["wo"]["kernel"])
  is_up = layers > 1
  assert set(np.unique(layers)) == {1, 1 + 2 ** -7} and not np.array_equal(is_up[0], is_up[1])
  # 2^-10 of a step of 2^-7: one in eight, within five standard deviations.
  np.testing.assert_allclose(is_up.mean(), 1 / 8, atol=5 * (7 / 64 / is_up.size) ** 0.5)


def test_no_stack_is_on_the_device_as_a_whole():
  model = tiny.model(num_encoder_layers=3, num_decoder_layers=4)
  mesh, state = make(model, optim.adamw, "host")
  with sharding.use(mesh):
    jaxpr = jax.make_jaxpr(functools.partial(steps.apply_gradients, model=model, optimizer=optim.adamw))(
        state, state.params, np.float32(1), {})
  moved = {tuple(x.aval.shape) for eqn in equations(jaxpr.jaxpr) if eqn.primitive.name == "device_put"
           for x in eqn.outvars}
  stacks = {x.shape for part in ("encoder", "decoder")
            for x in jax.tree.leaves(state.params[part]["layers"])}
  assert {(1, *shape[1:]) for shape in stacks} <= moved and not stacks & moved


def equations(jaxpr):
  for eqn in jaxpr.eqns:
    yield eqn
    for inner in jax.extend.core.jaxprs_in_params(eqn.params):
      yield from equations(inner)


def test_an_optimizer_that_mixes_parameters_is_refused():
  mixing = lambda rate: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))
  model = tiny.model()
  mesh, state = make(model, mixing, "host")
  with sharding.use(mesh), pytest.raises(SettingError, match="optimizer_memory = 'host'.*'device'"):
    jax.eval_shape(functools.partial(steps.apply_gradients, model=model, optimizer=mixing),
                   state, state.params, 0.1, {})


def test_optimizers_are_tried_before_a_run():
  steps.check_by_layer(tiny.model(), optim.quantized(optim.adamw_rms))
  with pytest.raises(SettingError, match="'host'.*'device': with this optimizer layers updated one by one"):
    steps.check_by_layer(tiny.model(), optax.lamb)  # It scales by the norm of a whole stack.


def test_averages_are_those_of_states_on_the_device():
  averages = []
  for where in ("device", "host"):
    state, _ = after_three_updates(where, tiny.model(), optim.schedule_free_adamw)
    averages.append(jax.device_get(state.eval_params()))
  for a, b in zip(*map(jax.tree.leaves, averages), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * np.abs(a).max())


def test_memory_counts_one_layer_or_all_that_is_in_no_stack():
  model, mesh = tiny.model(num_encoder_layers=5), sharding.MeshConfig().make_abstract(1)
  all_bytes, few = (memory.state_bytes(model, optim.adamw, mesh, optimizer_memory=where).optimizer
                    for where in ("device", "host"))
  params = states.abstract_params(model)
  size = lambda tree: sum(x.size for x in jax.tree.leaves(tree))
  apart = size(params) - sum(size(params[part]["layers"]) for part in ("encoder", "decoder"))
  assert all_bytes == 8 * size(params) + 4
  assert few == 8 * max(apart, size(params["decoder"]["layers"]) // model.num_decoder_layers) + 4
