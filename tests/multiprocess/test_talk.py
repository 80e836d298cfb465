"""What processes tell each other, and how they end, without a model."""

import pathlib

from tests.multiprocess.launcher import launch

TALK = str(pathlib.Path(__file__).with_name("talk.py"))


def test_two_processes_agree(tmp_path):
  for ended in launch(2, [TALK, "agree"], tmp_path):
    assert ended.status == 0 and "left in peace" in ended.output, ended.output


def test_an_error_in_one_process_ends_both(tmp_path):
  first, second = launch(2, [TALK, "fail"], tmp_path)
  assert first.status == second.status == 1
  assert "error: the disk of process 1" in second.output
  assert ("error in process 0: process 1 has failed, and so all end: ValueError: the disk of process 1"
          in first.output)
