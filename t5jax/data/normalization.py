"""The text normalisation of our vocabularies: T5's, nmt_nfkc, with two corrections.

SentencePiece holds a rule set as a trie of UTF-8 bytes. It is read back into a list of rules, since
the list itself does not come with the library.
"""

import functools

import numpy as np
import sentencepiece

_SOFT_HYPHEN = "\u00ad"
_FRACTION_SLASH = "\u2044"
_PART = 1024  # Nodes of the trie at a time, times 256 bytes that may follow.


@functools.cache
def rules():
  """Returns {what is replaced: by what} of nmt_nfkc, corrected.

  Fractions such as ½ keep their form, where nmt_nfkc makes 21⁄2 of 2½; soft hyphens, which it
  leaves inside words, are deleted.
  """
  found = {old.decode(): new.decode() for old, new in _read_trie(_nmt_nfkc()).items()}
  found = {old: new for old, new in found.items() if _FRACTION_SLASH not in new}
  return {**found, _SOFT_HYPHEN: ""}


def write_rules(path):
  """Writes `rules()` as the TSV of code points that SentencePiece's trainer reads."""
  with open(path, "w", encoding="ascii") as stream:
    for old, new in sorted(rules().items()):
      stream.write(f"{_code_points(old)}\t{_code_points(new)}\n")


def _code_points(text):
  return " ".join(f"{ord(character):X}" for character in text)


def _nmt_nfkc():
  from sentencepiece import sentencepiece_model_pb2

  normalizer = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc")
  spec = sentencepiece_model_pb2.NormalizerSpec.FromString(normalizer.serialized_normalizer_spec())
  return spec.precompiled_charsmap


def _read_trie(charsmap):
  """Lists a compiled rule set, a part of a level of its trie at a time.

  Args:
    charsmap: bytes: size of the trie (uint32), the trie as a double array of Darts-clone (uint32
      units: label in bits 0-7 and 31, has-leaf in bit 8, offset above), NUL-terminated strings.

  Returns:
    {key: replacement}, both bytes.
  """
  size = int.from_bytes(charsmap[:4], "little")
  units = np.frombuffer(charsmap[4:4 + size], "<u4").astype(np.int64)
  strings = charsmap[4 + size:]
  text_at = functools.cache(lambda start: strings[start:strings.index(b"\0", start)])
  labels = np.arange(256)
  parts, found = [([b""], np.array([0]))], {}
  while parts:
    keys, nodes = parts.pop()
    bases = nodes ^ ((units[nodes] >> 10) << ((units[nodes] & 512) >> 6))
    leaves = np.flatnonzero(units[nodes] & 256)
    starts = units[bases[leaves]] & 0x7FFFFFFF
    found.update((keys[i], text_at(start)) for i, start in zip(leaves.tolist(), starts.tolist()))
    children = bases[:, None] ^ labels
    inside = children < len(units)
    labelled = units[np.where(inside, children, 0)] & 0x800000FF
    parents, bytes_ = np.nonzero(inside & (labelled == labels) & (labels > 0))
    keys = [keys[p] + bytes([b]) for p, b in zip(parents.tolist(), bytes_.tolist())]
    nodes = children[parents, bytes_]
    parts += [(keys[i:i + _PART], nodes[i:i + _PART]) for i in range(0, len(keys), _PART)]
  return found
