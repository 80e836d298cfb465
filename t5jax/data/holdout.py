"""Which documents are held out for validation: a stable function of their text.

A document is held out if the hash of its text, a number of 64 bits, lies below a threshold, so
exact duplicates fall on one side, and neither order, files nor seeds matter.
"""

import hashlib

from t5jax.data.text_files import DataError

_HASHES = 1 << 64


def text_hash(text):
  """Returns a hash in [0, 2**64) of the UTF-8 bytes of a text, the same on every machine."""
  return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def threshold(texts, fraction):
  """Chooses the hash below which documents are held out.

  It is `fraction` of the range, unless that would leave one side empty: then the document with the
  smallest hash alone is held out (or, with none left to train on, the largest alone is not).
  Reading ends as soon as both sides have a document, which is early in a large corpus.

  Args:
    texts: iterable of documents.
    fraction: of the documents to hold out, in (0, 1).

  Returns:
    An int in (0, 2**64).

  Raises:
    DataError: there are not two different documents.
  """
  limit = int(fraction * _HASHES)
  smallest, largest = _HASHES, -1
  for text in texts:
    value = text_hash(text)
    smallest, largest = min(smallest, value), max(largest, value)
    if smallest < limit <= largest:
      return limit
  if smallest >= largest:
    raise DataError("the files hold fewer than two different documents, so none can be held out: "
                    "add text, set documents='blank_line' for .txt files whose documents are "
                    "paragraphs, or set validation_files.")
  return smallest + 1 if smallest >= limit else largest
