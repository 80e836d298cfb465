"""Multi-head attention with T5's relative position bias, and the key/value cache for decoding.

Shapes: B batch, L queries, M keys, D emb_dim, H heads, K head_dim.
T5 does not divide the scores by sqrt(K): the initialisation of the query kernel does it.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t5jax.model import layers

MASKED = -1e10  # Added to scores that must not be seen; exp of it is 0 in float32.


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


class RelativePositionBias(nn.Module):
  """A learned bias per head and bucketed offset, one table per stack."""

  num_heads: int
  bidirectional: bool
  num_buckets: int
  max_distance: int
  std: float

  def setup(self):
    self.rel_embedding = layers.param(
        self, "rel_embedding", layers.normal(self.std), (self.num_heads, self.num_buckets),
        ("heads", "relpos_buckets"))

  def _of_offsets(self, offsets):
    """Integer offsets (key minus query position) [N] -> float32 biases [H, N]."""
    back, ahead = bucket_table(self.bidirectional, self.num_buckets, self.max_distance)
    distance = jnp.minimum(jnp.abs(offsets), self.max_distance)
    buckets = jnp.where(offsets > 0, jnp.asarray(ahead)[distance], jnp.asarray(back)[distance])
    return jnp.take(self.rel_embedding.astype(jnp.float32), buckets, axis=1)

  def __call__(self, query_length, key_length):
    """Returns float32 biases [H, L, M] for positions counted from 0.

    Only L + M - 1 offsets differ, so only they are looked up. A row of them, written again and
    again with one element of padding and read back in rows one shorter, comes out shifted by one
    more each time: the bias matrix, whose gradient is then sums and no scatter.
    """
    num_offsets = query_length + key_length - 1
    row = self._of_offsets(jnp.arange(num_offsets) - (query_length - 1))
    rows = jnp.broadcast_to(jnp.pad(row, ((0, 0), (0, 1)))[:, None],
                            (self.num_heads, query_length, num_offsets + 1))
    flat = rows.reshape(self.num_heads, -1)[:, :query_length * num_offsets]
    return flat.reshape(self.num_heads, query_length, num_offsets)[:, :, query_length - 1:]

  def at(self, position, key_length):
    """Returns [H, 1, M] for the single query at a (traced) position."""
    return self._of_offsets(jnp.arange(key_length) - position)[:, None]


def dot_product_attention(query, key, value, *biases, dropout=lambda weights: weights):
  """Softmax attention: scores, bias and softmax in float32, the rest in the inputs' dtype.

  Args:
    query: [B, L, H, K].
    key: [B, M, H, K].
    value: [B, M, H, K].
    *biases: float32, each broadcastable to [B, H, L, M], or None. Kept apart so that the gradient of
      a small one, such as [H, L, M], never takes the shape of their sum.
    dropout: applied to the weights [B, H, L, M].

  Returns:
    [B, L, H, K].
  """
  scores = jnp.einsum("BLHK,BMHK->BHLM", query, key, preferred_element_type=jnp.float32)
  for bias in biases:
    scores = scores if bias is None else scores + bias
  weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
  return jnp.einsum("BHLM,BMHK->BLHK", dropout(weights), value)


class Attention(nn.Module):
  """Attention from `x` [B, L, D] to `source` [B, M, D] (itself, in self-attention).

  `biases` are added to the scores, see dot_product_attention.

  Kernels are 2-D over the joined heads, [D, H * K], as in T5X's checkpoints.

  `position` switches to decoding one token: `x` holds only the token at that position. Keys and
  values then live in the "cache" collection: [B, source length, H, K]. In self-attention
  (`cache_length` set) this call writes its position; in cross-attention the first call fills all.
  """

  num_heads: int
  head_dim: int
  dropout_rate: float
  deterministic: bool

  @nn.compact
  def __call__(self, x, source, *biases, position=None, cache_length=None):
    joined = self.num_heads * self.head_dim
    split = lambda y: nn.with_logical_constraint(
        y.reshape(*y.shape[:2], self.num_heads, self.head_dim), ("batch", "length", "heads", "kv"))
    project = lambda name, inputs, std=None: split(
        layers.Dense(joined, ("embed", "joined_kv"), std, name=name)(inputs))
    # 1 / sqrt(D * K): the usual 1 / sqrt(D), and the 1 / sqrt(K) that the scores are not given.
    query = project("query", x, (x.shape[-1] * self.head_dim) ** -0.5)
    if position is not None and cache_length is None:
      key, value = self._cross_cache(lambda: (project("key", source), project("value", source)))
    else:
      key, value = project("key", source), project("value", source)
      if position is not None:
        key, value = self._append(key, value, position, cache_length)
    dropout = layers.Dropout(self.dropout_rate, self.deterministic)
    y = dot_product_attention(query, key, value, *biases, dropout=dropout)
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
