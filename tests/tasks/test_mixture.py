"""Mixtures: their rates, one vocabulary for all, exact resumption, and what they refuse."""

import re

import numpy as np
import pytest

from t5jax.data.iterator import TaskData
from t5jax.data.objectives import PrefixLM, SpanCorruption
from t5jax.data.text_files import DataError
from t5jax.data.vocabulary import Vocabulary
from t5jax.settings import SettingError
from t5jax.tasks import danish
from t5jax.tasks.mixture import CorpusMixture
from t5jax.tasks.text import TextCorpus
from tests.data.conftest import make_documents

LENGTHS = {"inputs": 64, "targets": 20}


@pytest.fixture
def corpora(tmp_path):
  """Two corpora that can be told apart: one of digits, one of letters."""
  found = []
  for name, documents in (("digits", [f"{i} " * 40 for i in range(300)]),
                          ("letters", make_letters(60))):
    path = tmp_path / f"{name}.txt"
    path.write_text("\n".join(documents), encoding="utf-8")
    found.append(TextCorpus(str(path), name=name, validation_fraction=0.2))
  return found


def make_letters(count):
  """Documents without a digit."""
  return [re.sub(r"[^a-zæøå ]", "", document) for document in make_documents(count)]


@pytest.fixture
def prepare(corpora, tmp_path, vocab_file):
  """prepare(settings of TaskData, settings of the mixture) -> TaskData."""

  def build(data=(), **settings):
    mixture = CorpusMixture(corpora, **{"vocab_file": str(vocab_file), **settings})
    found = TaskData(mixture, **{"feature_lengths": LENGTHS, "batch_size": 8, **dict(data)})
    found.check()
    found.prepare(tmp_path / "run")
    return found

  return build


def share_of_digits(vocabulary, batches):
  """The fraction of the examples that come from the corpus of digits."""
  digits, letters = (np.array([bool(re.search(pattern, vocabulary.decode([i])))
                               for i in range(vocabulary.num_pieces)] + [False] * 100)
                     for pattern in (r"\d", r"[a-zæøå]"))
  tokens = np.concatenate([batch["encoder_input_tokens"] for batch in batches])
  from_digits, from_letters = digits[tokens].sum(axis=1), letters[tokens].sum(axis=1)
  assert ((from_digits > 0) != (from_letters > 0)).all()
  return (from_digits > 0).mean()


@pytest.mark.parametrize("settings, expected", [
    ({}, [0.5, 0.5]), ({"rates": [3, 1]}, [0.75, 0.25]), ({"sizes": [300, 100]}, [0.75, 0.25]),
    ({"sizes": [900, 100], "temperature": 2.0}, [0.75, 0.25]),
    ({"sizes": [1e9, 1.0], "temperature": 1e9}, [0.5, 0.5])])
def test_rates(corpora, settings, expected):
  assert CorpusMixture(corpora, **settings).mixing_rates() == pytest.approx(expected)


def test_draws_are_within_one_per_cent_of_the_rates(prepare, vocabulary):
  """Over 100,000 examples, counted in the batches themselves."""
  data = prepare(rates=[0.85, 0.15], data=dict(feature_lengths={"inputs": 8, "targets": 4},
                                               batch_size=1000))
  iterator = data.train_iterator()
  share = share_of_digits(vocabulary, [next(iterator) for _ in range(100)])
  assert share == pytest.approx(0.85, abs=0.01) and 1 - share == pytest.approx(0.15, rel=0.01)


def test_resuming_gives_the_very_next_batch(prepare, tmp_path):
  data = prepare(rates=[0.7, 0.3])
  iterator = data.train_iterator()
  for _ in range(25):
    next(iterator)
  iterator.save(tmp_path / "position")
  expected = [next(iterator) for _ in range(25)]
  other = data.train_iterator()
  next(other)
  other.restore(tmp_path / "position")
  for batch in expected:
    for name, values in next(other).items():
      np.testing.assert_array_equal(values, batch[name], err_msg=name)


def test_validation_mixes_what_the_parts_hold_out(prepare, corpora, vocabulary):
  held_out = {name: {text for text in corpus.source().documents("validation")}
              for name, corpus in zip("dl", corpora)}
  assert all(held_out.values())
  batches = prepare(rates=[0.5, 0.5]).eval_batches()
  rows = [row for batch in batches for row in batch["encoder_input_tokens"] if row.any()]
  share = share_of_digits(vocabulary, [{"encoder_input_tokens": np.stack(rows)}])
  assert 0.2 < share < 0.8


