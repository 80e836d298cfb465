"""Corpora of hub datasets: streamed from a mirror, from local copies, and what is said without."""

import pytest

from t5jax.data.iterator import TaskData
from t5jax.data.text_files import DataError
from t5jax.settings import SettingError
from t5jax.tasks import danish
from t5jax.tasks.hub import HubCorpus, newest_prepared
from t5jax.tasks.mixture import CorpusMixture
from tests.data import hub_mirror
from tests.data.conftest import make_documents
from tests.tasks import layouts
from tests.tasks.conftest import LENGTHS

TEXTS = make_documents(120)
MORE = make_documents(40, seed=1)
REPO = "owner/corpus"


@pytest.fixture
def repository(tmp_path):
  folder = tmp_path / "repository"
  for i in range(3):
    layouts.parquet(folder / "da" / f"train-{i}.parquet", [*TEXTS[i::3], "", " "], id=str)
  layouts.parquet(folder / "da" / "held-out.parquet", ["\n", *MORE], id=str)
  layouts.parquet(folder / "en" / "train-0.parquet", ["English"], id=str)
  return folder


@pytest.fixture
def make(vocab_file):
  def build(**settings):
    return HubCorpus(REPO, **{"train": "da/train-*.parquet", "vocab_file": str(vocab_file),
                              **settings})

  return build


def test_streamed(repository, tmp_path, monkeypatch, check, make):
  with hub_mirror.serve(repository, REPO, monkeypatch, tmp_path / "cache"):
    check(make(), TEXTS)
    check(make(validation="da/held-out.parquet", revision=hub_mirror.COMMIT), TEXTS, MORE)


@pytest.mark.parametrize("inside", ["", "da"])
def test_from_a_local_copy(repository, check, make, inside):
  directory = str(repository / inside)
  check(make(directory=directory), TEXTS)
  check(make(directory=directory, validation=["da/held-out.parquet"]), TEXTS, MORE)
  check(make(directory=directory, train=["da/train-0*", "da/train-2*"]), TEXTS[0::3] + TEXTS[2::3])


def test_transform_and_field(repository, check, make):
  check(make(directory=str(repository), transform=str.upper), [text.upper() for text in TEXTS])
  with pytest.raises(DataError, match="train-0.parquet: no field 'txt'.*'text'"):
    make(directory=str(repository), field="txt").check(LENGTHS)


@pytest.mark.parametrize("settings, problem", [
    ({"train": "da/tran-*"}, "HubCorpus.directory = .*holds tran-.*hf download owner/corpus"),
    ({"validation": "da/gone.parquet"}, "holds gone.parquet"),
    ({"validation": "da/train-2.parquet"}, "validation = .*not trained on"),
    ({"validation": "a", "validation_fraction": 0.1}, "validation_fraction")])
def test_local_copies_are_checked(repository, make, settings, problem):
  with pytest.raises(SettingError, match=problem):
    make(directory=str(repository), **settings).check(LENGTHS)


def test_without_data_it_says_how_to_get_them(make, no_tfds):
  """The tests run without a network, and with HF_HUB_OFFLINE."""
  with pytest.raises(DataError) as error:
    make(tfds="c4/en").check(LENGTHS)
  for part in ("owner/corpus is not at hand", "hf download owner/corpus --repo-type=dataset",
               "'da/train-*.parquet'", "`directory`", "TFDS_DATA_DIR", "c4/en",
               "HF_HUB_OFFLINE", "text.gin"):
    assert part in str(error.value)


def test_a_mixture_of_local_and_streamed(tmp_path, monkeypatch, vocab_file):
  layouts.dynaword(tmp_path / "a", "ft", TEXTS)
  layouts.fineweb2(tmp_path / "b", "train", MORE)
  layouts.fineweb2(tmp_path / "b", "test", MORE[:9])
  mixture = CorpusMixture(
      [danish.dynaword(str(tmp_path / "a")), danish.fineweb2_danish()], vocab_file=str(vocab_file))
  with hub_mirror.serve(tmp_path / "b", "HuggingFaceFW/fineweb-2", monkeypatch,
                        tmp_path / "cache") as requests:
    data = TaskData(mixture, LENGTHS, 4)
    data.check()
    data.prepare(tmp_path / "run")
    assert next(data.train_iterator())["encoder_input_tokens"].shape == (4, 64)
    assert data.eval_batches()
  assert any(path.endswith("data/dan_Latn/test/000_00000.parquet") for _, path in requests)


def test_versions_are_compared_as_numbers(tmp_path, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  assert newest_prepared("c4/en") is None
  for name in ("c4/en/2.3.1", "c4/en/10.0.0", "c4/en/3.0.1", "wikipedia/20190301.da/2.0.0",
               "wikipedia/20230601.da/1.0.0", "wikipedia/20230601.de/1.0.0"):
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "dataset_info.json").write_text("{}")
  assert newest_prepared("c4/en") == ("c4/en:10.0.0", str(tmp_path))
  assert newest_prepared("wikipedia/*.da") == ("wikipedia/20230601.da:1.0.0", str(tmp_path))
