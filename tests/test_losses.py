"""The cross entropy against its definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5jax import losses


def plain(logits, targets, z_loss):
  log_z = jax.nn.logsumexp(logits, axis=-1)
  label = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
  return log_z - label, z_loss * log_z ** 2


@pytest.fixture
def case():
  keys = jax.random.split(jax.random.key(0), 3)
  return (10 * jax.random.normal(keys[0], (3, 5, 50)), jax.random.randint(keys[1], (3, 5), 0, 50),
          jax.random.uniform(keys[2], (3, 5)))


@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
def test_values_and_gradients(case, z_loss):
  logits, targets, weights = case

  def total(function, logits):
    return sum(jnp.sum(part * weights) for part in function(logits, targets, z_loss))

  for ours, theirs in zip(losses.cross_entropy(logits, targets, z_loss), plain(logits, targets, z_loss)):
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
  np.testing.assert_allclose(jax.grad(lambda x: total(losses.cross_entropy, x))(logits),
                             jax.grad(lambda x: total(plain, x))(logits), rtol=1e-5, atol=1e-6)


def test_extreme_logits_stay_finite():
  logits = jnp.array([[[1e4, -1e4, 0.0]]])
  entropy, penalty = losses.cross_entropy(logits, jnp.array([[1]]), 1e-4)
  assert float(entropy[0, 0]) == 2e4 and np.isfinite(penalty).all()
  gradient = jax.grad(lambda x: losses.cross_entropy(x, jnp.array([[1]]))[0].sum())(logits)
  np.testing.assert_allclose(gradient[0, 0], [1.0, -1.0, 0.0], atol=1e-6)


def test_no_copy_of_the_logits_is_saved_for_the_backward_pass():
  logits = jnp.zeros((2, 8, 1000))
  _, backward = jax.vjp(lambda x: losses.cross_entropy(x, jnp.zeros((2, 8), jnp.int32)), logits)
  saved = [x for x in jax.tree.leaves(backward) if hasattr(x, "size") and x.size >= logits.size]
  assert len(saved) <= 1
