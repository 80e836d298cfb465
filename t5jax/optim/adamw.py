"""AdamW (arXiv:1711.05101), Optax's own: decoupled decay, per unit of learning rate.

    m <- b1 m + (1 - b1) g
    v <- b2 v + (1 - b2) g^2
    p <- p - lr * (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay * p)

At the learning rates of the RMS-scaled optimizers it diverges on T5 (nanoT5, arXiv:2309.02373).
"""

import optax

from t5jax.optim.lib import in_float32
from t5jax.optim.patterns import NOT_DECAYED, decay_mask
from t5jax.settings import DECAY, NON_NEGATIVE, POSITIVE, check_numbers


def adamw(learning_rate, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0,
          weight_decay_exclude=NOT_DECAYED):
  """Returns AdamW.

  Args:
    learning_rate: float or float32 scalar, an absolute step size.
    b1: decay of the first moment, in (0, 1).
    b2: decay of the second moment, in (0, 1).
    eps: added to the root of the corrected second moment.
    weight_decay: per unit of learning rate.
    weight_decay_exclude: patterns of the parameters exempt from it, see patterns.py.
  """
  check_numbers("adamw", b1=(b1, DECAY), b2=(b2, DECAY), eps=(eps, POSITIVE),
                weight_decay=(weight_decay, NON_NEGATIVE))
  return in_float32(optax.adamw(learning_rate, b1, b2, eps, weight_decay=weight_decay,
                                mask=decay_mask("adamw", weight_decay_exclude)))
