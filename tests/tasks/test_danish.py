"""The Danish corpora, each from a small copy in its own layout: right documents, right splits."""

import pytest

from t5jax.data.text_files import DataError
from t5jax.settings import SettingError
from t5jax.tasks import danish
from t5jax.tasks.c4 import C4Corpus
from tests.data.conftest import make_documents
from tests.tasks import layouts
from tests.tasks.conftest import LENGTHS, texts_of

TEXTS = make_documents(120)
MORE = make_documents(60, seed=1)
EMPTY = ["", " \n", "\t"]  # As in 161,915 rows of a copy of Danish Gigaword.


def test_mc4_from_its_shards(tmp_path, check, vocab_file, no_tfds):
  folder = tmp_path / "multilingual"
  for i in range(2):
    layouts.c4_shard(folder / f"c4-da.tfrecord-0000{i}-of-01024.json.gz", TEXTS[i::2] + EMPTY)
  layouts.c4_shard(folder / "c4-da-validation.tfrecord-00000-of-00001.json.gz", EMPTY + MORE)
  for directory in (folder, tmp_path):
    check(danish.mc4_danish(str(directory), vocab_file=str(vocab_file)), TEXTS, MORE)


def test_mc4_from_tfds(tmp_path, check, vocab_file, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  splits = {"da": TEXTS + EMPTY, "da-validation": EMPTY + MORE, "en": ["English"]}
  layouts.tfds(tmp_path, "c4", "multilingual", "3.1.0", splits, layouts.C4_FEATURES)
  check(danish.mc4_danish(vocab_file=str(vocab_file)), TEXTS, MORE)


def test_gigaword_from_its_own_tree(tmp_path, check, vocab_file):
  speech = [f"TALER {i}: {text}\nTaler 8: Tak." for i, text in enumerate(TEXTS)]
  layouts.gigaword_tree(tmp_path, {"ft": speech + EMPTY, "botxt": MORE})
  settings = dict(vocab_file=str(vocab_file))
  for directory in (tmp_path, tmp_path / "sektioner"):
    check(danish.danish_gigaword(str(directory), **settings), speech + MORE)
  check(danish.danish_gigaword(str(tmp_path), sections=["botxt"], **settings), MORE)
  check(danish.danish_gigaword(str(tmp_path), ["ft"], without_speakers=True, **settings),
        [f"{text}\nTak." for text in TEXTS])
  with pytest.raises(SettingError, match="'fl'.*'?ft'?"):
    danish.danish_gigaword(str(tmp_path), ["fl"], **settings).check_text()
  layouts.gigaword_tree(tmp_path / "one", {"ft": speech[:1]})
  with pytest.raises(DataError, match="fewer than two different documents"):
    danish.danish_gigaword(str(tmp_path / "one"), **settings).check_text()


def test_gigaword_from_parquet(tmp_path, check, vocab_file):
  layouts.gigaword_parquet(tmp_path, "ft", [f"TALER 1: {text}" for text in TEXTS] + EMPTY)
  layouts.gigaword_parquet(tmp_path, "botxt", MORE)
  settings = dict(directory=str(tmp_path), vocab_file=str(vocab_file))
  check(danish.danish_gigaword(**settings, without_speakers=True), TEXTS + MORE)
  check(danish.danish_gigaword(**settings, sections=["botxt"]), MORE)


def test_dynaword(tmp_path, check, vocab_file):
  layouts.dynaword(tmp_path, "ft", TEXTS + EMPTY)
  layouts.dynaword(tmp_path, "ai-aktindsigt", MORE)
  for directory in (tmp_path, tmp_path / "data"):
    settings = dict(directory=str(directory), vocab_file=str(vocab_file))
    check(danish.dynaword(**settings), TEXTS + MORE)
    check(danish.dynaword(**settings, sources=["ft"]), TEXTS)
  with pytest.raises(SettingError, match="directory = .*folder that holds .*hf download danish-"):
    danish.dynaword(**settings, sources=["fl"]).check_text()


def test_wikipedia(tmp_path, check, vocab_file, no_tfds):
  layouts.wikipedia(tmp_path, TEXTS + EMPTY)
  for directory in (tmp_path, tmp_path / "20231101.da"):
    check(danish.danish_wikipedia(str(directory), vocab_file=str(vocab_file)), TEXTS)


def test_wikipedia_from_tfds(tmp_path, check, vocab_file, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  for config, texts in (("20190301.da", MORE), ("20230601.da", TEXTS + EMPTY)):
    layouts.tfds(tmp_path, "wikipedia", config, "1.0.0", {"train": texts}, ("text", "title"))
  corpus = danish.danish_wikipedia(vocab_file=str(vocab_file))
  check(corpus, TEXTS)
  assert len(texts_of(corpus, "validation")) == 1  # One per cent of 123.


def test_fineweb2(tmp_path, check, vocab_file):
  layouts.fineweb2(tmp_path, "train", TEXTS + EMPTY)
  layouts.fineweb2(tmp_path, "test", MORE)
  for directory in (tmp_path, tmp_path / "data" / "dan_Latn"):
    check(danish.fineweb2_danish(str(directory), vocab_file=str(vocab_file)), TEXTS, MORE)
  flat = tmp_path / "data" / "dan_Latn" / "train"  # Which files are for testing is lost here.
  with pytest.raises(SettingError, match="directory"):
    danish.fineweb2_danish(str(flat), vocab_file=str(vocab_file)).check_text()


def test_the_danish_mixture():
  mixture = danish.danish_mixture(vocab_size=32_000)
  assert [corpus.name for corpus in mixture.corpora] == ["dynaword", "fineweb2_danish"]
  assert mixture.mixing_rates() == [0.5, 0.5]


def test_the_danish_english_mixture():
  mixture = danish.danish_english_mixture(english_share=0.2, vocab_size=32_000)
  assert mixture.mixing_rates() == pytest.approx([0.8, 0.2])
  assert mixture.corpora == (danish.danish_mixture(), C4Corpus())
  with pytest.raises(SettingError, match="english_share = 1.0"):
    danish.danish_english_mixture(english_share=1.0)


def test_what_is_not_at_hand_can_be_left_out(tmp_path):
  layouts.dynaword(tmp_path, "ft", TEXTS)
  with pytest.raises(DataError) as error:
    danish.danish_mixture(vocab_size=400).check(LENGTHS)
  for part in ("danish-dynaword is not at hand", "hf download danish-foundation-models",
               "'data/*/*.parquet'", "corpus 'dynaword' of the mixture 'danish'", "do without"):
    assert part in str(error.value)


def test_the_objective_on_danish(tmp_path, vocab_file, vocabulary):
  """First <extra_id_0>, then one lower each; with both sides spliced the text is back."""
  text = "Æblegrød på Ærø, Århus og Øresund – en rød grød med fløde."
  layouts.dynaword(tmp_path, "ft", [text])
  corpus = danish.dynaword(str(tmp_path), vocab_file=str(vocab_file), validation_fraction=0.0)
  import seqio

  task = seqio.get_mixture_or_task(corpus.register())
  examples = task.get_dataset(LENGTHS, "train", shuffle=False, num_epochs=1)
  example = next(examples.as_numpy_iterator())
  inputs, targets = example["inputs"].tolist(), example["targets"].tolist()
  top = vocabulary.sentinel_id(0)
  sentinels = [token for token in targets if token > top - 100]
  assert sentinels == [top - i for i in range(len(sentinels))] and inputs[-1] == targets[-1] == 1
  spans, current = {}, None
  for token in targets[:-1]:
    if token in sentinels:
      current = spans.setdefault(token, [])
    else:
      current.append(token)
  tokens = [t for token in inputs[:-1] for t in spans.get(token, [token])]
  assert tokens == vocabulary.encode(text)
