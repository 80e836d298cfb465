"""The building blocks of a T5 layer. Shapes: B batch, L length, D emb_dim, F mlp_dim, V vocab."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

# The names by which T5Config.remat knows results of matmuls with weights: those of a layer's own input, and
# those of the encoder's output, which cost each layer of a decoder more memory than their work is worth.
PROJECTION = "projection"
OF_ENCODED = "projection_of_encoded"
ACTIVATIONS = {"relu": jax.nn.relu, "gelu": jax.nn.gelu, "linear": lambda x: x}


def recomputed(function):
  """Has the backward pass keep only what `function` is given, and compute the rest again.

  For elementwise functions: cheaper than writing each of their steps to memory and reading it back.
  """
  return jax.checkpoint(function, prevent_cse=False)


@jax.custom_vjp
def matmul(x, kernel):
  """[..., inputs] times [inputs, features], with a gradient of the kernel that needs no transposition.

  JAX's own is (gradient^T x)^T, for which XLA's CPU compiler writes out transposed matrices.
  """
  return x @ kernel


def _matmul_forward(x, kernel):
  return matmul(x, kernel), (x, kernel)


def _matmul_backward(operands, gradient):
  x, kernel = operands
  rows = lambda y: y.reshape(-1, y.shape[-1])
  return gradient @ kernel.T, rows(x).T @ rows(gradient)


matmul.defvjp(_matmul_forward, _matmul_backward)


def normal(std):
  """Returns an initializer drawing from N(0, std**2), always in float32 before the cast."""
  return nn.initializers.normal(std)


def param(module, name, init, shape, axes):
  """Declares a parameter of `module`, initially float32, whose dims carry the logical names `axes`."""
  return module.param(name, nn.with_logical_partitioning(init, axes), shape, jnp.float32)


class Dense(nn.Module):
  """A matmul without bias: [..., inputs] -> [..., features], in the activations' dtype.

  `axes` are the logical names of the kernel's two dims. Without `std` the kernel is drawn with
  variance 1 / inputs. `residual` is the name by which T5Config.remat knows the result.
  """

  features: int
  axes: tuple[str, str]
  std: float | None = None
  residual: str = PROJECTION

  @nn.compact
  def __call__(self, x):
    std = x.shape[-1] ** -0.5 if self.std is None else self.std
    kernel = param(self, "kernel", normal(std), (x.shape[-1], self.features), self.axes)
    return checkpoint_name(matmul(x, kernel.astype(x.dtype)), self.residual)


class RMSNorm(nn.Module):
  """Scales to unit root mean square, no mean and no bias (arXiv:1910.07467).

  The statistics are float32 whatever the input; the result has the input's dtype.
  """

  epsilon: float
  initial_scale: float = 1.0

  @nn.compact
  def __call__(self, x):
    init = nn.initializers.constant(self.initial_scale)
    scale = param(self, "scale", init, (x.shape[-1],), ("embed",))

    def normalise(x, scale):
      x32 = x.astype(jnp.float32)
      inverse_rms = jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + self.epsilon)
      return (x32 * inverse_rms * scale).astype(x.dtype)

    return recomputed(normalise)(x, scale)


class Dropout(nn.Module):
  """Dropout whose mask is shared along the length, as the original T5 does; off if deterministic."""

  rate: float
  deterministic: bool

  @nn.compact
  def __call__(self, x):
    return nn.Dropout(self.rate, broadcast_dims=(-2,), deterministic=self.deterministic)(x)


class MLP(nn.Module):
  """The feed-forward sublayer: product of the activated branches, then back to emb_dim.

  One branch is named `wi`, several `wi_0`, `wi_1` ... (T5X's names).
  """

  activations: tuple[str, ...]
  mlp_dim: int
  dropout_rate: float
  deterministic: bool

  @nn.compact
  def __call__(self, x):
    names = ["wi"] if len(self.activations) == 1 else [f"wi_{i}" for i in range(len(self.activations))]
    branches = [Dense(self.mlp_dim, ("embed", "mlp"), name=name)(x) for name in names]

    def activate(*branches):
      return math.prod(ACTIVATIONS[name](x) for name, x in zip(self.activations, branches))

    hidden = recomputed(activate)(*branches)
    hidden = nn.with_logical_constraint(hidden, ("batch", "length", "mlp"))
    hidden = Dropout(self.dropout_rate, self.deterministic)(hidden)
    return Dense(x.shape[-1], ("mlp", "embed"), name="wo")(hidden)


class Embedding(nn.Module):
  """Token table [V, D]. The lookup is a gather; its gradient adds up rows in float32."""

  vocab_size: int
  emb_dim: int
  dtype: str

  def setup(self):
    self.embedding = param(self, "embedding", normal(1.0), (self.vocab_size, self.emb_dim),
                           ("vocab", "embed"))

  def __call__(self, tokens):
    """[B, L] integer ids -> [B, L, D] in `dtype`."""
    # Whole rows on each device. With rows cut up (`embed`) the result would be as well, where it
    # should be cut along the batch, and the compiler knows of no way between the two but a full copy.
    table = nn.with_logical_constraint(self.embedding, ("vocab", None))
    return jnp.take(table.astype(jnp.float32), tokens, axis=0).astype(self.dtype)

  def attend(self, x):
    """[B, L, D] -> float32 logits [B, L, V] with the table as the head."""
    return logits(x, self.embedding.T)


def logits(x, kernel):
  """[B, L, D] times [D, V] -> [B, L, V]: operands in x's dtype, sums and result in float32."""
  return jnp.matmul(x, kernel.astype(x.dtype), preferred_element_type=jnp.float32)
