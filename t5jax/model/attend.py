"""Softmax attention by several programs that compute the same: XLA's own, cuDNN's, and model/flash.py.

Shapes: B batch, L queries, M keys, H heads, K head_dim.
T5 does not divide the scores by sqrt(K): the initialisation of the query kernel does it.
"""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec

from t5jax import sharding
from t5jax.model.flash import flash_attention
from t5jax.settings import SettingError

WEIGHTS = "attention_weights"  # The name by which T5Config.remat knows them.
MASKED = -1e10  # Added to scores that must not be seen; exp of it is 0 in float32.
_LEAST_CAPABILITY = 8.0  # Of NVIDIA's GPUs, Ampere's.


def attend(query, key, value, *, bias=None, causal=False, query_segments=None, key_segments=None,
           dropout=None, implementation="xla"):
  """Unscaled softmax attention: scores, bias and softmax in float32, the rest in the inputs' dtype.

  A query sees the keys of its own segment; without query_segments, all keys whose segment is not 0,
  which is padding. Two positions of a segment are as far apart in their row as in the segment, so a bias
  by offset holds for packed rows as it is. A query that sees no key gets something finite.

  Args:
    query: [B, L, H, K].
    key: [B, M, H, K].
    value: [B, M, H, K].
    bias: added to the scores: an attention.OffsetBias, or, but for "pallas", float32 [H, L, M].
    causal: hide the keys at later positions than the query's.
    query_segments: int32 [B, L], only together with key_segments.
    key_segments: int32 [B, M].
    dropout: applied to the weights [B, H, L, M]; only "xla" has them to apply it to.
    implementation: "xla", "cudnn" or "pallas", see T5Config.attention.

  Returns:
    [B, L, H, K].

  Raises:
    SettingError: the implementation cannot do this, or not on this machine.
  """
  if implementation != "xla":
    check_machine(implementation, query.shape[1], key.shape[1])
    if dropout is not None:
      raise SettingError("T5Config.attention", implementation, "'xla' where there is dropout")
  if implementation == "pallas":
    return _pallas(query, key, value, bias, causal, query_segments, key_segments)
  if hasattr(bias, "matrix"):
    bias = bias.matrix(query.shape[1], key.shape[1])
  if implementation == "cudnn":
    return _cudnn(query, key, value, bias, causal, query_segments, key_segments)
  return _xla(query, key, value, bias, causal, query_segments, key_segments, dropout)


def check_machine(implementation, *lengths):
  """Raises SettingError if JAX's devices cannot do an implementation, or not for rows of these lengths."""
  device = jax.devices()[0]

  def refuse(valid):
    raise SettingError("T5Config.attention", implementation, valid)

  if implementation == "cudnn":
    if device.platform != "gpu":
      refuse(f"'xla' or 'pallas': cuDNN needs an NVIDIA GPU, and JAX runs on {device.platform}")
    if any(length % 2 for length in lengths):
      refuse(f"'xla' or 'pallas': cuDNN needs even lengths, and these are {', '.join(map(str, lengths))}")
  capability = getattr(device, "compute_capability", None)  # "9.0"; other makers' have none, or a name.
  if implementation != "xla" and re.fullmatch(r"\d+\.\d+", str(capability)):
    if float(capability) < _LEAST_CAPABILITY:
      refuse(f"'xla': the others need an Ampere GPU or a later one, and this is {device.device_kind}")


def _xla(query, key, value, bias, causal, query_segments, key_segments, dropout):
  scores = jnp.einsum("BLHK,BMHK->BHLM", query, key, preferred_element_type=jnp.float32)
  # One after the other, so that the gradient of a bias [H, L, M] never takes the shape of all.
  if bias is not None:
    scores = _add_bias(scores, bias)
  if causal:
    scores += MASKED * ~jnp.tri(query.shape[1], key.shape[1], dtype=bool)
  if query_segments is not None:
    scores += MASKED * (query_segments[:, None, :, None] != key_segments[:, None, None, :])
  elif key_segments is not None:
    scores += MASKED * (key_segments == 0)[:, None, None, :]
  weights = _softmax(scores, value.dtype)
  return jnp.einsum("BHLM,BMHK->BLHK", weights if dropout is None else dropout(weights), value)


