"""Exports a checkpoint as a folder that transformers loads, and proves it by loading it.

    python tools/convert_hf.py --model_dir=runs/demo --output_dir=exports/demo

Without --skip_verification it needs `pip install 't5jax[hf]'`. Nothing is left under output_dir
unless the comparison succeeds.
"""

import argparse
import os
import pathlib
import sys

import jax

from t5jax.checkpoint import load_params
from t5jax.convert import hf, verify


def parse_args(args=None):
  """Returns the command line's values."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--model_dir", required=True, help="folder of a run, with its checkpoints")
  parser.add_argument("--output_dir", required=True, help="new folder, or an earlier export")
  parser.add_argument("--step", type=int, help="default: the latest checkpoint")
  parser.add_argument("--dtype", default="float32", choices=list(hf.DTYPES))
  parser.add_argument("--max_shard_size", default="5GB", help="default: %(default)s")
  parser.add_argument("--skip_verification", action="store_true",
                      help="write without loading it back with transformers")
  return parser.parse_args(args)


def convert(args):
  """Exports and verifies; prints what was written and the figures of the comparison."""
  step, config, params = load_params(args.model_dir, step=args.step)
  vocabulary = pathlib.Path(args.model_dir).expanduser() / "spiece.model"
  figures = {}

  def check(folder):
    figures.update(verify.verify(folder, params, config, vocabulary))

  files = hf.export(params, config, vocabulary, args.output_dir, args.dtype, args.max_shard_size,
                    check=None if args.skip_verification else check)
  print(f"Step {step} of {args.model_dir} in {args.dtype}, written to {args.output_dir}:")
  for name, size in files.items():
    print(f"  {name:<32} {size:>15,} bytes")
  if args.skip_verification:
    print("Not verified: --skip_verification was given.")
    return
  print(f"Verified with transformers: {figures['num_parameters']:,} parameters, "
        "none missing, unexpected or of another shape.")
  print(f"  logits: largest difference {figures['max_logit_difference']:.2e}, "
        f"largest logit {figures['max_logit']:.4g}")
  print(f"  tokenisation: {figures['num_lines']} lines with the same ids"
        + (f", {figures['num_ties']} of them tied in score" if figures["num_ties"] else ""))


def main():
  """Exit status 1 and one line on stderr when anything fails."""
  args = parse_args()
  if "JAX_PLATFORMS" not in os.environ:
    jax.config.update("jax_platforms", "cpu")  # So that it can run beside a training.
  try:
    convert(args)
  except (ValueError, OSError, ImportError) as error:
    sys.exit(f"convert_hf: {' '.join(str(error).split())}")


if __name__ == "__main__":
  main()
