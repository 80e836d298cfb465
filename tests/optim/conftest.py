"""Fixtures of the optimizer tests."""

import jax
import optax
import pytest

from tests.optim import trees


@pytest.fixture
def run_optimizer():
  """Returns a function: (optimizer, learning rates) -> the parameters after each step."""

  def run(optimizer, learning_rates):
    params = trees.parameters()
    state = optimizer(0.0).init(params)
    traces = []

    @jax.jit
    def step(params, state, grads, learning_rate):
      traces.append(1)
      updates, state = optimizer(learning_rate).update(grads, state, params)
      return optax.apply_updates(params, updates), state

    history = []
    for i, learning_rate in enumerate(learning_rates):
      params, state = step(params, state, trees.gradients(i), learning_rate)
      history.append(jax.device_get(params))
    assert len(traces) == 1  # Neither the second call nor another learning rate compiles again.
    return history

  return run