@jax.custom_vjp
def _add_bias(scores, bias):
  """[B, H, L, M] + [H, L, M]; the gradient of the bias is a sum over the batch."""
  return scores + bias


def _add_bias_backward(residuals, gradient):
  del residuals
  # XLA's CPU compiler needs thirty times as long for the sum as for a product with ones.
  times_ones = lambda x: jnp.einsum("BHLM,B->HLM", x, jnp.ones(x.shape[0]), precision=jax.lax.Precision.HIGHEST)
  return gradient, jax.lax.platform_dependent(gradient, cpu=times_ones, default=lambda x: jnp.sum(x, axis=0))


_add_bias.defvjp(lambda scores, bias: (_add_bias(scores, bias), None), _add_bias_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _softmax(scores, dtype):
  """Softmax over the last axis in float32. Of all its arrays only the result, in `dtype`, is kept for the
  backward pass; JAX's own keeps two in float32 beside it."""
  return jax.nn.softmax(scores, axis=-1).astype(dtype)


def _softmax_forward(scores, dtype):
  weights = checkpoint_name(_softmax(scores, dtype), WEIGHTS)
  return weights, weights


def _softmax_backward(dtype, weights, gradient):
  del dtype
  weights, gradient = weights.astype(jnp.float32), gradient.astype(jnp.float32)
  return (weights * (gradient - jnp.sum(weights * gradient, axis=-1, keepdims=True)),)


_softmax.defvjp(_softmax_forward, _softmax_backward)


def _cudnn(query, key, value, bias, causal, query_segments, key_segments):
  """cuDNN's fused attention. It takes padding as lengths: id 0 may only follow a row's tokens.

  Segments become part of the bias, which is then [B, H, L, M], as is its gradient: with packed rows it
  saves time, but hardly memory.
  """
  mask = lengths = None
  if query_segments is not None:
    mask = query_segments[:, None, :, None] == key_segments[:, None, None, :]
  elif key_segments is not None:
    ends = jnp.where(key_segments != 0, jnp.arange(1, key.shape[1] + 1), 1)
    lengths = jnp.max(ends, axis=1).astype(jnp.int32)
  return jax.nn.dot_product_attention(
      query, key, value, None if bias is None else bias[None].astype(query.dtype), mask, scale=1.0,
      is_causal=causal, key_value_seq_lengths=lengths, implementation="cudnn")


def _pallas(query, key, value, bias, causal, query_segments, key_segments):
  batch, num_heads = query.shape[0], query.shape[2]
  if key_segments is None:
    key_segments = jnp.ones((batch, key.shape[1]), jnp.int32)
  if query_segments is None:
    query_segments = jnp.ones((batch, query.shape[1]), jnp.int32)
    key_segments = (key_segments != 0).astype(jnp.int32)
  values, starts = (jnp.zeros((num_heads, 1)), ()) if bias is None else (bias.values, bias.starts)
  run = functools.partial(flash_attention, starts=starts, causal=causal)
  operands = query, key, value, query_segments, key_segments, values
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty:
    return run(*operands)
  # GSPMD cannot divide a kernel: each device is given its examples and heads, as the model lays them out.
  batch_axes, head_axes = (nn.logical_to_mesh_axes((name,))[0] for name in ("batch", "heads"))
  spec = lambda x, *axes: sharding.fit(NamedSharding(mesh, PartitionSpec(*axes)), x.shape).spec
  specs = [*(spec(x, batch_axes, None, head_axes, None) for x in operands[:3]),
           *(spec(x, batch_axes, None) for x in operands[3:5]), spec(values, head_axes, None)]
  return jax.shard_map(run, in_specs=tuple(specs), out_specs=specs[0], check_vma=False)(*operands)
