"""Muon for the hidden matrices, AdamW for embeddings, head, norm scales and position tables.

    m <- beta m + (1 - beta) g
    n  = beta m / (1 - beta^(t+1)) + (1 - beta) g / (1 - beta^t)    Nesterov's look-ahead, unbiased
    u  = an approximation of the nearest orthogonal matrix to n, by Newton-Schulz iterations
    p <- p - lr * (scale * u + weight_decay * p)

    scale = consistent_rms * sqrt(max(rows, columns))     the step's RMS is about that of AdamW's, so
                                                          that one learning rate and decay serve both
            or sqrt(max(1, columns / rows))               without consistent_rms, as first published

A kernel here is [inputs, outputs], attention's too (over the joined heads): rows are inputs. Stacked
layers are orthogonalised one by one. The iteration runs in float32.

Sources: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024); the scale
arXiv:2502.16982. `optax.contrib.scale_by_muon` does the iteration; `optax.contrib.muon` is not used
whole, since its other half is Nesterov's Adam with decay on every norm scale.
"""

import jax
import jax.numpy as jnp
import optax

from t5jax.optim.adamw import adamw
from t5jax.optim.matrices import is_stacked, path_name, tree_map
from t5jax.optim.patterns import NOT_DECAYED, decay_mask
from t5jax.settings import AT_LEAST_ONE, DECAY, NON_NEGATIVE, POSITIVE, SettingError, check_numbers

_LAST_TWO_AXES = optax.contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)


def _label(path, x):
  is_kernel = path_name(path).endswith("kernel") and "logits_dense" not in path_name(path)
  return "muon" if is_kernel and x.ndim - is_stacked(path) == 2 else "adamw"


def _scale_by_shape(consistent_rms):
  """Multiplies orthogonal updates by the scale in the module's formulas. Stateless."""

  def scale(u):
    rows, columns = u.shape[-2:]
    if consistent_rms is None:
      return u * max(1, columns / rows) ** 0.5
    return u * (consistent_rms * max(rows, columns) ** 0.5)

  return optax.stateless(lambda updates, params: jax.tree.map(scale, updates))


def muon(learning_rate, beta=0.95, num_iterations=5, consistent_rms=0.2, adamw_b1=0.9,
         adamw_b2=0.95, eps=1e-8, weight_decay=0.0, weight_decay_exclude=NOT_DECAYED):
  """Returns Muon with AdamW beside it; one float32 moment for the matrices, two elsewhere.

  Args:
    learning_rate: float or float32 scalar, of both parts.
    beta: decay of Muon's moment, in (0, 1).
    num_iterations: of Newton-Schulz, at least 1.
    consistent_rms: RMS of Muon's step per unit of learning rate (arXiv:2502.16982: 0.2), or None for
      the first publication's scale, which wants a learning rate some ten times AdamW's.
    adamw_b1: decay of AdamW's first moment, in (0, 1).
    adamw_b2: decay of AdamW's second moment, in (0, 1).
    eps: added to the norm that Muon, and the root that AdamW, divides by.
    weight_decay: per unit of learning rate.
    weight_decay_exclude: patterns of the parameters exempt from it, see patterns.py.
  """
  check_numbers(
      "muon", beta=(beta, DECAY), num_iterations=(num_iterations, AT_LEAST_ONE),
      consistent_rms=(consistent_rms, POSITIVE), adamw_b1=(adamw_b1, DECAY),
      adamw_b2=(adamw_b2, DECAY), eps=(eps, POSITIVE), weight_decay=(weight_decay, NON_NEGATIVE))
  if not isinstance(num_iterations, int):
    raise SettingError("muon.num_iterations", num_iterations, "a whole number")
  dims = lambda updates: jax.tree.map(lambda _: _LAST_TWO_AXES, updates)
  mask = decay_mask("muon", weight_decay_exclude)
  return optax.partition({
      "muon": optax.chain(
          optax.contrib.scale_by_muon(ns_steps=num_iterations, beta=beta, eps=eps,
                                      mu_dtype=jnp.float32, weight_dimension_numbers=dims),
          _scale_by_shape(consistent_rms),
          optax.add_decayed_weights(weight_decay, mask),
          optax.scale_by_learning_rate(learning_rate)),
      "adamw": adamw(learning_rate, adamw_b1, adamw_b2, eps, weight_decay, weight_decay_exclude),
  }, lambda params: tree_map(_label, params))
