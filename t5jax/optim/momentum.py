"""Stochastic gradient descent with momentum, Optax's own.

    m <- decay m + g
    u  = m, or with Nesterov's look-ahead g + decay m
    p <- p - lr * (u + weight_decay * p)

The gradient enters the moment undamped: at a steady gradient the step is lr / (1 - decay) times it.
"""

import jax.numpy as jnp
import optax

from t5jax.optim.patterns import NOT_DECAYED, decay_mask
from t5jax.settings import DECAY, NON_NEGATIVE, check_choice, check_numbers


def momentum(learning_rate, decay=0.9, nesterov=False, weight_decay=0.0,
             weight_decay_exclude=NOT_DECAYED):
  """Returns gradient descent with momentum; one float32 moment.

  Args:
    learning_rate: float or float32 scalar.
    decay: of the moment, in (0, 1).
    nesterov: look one step ahead.
    weight_decay: per unit of learning rate, and not part of the moment.
    weight_decay_exclude: patterns of the parameters exempt from it, see patterns.py.
  """
  check_numbers("momentum", decay=(decay, DECAY), weight_decay=(weight_decay, NON_NEGATIVE))
  check_choice("momentum.nesterov", nesterov, (True, False))
  return optax.chain(
      optax.trace(decay, nesterov, accumulator_dtype=jnp.float32),
      optax.add_decayed_weights(weight_decay, decay_mask("momentum", weight_decay_exclude)),
      optax.scale_by_learning_rate(learning_rate))
