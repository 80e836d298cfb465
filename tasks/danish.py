"""Danish text for pretraining: the open corpora, and mixtures of them.

Each function returns a corpus, and takes besides its own arguments the settings that all corpora
share: objective, vocab_file, vocab_size, byte_fallback, name, on_error. Rows without text are
dropped: of the encyclopedia and books in one copy of Danish Gigaword that was more than a third.

In gin (danish.gin has all that is needed to train):

    from t5jax.tasks import danish
    TaskData.task = @danish.dynaword()
    danish.dynaword.vocab_size = 32000
"""

import dataclasses
import glob
import os
import typing

from t5jax.data.dagw import find_documents, strip_speakers
from t5jax.data.text_files import DataError, TextFiles
from t5jax.settings import Range, check_numbers
from t5jax.tasks.c4 import C4Corpus
from t5jax.tasks.corpus import FilesCorpus
from t5jax.tasks.hub import HubCorpus
from t5jax.tasks.mixture import CorpusMixture

_SHARE = Range(low=0, high=1, open_low=True, open_high=True)


def mc4_danish(directory=None, name="mc4_danish", **settings):
  """mC4's Danish part: web pages of 86 crawls, cleaned by rules that do not know Danish.

  About 28.7 million pages (ODC-BY, and Common Crawl's terms of use). Its own validation split.

  Args:
    directory: folder of c4-da.tfrecord-*.json.gz and c4-da-validation.tfrecord-*.json.gz, None for
      TFDS (c4/multilingual, splits da and da-validation) or the hub (allenai/c4).
    name: of the seqio task.
    **settings: of HubCorpus.

  Returns:
    HubCorpus.
  """
  return HubCorpus(
      "allenai/c4", train="multilingual/c4-da.tfrecord-*.json.gz",
      validation="multilingual/c4-da-validation.tfrecord-*.json.gz", directory=directory,
      tfds="c4/multilingual", tfds_splits={"train": "da", "validation": "da-validation"},
      name=name, **settings)


def danish_gigaword(directory=None, sections=None, without_speakers=False, name="danish_gigaword",
                    **settings):
  """Danish Gigaword: a billion words of many kinds, from law and parliament to dialects.

  CC-BY 4.0 as a whole, each section under a licence of its own. Documents are held out by hash.

  Args:
    directory: the corpus's own folder `sektioner` of sections, with a document a file, or a copy of
      danish-foundation-models/danish-gigaword, which lacks some sections; None for that on the hub.
    sections: list of names such as "ft", "ep", "wiki"; None for all.
    without_speakers: take marks such as "TALER 57:" off the beginning of lines.
    name: of the seqio task.
    **settings: of GigawordTree, or of HubCorpus.

  Returns:
    GigawordTree or HubCorpus.
  """
  transform = strip_speakers if without_speakers else None
  settings = dict(directory=directory, transform=transform, name=name, **settings)
  parquet = directory is None or glob.glob(
      os.path.join(os.path.expanduser(directory), "*", "*.parquet"))
  if not parquet:
    return GigawordTree(sections=sections, **settings)
  return HubCorpus("danish-foundation-models/danish-gigaword",
                   train=[f"{section}/*.parquet" for section in sections or ["*"]], **settings)


def dynaword(directory=None, sources=None, name="dynaword", **settings):
  """Danish Dynaword: openly licensed text of many kinds, which keeps growing (arXiv:2508.02271).

  About 6.4 billion tokens of Llama 3 in 39 sources in August 2025, most of Danish Gigaword among
  them; only open licences, a source each. Documents are held out by hash.

  Args:
    directory: copy of danish-foundation-models/danish-dynaword, None for the hub.
    sources: list of names such as "ft", "memo", "opensubtitles"; None for all.
    name: of the seqio task.
    **settings: of HubCorpus. Set `revision`: the corpus grows.

  Returns:
    HubCorpus.
  """
  return HubCorpus("danish-foundation-models/danish-dynaword", directory=directory, name=name,
                   train=[f"data/{source}/*.parquet" for source in sources or ["*"]], **settings)


