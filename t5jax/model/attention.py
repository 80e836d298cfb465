"""Multi-head attention with T5's relative position bias, and the key/value cache for decoding.

Shapes: B batch, L queries, M keys, D emb_dim, H heads, K head_dim, S steps of the bias.
"""

import functools

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from t5jax.model import layers
from t5jax.model.attend import attend


@functools.lru_cache
def bucket_table(bidirectional, num_buckets, max_distance):
  """Returns the bucket of each distance back 0..max_distance (and, bidirectional, forward).

  Half of the buckets of a direction are single offsets, the rest grow logarithmically up to
  max_distance; all beyond share the last (arXiv:1910.10683 section 2.1).

  Returns:
    (back, ahead): int32 arrays [max_distance + 1]. In a decoder everything ahead is bucket 0.
  """
  per_side = num_buckets // 2 if bidirectional else num_buckets
  exact = per_side // 2
  distance = np.arange(max_distance + 1)
  # In float32, as all other implementations: their rounding is part of the published models.
  ratio = np.log(np.maximum(distance, 1).astype(np.float32) / exact) / np.log(max_distance / exact)
  grown = exact + (ratio.astype(np.float32) * (per_side - exact)).astype(np.int32)
  back = np.where(distance < exact, distance, np.minimum(grown, per_side - 1)).astype(np.int32)
  ahead = per_side + back if bidirectional else np.zeros_like(back)
  return back, ahead


@functools.lru_cache
def offset_steps(bidirectional, num_buckets, max_distance):
  """Returns the intervals of the offset (key minus query position) that share a bucket.

  Returns:
    (starts of all but the first, a tuple of ascending ints; the bucket of each, an int32 array).
  """
  back, ahead = bucket_table(bidirectional, num_buckets, max_distance)
  offsets = np.arange(-max_distance, max_distance + 1)
  buckets = np.where(offsets > 0, ahead[np.abs(offsets)], back[np.abs(offsets)])
  changes = np.flatnonzero(np.diff(buckets)) + 1
  return tuple(offsets[changes].tolist()), buckets[[0, *changes]]


@flax.struct.dataclass
class OffsetBias:
  """A bias per head that depends on the offset, key minus query position, and changes in steps.

  Attributes:
    values: float32 [H, S].
    starts: S - 1 ascending ints: step s begins at offset starts[s - 1].
  """

  values: jax.Array
  starts: tuple[int, ...] = flax.struct.field(pytree_node=False)

  def of_offsets(self, offsets):
    """Integer offsets [N] -> float32 biases [H, N]."""
    steps = jnp.searchsorted(jnp.asarray(self.starts), offsets, side="right", method="compare_all")
    return jnp.take(self.values, steps, axis=1)

  def matrix(self, query_length, key_length):
    """Returns float32 biases [H, L, M] for positions counted from 0.

    Only L + M - 1 offsets differ, so only they are looked up. A row of them, written again and
    again with one element of padding and read back in rows one shorter, comes out shifted by one
    more each time: the bias matrix, whose gradient is then sums and no scatter.
    """
    num_heads, num_offsets = self.values.shape[0], query_length + key_length - 1
    row = self.of_offsets(jnp.arange(num_offsets) - (query_length - 1))
    rows = jnp.broadcast_to(jnp.pad(row, ((0, 0), (0, 1)))[:, None],
                            (num_heads, query_length, num_offsets + 1))
    flat = rows.reshape(num_heads, -1)[:, :query_length * num_offsets]
    return flat.reshape(num_heads, query_length, num_offsets)[:, :, query_length - 1:]

  def at(self, position, key_length):
    """Returns [H, 1, M] for the single query at a (traced) position."""
    return self.of_offsets(jnp.arange(key_length) - position)[:, None]


class RelativePositionBias(nn.Module):
  """A learned bias per head and bucketed offset, one table per stack. Returns an OffsetBias."""

  num_heads: int
  bidirectional: bool
  num_buckets: int
  max_distance: int
  std: float

  @nn.compact
  def __call__(self):
    table = layers.param(self, "rel_embedding", layers.normal(self.std),
                         (self.num_heads, self.num_buckets), ("heads", "relpos_buckets"))
    starts, buckets = offset_steps(self.bidirectional, self.num_buckets, self.max_distance)
    return OffsetBias(jnp.take(table.astype(jnp.float32), buckets, axis=1), starts)


class Attention(nn.Module):
  """Attention from `x` [B, L, D] to `source` [B, M, D] (itself, in self-attention).

  `bias`, `causal` and the segments are those of `attend`, `implementation` too.

  Kernels are 2-D over the joined heads, [D, H * K], as in T5X's checkpoints.

  `position` switches to decoding one token: `x` holds only the token at that position. Keys and
  values then live in the "cache" collection: [B, source length, H, K]. In self-attention
  (`cache_length` set) this call writes its position; in cross-attention the first call fills all.
  One query is no work for a fused kernel: it is always "xla".
  """

  num_heads: int
  head_dim: int
  dropout_rate: float
  deterministic: bool
  implementation: str = "xla"

  @nn.compact
  def __call__(self, x, source, bias=None, *, causal=False, query_segments=None, key_segments=None,
               position=None, cache_length=None):
    joined = self.num_heads * self.head_dim
    split = lambda y: nn.with_logical_constraint(
        y.reshape(*y.shape[:2], self.num_heads, self.head_dim), ("batch", "length", "heads", "kv"))
    project = lambda name, inputs, std=None: split(layers.Dense(
        joined, ("embed", "joined_kv"), std, layers.PROJECTION if inputs is x else layers.OF_ENCODED,
        name=name)(inputs))
    # 1 / sqrt(D * K): the usual 1 / sqrt(D), and the 1 / sqrt(K) that the scores are not given.
    query = project("query", x, (x.shape[-1] * self.head_dim) ** -0.5)
    if position is not None and cache_length is None:
      key, value = self._cross_cache(lambda: (project("key", source), project("value", source)))
    else:
      key, value = project("key", source), project("value", source)
      if position is not None:
        key, value = self._append(key, value, position, cache_length)
    dropout = layers.Dropout(self.dropout_rate, self.deterministic) if self.dropout_rate else None
    y = attend(query, key, value, bias=bias, causal=causal, query_segments=query_segments,
               key_segments=key_segments, dropout=dropout,
               implementation="xla" if position is not None else self.implementation)
    y = layers.Dense(x.shape[-1], ("joined_kv", "embed"), name="out")(y.reshape(*x.shape[:2], joined))
    return nn.with_logical_constraint(y, ("batch", "length", "embed"))

  def _append(self, key, value, position, cache_length):
    shape = (key.shape[0], cache_length, self.num_heads, self.head_dim)
    cached = [self.variable("cache", name, jnp.zeros, shape, key.dtype)
              for name in ("cached_key", "cached_value")]
    for variable, new in zip(cached, (key, value)):
      variable.value = jax.lax.dynamic_update_slice(variable.value, new, (0, position, 0, 0))
    return [variable.value for variable in cached]

  def _cross_cache(self, compute):
    if self.has_variable("cache", "cached_key"):
      return self.get_variable("cache", "cached_key"), self.get_variable("cache", "cached_value")
    key, value = compute()
    self.put_variable("cache", "cached_key", key)
    self.put_variable("cache", "cached_value", value)
    return key, value
