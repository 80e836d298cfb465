"""Pretraining on your own text files.

In gin:

    from t5jax.tasks import text
    text.TextCorpus.files = "~/corpus/*.txt"
    text.TextCorpus.vocab_size = 32000
    TaskData.task = @text.TextCorpus()

As a seqio task, for other programs:

    import seqio
    from t5jax.tasks.text import TextCorpus
    name = TextCorpus(files="corpus.txt", vocab_file="spiece.model").register()
    lengths = {"inputs": 512, "targets": 114}
    for example in seqio.get_mixture_or_task(name).get_dataset(lengths, split="train"):
      ...
"""

import dataclasses
import functools
import os
import pathlib
import typing

from t5jax.data import text_files
from t5jax.data.spans import DENSITY, check_span_lengths
from t5jax.data.vocabulary import Vocabulary
from t5jax.settings import AT_LEAST_ONE, RATE, SettingError, check_settings

NUM_SENTINELS = 100
DEFAULT_VALIDATION_FRACTION = 0.02


@dataclasses.dataclass(frozen=True)
class TextCorpus:
  """Local text files for span corruption.

  Attributes:
    files: path, glob pattern or list of them: .txt or .jsonl, both also .gz.
    validation_files: the same for the validation split. None holds out documents of `files`.
    validation_fraction: of the documents to hold out, by a hash of their text (exact duplicates
      stay together), at least one; None for 0.02, 0 for no validation split.
    documents: of .txt files, "line" for a document a line, "blank_line" for blocks of lines.
    field: of .jsonl rows.
    encoding: of the files.
    errors: "strict" refuses undecodable bytes, "replace" turns them into U+FFFD and counts them.
    vocab_file: a SentencePiece model. None trains one on the training documents.
    vocab_size: pieces of the vocabulary to train, without the 100 sentinels.
    byte_fallback: of the vocabulary to train: spell unknown characters in bytes.
    noise_density: fraction of the tokens to corrupt.
    mean_noise_span_length: tokens per corrupted span.
    name: of the seqio task.
  """

  files: str | list | tuple
  validation_files: str | list | tuple | None = None
  validation_fraction: float | None = None
  documents: typing.Literal["line", "blank_line"] = "line"
  field: str = "text"
  encoding: str = "utf-8"
  errors: typing.Literal["strict", "replace"] = "strict"
  vocab_file: str | None = None
  vocab_size: int | None = None
  byte_fallback: bool = False
  noise_density: float = 0.15
  mean_noise_span_length: float = 3.0
  name: str = "text"

  def __post_init__(self):
    check_settings(self, validation_fraction=RATE, vocab_size=AT_LEAST_ONE, noise_density=DENSITY,
                   mean_noise_span_length=AT_LEAST_ONE)
    if (self.vocab_file is None) == (self.vocab_size is None):
      raise SettingError("TextCorpus.vocab_size", self.vocab_size,
                         "either vocab_file, a SentencePiece model, or vocab_size, the size of "
                         "one to train")
    if self.validation_files is not None and self.validation_fraction is not None:
      raise SettingError("TextCorpus.validation_fraction", self.validation_fraction,
                         "None where validation_files are set")
    if self.byte_fallback and self.vocab_file is not None:
      raise SettingError("TextCorpus.byte_fallback", True, "False where vocab_file is set")

  def check(self, feature_lengths):
    """Refuses files that cannot be used and lengths that do not fit, within a second.

    Args:
      feature_lengths: {"inputs": int, "targets": int}.

    Raises:
      SettingError, DataError: names the setting or file.
    """
    check_span_lengths(feature_lengths, NUM_SENTINELS, self.noise_density,
                       self.mean_noise_span_length)
    if self.vocab_file is not None:
      Vocabulary(os.path.expanduser(self.vocab_file), NUM_SENTINELS)
    training, validation = self._files(), self._validation()
    training.check()
    if validation is not None:
      validation.check()
      if common := set(training.paths) & set(validation.paths):
        raise SettingError("TextCorpus.validation_files", sorted(common)[0],
                           "files that are not trained on")

  def vocabulary_file(self, folder):
    """Returns the path of the vocabulary: vocab_file, or folder/spiece.model, trained if not there.

    Raises:
      ValueError: the text is too small for vocab_size, or the folder's vocabulary has another size.
    """
    if self.vocab_file is not None:
      return os.path.expanduser(self.vocab_file)
    path = pathlib.Path(folder) / "spiece.model"
    if path.exists():
      found = Vocabulary(path, NUM_SENTINELS).num_pieces
      if found != self.vocab_size:
        raise SettingError("TextCorpus.vocab_size", self.vocab_size,
                           f"{found}, the size of {path}, or another model_dir")
      return str(path)
    from t5jax.data.vocab_training import train_vocabulary

    report = train_vocabulary(self.source().documents("train"), path, self.vocab_size,
                              byte_fallback=self.byte_fallback)
    print(f"vocabulary: {report}")
    return str(path)

  def source(self):
    """Returns the seqio data source."""
    from t5jax.data.sources import TextSource

    fraction = self.validation_fraction
    if fraction is None:
      fraction = 0.0 if self.validation_files is not None else DEFAULT_VALIDATION_FRACTION
    return TextSource(self._files(), self._validation(), fraction)

  def register(self, vocab_file=None):
    """Registers the seqio task, in place of an earlier one of this name.

    Args:
      vocab_file: vocabulary to use instead of self.vocab_file.

    Returns:
      The task's name.
    """
    return register_span_corruption(
        self.name, self.source(), vocab_file or os.path.expanduser(self.vocab_file),
        self.noise_density, self.mean_noise_span_length)

  def _files(self):
    return self._text_files(self.files, "TextCorpus.files")

  def _validation(self):
    if self.validation_files is None:
      return None
    return self._text_files(self.validation_files, "TextCorpus.validation_files")

  def _text_files(self, patterns, setting):
    return text_files.TextFiles(
        text_files.find_files(patterns, setting), documents=self.documents, field=self.field,
        encoding=self.encoding, errors=self.errors)


def register_span_corruption(name, source, vocab_file, noise_density=0.15,
                             mean_noise_span_length=3.0):
  """Registers a seqio task of T5's pretraining objective, in place of an earlier one of this name.

  Args:
    name: of the task.
    source: seqio data source of {"text", "index"} with splits train and validation.
    vocab_file: SentencePiece model.
    noise_density: fraction of the tokens to corrupt.
    mean_noise_span_length: tokens per corrupted span.

  Returns:
    `name`.
  """
  import seqio

  from t5jax.data import preprocessors

  vocabulary = Vocabulary(vocab_file, NUM_SENTINELS).seqio()
  feature = seqio.Feature(vocabulary, add_eos=True)
  noise = dict(noise_density=noise_density, mean_noise_span_length=mean_noise_span_length)
  if name in seqio.TaskRegistry.names():
    seqio.TaskRegistry.remove(name)
  seqio.TaskRegistry.add(
      name, source=source, output_features={"inputs": feature, "targets": feature},
      preprocessors=[functools.partial(preprocessors.tokenize_and_concat, **noise),
                     functools.partial(preprocessors.span_corruption, **noise)])
  return name