def danish_wikipedia(directory=None, name="danish_wikipedia", **settings):
  """The Danish Wikipedia of November 2023 (CC BY-SA).

  Danish Gigaword held 264,502 articles of an earlier one. Documents are held out by hash.

  Args:
    directory: copy of wikimedia/wikipedia, or of its folder 20231101.da; None for TFDS, whatever
      date is prepared there, of which one per cent is held out, or for the hub.
    name: of the seqio task.
    **settings: of HubCorpus.

  Returns:
    HubCorpus.
  """
  return HubCorpus(
      "wikimedia/wikipedia", train="20231101.da/train-*.parquet", directory=directory,
      tfds="wikipedia/*.da",
      tfds_splits={"train": "train[1%:]", "validation": "train[:1%]"}, name=name, **settings)


def fineweb2_danish(directory=None, name="fineweb2_danish", **settings):
  """The Danish part of FineWeb-2: web pages, cleaned and rid of near duplicates.

  45.4 million documents, 28.1 billion words, 150.7 GB of text, 65.7 GB to fetch (ODC-BY). Its test
  split, 27,945 documents, is the validation split.

  Args:
    directory: copy of HuggingFaceFW/fineweb-2, or of its folder data/dan_Latn; None for the hub.
    name: of the seqio task.
    **settings: of HubCorpus.

  Returns:
    HubCorpus.
  """
  return HubCorpus("HuggingFaceFW/fineweb-2", train="data/dan_Latn/train/*.parquet",
                   validation="data/dan_Latn/test/*.parquet", directory=directory, name=name,
                   **settings)


def danish_mixture(name="danish", **settings):
  """Dynaword and FineWeb-2 in equal parts: open, not gated, and with little in common.

  Dynaword is the smaller by far, but of many kinds, mostly edited, and of known licence, so it is
  drawn more often than its size says. As many steps as base.gin has read 2.4 billion tokens of
  each: less than one pass over either. Wikipedia and most of Danish Gigaword are within Dynaword,
  and mC4 is of the same kind as FineWeb-2, so they are left out.

  Args:
    name: of the seqio mixture.
    **settings: of CorpusMixture.

  Returns:
    CorpusMixture.
  """
  return CorpusMixture([dynaword(), fineweb2_danish()], name=name, **settings)


def danish_english_mixture(english_share=0.3, name="danish_english", **settings):
  """The Danish mixture with C4 English beside it.

  Args:
    english_share: of the examples, between 0 and 1.
    name: of the seqio mixture.
    **settings: of CorpusMixture.

  Returns:
    CorpusMixture.
  """
  check_numbers("danish_english_mixture", english_share=(english_share, _SHARE))
  return CorpusMixture([danish_mixture(), C4Corpus()], rates=[1 - english_share, english_share],
                       name=name, **settings)


@dataclasses.dataclass(frozen=True)
class GigawordTree(FilesCorpus):
  """Danish Gigaword in its own layout: sektioner/<section>/<document, a file without extension>.

  Attributes:
    directory: the folder `sektioner`, or the one that holds it.
    sections: list of section names, None for all.
    transform: function from a document to what is kept of it.
    name: of the seqio task.
    validation_fraction, on_error: see FilesCorpus.
    objective, vocab_file, vocab_size, byte_fallback: see Corpus.
  """

  directory: str
  _: dataclasses.KW_ONLY
  sections: list | tuple | None = None
  transform: typing.Callable | None = None
  name: str = "danish_gigaword"

  def training_text(self):
    """Returns the TextFiles to train on."""
    paths = find_documents(self.directory, self.sections)
    return TextFiles(tuple(path for path in paths if os.path.getsize(path)), documents="file",
                     transform=self.transform, on_error=self.on_error)

  def check_text(self):
    """Refuses a folder without text; single documents may well be blank. See Corpus."""
    training = self.training_text()
    if next(training.iterate(), None) is None:
      raise DataError(f"{self.directory}: holds no text.")
    self._check_held_out(training)
