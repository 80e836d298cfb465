"""What all corpora share: an objective, a vocabulary, and how they become a seqio task."""

import dataclasses
import functools
import logging
import os
import pathlib
import typing

from t5jax.data import holdout
from t5jax.data.objectives import Objective, SpanCorruption
from t5jax.data.vocabulary import Vocabulary
from t5jax.settings import AT_LEAST_ONE, RATE, SettingError, check_settings

NUM_SENTINELS = 100
DEFAULT_VALIDATION_FRACTION = 0.02
_registered = {}  # Name of a task -> its corpus.
_VOCABULARY_BYTES = 1_000_000_000  # Read to train a vocabulary: more would hardly change it.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus:
  """Base of all corpora; a subclass says where the text comes from.

  Attributes:
    objective: what a model learns from the text, see t5jax.data.objectives.
    vocab_file: a SentencePiece model.
    vocab_size: pieces of a vocabulary to train on the text, without the 100 sentinels.
    byte_fallback: of the vocabulary to train: spell unknown characters in bytes.
    name: of the seqio task.
  """

  objective: Objective = SpanCorruption()
  vocab_file: str | None = None
  vocab_size: int | None = None
  byte_fallback: bool = False
  name: str

  def __post_init__(self):
    check_settings(self, vocab_size=AT_LEAST_ONE)
    if self.vocab_file is not None and self.vocab_size is not None:
      raise self._wrong_vocabulary()
    if self.byte_fallback and self.vocab_size is None:
      raise self._setting_error("byte_fallback", True, "False where no vocabulary is trained: "
                                "vocab_size is not set")

  def check_lengths(self, feature_lengths):
    """Refuses lengths that do not fit the objective; raises SettingError."""
    self.objective.segment_length(feature_lengths, NUM_SENTINELS)

  def has_validation(self):
    """Whether some text is held out, so that a run can evaluate."""
    return True

  def check_text(self):
    """Refuses, within seconds, text that cannot be had or used; raises SettingError, DataError."""
    raise NotImplementedError

  def check(self, feature_lengths):
    """Refuses, within seconds, settings that do not fit and text that cannot be used.

    Args:
      feature_lengths: {"inputs": int, "targets": int}.

    Raises:
      SettingError, DataError: names the setting or file.
    """
    self.check_lengths(feature_lengths)
    self.check_text()
    if self.vocab_size is None:
      Vocabulary(self.vocabulary_file(None), NUM_SENTINELS)

  def vocabulary_file(self, folder):
    """Finds or makes the vocabulary.

    Args:
      folder: where a trained one is kept, as spiece.model; trained now if it is not there.

    Returns:
      Path of the SentencePiece model.

    Raises:
      ValueError: the text is too small for vocab_size, or the folder's vocabulary has another size.
    """
    if self.vocab_file is not None:
      return os.path.expanduser(self.vocab_file)
    if self.vocab_size is None:
      return self._default_vocabulary(folder)
    path = pathlib.Path(folder) / "spiece.model"
    if path.exists():
      found = Vocabulary(path, NUM_SENTINELS).num_pieces
      if found != self.vocab_size:
        raise self._setting_error("vocab_size", self.vocab_size,
                                  f"{found}, the size of {path}, or another model_dir")
      return str(path)
    from t5jax.data.vocab_training import train_vocabulary

    report = train_vocabulary(self.sample(_VOCABULARY_BYTES), path, self.vocab_size,
                              byte_fallback=self.byte_fallback)
    print(f"vocabulary: {report}")
    return str(path)

  def sample(self, max_bytes):
    """Yields training documents (str) from all over the text, until they have `max_bytes`."""
    raise NotImplementedError

  def register(self, vocab_file=None):
    """Registers the seqio task, in place of an earlier one of this name.

    Args:
      vocab_file: vocabulary to use instead of the corpus's own.

    Returns:
      The task's name.
    """
    raise NotImplementedError

  def _vocabulary_to_register(self, vocab_file):
    if vocab_file is None and self.vocab_size is not None:
      raise self._setting_error("vocab_size", self.vocab_size,
                                "None, and vocab_file set, where a task is registered directly")
    return vocab_file or self.vocabulary_file(None)

  def _default_vocabulary(self, folder):
    """The vocabulary where neither vocab_file nor vocab_size is set."""
    del folder
    raise self._wrong_vocabulary()

  def _wrong_vocabulary(self):
    return self._setting_error("vocab_size", self.vocab_size,
                               "either vocab_file, a SentencePiece model, or vocab_size, the size "
                               "of one to train")

  def _setting_error(self, field, value, valid):
    return SettingError(f"{type(self).__name__}.{field}", value, valid)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskCorpus(Corpus):
  """Base of the corpora that are one seqio task; a subclass gives its source. See Corpus."""

  def source(self):
    """Returns the seqio data source of {"text", "index"}, with splits train and validation."""
    raise NotImplementedError

  def sample(self, max_bytes):
    """Yields training documents of files in random order, several at a time; see Corpus."""
    from t5jax.data.online import Elements

    dataset = self.source().get_dataset(split="train", shuffle=True, seed=0)
    num_bytes = 0
    for example in Elements(dataset):
      text = example["text"].numpy()
      yield text.decode()
      num_bytes += len(text)
      if num_bytes >= max_bytes:
        return

  def register(self, vocab_file=None):
    """Registers the seqio task; see Corpus."""
    import seqio

    from t5jax.data import preprocessors

    vocabulary = Vocabulary(self._vocabulary_to_register(vocab_file), NUM_SENTINELS).seqio()
    feature = seqio.Feature(vocabulary, add_eos=True)
    if self.name in seqio.TaskRegistry.names():
      if _registered.get(self.name, self) != self:
        logging.warning("The task %r takes the place of another one of this name.", self.name)
      seqio.TaskRegistry.remove(self.name)
    _registered[self.name] = self
    seqio.TaskRegistry.add(
        self.name, source=self.source(), output_features={"inputs": feature, "targets": feature},
        preprocessors=[functools.partial(preprocessors.pretrain, objective=self.objective)])
    return self.name


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilesCorpus(TaskCorpus):
  """Base of the corpora that are read from files; a subclass says which.

  Attributes:
    validation_fraction: of the documents to hold out where there are no files of their own for
      validation, by a hash of their text (exact duplicates stay together), at least one; None
      for 0.02, 0 for no validation split.
    field: of .jsonl rows, .csv files and .parquet files, that holds the text.
    on_error: "refuse" ends a run at what cannot be read, "skip" counts and skips it.
    objective, vocab_file, vocab_size, byte_fallback, name: see Corpus.
  """

  validation_fraction: float | None = None
  field: str = "text"
  on_error: typing.Literal["refuse", "skip"] = "refuse"
  _validation_setting: typing.ClassVar[str] = "validation_files"

  def __post_init__(self):
    super().__post_init__()
    check_settings(self, validation_fraction=RATE)

  def training_text(self):
    """Returns the TextFiles to train on."""
    raise NotImplementedError

  def validation_text(self):
    """Returns the TextFiles to validate on, None to hold out some of what is trained on."""
    return None

  def has_validation(self):
    """Whether some text is held out; see Corpus."""
    return self.validation_fraction != 0 or self.validation_text() is not None

  def check_text(self):
    """Refuses files that cannot be used, by their first records; see Corpus."""
    training, validation = self.training_text(), self.validation_text()
    training.check()
    self._check_held_out(training)
    if validation is not None:
      validation.check()
      if common := set(training.paths) & set(validation.paths):
        raise self._setting_error(self._validation_setting, sorted(common)[0],
                                  "files that are not trained on")

  def _check_held_out(self, training):
    """Refuses text of which nothing can be held out, though something is to be."""
    holds_out = self.has_validation() and self.validation_text() is None
    if holds_out and training.fetch is None:
      holdout.threshold(training.iterate(), 0.5)  # Of one half: that reads but a few documents.

  def source(self):
    """Returns the seqio data source; see Corpus."""
    from t5jax.data.sources import TextSource

    validation, fraction = self.validation_text(), self.validation_fraction
    if fraction is None:
      fraction = 0.0 if validation is not None else DEFAULT_VALIDATION_FRACTION
    return TextSource(self.training_text(), validation, fraction)
