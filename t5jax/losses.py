"""Cross entropy of the output head, a chunk of tokens at a time, so that all logits never exist at once.

Shapes: B batch, L length, D emb_dim, V vocab; S devices that split the batch, C tokens of a chunk.
"""

import functools
import math

import jax
import jax.numpy as jnp

from t5jax import sharding
from t5jax.model.layers import logits as head_logits

CHUNK_TOKENS = 512  # At most, on each device: 66 MB of logits at T5's vocabulary.


def head_losses(hidden, kernel, targets, weights, z_loss=0.0, label_key=None):
  """Returns the loss to minimise, and what it is made of for each token.

  The loss is the weighted sum of -log softmax(logits)[target] and z_loss * log(Z)^2, where log(Z) is
  the log of the softmax's normaliser; the penalty keeps it near 0 so that the logits do not drift in
  low precision (T5X uses z_loss 1e-4).

  Since the loss is a sum, its gradient is known as soon as a chunk's logits are: it is taken in the
  forward pass, while they are there, and nothing is computed twice. Sums are float32 throughout.

  Args:
    hidden: [B, L, D], the decoder's output.
    kernel: [D, V], the head.
    targets: integer [B, L].
    weights: float32 [B, L].
    z_loss: weight of the penalty.
    label_key: None, or a key to draw targets from the model's own softmax instead.

  Returns:
    float32 scalar, and {"loss", "z_loss", "accuracy"}: float32 [B, L], unweighted. Only the scalar
    has a gradient.
  """
  total, tokens = _losses(hidden, kernel, targets, weights, label_key, z_loss)
  return total, jax.lax.stop_gradient(tokens)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _losses(hidden, kernel, targets, weights, label_key, z_loss):
  return _scan(hidden, kernel, targets, weights, label_key, z_loss, with_gradient=False)[0]


def _forward(hidden, kernel, targets, weights, label_key, z_loss):
  return _scan(hidden, kernel, targets, weights, label_key, z_loss, with_gradient=True)


def _backward(z_loss, saved, cotangents):
  del z_loss
  gradients, total = saved, cotangents[0]
  scaled = [(total * x.astype(jnp.float32)).astype(x.dtype) for x in gradients]
  return scaled[0], scaled[1], None, scaled[2], None


_losses.defvjp(_forward, _backward)


def _scan(hidden, kernel, targets, weights, label_key, z_loss, with_gradient):
  """Returns (loss, tokens), and the loss' gradient by hidden, kernel and weights, or ()."""
  num_shards = math.gcd(sharding.num_batch_shards(), len(hidden))
  chunks = [_cut(x, num_shards) for x in (hidden, targets, weights)]
  # Put together once, not once in each chunk.
  kernel = sharding.constrain(kernel, (None, "vocab"))
  operand = kernel.astype(hidden.dtype)

  def one_chunk(kernel_gradient, chunk):
    x, targets, weights, number = chunk
    logits = sharding.constrain(head_logits(x, operand), ("batch", None, "vocab"))
    if label_key is not None:
      targets = jax.random.categorical(jax.random.fold_in(label_key, number), logits)
    is_target = jax.lax.broadcasted_iota(targets.dtype, logits.shape, 2) == targets[..., None]
    log_z = jax.nn.logsumexp(logits, axis=-1)
    entropy = log_z - jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)
    penalty = z_loss * jnp.square(log_z)
    accuracy = (jnp.argmax(logits, axis=-1) == targets).astype(jnp.float32)
    if not with_gradient:
      return None, (entropy, penalty, accuracy)
    by_logit = ((1 + 2 * z_loss * log_z)[..., None] * jnp.exp(logits - log_z[..., None]) - is_target)
    by_logit = (weights[..., None] * by_logit).astype(x.dtype)
    by_kernel = jnp.einsum("SCD,SCV->SDV", x, by_logit, preferred_element_type=jnp.float32)
    kernel_gradient = sharding.constrain(kernel_gradient + by_kernel, ("batch", None, "vocab"))
    return kernel_gradient, (entropy, penalty, accuracy, by_logit @ operand.T)

  # Each device adds up its own; they are added to each other once, after the last chunk.
  start = jnp.zeros((num_shards, *kernel.shape), jnp.float32) if with_gradient else None
  kernel_gradient, outputs = jax.lax.scan(
      one_chunk, start, (*chunks, jnp.arange(len(chunks[0]))))
  entropy, penalty, accuracy, *by_hidden = [_join(x, hidden.shape[:2]) for x in outputs]
  loss = jnp.sum(weights * (entropy + penalty))
  value = loss, {"loss": entropy, "z_loss": penalty, "accuracy": accuracy}
  if not with_gradient:
    return value, ()
  return value, (by_hidden[0], kernel_gradient.sum(0).astype(kernel.dtype), entropy + penalty)


def _cut(x, num_shards):
  """[B, L, ...] -> [chunks, S, C, ...]: every device cuts its own tokens; the last chunk is filled up."""
  x = x.reshape(num_shards, -1, *x.shape[2:])
  num_chunks = -(-x.shape[1] // CHUNK_TOKENS)
  chunk = -(-x.shape[1] // num_chunks)
  padding = [(0, 0), (0, num_chunks * chunk - x.shape[1])] + [(0, 0)] * (x.ndim - 2)
  x = jnp.pad(x, padding).reshape(num_shards, num_chunks, chunk, *x.shape[2:])
  return jnp.moveaxis(x, 1, 0)


def _join(x, shape):
  """The inverse of `_cut` for tokens of a shape [B, L]."""
  x = jnp.moveaxis(x, 0, 1)
  x = x.reshape(x.shape[0], -1, *x.shape[3:])[:, :math.prod(shape) // x.shape[0]]
  return x.reshape(*shape, *x.shape[2:])
