"""--dry_run, as a user calls it."""

from tests.entry.conftest import run_module


def test_compares_estimate_and_compiler_and_leaves_nothing(project):
  done = run_module("t5jax.train", "--gin_file=tiny.gin", "--gin.MODEL_DIR=run", "--dry_run",
                    "--gin.DROPOUT_RATE=0.0", cwd=project)
  rows = {line.rsplit(None, 3)[0]: [float(x.replace(",", "")) for x in line.rsplit(None, 3)[1:]]
          for line in done.stdout.splitlines() if line.startswith(("parameters", "total"))}
  assert abs(rows["parameters and optimizer"][2] - 1) < 0.1
  assert abs(rows["total"][2] - 1) < 0.4  # So small a model is half made of what is not counted.
  assert rows["total"][1] > rows["parameters and optimizer"][1] > 0
  assert not (project / "run").exists()
