"""Who may start in a model directory."""

import json
import types

import pytest

from t5jax import rundir
from t5jax.checkpoint import saved_steps

OLD = "a.B.x = 1\nhooks.Log.every = 5\nTRAIN_STEPS = 10\n"
VOCABULARY = types.SimpleNamespace(size=300, sha256="0" * 64)


@pytest.fixture
def used(tmp_path):
  """A directory that holds a run with a checkpoint."""
  with rundir.claim(tmp_path, OLD):
    rundir.write_run_info(tmp_path, VOCABULARY)
    (tmp_path / "checkpoints" / "5").mkdir(parents=True)
  return tmp_path


def test_one_process_at_a_time(tmp_path):
  with rundir.claim(tmp_path, OLD):
    with pytest.raises(ValueError, match="in use by another process"):
      with rundir.claim(tmp_path, OLD):
        pass
  with rundir.claim(tmp_path, OLD):
    pass


def test_a_place_that_cannot_be_written_is_seen_without_making_anything(tmp_path):
  (tmp_path / "file").write_text("")
  for path in (tmp_path / "file", tmp_path / "file" / "below", "/proc/new"):
    with pytest.raises(ValueError, match=f"MODEL_DIR={path} cannot be written: "):
      rundir.check(path, "")
  rundir.check(tmp_path / "new" / "below", "")
  assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("new, named", [
    (OLD.replace("x = 1", "x = 2"), "a.B.x: 1 there, 2 now"),
    (OLD.replace("10", "20"), "TRAIN_STEPS: 10 there, 20 now"),
    (OLD.replace("a.B.x = 1\n", ""), "a.B.x: 1 there, None now")])
def test_other_settings_are_refused_or_allowed(used, new, named, capsys):
  for start in (rundir.claim(used, new).__enter__, lambda: rundir.check(used, new)):
    with pytest.raises(ValueError, match=named):
      start()
  rundir.check(used, new, overwrite=True)
  assert (used / "config.gin").read_text() == OLD
  with rundir.claim(used, new, allow_changes=True):
    assert named in capsys.readouterr().out
  assert (used / "config.gin").read_text() == new and saved_steps(used) == [5]


def test_what_is_refused_later_leaves_the_old_settings(used):
  new = OLD.replace("x = 1", "x = 2")
  with pytest.raises(ValueError, match="refused"):
    with rundir.claim(used, new, allow_changes=True):
      raise ValueError("refused")
  assert (used / "config.gin").read_text() == OLD
  with pytest.raises(ValueError, match="later"):
    with rundir.claim(used, new, allow_changes=True):
      (used / "checkpoints" / "6").mkdir()
      raise ValueError("later, with a checkpoint of these settings")
  assert (used / "config.gin").read_text() == new


def test_reports_may_change(used):
  with rundir.claim(used, OLD.replace("every = 5", "every = 7")):
    assert saved_steps(used) == [5]


def test_overwrite_deletes_the_run_and_nothing_else(used):
  (used / "thesis.txt").write_text("mine")
  with rundir.claim(used, "a.B.x = 3\n", overwrite=True):
    assert not saved_steps(used)
  assert (used / "thesis.txt").read_text() == "mine"


def test_run_info_keeps_every_start(used):
  rundir.write_run_info(used, VOCABULARY)
  info = json.loads((used / "run-info.json").read_text())
  assert len(info["starts"]) == 2 and info["tokenizer_sha256"] == VOCABULARY.sha256
  assert {"t5jax", "jax", "tensorflow"} <= info["versions"].keys()


def test_a_file_is_no_directory(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(ValueError, match="cannot be written"):
    with rundir.claim(tmp_path / "file", OLD):
      pass
