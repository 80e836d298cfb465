"""Trains a SentencePiece vocabulary for T5 on local text files.

    python tools/train_vocab.py --files='corpus/*.txt' --vocab_size=32000 --output=spiece.model

--vocab_size counts the pieces without T5's 100 sentinels, which come on top: 32000 makes 32,100
ids, and a model rounds them up to 32,128.
"""

import argparse
import itertools
import pathlib
import sys

try:
  import t5jax  # noqa: F401
except ImportError:  # A checkout that is not installed, from any folder.
  sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from t5jax.data import arguments as data_arguments
from t5jax.data.text_files import TextFiles, find_files
from t5jax.data.vocab_training import text_rates, train_vocabulary
from t5jax.data.vocabulary import Vocabulary
from t5jax.folders import make_folder
from t5jax.settings import SettingError

_SAMPLE_DOCUMENTS = 1000


def main(arguments=None):
  """Trains, and prints what was used and how well the result holds the text."""
  options = _parse(arguments)
  files = TextFiles(find_files(options.files, "--files"), **data_arguments.reading(options))
  files.check()
  _check_output(options)
  report = train_vocabulary(
      files.iterate(), options.output, options.vocab_size, byte_fallback=options.byte_fallback,
      character_coverage=options.character_coverage, max_sentences=options.max_sentences,
      max_bytes=options.max_bytes, seed=options.seed)
  counts = files.counts()
  vocabulary = Vocabulary(options.output)
  unknown, same = text_rates(vocabulary, itertools.islice(files.iterate(), _SAMPLE_DOCUMENTS))
  print(report)
  print(f"{counts['blank']:,} blank documents dropped, {counts['skipped']:,} unusable records "
        f"skipped, {counts['replaced']:,} undecodable sequences replaced")
  print(f"first {_SAMPLE_DOCUMENTS:,} documents: {unknown:.3%} of the ids unknown, {same:.1%} of "
        "the lines come back unchanged")
  print(f"{options.output}: {vocabulary.num_pieces:,} pieces, {vocabulary.size:,} ids with the "
        f"sentinels, {vocabulary.padded_size():,} rows of a model's embedding")


def _check_output(options):
  """Refuses what cannot be written or should not be replaced, before the text is read."""
  output = pathlib.Path(options.output)
  if not output.exists():
    make_folder("--output", output.parent)
  elif not options.overwrite:
    raise SettingError("--output", options.output, "a new file: models may depend on this one. "
                       "Or give --overwrite, which replaces it")
  else:
    Vocabulary(output)  # Refuses to replace what is not a vocabulary: perhaps the corpus.


def _parse(arguments):
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--files", required=True, nargs="+",
                      help=".txt .jsonl .csv .parquet, also .gz or .zst; globs")
  parser.add_argument("--vocab_size", required=True, type=int, help="pieces, without sentinels")
  parser.add_argument("--output", default="spiece.model", help="file to write")
  parser.add_argument("--overwrite", action="store_true", help="replace a vocabulary")
  data_arguments.add_reading_arguments(parser)
  parser.add_argument("--byte_fallback", action="store_true", help="spell unknown characters")
  parser.add_argument("--character_coverage", type=float, default=1.0)
  parser.add_argument("--max_sentences", type=int, default=1_000_000, help="largest sample")
  parser.add_argument("--max_bytes", type=int, default=100_000_000, help="largest sample")
  parser.add_argument("--seed", type=int, default=0, help="of the sample")
  return parser.parse_args(arguments)


if __name__ == "__main__":
  try:
    main()
  except ValueError as error:
    sys.exit(f"train_vocab: {error}")
