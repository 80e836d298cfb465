"""8-bit states: the codes against the map they are from, edge values, and what stays in 32 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5jax import optim
from t5jax.optim.quantized import QuantizedState, dequantize, quantize
from tests.optim import trees

BLOCK = 256


def dynamic_map(signed):
  """bitsandbytes' table (create_dynamic_map of 8 bits, 7 of them exponent), in float64, sorted."""
  values = [0.0, 1.0]
  for i in range(7):
    edges = np.linspace(0.1, 1, 2 ** i * (1 if signed else 2) + 1)
    middles = 10.0 ** (i - 6) * (edges[:-1] + edges[1:]) / 2
    values += [*middles, *(-middles if signed else [])]
  assert len(values) == 256
  return np.sort(values)


def by_table(x, signed):
  """What bitsandbytes keeps of `x` [blocks, BLOCK]."""
  table, scale = dynamic_map(signed), np.abs(x).max(axis=-1, keepdims=True)
  ratio = x / scale
  above = np.clip(np.searchsorted(table, ratio), 1, 255)
  low, high = table[above - 1], table[above]
  return np.where(ratio - low <= high - ratio, low, high) * scale


def round_trip(x, signed, block_size=BLOCK):
  codes, scales = jax.jit(quantize, static_argnums=(1, 2))(x, block_size, signed)
  assert codes.shape == x.shape and codes.dtype == (jnp.int8 if signed else jnp.uint8)
  return np.asarray(jax.jit(dequantize, static_argnums=2)(codes, scales, block_size))


BLOCKS = {
    "normal": lambda rng: rng.normal(size=(512, BLOCK)),
    "heavy-tailed": lambda rng: rng.standard_t(2, size=(512, BLOCK)),
    "wide-range": lambda rng: rng.normal(size=(512, BLOCK)) * 10 ** rng.uniform(-6, 0, (512, BLOCK))}


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("name", BLOCKS)
def test_errors_are_no_larger_than_bitsandbytes(name, signed):
  """Mean and largest relative error. The tolerance is float32's: the table here is float64."""
  x = BLOCKS[name](np.random.default_rng(0)).astype(np.float32)
  x = x if signed else np.abs(x)
  errors = [np.abs(kept - x) / np.abs(x) for kept in (round_trip(x, signed), by_table(x, signed))]
  assert errors[0].mean() <= errors[1].mean() * (1 + 1e-4)
  assert errors[0].max() <= errors[1].max() * (1 + 1e-4)