def test_the_vocabulary_is_trained_on_all_parts_in_proportion(corpora, tmp_path):
  mixture = CorpusMixture(corpora, rates=[0.25, 0.75], vocab_size=250)
  texts = list(mixture.sample(30_000))
  size = sum(len(text.encode()) for text in texts if text[0].isdigit())
  assert size / sum(len(text.encode()) for text in texts) == pytest.approx(0.25, abs=0.01)
  assert {t for t in texts if t[0].isdigit()} <= set(corpora[0].source().documents("train"))
  whole = list(mixture.sample(10**9))  # The corpus of letters is repeated until the other ends.
  assert len(set(whole)) == sum(len(list(c.source().documents("train"))) for c in corpora)
  path = mixture.vocabulary_file(tmp_path)
  assert Vocabulary(path).unknown_rate("17 æbler på øen") == 0.0
  assert mixture.vocabulary_file(tmp_path) == path


def test_the_parts_become_tasks_of_their_own(prepare, corpora, vocab_file):
  import seqio

  prepare(objective=PrefixLM(), rates=[2, 1])
  mixture = seqio.get_mixture_or_task("mixture")
  assert [task.name for task in mixture.tasks] == ["digits", "letters"]
  assert [mixture.get_rate(task) for task in mixture.tasks] == pytest.approx([2 / 3, 1 / 3])
  for task in mixture.tasks:
    assert task.preprocessors[0].keywords["objective"] == PrefixLM()
  prepare()
  task = seqio.get_mixture_or_task("mixture").tasks[0]
  assert task.preprocessors[0].keywords["objective"] == SpanCorruption()


def test_mixtures_of_mixtures(corpora, vocab_file, vocabulary, tmp_path):
  more = TextCorpus(corpora[1].files, name="more")
  mixture = CorpusMixture([CorpusMixture(corpora, name="inner"), more], rates=[0.8, 0.2],
                          vocab_file=str(vocab_file))
  data = TaskData(mixture, LENGTHS, 100)
  data.check()
  data.prepare(tmp_path)
  iterator = data.train_iterator()
  share = share_of_digits(vocabulary, [next(iterator) for _ in range(20)])
  assert share == pytest.approx(0.4, abs=0.05)  # Of 2000 draws: four standard deviations.


@pytest.mark.parametrize("settings, problem", [
    ({"rates": [1]}, "rates = .*a number for each of digits, letters"),
    ({"rates": [1, 0]}, "rates"), ({"sizes": [1, 2, 3]}, "sizes"),
    ({"rates": [1, 1], "sizes": [1, 1]}, "None where rates are set"),
    ({"temperature": 0.0}, "temperature"), ({"name": "letters"}, "different names"),
    ({"vocab_file": "a", "vocab_size": 9}, "either vocab_file")])
def test_settings_are_checked(corpora, settings, problem):
  with pytest.raises(SettingError, match=problem):
    CorpusMixture(corpora, **settings)


def test_corpora_are_checked(corpora, tmp_path):
  with pytest.raises(SettingError, match="different names"):
    CorpusMixture([corpora[0], corpora[0]])
  with pytest.raises(SettingError, match="different names"):
    CorpusMixture([])
  for uncalled in (danish.dynaword, TextCorpus, "dynaword"):
    with pytest.raises(SettingError, match=r"corpora = .*brackets.*@danish.dynaword\(\)"):
      CorpusMixture([uncalled])
  gone = TextCorpus(str(tmp_path / "gone.txt"), name="gone")
  with pytest.raises(DataError, match="gone.txt.*\n.*corpus 'gone' of the mixture 'mixture'"):
    CorpusMixture([corpora[0], gone], vocab_size=9).check(LENGTHS)
  with pytest.raises(SettingError, match="either vocab_file"):
    CorpusMixture(corpora).check(LENGTHS)
  with pytest.raises(SettingError, match="targets"):
    CorpusMixture(corpora, vocab_size=9, objective=SpanCorruption(0.5)).check(LENGTHS)
