"""Pretraining on the files of a Hugging Face hub dataset: local, streamed, or prepared by TFDS."""

import dataclasses
import functools
import glob
import os
import pathlib
import typing

from t5jax.data.hub_files import hub_files
from t5jax.data.text_files import DataError, TextFiles, find_files
from t5jax.tasks.corpus import FilesCorpus

_DEFAULT_TFDS_FOLDER = "~/tensorflow_datasets"
_TIMEOUT_SECONDS = 5


@dataclasses.dataclass(frozen=True)
class HubCorpus(FilesCorpus):
  """Files of a dataset repository of the hub: .parquet .jsonl .csv .txt, also compressed.

  They come from the first of these that is there: a local folder, data that TFDS prepared
  earlier, or the hub itself, file by file as needed.

  Attributes:
    repo_id: of the dataset, "owner/name".
    train: pattern of its files to train on, such as "da/train-*.parquet", or a list of them.
    validation: the same for the validation split. None holds out documents of `train`.
    directory: a local copy of the repository, as `hf download --local-dir` makes it, or of the
      folder in it that all files lie in.
    revision: branch, tag or commit; None for the main branch.
    tfds: the same text in TFDS, such as "c4/en", of which the newest version is taken; of a
      pattern the newest match.
    tfds_splits: of TFDS, as {"train": name or slice, "validation": ...}.
    transform: function from a document to what is kept of it.
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
  transform: typing.Callable | None = None
  name: str = "hub"
  _validation_setting: typing.ClassVar[str] = "validation"

  def __post_init__(self):
    super().__post_init__()
    for field in ("train", "validation"):
      patterns = getattr(self, field)
      if patterns is not None:
        patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        object.__setattr__(self, field, patterns)
    if self.validation is not None and self.validation_fraction is not None:
      raise self._setting_error("validation_fraction", self.validation_fraction,
                                "None where the repository has files to validate on")

  def check_text(self):
    """Refuses data that cannot be had; the message says how to get them. See Corpus."""
    if self._prepared() is None:
      super().check_text()

  def source(self):
    """Returns the seqio data source of local files, TFDS or the hub; see Corpus."""
    if (prepared := self._prepared()) is None:
      return super().source()
    import seqio

    from t5jax.data.sources import NumberedSource

    name, folder = prepared
    return NumberedSource(seqio.TfdsDataSource(name, folder, self.tfds_splits), self.field)

  def training_text(self):
    """Returns the TextFiles to train on."""
    return self._text(self.train)

  def validation_text(self):
    """Returns the TextFiles to validate on, None to hold out some of what is trained on."""
    return None if self.validation is None else self._text(self.validation)

  def _prepared(self):
    """(name, folder) of the data in TFDS that are to be used, else None."""
    if self.tfds is None or self.directory is not None:
      return None
    return newest_prepared(self.tfds)

  def _text(self, patterns):
    options = dict(field=self.field, on_error=self.on_error, transform=self.transform)
    if self.directory is not None:
      paths = find_files(self._local(patterns), f"{type(self).__name__}.directory")
      return TextFiles(paths, **options)
    try:
      return hub_files(self.repo_id, patterns, revision=self.revision, **options)
    except DataError as error:
      raise DataError(f"{self._how_to_get()}\n({error})") from error

  def _local(self, patterns):
    """The patterns of files in self.directory, which may begin at any folder they all share."""
    root = os.path.expanduser(self.directory)
    folders = pathlib.PurePosixPath(os.path.commonpath(
        [os.path.dirname(p) for p in (*self.train, *(self.validation or ()))])).parts
    plain = next((i for i, part in enumerate(folders) if glob.has_magic(part)), len(folders))
    for depth in range(plain + 1):
      local = [os.path.join(root, *pathlib.PurePosixPath(p).parts[depth:]) for p in patterns]
      if all(glob.glob(pattern) for pattern in local):
        return local
    names = " and ".join(os.path.basename(p) for p in patterns)
    raise self._setting_error("directory", self.directory,
                              f"a folder that holds {names}, as {self._download()} makes it")

  def _download(self):
    files = " ".join(f"'{p}'" for p in (*self.train, *(self.validation or ())))
    return (f"hf download {self.repo_id} --repo-type=dataset --local-dir=FOLDER "
            f"--include {files}")

  def _how_to_get(self):
    tfds = ("" if self.tfds is None else
            f" - Point TFDS_DATA_DIR at TFDS data in which {self.tfds} is prepared.\n")
    return (f"{self.repo_id} is not at hand. Do one of these:\n"
            f" - Fetch its files, or a few of them for a trial, and set `directory` of this corpus "
            f"to their folder:\n   {self._download()}\n{tfds}"
            " - Let this machine reach huggingface.co (and unset HF_HUB_OFFLINE): files are then "
            "fetched as\n   they are needed.\n"
            " - Train on your own text instead: python -m t5jax.train --gin_file=text.gin (see "
            "README)")


def newest_prepared(name):
  """Finds data that TFDS has prepared on this machine, in TFDS_DATA_DIR or its default folder.

  Args:
    name: "dataset/config" or "dataset"; in patterns such as "wikipedia/*.da" the last match wins.

  Returns:
    ("dataset/config:version", folder of all data sets), None where there is nothing.
  """
  folder = os.path.expanduser(os.environ.get("TFDS_DATA_DIR", _DEFAULT_TFDS_FOLDER))
  found = [pathlib.Path(path).parent.relative_to(folder)
           for path in glob.glob(os.path.join(folder, name, "*", "dataset_info.json"))]
  if not found:
    return None
  newest = max(found, key=lambda path: (path.parent.as_posix(), _version(path.name)))
  return f"{newest.parent.as_posix()}:{newest.name}", folder


def _version(name):
  return [int(part) if part.isdigit() else 0 for part in name.split(".")]


def fetch_vocabulary(repo_id):
  """Returns the path of spiece.model of a model on the hub, fetched if it is not there yet.

  Raises:
    DataError: the hub does not answer within a few seconds.
  """
  import huggingface_hub

  download = functools.partial(huggingface_hub.hf_hub_download, repo_id, "spiece.model")
  try:
    return download(local_files_only=True)
  except huggingface_hub.errors.LocalEntryNotFoundError:
    pass
  try:
    huggingface_hub.HfApi().repo_info(repo_id, timeout=_TIMEOUT_SECONDS)
    return download()
  except Exception as error:  # Whatever the reason: offline mode, no network, no such host.
    raise DataError(
        f"T5's vocabulary ({repo_id}, spiece.model) cannot be fetched. Set vocab_file to a "
        "SentencePiece model, such as one trained with tools/train_vocab.py. (huggingface.co: "
        f"{' '.join(str(error).split())[:200]})") from error
