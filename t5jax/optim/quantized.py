"""Optimizer states in 8 bits: block-wise dynamic quantisation (arXiv:2110.02861).

Each block of `block_size` neighbours along the last axis keeps one float32 scale, its entry of largest
magnitude, and a code of one byte per entry. The codes are bitsandbytes' dynamic map: seven decades,
each upper one with twice the codes of the lower, evenly spread within it:

    v(k) = 10^(d-6) (0.1 + 0.9 (j + 1/2) / (r 2^d)),   k = r 2^d + j - (r - 1),   0 <= j < r 2^d

for d = 0..6, with r = 1 beside a sign (int8) and r = 2 without (uint8); v(0) = 0, and the largest code
is 1. Here the scale carries the sign of that largest entry, which so is kept exactly, whatever its sign.
An entry takes the nearest code: in the top decade it is off by at most 0.7 % (r = 1) or 0.35 % of the
largest, in the lowest by at most 4.5e-7 or 2.3e-7 of it, and to 0 falls what is below 2.8e-7 or 1.6e-7.

The second moment is kept as its square root. That is what divides the step, it spans half as many
decades, and a positive one never becomes 0: it takes the smallest code. In a simulation of 4,000 steps
with gradients of very unequal size (log-normal, sigma 1.5) the root so kept is off by 11 % at most
times and unbiased; kept as it is, 1 % of the entries are 0 and the root is 20 % too small on average.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from t5jax.optim.matrices import matrix_axes, names, tree_map
from t5jax.optim.patterns import check_all_match, check_patterns, matches
from t5jax.settings import AT_LEAST_ONE, SettingError, check_numbers, check_optimizer

# Field of an optimizer's state -> whether it holds second moments: kept without sign, as a root.
_MOMENTS = {"mu": False, "trace": False, "nu": True}
_DECADES = 7
_SMALL = 4096  # Smaller matrices have nothing to save, as in bitsandbytes.
SENSITIVE = ("embedding", "logits_dense", "scale")


class QuantizedState(NamedTuple):
  """State of a `quantized` optimizer.

  Attributes:
    inner: the wrapped optimizer's state, its large moments as codes in their own shape: int8, or
      uint8 for roots of second moments.
    scales: the same tree; float32 [..., ceil(last dim / block_size)] where there are codes, else
      MaskedNode.
  """

  inner: optax.OptState
  scales: optax.OptState


def quantize(x, block_size, signed):
  """Quantises blocks along the last axis.

  Args:
    x: float32 [..., n]; not negative unless `signed`.
    block_size: entries that share a scale; the last block of a row may be shorter.
    signed: int8 codes of any numbers; else uint8 codes of non-negative ones.

  Returns:
    (codes [..., n], scales float32 [..., ceil(n / block_size)]).
  """
  blocks = _to_blocks(x, block_size)
  high, low = (reduce(blocks, axis=-1, keepdims=True) for reduce in (jnp.max, jnp.min))
  scales = jnp.where(high >= -low, high, low)
  ratio = blocks / jnp.where(scales == 0, 1.0, scales)
  per_first_decade = 1 if signed else 2
  size = jnp.abs(ratio)
  below = _code_below(size, per_first_decade)
  above = jnp.minimum(below + 1, _largest_code(per_first_decade))
  is_above = size - _code_value(below, per_first_decade) > _code_value(above, per_first_decade) - size
  codes = jnp.where(is_above, above, below)
  if signed:
    # The largest entry has code 128, whose byte is that of -128; no other entry has a code below -127.
    codes = jnp.where(ratio < 0, -jnp.minimum(codes, 127), codes)
  codes = codes.astype(jnp.int8 if signed else jnp.uint8)
  return codes.reshape(*x.shape[:-1], -1)[..., :x.shape[-1]], scales[..., 0]


def dequantize(codes, scales, block_size):
  """Codes [..., n] and scales [..., ceil(n / block_size)] -> float32 [..., n]."""
  signed = codes.dtype == jnp.int8
  number = codes.astype(jnp.int32)
  size = jnp.where(number == -128, 128, jnp.abs(number))
  value = _code_value(size, 1 if signed else 2)
  if signed:
    value = jnp.where((number < 0) & (number != -128), -value, value)
  return (_to_blocks(value, block_size) * scales[..., None]).reshape(
      *codes.shape[:-1], -1)[..., :codes.shape[-1]]


def quantized(optimizer, block_size=256, exclude=SENSITIVE):
  """Returns `optimizer`, a function of the learning rate, with its moments in 8 bits.

      trainer.Trainer.optimizer = @optim.quantized()
      optim.quantized.optimizer = @optim.adamw

  Moments are the fields `mu`, `nu` and `trace` of its state, which start at 0, so this fits AdamW,
  AdamW-RMS, Lion, momentum and what else is made of them.

  Args:
    optimizer: any function of the learning rate that returns an optax transformation.
    block_size: entries that share a scale.
    exclude: patterns (see patterns.py) of parameters that keep float32 moments. By default
      embedding, head, norm scales and relative position tables do, whose gradients are too unequal
      (arXiv:2110.02861 section 2.3). So does every matrix of less than 4096 entries.

  Raises:
    SettingError: on impossible settings here; on patterns that match nothing, or if nothing is left
      to quantise, when the state is initialised.
  """
  check_optimizer("quantized.optimizer", optimizer)
  check_numbers("quantized", block_size=(block_size, AT_LEAST_ONE))
  check_patterns("quantized.exclude", exclude)

  def blank(moment, root, scales):
    if isinstance(scales, optax.MaskedNode):
      return moment, scales
    # Written down and not quantised: the compiler would quantise the constant, for minutes.
    num_blocks = -(-moment.shape[-1] // block_size)
    return (jnp.zeros(moment.shape, jnp.uint8 if root else jnp.int8),
            jnp.zeros((*moment.shape[:-1], num_blocks), jnp.float32))

  def pack(moment, root, scales):
    if isinstance(scales, optax.MaskedNode):
      return moment, scales
    if not root:
      return quantize(moment, block_size, signed=True)
    codes, scales = quantize(jnp.sqrt(moment), block_size, signed=False)
    return jnp.where((codes == 0) & (moment > 0), jnp.uint8(1), codes), scales

  def unpack(moment, root, scales):
    if isinstance(scales, optax.MaskedNode):
      return moment, None
    value = dequantize(moment, scales, block_size)
    return jnp.square(value) if root else value, None

  @functools.wraps(optimizer)
  def of_learning_rate(learning_rate):
    inner = optax.with_extra_args_support(optimizer(learning_rate))

    def init(params):
      chosen = _chosen(params, exclude)
      state = inner.init(params)
      scales = tree_map(
          lambda path, x: 1.0 if _moment(path)[1] in chosen else optax.MaskedNode(), state)
      if not jax.tree.leaves(scales):
        raise SettingError("quantized.optimizer", getattr(optimizer, "__name__", optimizer),
                           f"one with moments ({', '.join(_MOMENTS)}) of large matrices")
      return QuantizedState(*_map_to_two(blank, state, scales))

    def update(grads, state, params=None, **extra):
      moments, _ = _map_to_two(unpack, state.inner, state.scales)
      updates, moments = inner.update(grads, moments, params, **extra)
      return updates, QuantizedState(*_map_to_two(pack, moments, state.scales))

    return optax.GradientTransformationExtraArgs(init, update)

  of_learning_rate.__name__ = f"{getattr(optimizer, '__name__', optimizer)}_8bit"
  return of_learning_rate


def _moment(path):
  """Splits an optimizer state's path: (field of _MOMENTS, path of the parameter), or two Nones."""
  parts = names(path)
  for i, part in enumerate(parts):
    if part in _MOMENTS:
      return part, parts[i + 1:]
  return None, None


