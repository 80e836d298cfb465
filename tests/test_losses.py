"""The chunked cross entropy against its definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5jax import losses, sharding


def plain(hidden, kernel, targets, weights, z_loss):
  """The definition, on all logits: the loss, then cross entropy and penalty of each token."""
  logits = jnp.matmul(hidden, kernel, precision="highest").astype(jnp.float32)
  log_z = jax.nn.logsumexp(logits, axis=-1)
  label = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
  entropy, penalty = log_z - label, z_loss * log_z ** 2
  return jnp.sum(weights * (entropy + penalty)), entropy, penalty


@pytest.fixture
def case():
  """hidden [4, 7, 8], kernel [8, 50], targets and weights [4, 7]."""
  keys = jax.random.split(jax.random.key(0), 4)
  return (3 * jax.random.normal(keys[0], (4, 7, 8)), jax.random.normal(keys[1], (8, 50)),
          jax.random.randint(keys[2], (4, 7), 0, 50), jax.random.uniform(keys[3], (4, 7)))


def run(function, case, z_loss):
  """Returns the loss, its gradients by hidden, kernel and weights, and the rest of the result."""
  def split(*case):
    total, *rest = function(*case, z_loss)
    return total, rest
  (total, rest), gradients = jax.jit(
      jax.value_and_grad(split, argnums=(0, 1, 3), has_aux=True))(*case)
  return total, gradients, rest


@pytest.mark.parametrize("mesh", [dict(data=1), dict(data=2, fsdp=2, tensor=2)], ids=str)
@pytest.mark.parametrize("chunk_tokens", [5, 14, 512])
@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
def test_values_and_gradients(case, z_loss, chunk_tokens, mesh, monkeypatch):
  monkeypatch.setattr(losses, "CHUNK_TOKENS", chunk_tokens)
  expected, expected_gradients, expected_tokens = run(plain, case, z_loss)
  config = sharding.MeshConfig(**mesh)
  num_devices = config.data * config.fsdp * config.tensor
  with sharding.use(config.make(jax.devices()[:num_devices])):
    value, gradients, (tokens,) = run(losses.head_losses, case, z_loss)
    without_gradient = jax.jit(lambda *case: losses.head_losses(*case, z_loss))(*case)
  np.testing.assert_allclose(value, expected, rtol=1e-5)
  np.testing.assert_allclose(without_gradient[0], expected, rtol=1e-5)
  for ours, theirs in zip((*gradients, tokens["loss"], tokens["z_loss"]),
                          (*expected_gradients, *expected_tokens)):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
  for name in tokens:
    np.testing.assert_allclose(without_gradient[1][name], tokens[name], rtol=1e-6)


def test_extreme_logits_stay_finite():
  hidden, kernel = jnp.array([[[1.0]]]), jnp.array([[1e4, -1e4, 0.0]])
  function = lambda kernel: losses.head_losses(hidden, kernel, jnp.array([[1]]), jnp.ones((1, 1)), 1e-4)
  (_, tokens), gradient = jax.value_and_grad(function, has_aux=True)(kernel)
  assert float(tokens["loss"][0, 0]) == 2e4 and np.isfinite(tokens["z_loss"]).all()
  # The penalty's part is 1e-4 * 2 * log_z = 2.
  np.testing.assert_allclose(gradient[0], [3.0, -1.0, 0.0], atol=1e-5)


def test_the_parts_have_no_gradient(case):
  gradient = jax.grad(lambda hidden: jnp.sum(losses.head_losses(hidden, *case[1:])[1]["loss"]))(case[0])
  assert not gradient.any()
