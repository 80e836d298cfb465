"""The Beam pipeline against the local engine: the same documents stay, for the same reasons."""

import io
import json
import random

import pytest

pytest.importorskip("apache_beam")

from t5jax.cleaning.beam import prepare_on_beam
from t5jax.cleaning.cleaner import CleaningSettings
from t5jax.cleaning.corpora import Corpus
from t5jax.cleaning.prepare import PrepareSettings, prepare
from t5jax.data.text_files import DataError, TextFiles
from t5jax.settings import SettingError
from tests.cleaning.test_rules import SWEDISH

DANISH = ("Folketinget behandlede i går et forslag om ændring af loven. Ministeren sagde, at sagen "
          "er vigtig for hele landet. Derefter blev der stemt om forslaget, og det blev vedtaget, "
          "efter at flere ordførere havde talt imod det i mere end en time. Dette er omtale nummer {}.")
OUTPUTS = ("train-*", "validation-*", "rejected/language*", "rejected/exact*", "rejected/near*",
           "rejected/length*")


def documents():
  """More near copies than a bucket compares (100), pairs of them, exact copies, distinct texts."""
  rng = random.Random(0)
  words = [f"ord{i}" for i in range(5000)]
  texts = [DANISH.format(i) for i in range(130)]
  distinct = [" ".join(rng.sample(words, 60)) for _ in range(40)]
  changed = [" ".join([*text.split()[:-2], "ny", "slutning"]) for text in distinct[:15]]
  for i in range(12):  # The third is a near duplicate of the others, which are none of each other.
    text = rng.sample(words, 100)
    texts += [" ".join(part) for part in (rng.sample(words, 15) + text[15:],
                                          text[:85] + rng.sample(words, 15), text)]
  return [*texts, *distinct, *changed, *distinct[5:20], SWEDISH, "\u00ad", "Kort tekst."]


def write_corpus(folder):
  texts = documents()
  random.Random(1).shuffle(texts)
  for name, part in (("a.jsonl", texts[:90]), ("b.jsonl", texts[90:])):
    (folder / name).write_text("\n".join(json.dumps({"text": text}) for text in part))
  return Corpus(TextFiles((str(folder / "a.jsonl"), str(folder / "b.jsonl"))))


def rows(folder, pattern):
  """Rows of result files, by id."""
  import pyarrow

  found = {}
  for path in folder.glob(pattern):
    stream = io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"))
    found.update((row["id"], row) for row in map(json.loads, stream))
  return found


@pytest.mark.parametrize("drop_duplicates", [True, False])
def test_the_same_as_the_local_engine(tmp_path, drop_duplicates):
  corpus = write_corpus(tmp_path)
  settings = PrepareSettings(CleaningSettings(), drop_duplicates, validation_fraction=0.3)
  prepare(corpus, settings, tmp_path / "local")
  prepare_on_beam(corpus, settings, str(tmp_path / "beam"), ["--runner=DirectRunner"])
  for pattern in OUTPUTS:
    assert rows(tmp_path / "beam", pattern) == rows(tmp_path / "local", pattern), pattern
  local, spread = (json.loads((tmp_path / name / "report.json").read_text(encoding="utf-8"))
                   for name in ("local", "beam"))
  for name in ("counts", "dropped", "changed", "reasons", "sources"):
    assert spread[name] == local[name], name
  assert local["counts"]["validation documents"] > 5
  if drop_duplicates:
    assert local["dropped"]["exact_duplicates"] == 15 and local["dropped"]["near_duplicates"] >= 129
  lines = [(tmp_path / name / "report.md").read_text(encoding="utf-8").partition("\n## ")[0]
           for name in ("local", "beam")]
  assert sorted(lines[0].split("\n")) == sorted(lines[1].split("\n"))


def test_languages_are_set_apart(tmp_path):
  corpus = write_corpus(tmp_path)
  prepare_on_beam(corpus, PrepareSettings(CleaningSettings(language="da")), str(tmp_path / "beam"))
  assert SWEDISH in {row["text"] for row in rows(tmp_path / "beam", "rejected/language*").values()
                     if row["reason"] == "sv"}


def test_what_cannot_be_done_is_refused_before_reading(tmp_path):
  corpus = Corpus(TextFiles((str(tmp_path / "missing.txt"),)))
  with pytest.raises(SettingError, match="order = 'likely_first'.*no order"):
    prepare_on_beam(corpus, PrepareSettings(order="likely_first"), str(tmp_path / "out"))
  (tmp_path / "report.json").write_text("{}")
  with pytest.raises(DataError, match="already holds a result"):
    prepare_on_beam(corpus, PrepareSettings(), str(tmp_path))
