"""Trains the same small T5 with parameters and optimizer states of several precisions.

    python tools/compare_precision.py --files 'corpus/*.jsonl' --output_dir=comparison

Every run sees the same batches from the same start; only what stands in VARIANTS differs. Writes
precision.md, a table of the last held-out losses, and precision.png, their curves, into OUTPUT_DIR.
A run that was stopped goes on, a finished one is not repeated. Without --files: the demo's text.
"""

import argparse
import contextlib
import json
import pathlib
import subprocess
import sys

from tqdm import tqdm

try:
  import t5jax  # noqa: F401
except ImportError:  # A checkout that is not installed, from any folder.
  sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from t5jax.tasks import demo

VARIANTS = {  # Name: (the optimizer's gin file, PARAM_PRECISION).
    "float32": ("adamw_rms", "float32"),
    "bfloat16, stochastic rounding": ("adamw_rms", "bfloat16_stochastic"),
    "bfloat16, nearest rounding": ("adamw_rms", "bfloat16_nearest"),
    "float32, 8-bit states": ("adamw_rms_8bit", "float32"),
    "bfloat16, stochastic, 8-bit states": ("adamw_rms_8bit", "bfloat16_stochastic"),
}
_REFERENCE = "float32"
# The demo's model, every matrix of which is large enough for 8-bit states.
_SETTINGS = """from __gin__ import dynamic_registration
from t5jax.model import config
include "text.gin"
include "optimizers/{optimizer}.gin"
config.t5_1_1:
  emb_dim = 128
  head_dim = 32
  mlp_dim = 256
  num_encoder_layers = 3
  num_decoder_layers = 3
MODEL_DIR = {folder!r}
TRAIN_FILES = {files!r}
VOCAB_SIZE = 2000
MODEL_SIZE = "tiny"
DTYPE = "float32"
PARAM_PRECISION = "{precision}"
TASK_FEATURE_LENGTHS = {{"inputs": 64, "targets": 16}}
BATCH_SIZE = 16
TRAIN_STEPS = {steps}
WARMUP_STEPS = {warmup_steps}
LEARNING_RATE = {learning_rate}
EVAL_STEPS = 50
EVAL_PERIOD = 100
"""


def main(arguments=None):
  """Runs the variants one after the other and writes the comparison."""
  options = _parse(arguments)
  output = pathlib.Path(options.output_dir).expanduser()
  output.mkdir(parents=True, exist_ok=True)
  curves = {}
  for name in tqdm(VARIANTS, desc="runs", unit="run"):
    folder = output / name.replace(",", "").replace(" ", "_")
    curves[name] = train(folder, name, options)
  (output / "precision.md").write_text(report(curves, options), encoding="utf-8")
  draw(curves, output / "precision.png")
  print(report(curves, options))


def train(folder, name, options):
  """Trains one variant in a process of its own; returns its [(step, held-out loss)]."""
  optimizer, precision = VARIANTS[name]
  settings = folder.with_suffix(".gin")
  text = _SETTINGS.format(
      optimizer=optimizer, precision=precision, folder=str(folder), files=options.files,
      steps=options.steps, warmup_steps=options.steps // 10, learning_rate=options.learning_rate)
  if folder.exists() and settings.exists() and settings.read_text(encoding="utf-8") != text:
    sys.exit(f"compare_precision: {settings} is of a comparison with other flags. Choose another --output_dir.")
  settings.write_text(text, encoding="utf-8")
  with subprocess.Popen([sys.executable, "-m", "t5jax.train", f"--gin_file={settings}"]) as process:
    while process.poll() is None:
      with contextlib.suppress(KeyboardInterrupt):  # The run was told as well: it saves and ends.
        process.wait()
  if process.returncode:  # It has said why.
    sys.exit(process.returncode)
  records = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
  return [(record["step"], record["eval/loss"]) for record in records if "eval/loss" in record]


def report(curves, options):
  """Returns the last losses as Markdown, each with its distance from float32's."""
  lines = [
      "# Parameters and states of several precisions", "",
      f"A T5 v1.1 of 1.7 million parameters after {options.steps:,} steps of AdamW scaled by RMS "
      f"(learning rate {options.learning_rate:g}), the same batches in each run. Made by", "",
      f"    python tools/compare_precision.py --steps={options.steps} --files ...", "",
      "| parameters, states | held-out loss, nats per token | against float32 |", "|---|---|---|"]
  reference = curves[_REFERENCE][-1][1]
  for name, curve in curves.items():
    loss = curve[-1][1]
    lines.append(f"| {name} | {loss:.4f} | {loss / reference - 1:+.2%} |")
  return "\n".join([*lines, "", "![held-out losses](precision.png)", ""])


def draw(curves, path):
  """Draws the held-out losses over the steps."""
  import matplotlib
  matplotlib.use("Agg")  # No window, and no display needed.
  from matplotlib import pyplot
  figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
  for name, curve in curves.items():
    axes.plot(*zip(*curve), marker="o", markersize=3, label=name)
  axes.set(xlabel="step", ylabel="held-out loss, nats per target token")
  axes.legend()
  figure.savefig(path, dpi=120)
  pyplot.close(figure)


def _parse(arguments):
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--files", nargs="+", default=list(demo.FILES), help="text; globs")
  parser.add_argument("--output_dir", required=True)
  parser.add_argument("--steps", type=int, default=1000)
  parser.add_argument("--learning_rate", type=float, default=2e-2, help="the peak of a cosine")
  options = parser.parse_args(arguments)
  if options.steps < 1:
    parser.error(f"--steps={options.steps} is not valid: expected an int >= 1")
  return options


if __name__ == "__main__":
  main()