def _map_to_two(fn, state, scales):
  """Maps fn(leaf, whether it is kept as a root, its scales) -> a pair over `state`: two trees."""
  leaves, structure = jax.tree_util.tree_flatten_with_path(state)
  pairs = [fn(leaf, _MOMENTS.get(_moment(path)[0]), scale)
           for (path, leaf), scale in zip(leaves, structure.flatten_up_to(scales))]
  return [structure.unflatten(part) for part in zip(*pairs)]


def _chosen(params, exclude):
  """Returns the paths of the parameters whose moments are quantised."""
  check_all_match("quantized.exclude", [p for p in exclude if p not in SENSITIVE], params)
  size = lambda path, p: math.prod(p.shape[axis] for axis in matrix_axes(path, p.ndim))
  return {names(path) for path, p in jax.tree_util.tree_leaves_with_path(params)
          if size(path, p) >= _SMALL and not matches(path, exclude)}


def _to_blocks(x, block_size):
  """[..., n] -> [..., blocks, block_size], filled up with zeros; one short block if n is smaller."""
  size = x.shape[-1]
  block_size = min(block_size, size)
  x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -size % block_size)])
  return x.reshape(*x.shape[:-1], -1, block_size)


def _largest_code(per_first_decade):
  return per_first_decade * (2 ** _DECADES - 1) + 1


def _by_decade(is_at_least, per_first_decade):
  """Returns (largest value, number of codes) of each entry's decade, both float32.

  Args:
    is_at_least: function of a decade 1..6; True where the entry lies in it or above.
    per_first_decade: codes of the lowest decade.
  """
  top, codes = jnp.float32(10.0 ** (1 - _DECADES)), jnp.float32(per_first_decade)
  for d in range(1, _DECADES):
    top = jnp.where(is_at_least(d), np.float32(10.0 ** (d + 1 - _DECADES)), top)
    codes = jnp.where(is_at_least(d), np.float32(per_first_decade * 2 ** d), codes)
  return top, codes


def _code_value(code, per_first_decade):
  """v(k) of the module's formula for int32 codes, float32. Arithmetic: no table to gather from."""
  n = code + (per_first_decade - 1)
  top, codes = _by_decade(lambda d: n >= per_first_decade * 2 ** d, per_first_decade)
  value = top * (0.9 * (n + 0.5) / codes - 0.8)
  value = jnp.where(code == _largest_code(per_first_decade), 1.0, value)
  return jnp.where(code == 0, 0.0, value)


def _code_below(x, per_first_decade):
  """The largest code whose value does not exceed `x` in [0, 1], int32."""
  top, codes = _by_decade(lambda d: x >= np.float32(10.0 ** (d - _DECADES)), per_first_decade)
  cell = jnp.clip(jnp.floor((x / top - 0.1) / 0.9 * codes), 0, codes - 1)
  code = (codes + cell).astype(jnp.int32) - (per_first_decade - 1)
  code = jnp.where(x >= 1, _largest_code(per_first_decade), code)
  return jnp.where(_code_value(code, per_first_decade) > x, code - 1, code)  # Values are mid-cell.
