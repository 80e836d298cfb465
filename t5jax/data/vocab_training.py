"""Trains a SentencePiece model for T5 from documents, within bounded memory and reproducibly."""

import dataclasses
import heapq
import io
import os
import pathlib
import random
import re
import string
import sys
import tempfile

import sentencepiece
from tqdm import tqdm

from t5jax.data.normalization import write_rules
from t5jax.data.vocabulary import Vocabulary
from t5jax.settings import AT_LEAST_ONE, FRACTION, check_numbers

# Must have a piece each, however rare in the text: the letters of Danish and its neighbours' quotes
# and signs, which a coverage of 0.9995 turns into unknown.
DANISH_CHARS = "æøåÆØÅéÉüÜöÖäÄ»«„“”’…–—§½¼¾°"
REQUIRED_CHARS = DANISH_CHARS + string.ascii_letters + string.digits + string.punctuation

_SENTENCE_BYTES = 4000
# As many on every machine: the sums of the training, and so its result, depend on it.
_NUM_THREADS = 8
# SentencePiece keeps these for itself and skips a sentence that holds one.
_RESERVED = str.maketrans({"\u2585": " ", "\0": " "})


@dataclasses.dataclass(frozen=True)
class TrainingReport:
  """What a vocabulary was trained on.

  Attributes:
    num_documents: documents read.
    num_bytes: their size in UTF-8.
    num_sentences: lines, or parts of lines of up to 4,000 bytes, that they were split into.
    used_sentences: of these, how many the sample kept.
    used_bytes: size of the sample.
    num_empty: documents without text.
  """

  num_documents: int
  num_bytes: int
  num_sentences: int
  used_sentences: int
  used_bytes: int
  num_empty: int

  def __str__(self):
    skipped = self.num_sentences - self.used_sentences
    return (f"{self.num_documents:,} documents, {self.num_bytes:,} bytes read; "
            f"{self.used_sentences:,} sentences, {self.used_bytes:,} bytes used; {skipped:,} "
            f"sentences skipped by sampling, {self.num_empty:,} empty documents skipped")


def train_vocabulary(texts, output_path, vocab_size, *, character_coverage=1.0,
                     required_chars=REQUIRED_CHARS, byte_fallback=False, max_sentences=1_000_000,
                     max_bytes=100_000_000, seed=0):
  """Trains a unigram SentencePiece model: pad 0, EOS 1, unknown 2, no BOS.

  Text is normalised by T5's rule, nmt_nfkc, but for two things: fractions stay what they are (the
  rule turns 2½ into 21⁄2), and soft hyphens vanish. Line breaks and repeated spaces become one
  space. The sample is drawn evenly from all sentences; the same texts and seed give the same file.

  Args:
    texts: iterable of str; long ones are split at white space, not skipped.
    output_path: file to write, in whole or not at all.
    vocab_size: number of pieces WITHOUT the 100 sentinels that Vocabulary puts on top: 32,000
      makes T5's 32,100 ids, which a model rounds up to 32,128.
    character_coverage: fraction of the characters of the text to give a piece.
    required_chars: characters to give a piece in any case.
    byte_fallback: spell unknown characters in bytes, for 256 of the pieces.
    max_sentences: largest sample.
    max_bytes: largest sample in bytes; training takes about 30 times as much memory (measured:
      2.4 GB at the default, from 1 GB of text).
    seed: of the sample.

  Returns:
    TrainingReport.

  Raises:
    ValueError: a setting is out of range, or the text is too small for vocab_size: the message
      names the largest size that works.
  """
  check_numbers("train_vocabulary", vocab_size=(vocab_size, AT_LEAST_ONE),
                character_coverage=(character_coverage, FRACTION),
                max_sentences=(max_sentences, AT_LEAST_ONE), max_bytes=(max_bytes, AT_LEAST_ONE))
  sentences, report = _sample(texts, max_sentences, max_bytes, seed)
  if not sentences:
    raise ValueError(f"the vocabulary cannot be trained: {report}.")
  model = _train(sentences, vocab_size, dict(
      character_coverage=character_coverage, required_chars=required_chars,
      byte_fallback=byte_fallback))
  _write(model, output_path)
  return report


