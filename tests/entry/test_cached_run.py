"""A run from a cache: built by the tool with the flags of the run, killed, resumed, bit for bit."""

import json

import pytest

from tests.entry.conftest import records, run_module

CACHED = ("--gin_file=tiny.gin", "--gin.CACHE_DIR=cache", "--gin.USE_CACHED_TASKS=True")


def train(project, name, *flags, **options):
  return run_module("t5jax.train", *CACHED, f"--gin.MODEL_DIR={name}", *flags, cwd=project, **options)


@pytest.mark.slow  # tests/data/test_cached.py restores the iterator, test_resume.py such a run online.
def test_a_run_from_a_cache_resumes_bit_for_bit(project):
  missing = train(project, "straight", check=False)
  assert missing.returncode == 1
  assert missing.stdout.startswith("error: ") and "tools/cache_task.py" in missing.stdout
  built = run_module("t5jax.tools.cache_task", *CACHED, "--gin.MODEL_DIR=none", cwd=project)
  assert "cache/text/train: " in built.stdout and not (project / "none").exists()
  info = project / "cache/text/validation/info.json"
  info.rename(project / "moved")
  checked = train(project, "straight", "--check", check=False)
  assert checked.returncode == 1 and "holds no finished cache" in checked.stdout
  (project / "moved").rename(info)

  train(project, "straight")
  killed = train(project, "killed", "--gin_file=kill.gin", "--gin.Kill.at_step=7", check=False)
  assert killed.returncode < 0
  train(project, "killed", "--allow_changes")
  assert (project / "killed/digest").read_text() == (project / "straight/digest").read_text()
  assert records(project / "killed")[-1] == records(project / "straight")[-1]

  saved = [p for p in (project / "straight/checkpoints/20/data").rglob("*") if p.is_file()]
  position, = [json.loads(p.read_text()) for p in saved if p.suffix == ".json"]
  assert position["examples"] == 20 * 8
  assert sum(p.stat().st_size for p in saved) < 4000  # A few numbers, not buffers of text.
