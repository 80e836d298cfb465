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
import typing

from t5jax.data import text_files
from t5jax.settings import SettingError
from t5jax.tasks.corpus import FilesCorpus, TaskCorpus


@dataclasses.dataclass(frozen=True)
class TextCorpus(FilesCorpus):
  """Local text files: .txt .jsonl .csv .parquet, each also .gz or .zst, recognised by content.

  Attributes:
    files: path, glob pattern or list of them.
    validation_files: the same for the validation split. None holds out documents of `files`.
    documents: of text without fields, "line" for a document a line, "blank_line" for blocks of
      lines, "file" for a document a file.
    encoding: of the files.
    errors: "strict" refuses undecodable bytes, "replace" turns them into U+FFFD and counts them.
    name: of the seqio task.
    validation_fraction, field, on_error: see FilesCorpus.
    objective, vocab_file, vocab_size, byte_fallback: see Corpus.
  """

  files: str | list | tuple
  _: dataclasses.KW_ONLY
  validation_files: str | list | tuple | None = None
  documents: typing.Literal["line", "blank_line", "file"] = "line"
  encoding: str = "utf-8"
  errors: typing.Literal["strict", "replace"] = "strict"
  name: str = "text"

  def __post_init__(self):
    super().__post_init__()
    if self.validation_files is not None and self.validation_fraction is not None:
      raise SettingError("TextCorpus.validation_fraction", self.validation_fraction,
                         "None where validation_files are set")

  def training_text(self):
    """Returns the TextFiles to train on."""
    return self._text_files(self.files, "TextCorpus.files")

  def validation_text(self):
    """Returns the TextFiles to validate on, None to hold out some of what is trained on."""
    if self.validation_files is None:
      return None
    return self._text_files(self.validation_files, "TextCorpus.validation_files")

  def _text_files(self, patterns, setting):
    return text_files.TextFiles(
        text_files.find_files(patterns, setting), documents=self.documents, field=self.field,
        encoding=self.encoding, errors=self.errors, on_error=self.on_error)


@dataclasses.dataclass(frozen=True)
class TFRecordCorpus(TaskCorpus):
  """Local TFRecord files of tf.train.Example.

  Attributes:
    files: path, glob pattern or list of them.
    validation_files: the same for the validation split.
    field: the bytes feature that holds the text.
    name: of the seqio task.
    objective, vocab_file, vocab_size, byte_fallback: see Corpus.
  """

  files: str | list | tuple
  _: dataclasses.KW_ONLY
  validation_files: str | list | tuple
  field: str = "text"
  name: str = "tfrecord"

  def check_text(self):
    """Refuses patterns that match nothing; see Corpus."""
    self._paths()

  def source(self):
    """Returns the seqio data source; see Corpus."""
    from t5jax.data.sources import tfrecord_source

    return tfrecord_source(*self._paths(), field=self.field)

  def _paths(self):
    return [list(text_files.find_files(getattr(self, name), f"TFRecordCorpus.{name}"))
            for name in ("files", "validation_files")]
