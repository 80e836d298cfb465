"""tools/compare_precision.py: what it refuses. What it shows takes half an hour: tools/precision.md."""

import pytest

from t5jax.tools import compare_precision


def test_a_folder_of_another_comparison(tmp_path):
  (tmp_path / "float32.gin").write_text("TRAIN_STEPS = 20\n")
  (tmp_path / "float32").mkdir()
  with pytest.raises(SystemExit, match="float32.gin is of a comparison with other flags"):
    compare_precision.main([f"--output_dir={tmp_path}"])
  assert (tmp_path / "float32.gin").read_text() == "TRAIN_STEPS = 20\n"


def test_a_run_that_fails_says_why_itself_and_blocks_nothing(tmp_path, capfd):
  (tmp_path / "float32.gin").write_text("TRAIN_STEPS = 20\n")  # Of one that did not begin.
  with pytest.raises(SystemExit) as stop:
    compare_precision.main([f"--output_dir={tmp_path}", "--files", f"{tmp_path}/none.txt"])
  assert stop.value.code == 1
  printed = capfd.readouterr().err
  assert "none.txt" in printed and "Traceback" not in printed


def test_no_steps_are_refused(tmp_path, capsys):
  with pytest.raises(SystemExit):
    compare_precision.main([f"--output_dir={tmp_path}/new", "--steps=0"])
  assert "--steps=0 is not valid" in capsys.readouterr().err and not (tmp_path / "new").exists()
