"""What is wrong is said within seconds, by name, with a non-zero exit and nothing half done."""

import gzip
import time

import pytest

from t5jax import train
from tests.entry.conftest import run_module

SECONDS = 15  # Loading JAX and the part that knows the answer, on a slow and busy machine.


@pytest.fixture
def fail(project, monkeypatch, capsys):
  """Returns a function that runs a training that should fail, in this process; its message."""
  monkeypatch.chdir(project)
  monkeypatch.syspath_prepend(project)

  def call(*arguments, gin_file="tiny.gin"):
    try:
      status = train.main([f"--gin_file={gin_file}", "--gin.MODEL_DIR=run", *arguments])
    except SystemExit as error:  # argparse
      status = error.code
    assert status not in (0, None)
    return capsys.readouterr().err

  return call


@pytest.mark.parametrize("arguments, expected", [
  (["--gin.TRIAN_STEPS=5"], ["TRIAN_STEPS", "TRAIN_STEPS"]),
  (["--gin.text.TextCorpus.feild=x"], ["feild", "field"]),
  (["--gin.TRAIN_STEPS=ten"], ["TRAIN_STEPS", "'ten'"]),
  (["--gin.TRAIN_STEPS=20.5"], ["Budget.amount", "20.5", "whole number"]),
  (["--gin.text.TextCorpus.validation_fraction=0"], ["TaskData.task", "validation_files"]),
  (["--gin.BATCH_SIZE=0"], ["BATCH_SIZE", ">= 1"]),
  (["--gin.BATCH_SIZE=7", "--gin.MICROBATCHES=2"], ["batch_size", "7", "2 microbatches"]),
  (["--gin.DROPOUT_RATE=1.0"], ["DROPOUT_RATE", "< 1"]),
  (["--gin.DTYPE=float16"], ["DTYPE", "'bfloat16'"]),
  (["--gin.WARMUP_STEPS=50"], ["warmup_steps", "20"]),
  (["--gin.LEARNING_RATE=0"], ["LEARNING_RATE", "> 0"]),
  (["--print_schedule=no/a.png"], ["no/a.png", "cannot be written", "No such file"]),
  (["--gin.MODEL_SIZE=bsae"], ["bsae", "base"]),
  (["--gin.text.TextCorpus.files=txt.text"], ["txt.text", "text.txt"]),
  (["--gin.text.TextCorpus.files=empty.txt"], ["empty.txt"]),
  (["--gin.text.TextCorpus.files=latin.txt"], ["latin.txt", "line 2", "byte"]),
  (["--gin.text.TextCorpus.files=rows.jsonl"], ["rows.jsonl", "line 2", "text"]),
  (["--gin.text.TextCorpus.files=fake.txt.gz"], ["fake.txt.gz"]),
  (["--gin.text.TextCorpus.files=hidden.txt"], ["hidden.txt", "gz"]),
  (['--gin.TASK_FEATURE_LENGTHS={"inputs": 512, "targets": 20}'], ["targets", "114"]),
  (["--overwrit"], ["--overwrit"]),
  (["--check", "--gin.MODEL_DIR=text.txt"], ["MODEL_DIR=text.txt", "cannot be written"]),
  (["--gin.LEARNING_RATE=1e400"], ["LEARNING_RATE", "inf", "> 0"]),
], ids=lambda value: value[0] if isinstance(value[0], str) and value[0].startswith("--") else "")
def test_wrong_input(project, fail, arguments, expected):
  (project / "empty.txt").write_text("")
  (project / "latin.txt").write_bytes("rødgrød\n".encode() + "rødgrød\n".encode("latin-1"))
  (project / "rows.jsonl").write_text('{"text": "en to tre"}\n{"txet": "fire"}\n')
  (project / "fake.txt.gz").write_text("not gzip\n")
  (project / "hidden.txt").write_bytes(gzip.compress(b"tekst\n"))
  output = fail(*arguments)
  for part in expected:
    assert part in output
  assert not (project / "run" / "checkpoints").exists()


def test_missing_gin_file(fail):
  assert "'tiny.gin'" in fail(gin_file="tinny.gin")


@pytest.mark.parametrize("arguments", [["--gin.TRIAN_STEPS=5"], ["--gin.text.TextCorpus.files=no.txt"]])
def test_one_line_within_seconds(project, arguments):
  began = time.monotonic()
  done = run_module("t5jax.train", "--gin_file=tiny.gin", "--gin.MODEL_DIR=run", *arguments,
                    cwd=project, check=False)
  assert done.returncode == 1 and time.monotonic() - began < SECONDS, done.stdout
  assert done.stdout.startswith("error: ") and done.stdout.count("\n") == 1


def test_used_model_dir(project, fail):
  """Another configuration or tokenizer is refused, --overwrite starts anew."""
  run_module("t5jax.train", "--gin_file=tiny.gin", "--gin.MODEL_DIR=run", "--stop_at_step=2",
             cwd=project)
  changed = fail("--gin.BATCH_SIZE=16")
  assert "BATCH_SIZE: 8 there, 16 now" in changed and "--overwrite" in changed
  (project / "text.txt").write_text("Helt anden tekst, med mange andre ord.\n" * 50 + "Og mere.\n")
  info = project / "run" / "run-info.json"
  info.write_text(info.read_text().replace('"tokenizer_sha256": "', '"tokenizer_sha256": "0'))
  assert "another tokenizer" in fail()


def test_help_is_quick():
  began = time.monotonic()
  done = run_module("t5jax.train", "--help", cwd="/")
  assert time.monotonic() - began < 3
  assert "--gin_file" in done.stdout and "--gin.NAME=value" in done.stdout


@pytest.mark.parametrize("arguments, expected", [
    (["--model_dir=nowhere", "--text=a"], "model_config.json"),
    (["--model_dir=.", "--text=a"], "not a model directory")])
def test_infer_on_what_is_no_model(tmp_path, arguments, expected):
  done = run_module("t5jax.infer", *arguments, cwd=tmp_path, check=False)
  assert done.returncode == 1 and expected in done.stdout and "Traceback" not in done.stdout
