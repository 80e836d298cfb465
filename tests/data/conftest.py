"""A small bilingual text, a vocabulary trained on it, and corpora made of both."""

import random

import pytest

from t5jax.data.vocab_training import train_vocabulary
from t5jax.data.vocabulary import Vocabulary

_SYLLABLES = "ba dø fi gå hu jæ ke lo my nå pe rø si tu væ by då fø ge ho ri sta sne sea".split()
_WORDS = "Ærø Århus Øresund æbler 1864 2½ § »ja« – naïve café über Äpfel".split() + [
    "".join(random.Random(i).choices(_SYLLABLES, k=1 + i % 4)) for i in range(600)]


def make_documents(count, seed=0, words=(5, 60)):
  """Returns sentences of random words, all different."""
  draw = random.Random(seed)
  return [f"{i}. " + " ".join(draw.choices(_WORDS, k=draw.randint(*words))) for i in range(count)]


@pytest.fixture(scope="session")
def vocab_file(tmp_path_factory):
  path = tmp_path_factory.mktemp("vocabulary") / "spiece.model"
  train_vocabulary(make_documents(400), path, 400)
  return path


@pytest.fixture(scope="session")
def vocabulary(vocab_file):
  return Vocabulary(vocab_file)


@pytest.fixture
def corpus_file(tmp_path):
  path = tmp_path / "corpus.txt"
  path.write_text("\n".join(make_documents(100)) + "\n", encoding="utf-8")
  return path
