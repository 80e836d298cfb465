"""A SentencePiece model with T5's sentinels above it: text to ids and back, without TensorFlow."""

import functools
import hashlib
import itertools
import os
import re

import numpy as np
import sentencepiece

_SENTINEL = re.compile(r"<extra_id_(\d+)>")


class Vocabulary:
  """T5's vocabulary: the pieces of a SentencePiece model, then the sentinels.

  Ids: 0 pad, 1 EOS, 2 unknown, up to `num_pieces` the model's pieces, then `extra_ids` sentinels,
  of which `<extra_id_0>` is the highest, `size - 1`.

  Attributes:
    path: file of the model.
    extra_ids: number of sentinels.
    num_pieces: ids of the model itself.
    size: of the whole vocabulary, `num_pieces + extra_ids`.
    sha256: of the file, as hexadecimal text.
  """

  pad_id = 0
  eos_id = 1
  unk_id = 2

  def __init__(self, path, extra_ids=100):
    """Loads a model.

    Args:
      path: a SentencePiece model file.
      extra_ids: number of sentinels to put on top.

    Raises:
      ValueError: the file is missing, no SentencePiece model, or one whose ids are not T5's.
    """
    self.path = os.fspath(path)
    self.extra_ids = extra_ids
    try:
      with open(path, "rb") as stream:
        model = stream.read()
    except OSError as error:
      raise ValueError(f"{self.path}: the vocabulary cannot be read: {error.strerror}. Make one "
                       "with tools/train_vocab.py.") from error
    self.sha256 = hashlib.sha256(model).hexdigest()
    self._processor = sentencepiece.SentencePieceProcessor()
    try:
      self._processor.LoadFromSerializedProto(model)
    except RuntimeError as error:
      raise ValueError(f"{self.path}: is not a SentencePiece model.") from error
    self._check_ids()

  @classmethod
  def of(cls, vocabulary):
    """Returns the Vocabulary behind a seqio.SentencePieceVocabulary."""
    return cls(vocabulary.sentencepiece_model_file, vocabulary.extra_ids)

  def _check_ids(self):
    processor = self._processor
    have = {"pad": processor.pad_id(), "eos": processor.eos_id(), "unk": processor.unk_id(),
            "bos": processor.bos_id()}
    need = {"pad": self.pad_id, "eos": self.eos_id, "unk": self.unk_id, "bos": -1}
    if have != need:
      wrong = ", ".join(f"{name} {have[name]}" for name in have if have[name] != need[name])
      raise ValueError(f"{self.path}: has {wrong}; T5 needs pad 0, eos 1, unk 2 and no bos (-1). "
                       "Train a vocabulary with tools/train_vocab.py.")

  @property
  def num_pieces(self):
    """Number of ids without the sentinels."""
    return self._processor.get_piece_size()

  @property
  def size(self):
    """Number of ids, sentinels included."""
    return self.num_pieces + self.extra_ids

  def padded_size(self, multiple=128):
    """Returns the size of a model's embedding: `size` rounded up to a multiple."""
    return -(-self.size // multiple) * multiple

  def sentinel_id(self, index):
    """Returns the id of `<extra_id_{index}>`. Raises ValueError where there is no such sentinel."""
    if not 0 <= index < self.extra_ids:
      raise ValueError(f"<extra_id_{index}>: the vocabulary has <extra_id_0> to "
                       f"<extra_id_{self.extra_ids - 1}>.")
    return self.size - 1 - index

  def encode(self, text, sentinels=False):
    """Turns text into ids, without EOS.

    Args:
      text: str.
      sentinels: whether `<extra_id_N>` in the text is a sentinel; otherwise it is plain text.

    Returns:
      List of int. With sentinels, the same as the tokenizer of transformers gives.
    """
    if not sentinels:
      return self._processor.encode(text)
    ids = []
    for position, part in enumerate(_SENTINEL.split(text)):
      ids += [self.sentinel_id(int(part))] if position % 2 else self._processor.encode(part)
    return ids

  def encode_batch(self, texts):
    """Turns many texts into ids at once, without EOS; other threads of Python go on meanwhile.

    Args:
      texts: list of str.

    Returns:
      (ids of all texts, one behind the other, int32 [N]; number of ids of each, int64 [texts]).
    """
    ids = self._processor.encode(texts)
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(itertools.chain.from_iterable(ids), np.int32, lengths.sum()), lengths

  def decode(self, ids):
    """Turns ids into text.

    Args:
      ids: iterable of int. Pad and EOS are left out, sentinels written `<extra_id_N>` with spaces
        around them, and ids beyond the vocabulary (of a padded embedding) taken as unknown.

    Returns:
      str.
    """
    parts, pieces = [], []
    for i in map(int, ids):
      if i in (self.pad_id, self.eos_id):
        continue
      if self.num_pieces <= i < self.size:
        parts += [self._processor.decode(pieces), f"<extra_id_{self.size - 1 - i}>"]
        pieces = []
      else:
        pieces.append(i if 0 <= i < self.num_pieces else self.unk_id)
    parts.append(self._processor.decode(pieces))
    return " ".join(part for part in parts if part)

  def normalize(self, text):
    """Returns the text as the model sees it: equal to decode(encode(text)) without unknowns."""
    return self._processor.normalize(text).replace("\u2581", " ").strip()

  def unknown_rate(self, text):
    """Returns the fraction of the ids of a text that are unknown, 0.0 of an empty one."""
    ids = self.encode(text)
    return ids.count(self.unk_id) / max(len(ids), 1)

  def unknown_parts(self, text):
    """Returns the parts of a text, as list of str, that become the unknown id."""
    ids = self._processor.encode(text)
    pieces = self._processor.encode(text, out_type=str)
    return [piece.lstrip("\u2581") for i, piece in zip(ids, pieces) if i == self.unk_id]

  @functools.cached_property
  def _seqio(self):
    import seqio

    return seqio.SentencePieceVocabulary(self.path, extra_ids=self.extra_ids)

  def seqio(self):
    """Returns the same as a seqio.SentencePieceVocabulary. Imports TensorFlow."""
    return self._seqio
