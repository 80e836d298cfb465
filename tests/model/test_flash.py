"""The flash kernels, interpreted, against XLA's attention; and that they lower for GPUs and TPUs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5jax import sharding
from t5jax.model import attend as attend_module
from t5jax.model.attend import attend
from t5jax.model.attention import OffsetBias, offset_steps
from t5jax.model.flash import flash_attention

BATCH, HEADS, HEAD_DIM = 2, 2, 12


@pytest.fixture
def small_blocks(monkeypatch):
  """Blocks of 16, so that few tokens make many."""
  monkeypatch.setattr(attend_module, "flash_attention", functools.partial(flash_attention, block=16))


def operands(query_length, key_length, bidirectional=True, dtype=jnp.float32, batch=BATCH):
  """(query, key, value, values of the bias), the steps' starts, and a gradient of the result."""
  rng = np.random.default_rng(0)
  normal = lambda *shape: rng.standard_normal(shape).astype(np.float32)
  # 16 buckets up to 24: lengths of 40 and more see the steps of the last one, and all others.
  starts, buckets = offset_steps(bidirectional, 16, 24)
  arrays = [normal(batch, length, HEADS, HEAD_DIM).astype(dtype)
            for length in (query_length, key_length, key_length, query_length)]
  arrays[0] *= HEAD_DIM ** -0.5
  return (*arrays[:3], normal(HEADS, len(buckets))), starts, arrays[3]


def segments(length, ends):
  """int32 [batch, length]: segment i ends at ends[row][i]; 0, padding, follows the last."""
  positions = np.arange(length)
  return np.stack([
      np.where(positions < row[-1], 1 + np.searchsorted(row, positions, side="right"), 0)
      for row in ends]).astype(np.int32)


def results(implementation, arrays, starts, d_out, **settings):
  """(output, gradients of query, key, value and, with starts, of the bias)."""
  def run(query, key, value, values):
    bias = None if starts is None else OffsetBias(values, starts)
    return attend(query, key, value, bias=bias, implementation=implementation, **settings)

  def both(arrays, d_out):
    out, pull = jax.vjp(run, *arrays)
    return out, *pull(d_out)

  return jax.jit(both)(arrays, d_out)


CASES = {
    # Query and key length, causal, with a bias, where segments of queries and of keys end.
    "encoder, padding": (37, 37, False, True, None, [[37], [20]]),
    "encoder, packed": (48, 48, False, True, [[10, 33, 45], [25, 48]], [[10, 33, 45], [25, 48]]),
    "decoder": (45, 45, True, True, None, None),
    "decoder, packed": (45, 45, True, True, [[7, 30, 45], [16, 32]], [[7, 30, 45], [16, 32]]),
    "cross, padding": (21, 50, False, False, None, [[50], [3]]),
    "cross, packed": (33, 50, False, False, [[5, 20], [33]], [[30, 50], [41]]),
}


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_equal_xlas(case, small_blocks):
  """1e-5 of the largest number: float32 sums of at most 50 terms, in another order."""
  length, key_length, causal, has_bias, *ends = CASES[case]
  arrays, starts, d_out = operands(length, key_length, bidirectional=not causal)
  settings = dict(causal=causal)
  if ends[0]:
    settings["query_segments"] = segments(length, ends[0])
    # XLA's result for a query that sees no key is an average of what it must not see.
    d_out = d_out * (settings["query_segments"] != 0)[:, :, None, None]
  if ends[1]:
    settings["key_segments"] = segments(key_length, ends[1])
  run = functools.partial(results, arrays=arrays, starts=starts if has_bias else None, d_out=d_out,
                          **settings)
  ours, theirs = run("pallas"), run("xla")
  seen = np.ones(d_out.shape, bool) if not ends[0] else settings["query_segments"][:, :, None, None] != 0
  np.testing.assert_allclose(ours[0] * seen, theirs[0] * seen, atol=1e-5 * np.abs(theirs[0]).max())
  for name, mine, other in zip(("query", "key", "value", "bias"), ours[1:], theirs[1:]):
    assert np.abs(mine - other).max() <= 1e-5 * max(1, np.abs(other).max()), name
  assert has_bias == bool(np.any(ours[4]))


def test_in_bfloat16(small_blocks):
  """Against float32 XLA, the kernels are no further off than XLA's attention in bfloat16.

  Each rounds the inputs' products once to 8 bits, at other places: hence twice its distance, not once.
  """
  arrays, starts, d_out = operands(37, 37, dtype=jnp.bfloat16)
  exact = results("xla", [x.astype(jnp.float32) for x in arrays], starts, d_out.astype(jnp.float32))
  distances = [[float(jnp.linalg.norm(x.astype(jnp.float32) - y)) for x, y in zip(
      results(name, arrays, starts, d_out), exact)] for name in ("pallas", "xla")]
  assert all(0 < ours < 2 * theirs for ours, theirs in zip(*distances)), distances


def test_a_query_without_keys_gets_zeros(small_blocks):
  arrays, starts, d_out = operands(20, 20)
  ours = results("pallas", arrays, starts, d_out, query_segments=segments(20, [[20], [20]]),
                 key_segments=segments(20, [[20], [0]]))
  assert not np.any(ours[0][1]) and not np.any(ours[1][1])
  assert all(np.all(np.isfinite(x)) for x in ours)


def test_each_device_computes_its_own_examples_and_heads(small_blocks):
  arrays, starts, d_out = operands(20, 20, batch=4)
  alone = results("pallas", arrays, starts, d_out)
  with sharding.use(sharding.MeshConfig(fsdp=2, tensor=2).make()):
    together = results("pallas", arrays, starts, d_out)
  for mine, other in zip(together, alone):
    np.testing.assert_allclose(mine, other, atol=1e-5)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_forward_and_backward_lower_for(platform, dtype):
  """As far as JAX goes without the device: to Triton's and to Mosaic's language."""
  arrays, starts, d_out = operands(300, 300, dtype=dtype)

  def gradients(arrays, d_out):
    run = lambda *x: flash_attention(*x[:3], ids, ids, x[3], starts, causal=True)
    return jax.vjp(run, *arrays)[1](d_out)

  ids = jnp.ones((BATCH, 300), jnp.int32)
  unstable = jax.export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")
  exported = jax.export.export(jax.jit(gradients), platforms=[platform], disabled_checks=[unstable])(
      arrays, d_out)
  target = {"cuda": "@__gpu$xla.gpu.triton(", "tpu": "@tpu_custom_call("}[platform]
  assert exported.mlir_module().count(target) == 3


def test_memory():
  """Four times the length: the kernels take four times the memory, the reference at least twice that."""
  def temporary_bytes(implementation, length):
    arrays, starts, d_out = operands(length, length, batch=1)
    run = functools.partial(results, implementation, starts=starts)
    lowered = jax.jit(lambda arrays, d_out: run(arrays, d_out=d_out)).lower(arrays, d_out)
    return lowered.compile().memory_analysis().temp_size_in_bytes

  growth = lambda implementation: (
      temporary_bytes(implementation, 2048) / temporary_bytes(implementation, 512))
  assert growth("pallas") < 4.5 and growth("xla") > 8
