"""The corpus of the demo: Danish and English prose that comes with t5jax, a document a line."""

import pathlib

from t5jax.tasks.text import TextCorpus

FILES = tuple(str(pathlib.Path(__file__).resolve().parent / "demo_corpus" / f"{language}.txt")
              for language in ("danish", "english"))


def demo_corpus(vocab_size=1000, validation_fraction=0.1):
  """Returns the TextCorpus of the demo, about 160 KB, a tenth of it held out."""
  return TextCorpus(files=FILES, vocab_size=vocab_size, validation_fraction=validation_fraction,
                    name="demo")
