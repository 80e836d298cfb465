"""The commands of the README, in order, on a text and a model small enough for a test."""

import gzip
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import jax.numpy as jnp
import pytest

from t5jax import config
from tests.entry.conftest import write_project, xla_flags

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# Last given wins: what makes a README-sized run fit into a test.
SMALL = ["--gin.MODEL_SIZE=tiny", "--gin.DTYPE=float32", "--gin.TRAIN_STEPS=3", "--gin.WARMUP_STEPS=1",
         "--gin.BATCH_SIZE=8", "--gin.EVAL_STEPS=1", "--gin.SHUFFLE_BUFFER_SIZE=4",
         '--gin.TASK_FEATURE_LENGTHS={"inputs": 32, "targets": 9}']


def commands(heading):
  """The commands of the shell blocks under a heading, each as a list of words."""
  section = README.split(f"## {heading}\n")[1].split("\n## ")[0]
  text = "\n".join(re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL)).replace("\\\n", " ")
  return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]


def run(words, folder):
  """Runs a command of the README; returns its output."""
  words = [sys.executable if word == "python" else word for word in words]
  words = [str(ROOT / word) if word.startswith("tools/") else word for word in words]
  environment = {**os.environ, "XLA_FLAGS": xla_flags(1), "PYTHONPATH": str(ROOT)}
  done = subprocess.run(words, cwd=folder, env=environment, stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT, text=True, timeout=300)
  assert done.returncode == 0, done.stdout[-3000:]
  return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A corpus in jsonl, and a C4 folder in the layout of the hub."""
  folder = write_project(tmp_path_factory.mktemp("readme"))
  lines = (folder / "text.txt").read_text(encoding="utf-8").splitlines()
  rows = [json.dumps({"text": line, "timestamp": "2019-04-25T12:57:54Z", "url": "http://a.dk"})
          for line in lines]
  (folder / "corpus").mkdir()
  (folder / "corpus" / "a.jsonl").write_text("\n".join(rows) + "\n")
  (folder / "c4").mkdir()
  for split in ("train", "validation"):
    path = folder / "c4" / f"c4-{split}.00000-of-00001.json.gz"
    path.write_bytes(gzip.compress(("\n".join(rows) + "\n").encode()))
  return folder


def test_own_text(folder):
  vocab, train, infer, convert, push = commands("Train on your own text")
  run([*vocab, "--vocab_size=180"], folder)
  assert "unigram entropy" in run([*train, *SMALL], folder)
  assert "filled:" in run(infer, folder)
  assert "Verified with transformers" in run(convert, folder)
  assert (folder / "exports" / "mine" / "model.safetensors").is_file()
  flags = [word.split("=")[0] for word in push if word.startswith("--")]
  assert flags and all(flag in run([*push[:2], "--help"], folder) for flag in flags)


def test_own_task_in_ten_lines(folder):
  code = re.search(r"```python\n(.*?)```", README, flags=re.DOTALL)[1]
  assert len(code.strip().splitlines()) <= 10
  (folder / "my_tasks.py").write_text(code.replace('field="body"', 'field="text"'))
  use = ("import my_tasks, seqio; task = seqio.get_mixture_or_task('my_corpus'); "
         "print(next(iter(task.get_dataset({'inputs': 32, 'targets': 9}, 'train')))['inputs'])")
  assert "tf.Tensor" in run(["python", "-c", use], folder)


def test_gin_files_of_own_tasks(folder, monkeypatch):
  section = README.split("### A task of your own, in ten lines\n")[1].split("\n## ")[0]
  monkeypatch.chdir(folder)
  data = []
  for text in re.findall(r"```\n(from .*?)```", section, flags=re.DOTALL):
    (folder / "own.gin").write_text(text)
    data.append(config.build("t5jax.trainer.Trainer", ["own.gin"], ["MODEL_DIR=runs/x"])[0].data)
  one, mixed = data
  assert (one.task, one.module) == ("my_corpus", "my_tasks")
  assert [part.name for part in mixed.task.parts()] == ["news", "books"]
  assert mixed.task.mixing_rates() == [0.75, 0.25]


def test_prepare_text(folder):
  (prepare,) = commands("Prepare text")
  (folder / "raw").mkdir()
  (folder / "raw" / "a.jsonl").write_bytes((folder / "corpus" / "a.jsonl").read_bytes())
  output = run(prepare, folder)
  assert "100 documents read" in output and (folder / "clean" / "report.md").is_file()


def test_inspect_cache_and_train(folder):
  (inspect,) = commands("Look before you train")
  assert "fertility" in run([*inspect, SMALL[-1]], folder)
  cache, train = commands("Tokenise once")
  assert "cache/text/train" in run(cache, folder)
  assert "training: 100%" in run([*train, *SMALL], folder)


def test_c4(folder):
  (train,) = commands("Train on C4")
  train = [word.replace("/data/c4/en", str(folder / "c4")) for word in train]
  output = run([*train, *SMALL, f"--gin.VOCAB_FILE={folder / 'spiece.model'}"], folder)
  assert "training: 100%" in output
  assert (folder / "runs" / "base" / "checkpoints" / "3").is_dir()


def test_gin_file_of_your_own(folder, monkeypatch):
  section = README.split("## Optimizers, schedules, precision\n")[1].split("\n## ")[0]
  (text,) = re.findall(r"```\n(.*?)```", section, flags=re.DOTALL)
  (folder / "mine.gin").write_text(text)
  monkeypatch.chdir(folder)
  trainer, _ = config.build("t5jax.trainer.Trainer", ["mine.gin"], [
      "MODEL_DIR=runs/x", "TRAIN_FILES=text.txt", "VOCAB_SIZE=180", "TextCorpus.encoding=latin-1"])
  params = {"token_embedder": {"embedding": jnp.ones((2, 2))}, "decoder": {"kernel": jnp.ones((2, 2))}}
  optimizer = trainer.optimizer(0.1)
  updates, _ = optimizer.update(params, optimizer.init(params), params)
  assert not updates["token_embedder"]["embedding"].any() and updates["decoder"]["kernel"].all()


def test_make_and_pip_commands_are_those_of_the_ci():
  ci = (ROOT / ".ci" / "run").read_text()
  assert [words[:2] for words in commands("Two commands")] == [["make", "demo"], ["make", "test"]]
  assert "make demo" in ci and "make test" in ci and "install --quiet ." in ci
