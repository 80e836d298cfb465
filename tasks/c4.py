"""C4 in English, under T5's own task name: `c4_v220_span_corruption` (arXiv:1910.10683).

The text comes from the first of these that is there: a folder of C4's JSON shards (the layout of
the hub's `allenai/c4`), TFDS data prepared earlier, or the hub itself, shard by shard as needed.
"""

import dataclasses
import pathlib

from t5jax.tasks.hub import HubCorpus, fetch_vocabulary

HUB_DATASET = "allenai/c4"
HUB_VOCABULARY = "google/t5-v1_1-base"


@dataclasses.dataclass(frozen=True, kw_only=True)
class C4Corpus(HubCorpus):
  """C4 English (ODC-BY, and Common Crawl's terms of use).

  Attributes:
    directory: folder of c4-train.*.json.gz and c4-validation.*.json.gz, None for TFDS (c4/en, the
      newest version that is prepared) or the hub.
    name: of the seqio task.
    objective, vocab_file, vocab_size, byte_fallback: see Corpus. Without vocab_file and vocab_size
      the vocabulary is T5's own, fetched from the hub.
    revision, on_error: see HubCorpus; the other settings are C4's.
  """

  repo_id: str = HUB_DATASET
  train: str | list | tuple = "en/c4-train.*.json.gz"
  validation: str | list | tuple | None = "en/c4-validation.*.json.gz"
  tfds: str | None = "c4/en"
  tfds_splits: dict | None = dataclasses.field(
      default_factory=lambda: {"train": "train", "validation": "validation"})
  name: str = "c4_v220_span_corruption"

  def _default_vocabulary(self, folder):
    """The folder's spiece.model, else T5's own, fetched from the hub."""
    if folder is not None and (pathlib.Path(folder) / "spiece.model").exists():
      return str(pathlib.Path(folder) / "spiece.model")
    return fetch_vocabulary(HUB_VOCABULARY)

  def _how_to_get(self):
    return f"{super()._how_to_get()}\nIn base.gin the folder is C4_DIR. A shard has about 320 MB."
