"""The train step: accumulation, meshes, padding, precision, first losses."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5jax import metrics, optim, sharding, state as states, step as steps
from t5jax.model.t5 import T5
from tests import tiny

UNEQUAL = [1, 12, 2, 11, 1, 1, 12, 3]


def relative_difference(a, b):
  """Largest difference over the leaves, each relative to the largest entry of its leaf."""
  return max(np.abs(np.asarray(x) - np.asarray(y)).max() / max(np.abs(np.asarray(y)).max(), 1e-30)
             for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@functools.partial(jax.jit, static_argnames=("model", "num_microbatches"))
def gradients(params, batch, model, num_microbatches):
  return steps.gradients(model, params, batch, 1e-3, num_microbatches)


@pytest.mark.parametrize("num_microbatches", [2, 4, 8])
def test_microbatches_give_the_same_gradient_for_unequal_targets(num_microbatches):
  model = tiny.model()
  params, batch = tiny.parameters(model), tiny.batch(lengths=UNEQUAL)
  whole, sums = gradients(params, batch, model, 1)
  parts, part_sums = gradients(params, batch, model, num_microbatches)
  assert relative_difference(parts, whole) < 1e-5
  for name, mean in metrics.means(sums).items():
    assert metrics.means(part_sums)[name] == pytest.approx(mean, rel=1e-5)


def compiled_step(model, **settings):
  optimizer = settings.pop("optimizer", optim.adamw_rms)
  mesh = settings.pop("mesh", None) or sharding.MeshConfig().make()
  with sharding.use(mesh):
    state = states.create(model, optimizer, None, mesh, seed=0)
    step = steps.compile_train_step(
        jax.tree.map(lambda x: x.sharding, state), model=model, optimizer=optimizer, **settings)
  return mesh, state, step


def test_peak_memory_falls_as_microbatches_rise():
  peaks = []
  model = tiny.model(emb_dim=32, mlp_dim=64)
  for num_microbatches in (1, 2, 4):
    mesh, state, step = compiled_step(model, num_microbatches=num_microbatches)
    batch = sharding.put_batch(tiny.batch(batch_size=512), mesh)
    with sharding.use(mesh):
      compiled = step.lower(state, batch, np.float32(0.1), jax.random.key(0)).compile()
    peaks.append(compiled.memory_analysis().temp_size_in_bytes)
  assert peaks[0] > 1.5 * peaks[1] > 2 * peaks[2]


@pytest.mark.parametrize("optimizer", [
    optim.adamw_rms, pytest.param(optim.adafactor, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mesh", [dict(data=8), dict(fsdp=8), dict(data=2, fsdp=2, tensor=2),
                                  dict(data=2, tensor=4), dict(data=1, tensor=2)], ids=str)
def test_meshes_agree(mesh, optimizer):
  """Losses of five steps do not depend on how many devices there are and how they share the work."""
  devices = jax.devices()[:math.prod(mesh.values())]
  losses = five_losses(sharding.MeshConfig(**mesh).make(devices), optimizer)
  np.testing.assert_allclose(losses, losses_on_one_device(optimizer), rtol=1e-5)


def five_losses(mesh, optimizer):
  _, state, step = compiled_step(tiny.model(), mesh=mesh, optimizer=optimizer)
  losses = []
  for i in range(5):
    with sharding.use(mesh):
      batch = sharding.put_batch(tiny.batch(i), mesh)
      state, sums = step(state, batch, np.float32(0.02), jax.random.key(0))
    losses.append(metrics.means(jax.device_get(sums))["loss"])
  return losses


@functools.lru_cache
def losses_on_one_device(optimizer):
  return five_losses(mesh_of(1), optimizer)


OPTIMIZERS = {**{name: getattr(optim, name) for name in (
    "adafactor", "adafactor_hf", "adamw", "adamw_rms", "lion", "lion_rms", "momentum", "muon",
    "schedule_free_adamw", "sophia_g", "sophia_g_rms")}, "adamw_8bit": optim.quantized(optim.adamw)}


def mesh_of(num_devices):
  return sharding.MeshConfig().make(jax.devices()[:num_devices])


@functools.lru_cache
def accumulated(num_devices):
  """A mesh, bfloat16 parameters on it, and their jitted gradient of two microbatches."""
  mesh, model = mesh_of(num_devices), tiny.model(param_precision="bfloat16_stochastic")
  with sharding.use(mesh):
    params = states.create(model, optim.momentum, None, mesh, seed=0).params
  gradient = jax.jit(lambda params, batch: steps.gradients(model, params, batch, 0.0, 2))
  return mesh, model, params, gradient


@pytest.mark.parametrize("name", [
    name if name == "muon" else pytest.param(name, marks=pytest.mark.slow) for name in OPTIMIZERS])
def test_bfloat16_parameters_with_accumulation_on_one_and_eight_devices(name):
  """Losses of four updates. Random bits are the same on any mesh; gradients are sums in another order,
  so that a weight here and there is rounded to its other neighbour: far less than 1e-3 of a loss."""
  losses = {}
  for num_devices in (1, 8):
    mesh, model, params, gradient = accumulated(num_devices)
    chain = states.transformation(model, OPTIMIZERS[name], 1e-3, max_grad_norm=1.0)
    state, update = chain.init(params), jax.jit(chain.update)
    dtypes = jax.tree.map(lambda x: x.dtype, (params, state))
    losses[num_devices] = []
    for i in range(4):
      with sharding.use(mesh):
        grads, sums = gradient(params, sharding.put_batch(tiny.batch(batch_size=16), mesh))
        extra = dict(curvature_gradients=grads, curvature_scale=192) if "sophia" in name else {}
        updates, state = update(grads, state, params, key=jax.random.key(i), **extra)
        params = optax.apply_updates(params, updates)
      losses[num_devices].append(metrics.means(jax.device_get(sums))["loss"])
    assert {x.dtype for x in jax.tree.leaves(grads)} == {jnp.dtype(jnp.float32)}
    assert jax.tree.map(lambda x: x.dtype, (params, state)) == dtypes
  np.testing.assert_allclose(losses[8], losses[1], rtol=1e-3)
  assert losses[1][-1] < losses[1][0]


@pytest.mark.slow
def test_bfloat16_parameters_learn_as_float32_ones():
  """After 200 steps the loss is within 5 %."""
  ends = {}
  for precision in ("float32", "bfloat16_stochastic"):
    mesh, state, step = compiled_step(tiny.model(param_precision=precision), mesh=mesh_of(1))
    batches = [sharding.put_batch(tiny.batch(i), mesh) for i in range(4)]
    for i in range(200):
      with sharding.use(mesh):
        state, sums = step(state, batches[i % 4], np.float32(2e-3), jax.random.key(0))
    ends[precision] = metrics.means(jax.device_get(sums))["loss"]
  assert ends["bfloat16_stochastic"] == pytest.approx(ends["float32"], rel=0.05)


def test_curvature_is_of_labels_drawn_from_the_model():
  """The batch's own targets play no part, and the mean loss is about the entropy of the softmax: it is
  that in expectation, and 43 draws with a standard deviation of about 1 are within 1 of it."""
  model = tiny.model()
  params, batch = tiny.parameters(model), tiny.batch(lengths=UNEQUAL)
  other = {**batch, "decoder_target_tokens": np.zeros_like(batch["decoder_target_tokens"])}
  draw = jax.jit(
      lambda batch: steps.gradients(model, params, batch, 0.0, 1, label_key=jax.random.key(3)))
  grads, sums = draw(batch)
  assert relative_difference(grads, draw(other)[0]) == 0
  logits = T5(model).apply(
      {"params": params}, batch["encoder_input_tokens"], batch["decoder_input_tokens"])
  weights = batch["decoder_loss_weights"]
  entropy = -jnp.sum(jax.nn.softmax(logits) * jax.nn.log_softmax(logits), axis=-1)
  expected = float(jnp.sum(entropy * weights) / weights.sum())
  assert metrics.means(sums)["loss"] == pytest.approx(expected, abs=1.0)


def test_padding_changes_neither_loss_nor_gradient():
  model = tiny.model()
  params, batch = tiny.parameters(model), tiny.batch(lengths=UNEQUAL)
  padded = {name: np.pad(array, ((0, 0), (0, 9))) for name, array in batch.items()}
  grads, sums = gradients(params, batch, model, 1)
  padded_grads, padded_sums = gradients(params, padded, model, 1)
  assert relative_difference(padded_grads, grads) < 1e-5
  assert float(padded_sums["loss"][0]) == pytest.approx(float(sums["loss"][0]), rel=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("version", ["t5_1_0", "t5_1_1"])
@pytest.mark.parametrize("size", ["tiny", "base", *(
    pytest.param(size, marks=pytest.mark.slow) for size in ("mini", "small", "large"))])
def test_first_loss_is_that_of_a_uniform_guess(version, size, dtype):
  """At the preset's widths and head, depth 1: ln(vocab) +- 1.5 nats."""
  model = tiny.model(version, num_encoder_layers=1, num_decoder_layers=1, vocab_size=1024, dtype=dtype,
                     **preset_widths(version, size))
  params = tiny.parameters(model)
  loss = metrics.means(jax.jit(functools.partial(steps.eval_step, model=model))(
      params, tiny.batch(vocab_size=1024)))["loss"]
  assert abs(loss - math.log(1024)) < 1.5