@pytest.mark.parametrize("signed, stated", [(True, 0.00704), (False, 0.00353)])
def test_the_error_stated_holds(signed, stated):
  for make in BLOCKS.values():
    x = make(np.random.default_rng(1)).astype(np.float32)
    x = x if signed else np.abs(x)
    error = np.abs(round_trip(x, signed) - x) / np.abs(x).max(axis=-1, keepdims=True)
    assert error.max() < stated


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("size", [5, BLOCK + 1])
def test_edge_blocks(signed, size):
  """Zeros and constants are exact; so is the largest entry, of either sign, beside any others."""
  for value in (0.0, 1.0, 3.3e-30, 7.7e30, *([-1.0, -2.5e-5] if signed else [])):
    constant = np.full((2, size), value, np.float32)
    np.testing.assert_array_equal(round_trip(constant, signed), constant)
  outlier = np.zeros((2, size), np.float32)
  outlier[:, size // 2] = [-123.25, 123.25] if signed else [123.25, 0.5]
  np.testing.assert_array_equal(round_trip(outlier, signed), outlier)
  outlier[outlier == 0] = 1.0
  error = np.abs(round_trip(outlier, signed) - outlier)
  assert error.max() <= 0.0071 * np.abs(outlier).max()


def test_codes_are_a_fixed_point():
  """What has been quantised is quantised to itself, so that saving or a zero step costs nothing."""
  for signed in (True, False):
    x = np.random.default_rng(2).normal(size=(8, 1000)).astype(np.float32)
    once = round_trip(x if signed else np.abs(x), signed)
    np.testing.assert_array_equal(round_trip(once, signed), once)


# A tree with large matrices, single and stacked, and everything that stays in 32 bits.
PARAMS = {
    "token_embedder": {"embedding": (128, 96)},
    "encoder": {"layers": {"mlp": {"wi": {"kernel": (3, 96, 300)}},
                           "attention": {"query": {"kernel": (3, 16, 12)}},
                           "pre_mlp_layer_norm": {"scale": (3, 5000)}}},
    "logits_dense": {"kernel": (96, 128)},
}
LARGE = ("encoder", "layers", "mlp", "wi", "kernel")
OPTIMIZERS = {name: getattr(optim, name) for name in ("adamw", "adamw_rms", "lion", "momentum")}


def params_and_gradients(seed=0):
  rng = np.random.default_rng(seed)
  make = lambda path, shape: rng.normal(size=shape).astype(np.float32)
  return trees.map_shapes(make, PARAMS), trees.map_shapes(make, PARAMS)


def bytes_of(tree):
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_only_large_matrices_are_quantised(name):
  params, _ = params_and_gradients()
  plain = OPTIMIZERS[name](0.1).init(params)
  state = jax.jit(optim.quantized(OPTIMIZERS[name])(0.1).init)(params)
  assert isinstance(state, QuantizedState)
  changed = 0
  assert jax.tree.structure(state.inner) == jax.tree.structure(plain)
  for (path, leaf), old in zip(jax.tree_util.tree_leaves_with_path(state.inner), jax.tree.leaves(plain)):
    assert leaf.shape == old.shape
    if "'wi'" in jax.tree_util.keystr(path):
      assert leaf.dtype in (jnp.int8, jnp.uint8)
      changed += 1
    else:
      assert leaf.dtype == old.dtype
  assert changed == (2 if "adam" in name else 1)
  assert {x.shape for x in jax.tree.leaves(state.scales)} == {(3, 96, 2)}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_stays_close_to_32_bits(name):
  """After 50 steps the whole movement differs by less than 10 %: single codes are up to 7 % apart
  in their decade, their errors of random sign. Lion takes only signs, so it may differ more."""
  params, _ = params_and_gradients()
  ends = []
  for optimizer in (OPTIMIZERS[name], optim.quantized(OPTIMIZERS[name])):
    transformation = optimizer(1e-3)
    moved, state = params, jax.jit(transformation.init)(params)
    update = jax.jit(transformation.update)
    for i in range(50):
      updates, state = update(params_and_gradients(100 + i)[1], state, moved)
      moved = optax.apply_updates(moved, updates)
    ends.append(jax.tree.map(lambda a, b: np.asarray(a - b), moved, params))
  for (path, plain), packed in zip(trees.flatten(ends[0]).items(), trees.flatten(ends[1]).values()):
    distance = np.linalg.norm(packed - plain) / np.linalg.norm(plain)
    if path == LARGE:
      assert 0 < distance < (0.25 if name == "lion" else 0.1)
    else:
      np.testing.assert_array_equal(packed, plain)


def test_second_moments_are_never_negative_and_positive_ones_never_zero():
  params, _ = params_and_gradients()
  transformation = optim.quantized(optim.adamw_rms)(1e-3)
  state = jax.jit(transformation.init)(params)
  update = jax.jit(transformation.update)
  rng = np.random.default_rng(0)
  for _ in range(30):
    grads = jax.tree.map(
        lambda p: np.float32(rng.normal(size=p.shape) * 10 ** rng.uniform(-12, 0, p.shape)), params)
    updates, state = update(grads, state, params)
    assert all(np.isfinite(u).all() and np.abs(u).max() < 1 for u in jax.tree.leaves(updates))
  codes = trees.flatten(state.inner[0].nu)[LARGE]
  assert codes.dtype == jnp.uint8 and (codes > 0).all()


@pytest.mark.parametrize("name", [
    name if name == "adamw" else pytest.param(name, marks=pytest.mark.slow) for name in OPTIMIZERS])
def test_five_hundred_steps_without_gradient_change_nothing(name):
  params, _ = params_and_gradients()
  transformation = optim.quantized(OPTIMIZERS[name])(1e-2)
  zeros = jax.tree.map(jnp.zeros_like, params)

  def step(carry, _):
    params, state = carry
    updates, state = transformation.update(zeros, state, params)
    return (optax.apply_updates(params, updates), state), None

  start = params, jax.jit(transformation.init)(params)
  moved, state = jax.jit(lambda carry: jax.lax.scan(step, carry, None, length=500)[0])(start)
  jax.tree.map(np.testing.assert_array_equal, moved, params)
  assert not any(np.asarray(x).any() for x in jax.tree.leaves(state) if x.ndim)


@pytest.mark.parametrize("optimizer, limit", [(optim.adamw_rms, 2.2), (optim.lion, 1.1)])
def test_bytes_per_parameter(optimizer, limit):
  params = {"kernel": jnp.zeros((768, 2048))}
  state = jax.eval_shape(optim.quantized(optimizer)(0.1).init, params)
  assert bytes_of(state) < limit * params["kernel"].size


def test_a_stack_is_the_same_as_its_layers():
  """No block reaches over two rows, so stacking changes nothing, to the last bit."""
  rng = np.random.default_rng(0)
  kernels = rng.normal(size=(3, 96, 300)).astype(np.float32)
  grads = rng.normal(size=(3, 96, 300)).astype(np.float32)

  def updates(kernels, grads, name):
    params = {name: {"kernel": kernels}}
    transformation = optim.quantized(optim.adamw)(0.1)
    state = jax.jit(transformation.init)(params)
    for scale in (1.0, 0.3, -2.0):
      step, state = jax.jit(transformation.update)({name: {"kernel": scale * grads}}, state, params)
    return step[name]["kernel"]

  stacked = updates(kernels, grads, "layers")
  for i in range(3):
    np.testing.assert_array_equal(stacked[i], updates(kernels[i], grads[i], "layer"))


@pytest.mark.parametrize("settings, named", [
    (dict(exclude=("mlp/nothing",)), "quantized.exclude.*mlp/nothing.*mlp/wi"),
    (dict(block_size=0), "quantized.block_size"),
    (dict(exclude=("kernel", "embedding", "scale")), "quantized.optimizer"),
    (dict(optimizer=optim.adafactor), "quantized.optimizer.*adafactor.*mu")])
def test_impossible_settings_are_refused_by_name(settings, named):
  with pytest.raises(ValueError, match=named):
    optimizer = optim.quantized(**{"optimizer": optim.adamw, **settings})
    jax.eval_shape(optimizer(0.1).init, params_and_gradients()[0])
