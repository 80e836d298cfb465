"""Compares the implementations of attention on one GPU, each with the largest batch that fits, in 6 minutes.

    python tools/benchmark_gpu.py --output=figures.jsonl

T5 v1.1 base at 512/114 in bfloat16 (base.gin): benchmark.py with ATTENTION=xla, cudnn and pallas, and at
last, with the fastest of them, against transformers' T5 compiled by PyTorch, in turns. The batch is what
plan_memory expects to fit, lowered where it does not. For scale: nanoT5 took 0.56 s for a step of 128
on an A100, 97 TFLOP/s. `pip install '.[bench]'` for the last part.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
  import t5jax  # noqa: F401
except ImportError:  # A checkout that is not installed, from any folder.
  sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from t5jax import config
from t5jax.tools import plan_memory

_ATTENTIONS = ("xla", "cudnn", "pallas")
_MULTIPLE = 16  # Batches are multiples of it.
_USABLE = 0.9  # Share of the memory that JAX may take, and plans fill.
_PEER_BATCH = 64  # Both contestants are on the device at once.


def device_bytes():
  """Returns the memory that JAX has on the first device, asked in a process that then lets go of it."""
  code = "import jax; print((jax.local_devices()[0].memory_stats() or {}).get('bytes_limit', 0))"
  done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
  return int(done.stdout)


def largest_batch(attention, num_bytes):
  """Returns the batch of base.gin that plan_memory expects to fit."""
  trainer, _ = config.build("t5jax.trainer.Trainer", ["base.gin"],
                            ["MODEL_DIR=unused", f"ATTENTION={attention}"])
  model, _ = plan_memory.sized(trainer)
  rows = plan_memory.Plan(trainer, model, 1, num_bytes).largest_rows(1, "none")
  return max(_MULTIPLE, rows // _MULTIPLE * _MULTIPLE)


def benchmark(attention, batch_size, *flags):
  """Runs benchmark.py; returns its rows, or None if it failed."""
  with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
    command = [sys.executable, "-m", "t5jax.tools.benchmark", "--gin_file=base.gin",
               "--gin.MODEL_DIR=unused", f"--gin.ATTENTION={attention}", f"--gin.BATCH_SIZE={batch_size}",
               "--windows=3", f"--output={file.name}", *flags]
    print(f"\n{attention}, batch {batch_size}", flush=True)
    if subprocess.run(command).returncode:
      return None
    return [json.loads(line) for line in file]


def main():
  """Runs all; prints each table as it comes."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
  parser.add_argument("--output", metavar="FILE", help="to append lines of JSON to")
  options = parser.parse_args()
  os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", str(_USABLE))
  num_bytes = device_bytes()
  if not num_bytes:
    parser.error("JAX finds no GPU here")
  rows = []
  for attention in _ATTENTIONS:
    batch_size = largest_batch(attention, num_bytes)
    while (found := benchmark(attention, batch_size)) is None and batch_size > _MULTIPLE:
      batch_size = max(_MULTIPLE, batch_size * 3 // 4 // _MULTIPLE * _MULTIPLE)
    rows += [dict(row, attention=attention, batch_size=batch_size) for row in found or ()]
  if not rows:
    sys.exit("benchmark_gpu: no implementation ran, see above.")
  fastest = max(rows, key=lambda row: row["tokens_per_second"])["attention"]
  peers = benchmark(fastest, _PEER_BATCH, "--against=transformers", "--peer_modes", "compiled")
  rows += [dict(row, attention=fastest, batch_size=_PEER_BATCH) for row in peers or ()]
  if options.output:
    with open(options.output, "a", encoding="utf-8") as file:
      file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
  main()
