"""Attention whose memory is linear in length, with a bias by offset computed inside the kernels.

FlashAttention-2 (arXiv:2307.08691) in Pallas: a program holds one block of queries of one head (for the
gradients of keys and values: of keys) and walks over the blocks of the other side. Scores, softmax and
sums are float32; the operands of matmuls have the inputs' dtype.

The bias is given by steps of the offset. T5's buckets are such steps: a tile of scores meets few of
them, one far from the diagonal a single one. So a tile's bias is as many selections, and its gradient as
many masked sums: no table of offsets, no scatter, and the same bits every time.

The same kernels lower for NVIDIA GPUs (Triton) and TPUs (Mosaic); on a CPU they are interpreted.

Shapes: B batch, L queries, M keys, H heads, K head_dim, S steps, T rows of a tile.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as pltriton

BLOCK = 128
_GPU_BACKWARD_BLOCK = 64  # Its programs hold four tiles at once: larger ones would not fit the registers.
_LOWEST = -1e30  # Below every score, and finite: the difference of two is 0, not NaN.
_FAR = 2 ** 30  # Beyond every offset.


@dataclasses.dataclass(frozen=True)
class _Static:
  """What a kernel is compiled for: flash_attention's settings, block is T, num_query_blocks L / T."""

  causal: bool
  starts: tuple[int, ...]
  block: int
  num_query_blocks: int = 0


def flash_attention(query, key, value, query_segments, key_segments, values, starts, *, causal=False,
                    block=BLOCK):
  """Softmax attention, unscaled, in which a query sees the keys of its own segment.

  Differentiable in query, key, value and values.

  Args:
    query: [B, L, H, K].
    key: [B, M, H, K].
    value: [B, M, H, K].
    query_segments: int32 [B, L], none negative.
    key_segments: int32 [B, M], none negative.
    values: float32 [H, S], what is added to the scores in each step of the offset, which is the key's
      position less the query's.
    starts: S - 1 ascending ints: step s begins at offset starts[s - 1].
    causal: hide the keys at positive offsets.
    block: T, a power of two and at least 16.

  Returns:
    [B, L, H, K] in the query's dtype; 0 where a query sees no key.
  """
  length, head_dim = query.shape[1], query.shape[3]
  width = max(16, pl.next_power_of_2(head_dim))  # What matrix units take.

  def whole_blocks(x):
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % block), (0, 0), (0, width - head_dim)))
    return x.swapaxes(1, 2)

  def whole_segments(x, filler):
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % block)), constant_values=filler)

  # The keys that fill up the last block are of a segment that no query is of.
  out = _flash(_Static(causal, tuple(starts), block), whole_blocks(query), whole_blocks(key),
               whole_blocks(value), whole_segments(query_segments, -1),
               whole_segments(key_segments, -2), values)
  return out.swapaxes(1, 2)[:, :length, :, :head_dim]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _flash(static, *operands):
  """flash_attention of whole blocks: queries [B, H, L, K], keys and values [B, H, M, K]."""
  return _flash_forward(static, *operands)[0]


def _flash_forward(static, query, key, value, query_segments, key_segments, values):
  column = jax.ShapeDtypeStruct((*query.shape[:3], 1), jnp.float32)
  out, lse = _launch(_forward_kernel, static, values, (query, query_segments[:, None, :, None]),
                     (key, value, key_segments[:, None, None]), (query, column))
  return out, (query, key, value, query_segments, key_segments, values, out, lse)


def _flash_backward(static, residuals, d_out):
  query, key, value, query_segments, key_segments, values, out, lse = residuals
  delta = jnp.sum(out.astype(jnp.float32) * d_out, axis=-1, keepdims=True)
  d_query, d_values = _launch(
      _query_kernel, static, values, (query, query_segments[:, None, :, None], d_out, lse, delta),
      (key, value, key_segments[:, None, None]), (query, None))
  d_key, d_value = _launch(
      _key_kernel, static, values, (key, value, key_segments[:, None, :, None]),
      (query, d_out, query_segments[:, None, None], *(x.swapaxes(2, 3) for x in (lse, delta))),
      (key, value))
  return d_query, d_key, d_value, None, None, d_values


_flash.defvjp(_flash_forward, _flash_backward)


def _launch(kernel, static, values, own, whole, outputs):
  """Runs a kernel for each block, head and example.

  Args:
    kernel: a function of (static, refs of three tables, of `own`, of `whole`, of `outputs`).
    static: _Static.
    values: float32 [H, S].
    own: arrays [B, H or 1, rows, any]; a program is given its block of the rows.
    whole: arrays [B, H or 1, any, any]; a program is given all of its example and head.
    outputs: for each, an array or shape like those of `own`, or None for the gradient of `values`.

  Returns:
    A list of arrays, one for each of `outputs`.
  """
  call = functools.partial(_call, kernel, static, outputs, len(own))
  return jax.lax.platform_dependent(
      values, *own, *whole, cpu=functools.partial(call, "cpu"), tpu=functools.partial(call, "tpu"),
      default=functools.partial(call, "gpu"))


