"""Pretraining on the files of a Hugging Face hub dataset, local, streamed, or prepared by TFDS."""

import dataclasses
import glob
import os
import pathlib

from t5jax.data.hub_files import hub_files
from t5jax.data.text_files import DataError, TextFiles, find_files
from t5jax.settings import SettingError
from t5jax.tasks.corpus import FilesCorpus


@dataclasses.dataclass(frozen=True)
class HubCorpus(FilesCorpus):
  """Files of a dataset repository on the hub.

  The text comes from the first of these that is there: a local folder, data that TFDS prepared
  earlier, or the hub itself, file by file as needed.

  Attributes:
    repo_id: of the dataset, "owner/name".
    train: pattern of its files to train on, such as "da/train-*.parquet", or a list of them.
    validation: the same for the validation split. None holds out documents of `train`.
    directory: local copy of the repository, as `hf download --local-dir` makes it, or of the
      folder in it that all the patterns begin with.
    revision: branch, tag or commit; None for the newest, which a run then stays with.
    tfds: the same text in TFDS, such as "c4/en"; also a pattern, of which the newest is taken.
    tfds_splits: {"train": ..., "validation": ...}, TFDS's own names or slices.
    transform: function from a document to what is kept of it, or to None.
    name: of the seqio task.
    validation_fraction, field, on_error: see FilesCorpus.
    objective, vocab_file, vocab_size, byte_fallback: see Corpus.
  """

  repo_id: str
  _: dataclasses.KW_ONLY
  train: str | list | tuple
  validation: str | list | tuple | None = None
  directory: str | None = None
  revision: str | None = None
  tfds: str | None = None
  tfds_splits: dict | None = None
  name: str = "hub"

  def __post_init__(self):
    super().__post_init__()
    for field in ("train", "validation"):
      patterns = getattr(self, field)
      if patterns is not None:
        patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        object.__setattr__(self, field, patterns)
    if self.validation is not None and self.validation_fraction is not None:
      raise self._setting_error("validation_fraction", self.validation_fraction,
                                "None where the repository has files for validation")

  def check_text(self):
    """Refuses, within seconds, data that cannot be had; says how to get them. See Corpus."""
    if self.directory is not None or self._tfds_builder() is None:
      super().check_text()

  def source(self):
    """Returns the seqio data source: local files, TFDS or the hub."""
    if self.directory is None and (builder := self._tfds_builder()) is not None:
      return tfds_source(builder, self.tfds_splits, self.field)
    return super().source()

  def training_text(self):
    """Returns the TextFiles to train on."""
    return self._text(self.train)

  def validation_text(self):
    """Returns the TextFiles to validate on, None to hold out some of what is trained on."""
    return None if self.validation is None else self._text(self.validation)

  def _tfds_builder(self):
    return None if self.tfds is None else newest_prepared(self.tfds)

  def _text(self, patterns):
    if self.directory is not None:
      paths = find_files([os.path.join(self._local_root(), p) for p in patterns],
                         f"{type(self).__name__}.directory")
      return TextFiles(paths, field=self.field)
    try:
      return hub_files(self.repo_id, patterns, revision=self.revision, field=self.field)
    except DataError as error:
      raise DataError(f"{self._how_to_get()}\n({error})") from error
