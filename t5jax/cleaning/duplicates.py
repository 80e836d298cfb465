"""Exact and near duplicates: MinHash signatures, bands, and which documents repeat another.

Two documents are near duplicates if the sets of their runs of three words overlap (Jaccard index)
by about 0.6 or more. Changing one word in twenty, each of which is in three runs, leaves 0.75.
MinHash (Broder 1997) estimates the index from 128 numbers a document; locality-sensitive hashing
finds the pairs to compare: 32 bands of 4 numbers meet in a bucket with a probability of
1 - (1 - J^4)^32, which is 99.99 % at 0.75 and 5 % at 0.2.

Case, white space and punctuation do not count; letters do: `aa` and `å` are different.
"""

import functools
import hashlib
import re

import numpy as np

NUM_HASHES = 128
NUM_BANDS = 32
ROWS = NUM_HASHES // NUM_BANDS
THRESHOLD = 0.62  # Of the estimate, whose standard deviation is at most 0.044.
SHINGLE_WORDS = 3
# Formulas ("Tak. Så er det hr. Jensen.") are alike without being copies of each other.
MIN_SHINGLES = 20
COMPARED = 100  # So many of a bucket's first documents, each later one is compared with.

_WORD = re.compile(r"\w+")
_EMPTY = np.uint32(2**32 - 1)


def _coefficients():
  generator = np.random.Generator(np.random.Philox(key=[0x7A5, 1]))
  factors, offsets = generator.integers(0, 2**64, (2, NUM_HASHES), dtype=np.uint64)
  return factors | np.uint64(1), offsets


_FACTORS, _OFFSETS = _coefficients()


def exact_hash(text):
  """Returns a hash in [0, 2**63) of a text but for its white space."""
  data = " ".join(text.split()).encode()
  return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 1


def signature(text):
  """Computes the MinHash signature of a text.

  Args:
    text: str, in NFC.

  Returns:
    uint32 [NUM_HASHES]; all ones for a text too short to be compared.
  """
  words = [hash32(word) for word in _WORD.findall(text.lower())]
  if len(words) < SHINGLE_WORDS + MIN_SHINGLES - 1:
    return np.full(NUM_HASHES, _EMPTY)
  words = np.array(words, np.uint64)
  shingles = np.zeros(len(words) - SHINGLE_WORDS + 1, np.uint64)
  for i in range(SHINGLE_WORDS):
    shingles = shingles * np.uint64(0x9E3779B1) + words[i:i + len(shingles)]
    shingles &= np.uint64(2**32 - 1)
  shingles = np.unique(shingles)
  if len(shingles) < MIN_SHINGLES:
    return np.full(NUM_HASHES, _EMPTY)
  smallest = np.full(NUM_HASHES, np.uint64(2**32 - 1))
  for start in range(0, len(shingles), 4096):  # In parts, to bound the memory of a long document.
    part = shingles[start:start + 4096]
    # Multiply-shift hashing (Dietzfelbinger et al. 1997), modulo 2**64.
    hashes = (part[:, None] * _FACTORS + _OFFSETS) >> np.uint64(32)
    np.minimum(smallest, hashes.min(axis=0), out=smallest)
  return smallest.astype(np.uint32)


@functools.lru_cache(1 << 16)
def hash32(word):
  """Returns a hash in [0, 2**32) of a word, the same in every process."""
  return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "little")


def band_hashes(signatures, bands):
  """Hashes bands of signatures.

  Args:
    signatures: uint32 [n, NUM_HASHES].
    bands: numbers of the bands.

  Returns:
    uint64 [len(bands), n]; 0 where a text is too short to be compared.
  """
  signatures = np.asarray(signatures)
  comparable = (signatures != _EMPTY).any(axis=1)
  hashes = np.zeros((len(bands), len(signatures)), np.uint64)
  for i, band in enumerate(bands):
    for column in range(band * ROWS, (band + 1) * ROWS):
      hashes[i] = (hashes[i] ^ signatures[:, column]) * np.uint64(0x9E3779B97F4A7C15)
      hashes[i] ^= hashes[i] >> np.uint64(29)
  hashes[:, comparable] |= np.uint64(1)
  hashes[:, ~comparable] = 0
  return hashes


def earlier_copies(signatures):
  """Compares the documents of a bucket.

  Args:
    signatures: uint32 [n, NUM_HASHES], in corpus order.

  Returns:
    list of pairs (earlier, later) of positions: for each document that has near duplicates among
    the first COMPARED, the first of them.
  """
  first, pairs = signatures[:COMPARED], []
  for later in range(1, len(signatures)):
    same = (first[:later] == signatures[later]).mean(axis=1) >= THRESHOLD
    if same.any():
      pairs.append((int(same.argmax()), later))
  return pairs


def buckets(hashes):
  """Yields int64 positions, ascending, of each group of equal hashes that are not 0.

  Args:
    hashes: uint64 [n].
  """
  order = np.argsort(hashes, kind="stable")
  ordered = hashes[order]
  starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
  ends = np.r_[starts[1:], len(ordered)]
  for start, end in zip(starts[ends - starts > 1], ends[ends - starts > 1]):
    if ordered[start]:
      yield order[start:end]


def find_duplicates(exact, signatures, max_bytes=1 << 30):
  """Finds the documents of a corpus that repeat an earlier one.

  Args:
    exact: int64 [n] of exact_hash.
    signatures: uint32 [n, NUM_HASHES], for example mapped from a file.
    max_bytes: of memory for band hashes; beyond it `signatures` is read several times. What comes
      in addition is about 60 bytes per document.

  Returns:
    (first int64 [n], the first document of a cluster of duplicates that each belongs to;
    is_exact bool [n], is_near bool [n]: whether an earlier document is a copy of it).
  """
  count = len(exact)
  clusters = _Clusters(count)
  is_exact, is_near = np.zeros(count, bool), np.zeros(count, bool)
  for group in buckets(exact.astype(np.uint64) + np.uint64(1)):
    is_exact[group[1:]] = True
    clusters.join(group[0], group[1:])
  step = max(1, int(max_bytes // max(8 * count, 1)))
  for low in range(0, NUM_BANDS, step):
    bands = range(low, min(low + step, NUM_BANDS))
    parts = [band_hashes(signatures[i:i + 65536], bands) for i in range(0, count, 65536)]
    for hashes in np.concatenate(parts, axis=1) if parts else ():
      for group in buckets(np.where(is_exact, 0, hashes)):
        for earlier, later in earlier_copies(signatures[group]):
          is_near[group[later]] = True
          clusters.join(group[earlier], [group[later]])
  return clusters.first(), is_exact, is_near


class _Clusters:
  """Union-find, whose root is the first document."""

  def __init__(self, count):
    self._parent = np.arange(count)

  def _root(self, item):
    while self._parent[item] != item:
      self._parent[item] = item = self._parent[self._parent[item]]
    return item

  def join(self, first, others):
    for other in others:
      a, b = sorted((self._root(first), self._root(other)))
      self._parent[b] = a

  def first(self):
    return np.array([self._root(item) for item in range(len(self._parent))], np.int64)
