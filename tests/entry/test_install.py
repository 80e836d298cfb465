"""What `pip install .` puts where, and that it works from an empty folder."""

import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
  """The project as a wheel, built from a copy so that the checkout stays clean."""
  folder = tmp_path_factory.mktemp("wheel")
  (folder / "source").mkdir()
  for name in ("setup.py", "pyproject.toml", "README.md", "t5jax", "gin", "tasks", "tools"):
    copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
    copy(ROOT / name, folder / "source" / name)
  command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder,
             folder / "source"]
  subprocess.run(command, check=True, timeout=300)
  return next(folder.glob("t5jax-*.whl"))


def test_only_t5jax_is_installed_at_the_top(wheel):
  names = zipfile.ZipFile(wheel).namelist()
  tops = {name.split("/")[0] for name in names}
  assert {top for top in tops if not top.endswith(".dist-info")} == {"t5jax"}
  for path in ("t5jax/gin/demo.gin", "t5jax/gin/runs/pretrain.gin", "t5jax/tasks/demo.py",
               "t5jax/tasks/demo_corpus/danish.txt", "t5jax/tools/convert_hf.py"):
    assert path in names


@pytest.mark.slow  # The CI does the same from a new environment.
def test_the_installed_package_works_from_an_empty_folder(wheel, tmp_path):
  target, empty = tmp_path / "site", tmp_path / "empty"
  empty.mkdir()
  subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target,
                  wheel], check=True, timeout=300)
  code = ("import t5jax, t5jax.tasks, t5jax.tools, gin; "
          f"assert t5jax.__file__.startswith({str(target)!r}), t5jax.__file__; "
          "assert gin.parse_config")
  environment = {**os.environ, "PYTHONPATH": str(target)}
  subprocess.run([sys.executable, "-c", code], cwd=empty, env=environment, check=True)
  done = subprocess.run(
      [sys.executable, "-m", "t5jax.train", "--gin_file=demo.gin", "--gin.TRAIN_STEPS=2",
       "--gin.WARMUP_STEPS=1", "--gin.MODEL_SIZE=tiny", "--gin.EVAL_STEPS=1"],
      cwd=empty, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
      timeout=300)
  assert done.returncode == 0, done.stdout[-3000:]
  assert "Made: a T5 trained for 2 steps" in done.stdout
  assert (empty / "runs" / "demo" / "hf" / "model.safetensors").is_file()


# Packages whose nightlies, or whose look-alikes, would write over each other's files.
WATCHED = ("seqio", "tensorflow-datasets", "tensorflow", "tensorflow-text", "t5", "clu", "t5jax")


def test_no_file_is_owned_twice_and_none_is_altered():
  """Compares the installed records with the disk."""
  owners = {}
  for distribution in importlib.metadata.distributions():
    name = distribution.metadata["Name"].lower().replace("_", "-")
    for file in distribution.files or ():
      path = os.path.normpath(distribution.locate_file(file))
      if "__pycache__" not in path and not path.endswith((".pyc", ".pyi")):
        owners.setdefault(path, set()).add(name)
  twice = {path: names for path, names in owners.items()
           if len(names) > 1 and names & set(WATCHED)}
  assert not twice, dict(list(twice.items())[:5])
  for name in ("seqio", "tensorflow-datasets", "t5"):
    for file in importlib.metadata.distribution(name).files:
      if file.hash and str(file).endswith(".py"):
        assert _sha256(file.locate()) == file.hash.value, file


def _sha256(path):
  import base64
  import hashlib
  digest = hashlib.sha256(pathlib.Path(path).read_bytes()).digest()
  return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def test_pip_check_only_misses_what_t5_must_not_bring():
  """t5's own requirements are left out on purpose; everything else is consistent."""
  done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
  left_out = ("mesh-tensorflow", "seqio-nightly", "tfds-nightly")
  allowed = {f"t5 0.9.4 requires {name}, which is not installed." for name in left_out}
  complaints = set(done.stdout.splitlines()) - {"No broken requirements found."}
  assert complaints <= allowed
