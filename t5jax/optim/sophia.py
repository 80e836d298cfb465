"""Sophia-G (arXiv:2305.14342), and its form scaled by each matrix's root mean square.

    m <- b1 m + (1 - b1) g
    h <- b2 h + (1 - b2) B c^2                        only where curvature gradients c are given
    p <- p - lr * weight_decay * p
    p <- p - a * clip(m / (rho h + eps), -1, 1)

    sophia_g:      a = lr
    sophia_g_rms:  a = lr * max(1e-3, RMS(p))         RMS of the decayed p, per original matrix

`rho` is the paper's gamma, under the name it has in its authors' code. The second is that of the T5
runs of No Train No Gain (arXiv:2307.06440): rho 0.01, and B fixed at 5120.

The Hessian's diagonal h costs an extra batch every 10th update or so (Gauss-Newton-Bartlett). What
the caller passes to `update(grads, state, params, curvature_gradients=c, curvature_scale=B)`:

  c: the gradient, at the parameters of this update and in their tree, of the cross entropy against
     labels *sampled from the model's own softmax*, one for each target token of the batch; the mean
     over these tokens, without z-loss. Clip it as the training gradient is clipped: a clip before
     this optimizer in a chain does not see it.
  B: how many tokens were sampled, a number or a float32 scalar; not needed where the setting
     `curvature_batch_size` fixes it.

Without c (None, the default) h stays as it is, and nothing of it is compiled in. Until the first one
h is 0 and every step is the sign of m: give c with the first update. Both go through `optax.chain`
and `groups.grouped`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from t5jax.optim.lib import zeros_like_f32
from t5jax.optim.matrices import rms, tree_map
from t5jax.optim.patterns import NOT_DECAYED, decay_mask
from t5jax.settings import DECAY, NON_NEGATIVE, POSITIVE, check_numbers


class SophiaState(NamedTuple):
  """count: int32 scalar, updates done. mu, nu: m and h, float32 in the parameters' shapes."""

  count: jax.Array
  mu: optax.Updates
  nu: optax.Updates


def _sophia(learning_rate, b1, b2, rho, eps, curvature_batch_size, weight_decay, mask,
            min_rms=None):
  def init(params):
    mask(params)  # Raises on patterns that match nothing.
    return SophiaState(jnp.zeros([], jnp.int32), zeros_like_f32(params), zeros_like_f32(params))

  def one(path, p, m, h, decayed):
    decay = learning_rate * weight_decay * p if decayed else jnp.zeros_like(p)
    size = learning_rate
    if min_rms is not None:
      size = size * jnp.maximum(rms(path, p - decay), min_rms)
    return -decay - size * jnp.clip(m / (rho * h + eps), -1.0, 1.0)

  def update(grads, state, params, *, curvature_gradients=None, curvature_scale=None, **extra_args):
    del extra_args
    mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
    nu = state.nu
    if curvature_gradients is not None:
      scale = curvature_scale if curvature_batch_size is None else curvature_batch_size
      if scale is None:
        raise ValueError("Sophia needs curvature_scale beside curvature_gradients, or the setting "
                         "curvature_batch_size.")
      nu = jax.tree.map(
          lambda h, c: b2 * h + (1 - b2) * scale * jnp.square(c), nu, curvature_gradients)
    updates = tree_map(one, params, mu, nu, mask(params))
    return updates, SophiaState(state.count + 1, mu, nu)

  return optax.GradientTransformationExtraArgs(init, update)


def takes_curvature(opt_state):
  """True if an optimizer's state, however nested, holds a SophiaState."""
  is_state = lambda x: isinstance(x, SophiaState)
  return any(map(is_state, jax.tree.leaves(opt_state, is_leaf=is_state)))


def _check(owner, b1, b2, rho, eps, curvature_batch_size, weight_decay):
  check_numbers(
      owner, b1=(b1, DECAY), b2=(b2, DECAY), rho=(rho, POSITIVE), eps=(eps, POSITIVE),
      curvature_batch_size=(curvature_batch_size, POSITIVE),
      weight_decay=(weight_decay, NON_NEGATIVE))


def sophia_g(learning_rate, b1=0.965, b2=0.99, rho=0.04, eps=1e-15, curvature_batch_size=None,
             weight_decay=0.0, weight_decay_exclude=NOT_DECAYED):
  """Returns Sophia-G; the defaults, but for weight_decay (0.1), are those of its authors' code.

  Args:
    learning_rate: float or float32 scalar, the largest step of a weight.
    b1: decay of the first moment, in (0, 1).
    b2: decay of the Hessian's diagonal per curvature batch, in (0, 1).
    rho: the higher, the fewer weights are clipped to the largest step.
    eps: added to the denominator.
    curvature_batch_size: B for every curvature batch; None: what `update` is given.
    weight_decay: per unit of learning rate.
    weight_decay_exclude: patterns of the parameters exempt from it, see patterns.py.
  """
  settings = (b1, b2, rho, eps, curvature_batch_size, weight_decay)
  _check("sophia_g", *settings)
  return _sophia(learning_rate, *settings, decay_mask("sophia_g", weight_decay_exclude))


def sophia_g_rms(learning_rate, b1=0.965, b2=0.99, rho=0.01, eps=1e-15, curvature_batch_size=5120,
                 weight_decay=0.0, weight_decay_exclude=NOT_DECAYED, min_rms=1e-3):
  """Returns Sophia-G with parameter-RMS scaling; the defaults are No Train No Gain's for T5.

  Args:
    learning_rate: float or float32 scalar, a relative step size (No Train No Gain's peak is 1e-3).
    b1: decay of the first moment, in (0, 1).
    b2: decay of the Hessian's diagonal per curvature batch, in (0, 1).
    rho: the higher, the fewer weights are clipped to the largest step.
    eps: added to the denominator.
    curvature_batch_size: B for every curvature batch; None: what `update` is given.
    weight_decay: per unit of learning rate, not scaled by RMS.
    weight_decay_exclude: patterns of the parameters exempt from it, see patterns.py.
    min_rms: least RMS that scales a step, so that a zero matrix can move.
  """
  settings = (b1, b2, rho, eps, curvature_batch_size, weight_decay)
  _check("sophia_g_rms", *settings)
  check_numbers("sophia_g_rms", min_rms=(min_rms, NON_NEGATIVE))
  mask = decay_mask("sophia_g_rms", weight_decay_exclude)
  return _sophia(learning_rate, *settings, mask, min_rms)
