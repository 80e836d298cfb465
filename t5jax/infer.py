"""Fills gaps with a trained model: python -m t5jax.infer --model_dir=runs/a --text="Jeg bor <extra_id_0> Danmark."
"""

import argparse
import sys


def main(argv=None):
  """Runs the command; returns its exit status."""
  parser = argparse.ArgumentParser(prog="python -m t5jax.infer", description=__doc__)
  parser.add_argument("--model_dir", required=True, help="the folder that t5jax.train wrote")
  parser.add_argument("--text", action="append", required=True,
                      help="text with gaps <extra_id_0>, <extra_id_1> ...; may be repeated")
  parser.add_argument("--step", type=int, help="which checkpoint; the newest if not given")
  parser.add_argument("--max_length", type=int, default=64, help="most tokens to generate")
  arguments = parser.parse_args(argv)
  if arguments.max_length < 1:
    parser.error(f"--max_length={arguments.max_length}: expected at least 1")
  for text in arguments.text:
    if "<extra_id_" not in text:
      print(f"Note: no gap <extra_id_0> in {text!r}.", file=sys.stderr)
  import pathlib
  import jax
  from t5jax import checkpoint, compilation, decoding
  from t5jax.data.vocabulary import Vocabulary
  compilation.keep_programs()
  try:
    step, model, params = checkpoint.load_params(arguments.model_dir, arguments.step)
    folder = pathlib.Path(arguments.model_dir).expanduser()
    vocabulary = Vocabulary(str(folder / "spiece.model"))
    answers = decoding.fill_gaps(params, model, vocabulary, arguments.text, arguments.max_length)
  except (ValueError, jax.errors.JaxRuntimeError) as error:  # The latter when memory runs out.
    print(f"error: {str(error).splitlines()[0]}", file=sys.stderr)
    return 1
  print(f"model of step {step}")
  for text, (answer, filled) in zip(arguments.text, answers):
    print(f"input:   {text}\noutput:  {answer}\nfilled:  {filled}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
