"""A random order of n things in constant memory: which is the i-th, without a list of them."""

import numpy as np

_ROUNDS = 6


def permute(positions, size, key):
  """Maps positions to a pseudo-random permutation of range(size), by a Feistel network.

  A network over the next even power of two permutes; what falls outside `size` goes through it
  again until it falls inside. Written out here and not taken from a library, so that a saved position
  means the same data with every version of every library.

  Args:
    positions: int64 [n], each in [0, size).
    size: number of things.
    key: int in [0, 2**64); each gives another permutation.

  Returns:
    int64 [n].
  """
  half_bits = np.uint64(max((size - 1).bit_length() + 1, 2) // 2)
  half_mask = np.uint64((1 << int(half_bits)) - 1)
  keys = [_mix(np.uint64((key + (i << 56)) % 2**64)) for i in range(1, _ROUNDS + 1)]
  values = np.asarray(positions).astype(np.uint64)
  outside = np.ones(values.shape, bool)
  while outside.any():
    left, right = values[outside] >> half_bits, values[outside] & half_mask
    for round_key in keys:
      left, right = right, left ^ (_mix(right ^ round_key) & half_mask)
    values[outside] = left << half_bits | right
    outside = values >= size
  return values.astype(np.int64)


def _mix(x):
  """The finaliser of SplitMix64 (Steele et al. 2014): every bit depends on every other."""
  with np.errstate(over="ignore"):
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))