def _call(kernel, static, outputs, num_own, platform, values, *operands):
  own, whole = operands[:num_own], operands[num_own:]
  is_backward = kernel is not _forward_kernel
  is_gpu = platform == "gpu"
  block = min(static.block, _GPU_BACKWARD_BLOCK) if is_gpu and is_backward else static.block
  (batch, num_heads, rows, head_dim), other_rows = own[0].shape, whole[0].shape[2]
  queries, keys = (other_rows, rows) if kernel is _key_kernel else (rows, other_rows)
  static = dataclasses.replace(static, block=block, num_query_blocks=queries // block)
  by_block = jax.ShapeDtypeStruct(
      (batch, num_heads, rows // block, 1, pl.next_power_of_2(values.shape[1])), jnp.float32)
  shapes = [by_block if x is None else jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outputs]
  tables = values[:, None], *_tables(static, keys // block)
  memory = dict(memory_space=pltpu.SMEM) if platform == "tpu" else {}
  # As many warps as keep the tiles in registers, as few stages as keep the operands in shared memory.
  small = head_dim <= 64 and own[0].dtype.itemsize == 2
  gpu = pltriton.CompilerParams(num_warps=4 if small and is_backward else 8, num_stages=2 if small else 1)
  results = pl.pallas_call(
      functools.partial(kernel, static), grid=(rows // block, num_heads, batch), out_shape=shapes,
      in_specs=[pl.BlockSpec((None, 1, values.shape[1]), lambda i, h, b: (h, 0, 0), **memory),
                pl.BlockSpec(**memory), pl.BlockSpec(**memory),
                *(_spec(x.shape, block) for x in own), *(_spec(x.shape) for x in whole)],
      out_specs=[_spec(x.shape, block) for x in shapes], interpret=platform == "cpu",
      compiler_params=gpu if is_gpu else None)(*tables, *own, *whole)
  return [x.sum((0, 2, 3))[:, :values.shape[1]] if x.ndim == 5 else x for x in results]


def _tables(static, num_key_blocks):
  """What the kernels know of the steps, as int32 arrays.

  Returns:
    (limits [S + 1]: step s is limits[s] <= offset < limits[s + 1]; spans [2, diagonals]: the first and the
    last step that the tiles of a diagonal meet, from that of the last queries and the first keys on).
  """
  limits = np.array([-_FAR, *static.starts, _FAR], np.int32)
  middle = static.block * np.arange(1 - static.num_query_blocks, num_key_blocks)
  ends = middle + (static.block - 1) * np.array([[-1], [1]])
  return limits, np.searchsorted(limits[1:-1], ends, side="right").astype(np.int32)


def _spec(shape, block=None):
  """The block of an array [B, H or 1, rows, any] or, with one row a block, [B, H, blocks, 1, any]."""
  head = lambda h: h if shape[1] > 1 else 0
  if len(shape) == 5:
    return pl.BlockSpec((None, None, None, 1, shape[4]), lambda i, h, b: (b, head(h), i, 0, 0))
  if block is None:
    return pl.BlockSpec((None, None, *shape[2:]), lambda i, h, b: (b, head(h), 0, 0))
  return pl.BlockSpec((None, None, block, shape[3]), lambda i, h, b: (b, head(h), i, 0))


def _matmul(x, y, contract):
  return jax.lax.dot_general(x, y, (contract, ((), ())), preferred_element_type=jnp.float32)


_ROWS_BY_ROWS = ((1,), (1,))  # x @ y.T
_MATRICES = ((1,), (0,))  # x @ y


def _tile(static, tables, i, j, rows, columns, row_segments, column_segments, rows_are_keys=False):
  """Returns the scores of block i of queries and j of keys, [T, T] float32; which are seen; offsets."""
  values, limits, _ = tables
  row, column = (jax.lax.broadcasted_iota(jnp.int32, (static.block,) * 2, axis) for axis in (0, 1))
  offset = (row - column if rows_are_keys else column - row) + (j - i) * static.block
  first, last = _span(static, tables, i, j)

  def raise_to(step, bias):
    return jnp.where(offset >= limits[step], values[0, step], bias)

  bias = jax.lax.fori_loop(first + 1, last + 1, raise_to, jnp.full(row.shape, values[0, first]))
  seen = row_segments == column_segments
  if static.causal:
    seen &= offset <= 0
  return _matmul(rows, columns, _ROWS_BY_ROWS) + bias, seen, offset


def _span(static, tables, i, j):
  """The first and the last step of the bias that a tile meets."""
  diagonal = j - i + static.num_query_blocks - 1
  return tables[2][0, diagonal], tables[2][1, diagonal]


def _num_visible_blocks(static, i, keys):
  """How many blocks of keys the queries of block i may see."""
  num_blocks = keys.shape[0] // static.block
  return jnp.minimum(i + 1, num_blocks) if static.causal else num_blocks


def _forward_kernel(static, values, limits, spans, query, query_segments, key, value, key_segments,
                    out, lse):
  """Attention of one block of queries, and the logarithm of its softmax's denominator."""
  i = pl.program_id(0)
  own_query, own_segments = query[...], query_segments[...]

  def add_keys(j, carry):
    total, denominator, largest = carry
    keys = pl.ds(j * static.block, static.block)
    scores, seen, _ = _tile(static, (values, limits, spans), i, j, own_query, key[keys, :],
                            own_segments, key_segments[:, keys])
    scores = jnp.where(seen, scores, _LOWEST)
    new_largest = jnp.maximum(largest, jnp.max(scores, axis=1, keepdims=True))
    # Where nothing has been seen yet, the difference is 0 and its exponential is not.
    weights = jnp.where(seen, jnp.exp(scores - new_largest), 0.0)
    kept = jnp.exp(largest - new_largest)
    total = total * kept + _matmul(weights.astype(value.dtype), value[keys, :], _MATRICES)
    return total, denominator * kept + jnp.sum(weights, axis=1, keepdims=True), new_largest

  zero = jnp.zeros((static.block, 1), jnp.float32)
  total, denominator, largest = jax.lax.fori_loop(
      0, _num_visible_blocks(static, i, key), add_keys,
      (jnp.zeros(own_query.shape, jnp.float32), zero, zero + _LOWEST))
  denominator = jnp.where(denominator == 0, 1.0, denominator)
  out[...] = (total / denominator).astype(out.dtype)
  lse[...] = largest + jnp.log(denominator)


def _query_kernel(static, values, limits, spans, query, query_segments, d_out, lse, delta, key, value,
                  key_segments, d_query, d_values):
  """Gradients of one block of queries, and what it adds to that of the bias."""
  i = pl.program_id(0)
  tables = values, limits, spans
  own_query, own_segments = query[...], query_segments[...]
  own_d_out, own_lse, own_delta = d_out[...], lse[...], delta[...]
  steps = jax.lax.broadcasted_iota(jnp.int32, d_values.shape, 1)

  def add_keys(j, carry):
    keys = pl.ds(j * static.block, static.block)
    scores, seen, offset = _tile(static, tables, i, j, own_query, key[keys, :], own_segments,
                                 key_segments[:, keys])
    weights = jnp.where(seen, jnp.exp(scores - own_lse), 0.0)
    d_scores = weights * (_matmul(own_d_out, value[keys, :], _ROWS_BY_ROWS) - own_delta)

    def add_step(step, sums):
      inside = (offset >= limits[step]) & (offset < limits[step + 1])
      return jnp.where(steps == step, sums + jnp.sum(jnp.where(inside, d_scores, 0.0)), sums)

    first, last = _span(static, tables, i, j)
    return (carry[0] + _matmul(d_scores.astype(key.dtype), key[keys, :], _MATRICES),
            jax.lax.fori_loop(first, last + 1, add_step, carry[1]))

  zeros = jnp.zeros(own_query.shape, jnp.float32), jnp.zeros(d_values.shape, jnp.float32)
  total, sums = jax.lax.fori_loop(0, _num_visible_blocks(static, i, key), add_keys, zeros)
  d_query[...] = total.astype(d_query.dtype)
  d_values[...] = sums


def _key_kernel(static, values, limits, spans, key, value, key_segments, query, d_out, query_segments,
                lse, delta, d_key, d_value):
  """Gradients of one block of keys and values. Tiles are transposed: a row for each key."""
  j = pl.program_id(0)
  own_key, own_value, own_segments = key[...], value[...], key_segments[...]

  def add_queries(i, carry):
    queries = pl.ds(i * static.block, static.block)
    scores, seen, _ = _tile(static, (values, limits, spans), i, j, own_key, query[queries, :],
                            own_segments, query_segments[:, queries], rows_are_keys=True)
    weights = jnp.where(seen, jnp.exp(scores - lse[:, queries]), 0.0)
    d_weights = _matmul(own_value, d_out[queries, :], _ROWS_BY_ROWS)
    d_scores = weights * (d_weights - delta[:, queries])
    return (carry[0] + _matmul(d_scores.astype(query.dtype), query[queries, :], _MATRICES),
            carry[1] + _matmul(weights.astype(d_out.dtype), d_out[queries, :], _MATRICES))

  zeros = jnp.zeros(own_key.shape, jnp.float32), jnp.zeros(own_value.shape, jnp.float32)
  first = j if static.causal else 0
  total_key, total_value = jax.lax.fori_loop(first, static.num_query_blocks, add_queries, zeros)
  d_key[...] = total_key.astype(d_key.dtype)
  d_value[...] = total_value.astype(d_value.dtype)
