"""C4 in English, under T5's own task name: `c4_v220_span_corruption` (arXiv:1910.10683).

The text comes from the first of these that is there: a folder of C4's JSON shards (the layout of
the hub's `allenai/c4`), TFDS data prepared earlier, or the hub itself, shard by shard as needed.
"""

import dataclasses
import functools
import glob
import os
import pathlib

from t5jax.data.text_files import DataError, TextFiles, find_files
from t5jax.settings import SettingError
from t5jax.tasks.corpus import Corpus

HUB_DATASET = "allenai/c4"
HUB_VOCABULARY = "google/t5-v1_1-base"
_SHARDS = {"train": 1024, "validation": 8}
_TIMEOUT_SECONDS = 5

_DOWNLOAD = (f"hf download {HUB_DATASET} --repo-type=dataset --local-dir=c4 "
             "--include 'en/c4-train.0000*' 'en/c4-validation.*', then --gin.C4_DIR=c4/en")
_HOW_TO_GET = f"""C4 is not at hand. Do one of these:
 - Fetch shards (320 MB each; a few will do for a trial) and set C4_DIR to their folder:
   {_DOWNLOAD}
 - Point TFDS_DATA_DIR at TFDS data in which c4/en is prepared.
 - Let this machine reach huggingface.co (and unset HF_HUB_OFFLINE): shards are then fetched as
   they are needed.
 - Train on your own text instead: python -m t5jax.train --gin_file=text.gin (see README)"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class C4Corpus(Corpus):
  """C4 English.

  Attributes:
    directory: folder of c4-train.*.json.gz and c4-validation.*.json.gz, None for TFDS or the hub.
    name: of the seqio task.
    objective, vocab_file, vocab_size, byte_fallback: see Corpus. Without vocab_file and vocab_size
      the vocabulary is T5's own, fetched from the hub.
  """

  directory: str | None = None
  name: str = "c4_v220_span_corruption"

  def check_text(self):
    """Refuses data that cannot be had; the message says how to get them. See Corpus."""
    if self.directory is not None:
      for files in self._local_files():
        files.check()
    elif _tfds_version() is None:
      _check_hub(HUB_DATASET, "dataset", _HOW_TO_GET)

  def _default_vocabulary(self, folder):
    """The folder's spiece.model, else T5's own, fetched from the hub."""
    if folder is not None and (pathlib.Path(folder) / "spiece.model").exists():
      return str(pathlib.Path(folder) / "spiece.model")
    return _hub_vocabulary()

  def source(self):
    """Returns the seqio data source: local shards, TFDS or the hub."""
    from t5jax.data import sources

    if self.directory is not None:
      return sources.TextSource(*self._local_files())
    if (version := _tfds_version()) is not None:
      import seqio

      return sources.NumberedSource(seqio.TfdsDataSource(f"c4/en:{version}",
                                                         splits=["train", "validation"]))
    return sources.TextSource(*(
        TextFiles(tuple(f"en/c4-{split}.{i:05d}-of-{n:05d}.json.gz" for i in range(n)),
                  fetch=_fetch_shard) for split, n in _SHARDS.items()))

  def _local_files(self):
    folder = os.path.expanduser(self.directory)
    found = []
    for split in _SHARDS:
      pattern = os.path.join(folder, f"c4-{split}.*.json.gz")
      if not glob.glob(pattern):
        raise SettingError("C4Corpus.directory", self.directory,
                           f"a folder that holds c4-{split}.*.json.gz, as in {_DOWNLOAD}")
      found.append(TextFiles(find_files(pattern, "C4Corpus.directory")))
    return found


def _tfds_version():
  """The newest version of c4/en that TFDS has prepared on this machine, or None."""
  folder = os.path.expanduser(os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets"))
  prepared = glob.glob(os.path.join(folder, "c4", "en", "*", "dataset_info.json"))
  versions = [pathlib.Path(path).parent.name for path in prepared]
  return max(versions, default=None,
             key=lambda v: [int(part) if part.isdigit() else 0 for part in v.split(".")])


def _check_hub(repository, kind, advice):
  """Raises DataError with the advice unless the hub answers within a few seconds."""
  import huggingface_hub

  try:
    huggingface_hub.HfApi().repo_info(repository, repo_type=kind, timeout=_TIMEOUT_SECONDS)
  except Exception as error:  # Whatever the reason: offline mode, no network, no such host.
    raise DataError(f"{advice}\n(huggingface.co: {' '.join(str(error).split())[:200]})") from error


@functools.cache
def _fetch_shard(name):
  """Downloads a shard of C4 into the hub's cache; returns its path there."""
  import huggingface_hub

  try:
    return huggingface_hub.hf_hub_download(HUB_DATASET, name, repo_type="dataset")
  except Exception as error:
    raise DataError(f"{HUB_DATASET}/{name}: cannot be fetched: {' '.join(str(error).split())}"
                    ) from error


def _hub_vocabulary():
  import huggingface_hub

  download = functools.partial(huggingface_hub.hf_hub_download, HUB_VOCABULARY, "spiece.model")
  try:
    return download(local_files_only=True)
  except huggingface_hub.errors.LocalEntryNotFoundError:
    _check_hub(HUB_VOCABULARY, "model",
               f"T5's vocabulary ({HUB_VOCABULARY}, spiece.model) cannot be fetched. Set "
               "vocab_file to a SentencePiece model, such as one trained with "
               "tools/train_vocab.py.")
  return download()