def preset_widths(version, size):
  from t5jax.model import config
  preset = getattr(config, version)(size)
  return {name: getattr(preset, name) for name in ("emb_dim", "num_heads", "head_dim", "mlp_dim")}


def test_hf_head_starts_far_off():
  model = tiny.model(head_init="hf", emb_dim=512)
  loss = metrics.means(steps.eval_step(tiny.parameters(model), tiny.batch(), model=model))["loss"]
  assert loss > 2 * math.log(tiny.VOCAB_SIZE)


def test_statistics_softmax_and_logits_are_float32_with_bfloat16_activations():
  model = tiny.model(dtype="bfloat16", vocab_size=tiny.VOCAB_SIZE)
  params, batch = tiny.parameters(model), tiny.batch()
  text = str(jax.make_jaxpr(functools.partial(steps.eval_step, model=model))(params, batch))
  lines = [line for line in text.splitlines() if " = " in line]
  for operation in ("exp ", "rsqrt ", "log ", "reduce_max", "reduce_sum"):
    found = [line for line in lines if f"= {operation.strip()}" in line]
    assert found, operation
    assert not [line for line in found if "bf16" in line.split("=")[0]], operation
  assert any("bf16" in line for line in lines)


def test_one_compilation_and_no_host_transfer_in_the_loop():
  mesh, state, step = compiled_step(tiny.model(dropout_rate=0.1))
  key = jax.device_put(jax.random.key(0), sharding.replicated(mesh))
  batches = [sharding.put_batch(tiny.batch(i), mesh) for i in range(4)]
  rates = [jax.device_put(np.float32(rate), sharding.replicated(mesh)) for rate in (0.1, 0.2, 0.3, 0.4)]
  with sharding.use(mesh), jax.transfer_guard("disallow"):
    for batch, rate in zip(batches, rates):
      state, sums = step(state, batch, rate, key)
  assert step._cache_size() == 1
  assert np.isfinite(float(sums["loss"][0]))


def test_remat_changes_nothing():
  params, batch = tiny.parameters(tiny.model()), tiny.batch()
  plain, _ = gradients(params, batch, tiny.model(), 1)
  for remat, decoder in (("minimal", None), ("full", "dots"), ("offload", None)):
    again, _ = gradients(params, batch, tiny.model(remat=remat, decoder_remat=decoder), 1)
    assert relative_difference(again, plain) < 1e-5, remat


def test_dropout_is_a_function_of_seed_and_step():
  mesh, state, step = compiled_step(tiny.model(dropout_rate=0.3))
  batch = sharding.put_batch(tiny.batch(), mesh)

  def loss(seed, at_step):
    fresh = jax.tree.map(jnp.copy, state)._replace(step=jnp.int32(at_step))
    with sharding.use(mesh):
      return float(step(fresh, batch, np.float32(0.0), jax.random.key(seed))[1]["loss"][0])

  assert loss(0, 0) == loss(0, 0)
  assert len({loss(0, 0), loss(0, 1), loss(1, 0)}) == 3