def _sample(texts, max_sentences, max_bytes, seed):
  """Draws sentences evenly: each gets a random number, and the smallest numbers stay."""
  draw = random.Random(seed).random
  heap, used_bytes = [], 0
  num_documents = num_bytes = num_sentences = num_empty = 0
  for text in tqdm(texts, desc="reading text", unit=" documents", mininterval=1.0):
    num_documents += 1
    num_bytes += len(text.encode())
    before = num_sentences
    for sentence in split_sentences(text):
      num_sentences += 1
      size = len(sentence.encode())
      heapq.heappush(heap, (-draw(), num_sentences, sentence, size))
      used_bytes += size
      while len(heap) > max_sentences or used_bytes > max_bytes and len(heap) > 1:
        used_bytes -= heapq.heappop(heap)[3]
    num_empty += num_sentences == before
  report = TrainingReport(num_documents, num_bytes, num_sentences, len(heap), used_bytes, num_empty)
  return [sentence for _, _, sentence, _ in sorted(heap)], report


def split_sentences(text, max_bytes=_SENTENCE_BYTES):
  """Yields the lines of a text; longer ones in parts, cut at white space where there is any.

  Args:
    text: str.
    max_bytes: size of a part in UTF-8.
  """
  for line in text.translate(_RESERVED).split("\n"):
    line = line.strip()
    while len(line.encode()) > max_bytes:
      head = line.encode()[:max_bytes].decode(errors="ignore")
      cut = max(head.rfind(" "), head.rfind("\t"))
      head = head[:cut] if cut > 0 else head
      yield head
      line = line[len(head):].lstrip()
    if line:
      yield line


def _train(sentences, vocab_size, settings):
  """Returns the bytes of a model."""
  tqdm.write(f"training a vocabulary of {vocab_size:,} pieces on {len(sentences):,} sentences",
             file=sys.stderr)
  output = io.BytesIO()
  with tempfile.TemporaryDirectory() as folder:
    rules = os.path.join(folder, "rules.tsv")
    write_rules(rules)
    try:
      sentencepiece.SentencePieceTrainer.train(
          sentence_iterator=iter(sentences), model_writer=output, model_type="unigram",
          vocab_size=vocab_size, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
          normalization_rule_tsv=rules, max_sentence_length=2 * _SENTENCE_BYTES,
          num_threads=_NUM_THREADS, shuffle_input_sentence=False, minloglevel=2, **settings)
    except RuntimeError as error:
      raise ValueError(_explain(str(error), vocab_size)) from error
  return _without_paths(output.getvalue())


def _explain(message, vocab_size):
  if largest := re.search(r"value <= (\d+)", message):
    return (f"vocab_size = {vocab_size} is too large for this text: at most {largest[1]} pieces "
            "can be made of it. Set that, or give more text.")
  if smallest := re.search(r"required_chars\. \d+ vs (\d+)", message):
    return (f"vocab_size = {vocab_size} is too small: the characters alone need {smallest[1]} "
            "pieces. Set more, or a lower character_coverage.")
  return f"the vocabulary cannot be trained: {' '.join(message.split())}"


def _without_paths(model):
  """Names the normalisation instead of the temporary file that it was read from."""
  from sentencepiece import sentencepiece_model_pb2

  proto = sentencepiece_model_pb2.ModelProto.FromString(model)
  proto.normalizer_spec.name = "nmt_nfkc_t5jax"
  proto.normalizer_spec.normalization_rule_tsv = ""
  return proto.SerializeToString(deterministic=True)


def text_rates(vocabulary, texts):
  """Measures how well a vocabulary holds text.

  Args:
    vocabulary: Vocabulary.
    texts: iterable of str.

  Returns:
    (fraction of the ids that are unknown, fraction of the lines that decode to themselves).
  """
  lines = [line for text in texts for line in text.split("\n") if line.strip()]
  encoded = [vocabulary.encode(line) for line in lines]
  num_ids = sum(map(len, encoded))
  num_unknown = sum(ids.count(vocabulary.unk_id) for ids in encoded)
  num_same = sum(vocabulary.decode(ids) == line for ids, line in zip(encoded, lines))
  return num_unknown / max(num_ids, 1), num_same / max(len(lines), 1)


def _write(model, output_path):
  path = pathlib.Path(output_path)
  path.parent.mkdir(parents=True, exist_ok=True)
  partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
  try:
    partial.write_bytes(model)
    Vocabulary(partial)
    os.replace(partial, path)
  finally:
    partial.unlink(missing_ok=True)
