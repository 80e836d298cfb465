"""Lion (arXiv:2302.06675), Optax's own, and its form scaled by each matrix's root mean square.

    u  = sign(b1 m + (1 - b1) g)
    m <- b2 m + (1 - b2) g
    p <- p - a * (u + weight_decay * p)

    lion:      a = lr
    lion_rms:  a = lr * max(1e-3, RMS(p))      RMS of the old p, per original matrix

The decay of lion_rms is scaled by RMS too, unlike that of adamw_rms. Source of the second: the T5
runs of No Train No Gain (arXiv:2307.06440), which found plain Lion to diverge or lag on T5.
"""

import jax.numpy as jnp
import optax

from t5jax.optim.lib import scale_by_param_rms
from t5jax.optim.patterns import NOT_DECAYED, decay_mask
from t5jax.settings import DECAY, NON_NEGATIVE, check_numbers


def lion(learning_rate, b1=0.9, b2=0.99, weight_decay=0.0, weight_decay_exclude=NOT_DECAYED):
  """Returns Lion; one float32 moment.

  Args:
    learning_rate: float or float32 scalar, the size of every weight's step.
    b1: weight of the moment in the step's sign, in (0, 1).
    b2: decay of the moment, in (0, 1).
    weight_decay: per unit of learning rate.
    weight_decay_exclude: patterns of the parameters exempt from it, see patterns.py.
  """
  check_numbers("lion", b1=(b1, DECAY), b2=(b2, DECAY), weight_decay=(weight_decay, NON_NEGATIVE))
  return optax.lion(learning_rate, b1, b2, mu_dtype=jnp.float32, weight_decay=weight_decay,
                    mask=decay_mask("lion", weight_decay_exclude))


def lion_rms(learning_rate, b1=0.9, b2=0.99, weight_decay=0.0, weight_decay_exclude=NOT_DECAYED,
             min_rms=1e-3):
  """Returns Lion with parameter-RMS scaling.

  Args:
    learning_rate: float or float32 scalar, a relative step size (No Train No Gain: 7.5e-4).
    b1: weight of the moment in the step's sign, in (0, 1).
    b2: decay of the moment, in (0, 1).
    weight_decay: per unit of relative step.
    weight_decay_exclude: patterns of the parameters exempt from it, see patterns.py.
    min_rms: least RMS that scales a step, so that a zero matrix can move.
  """
  check_numbers("lion_rms", b1=(b1, DECAY), b2=(b2, DECAY), min_rms=(min_rms, NON_NEGATIVE),
                weight_decay=(weight_decay, NON_NEGATIVE))
  return optax.chain(
      optax.scale_by_lion(b1, b2, mu_dtype=jnp.float32),
      optax.add_decayed_weights(weight_decay, decay_mask("lion_rms", weight_decay_exclude)),
      scale_by_param_rms(min_rms),
      optax.scale_by_learning_rate(learning_rate))
