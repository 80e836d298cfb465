"""Shows what a task feeds to a model: raw text, examples with their sentinels, and figures.

    python tools/inspect_data.py --gin_file=text.gin --gin.MODEL_DIR=runs/mine \\
      --gin.TRAIN_FILES='corpus/*.jsonl' --gin.VOCAB_FILE=spiece.model

    python tools/inspect_data.py --task=my_corpus --module=my_tasks

Besides, it writes a page with the same, and with histograms: inspection.html.
"""

import argparse
import os
import pathlib
import sys
import tempfile

try:
  import t5jax  # noqa: F401
except ImportError:  # A checkout that is not installed, from any folder.
  sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from t5jax.data import arguments as data_arguments
from t5jax.data.inspection import inspect, write_html
from t5jax.data.iterator import VOCABULARY_NAME
from t5jax.folders import make_folder
from t5jax.settings import AT_LEAST_ONE, SettingError, check_numbers

_SHOWN_CHARACTERS = 1000


def main(arguments=None):
  """Prints the sample and writes the page."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
  data_arguments.add_arguments(parser)
  parser.add_argument("--split", default="train")
  parser.add_argument("--num_shown", type=int, default=2, help="documents and examples to print")
  parser.add_argument("--num_documents", type=int, default=1000, help="documents to count")
  parser.add_argument("--num_examples", type=int, default=1000, help="examples to count")
  parser.add_argument("--output", default="inspection.html", help="page to write")
  options, rest = parser.parse_known_args(arguments)
  check_numbers("inspect_data", num_shown=(options.num_shown, AT_LEAST_ONE),
                num_documents=(options.num_documents, AT_LEAST_ONE),
                num_examples=(options.num_examples, AT_LEAST_ONE))
  data, run_folder = data_arguments.task_data(options, rest)
  data.check()
  output = pathlib.Path(options.output).expanduser()
  make_folder("--output", output.parent)
  if output.is_dir():
    raise SettingError("--output", options.output, "a file to write; this is a folder")
  with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(run_folder or scratch).expanduser()
    vocabulary = data.prepare(folder if (folder / VOCABULARY_NAME).exists() else scratch)
    found = inspect(data, vocabulary, options.split, options.num_shown, options.num_documents,
                    options.num_examples)
  for text in found.documents:
    _show("document", text)
  for inputs, targets in found.examples:
    _show("inputs", inputs)
    _show("targets", targets)
  for name, value in found.lines():
    print(f"{name:>22}  {value}")
  write_html(found, output)
  print(f"{output}: the same as a page")


def _show(title, text):
  more = f" ... ({len(text):,} characters)" if len(text) > _SHOWN_CHARACTERS else ""
  print(f"--- {title}\n{text[:_SHOWN_CHARACTERS]}{more}\n")


if __name__ == "__main__":
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  try:
    main()
  except ValueError as error:
    sys.exit(f"inspect_data: {error}")
