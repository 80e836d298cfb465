"""Schedule-free AdamW (arXiv:2405.15682): an average of iterates instead of a decaying schedule.

    v <- b2 v + (1 - b2) g^2                              g is the gradient at y
    u  = g / (sqrt(v / (1 - b2^t)) + eps) + weight_decay * y
    z <- z - lr * u
    c  = w / (sum of all w so far),   w = (largest lr so far)^weight_lr_power
    x <- (1 - c) x + c z                                  the average, to be evaluated
    y <- b1 x + (1 - b1) z                                the parameters that are trained

x is not kept, since y and z give it. Written so that only changes of y are computed,

    y <- y + c (z - y) - lr (1 - b1 (1 - c)) u            z and u as before its own step

which equals the above, as the authors' code 1.4 does. `optax.contrib.schedule_free` recomputes x and
y from their sums instead, and so moves parameters by rounding where all gradients are 0.

Train with warm-up and then a constant learning rate. Evaluate, and export, `eval_params`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from t5jax.optim.lib import bias_correction, zeros_like_f32
from t5jax.optim.patterns import NOT_DECAYED, decay_mask
from t5jax.settings import DECAY, NON_NEGATIVE, POSITIVE, check_numbers


class ScheduleFreeState(NamedTuple):
  """What the algorithm keeps.

  Attributes:
    count: int32 scalar, updates done.
    b1: float32 scalar, the setting; it is what eval_params needs.
    max_learning_rate: float32 scalar, the largest so far.
    weight_sum: float32 scalar, sum of the iterates' weights in the average.
    nu: second moments, float32 in the parameters' shapes.
    z: the iterates before averaging, float32 in the parameters' shapes.
  """

  count: jax.Array
  b1: jax.Array
  max_learning_rate: jax.Array
  weight_sum: jax.Array
  nu: optax.Updates
  z: optax.Params


def schedule_free_adamw(learning_rate, b1=0.9, b2=0.999, eps=1e-8, weight_lr_power=2.0,
                        weight_decay=0.0, weight_decay_exclude=NOT_DECAYED):
  """Returns schedule-free AdamW; the defaults are its authors'.

  Args:
    learning_rate: float or float32 scalar; the authors' default is 0.0025.
    b1: how far y lies towards the average, in (0, 1).
    b2: decay of the second moment, in (0, 1).
    eps: added to the root of the corrected second moment.
    weight_lr_power: how much less an iterate of the warm-up weighs in the average.
    weight_decay: per unit of learning rate, of y.
    weight_decay_exclude: patterns of the parameters exempt from it, see patterns.py.
  """
  check_numbers("schedule_free_adamw", b1=(b1, DECAY), b2=(b2, DECAY), eps=(eps, POSITIVE),
                weight_lr_power=(weight_lr_power, NON_NEGATIVE),
                weight_decay=(weight_decay, NON_NEGATIVE))
  mask = decay_mask("schedule_free_adamw", weight_decay_exclude)

  def init(params):
    mask(params)  # Raises on patterns that match nothing.
    # A copy: parameters and state are donated to the step, and must not share memory.
    z = jax.tree.map(lambda p: jnp.array(p, jnp.float32, copy=True), params)
    return ScheduleFreeState(jnp.zeros([], jnp.int32), jnp.float32(b1), jnp.zeros([], jnp.float32),
                             jnp.zeros([], jnp.float32), zeros_like_f32(params), z)

  def update(grads, state, params):
    count = state.count + 1
    highest = jnp.maximum(state.max_learning_rate, learning_rate)
    weight = highest ** weight_lr_power
    weight_sum = state.weight_sum + weight
    share = weight / jnp.maximum(weight_sum, jnp.finfo(jnp.float32).tiny)  # 0 at learning rate 0.
    nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.nu, grads)
    root = jnp.sqrt(bias_correction(b2, count))

    def direction(g, v, y, decayed):
      u = g / (jnp.sqrt(v) / root + eps)
      return u + weight_decay * y if decayed else u

    u = jax.tree.map(direction, grads, nu, params, mask(params))
    size = learning_rate * (1 - b1 * (1 - share))
    updates = jax.tree.map(lambda y, z, u: share * (z - y) - size * u, params, state.z, u)
    z = jax.tree.map(lambda z, u: z - learning_rate * u, state.z, u)
    return updates, ScheduleFreeState(count, jnp.float32(b1), highest, weight_sum, nu, z)

  return optax.GradientTransformation(init, update)


def eval_params(opt_state, params):
  """Returns the averages x that belong to the parameters y, in their tree and dtypes.

  Args:
    opt_state: any optimizer state, however nested. Parameters that no schedule-free state in it
      holds are returned as they are; under another optimizer that is `params` itself.
    params: the trained parameters of the same step.
  """
  is_state = lambda x: isinstance(x, ScheduleFreeState)
  averages = {}
  for state in filter(is_state, jax.tree.leaves(opt_state, is_leaf=is_state)):
    for path, z in jax.tree_util.tree_leaves_with_path(state.z):
      averages[path] = (state.b1, z)

  if not averages:
    return params

  def average(path, y):
    if path not in averages:
      return y
    b1, z = averages[path]
    z = jax.device_put(z, jax.memory.Space.Device)  # It may be kept in the host's.
    return (y + (1 - 1 / b1) * (z - y)).astype(y.dtype)

  return jax.tree_util.tree_map_with_path(average, params)
