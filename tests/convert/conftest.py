"""Fixtures of the conversion tests: a tiny vocabulary and a tiny model."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from t5jax.model.config import t5_1_1
from t5jax.model.t5 import T5

TEXT = """\
Der var engang en lille by ved havet, hvor alle kendte hinanden, og hvor vinden aldrig lagde sig.
Om morgenen gik fiskerne ud med deres både, og om aftenen kom de hjem med sild, torsk og ål.
Børnene legede på stranden, samlede sten og skaller og byggede en dæmning af våde brædder.
En dag fandt de en flaske med et brev i; det var skrevet på et sprog, som ingen af dem forstod.
Præsten sagde, at det måtte være fra en ø langt borte, og læreren slog op i sin største bog.
Æbler, pærer, blåbær og ærter: på torvet kostede det hele 12,50 kr. i 1987, siger han.
There was once a small town by the sea, where everybody knew each other and the wind never slept.
In the morning the fishermen left with their boats, and in the evening they came home with herring.
The children played on the beach, gathered stones and shells, and built a dam of wet boards.
One day they found a bottle with a letter in it, written in a language that none of them understood.
The vicar said it must have come from an island far away; the teacher opened his largest book.
"What does it say?" they asked. "It says: we are well (all 34 of us), and the apples are ripe!"
"""


@pytest.fixture(scope="session")
def train_vocabulary(tmp_path_factory):
  """Returns a function: (trainer options) -> path of a SentencePiece model of about 300 pieces."""
  import sentencepiece

  def train(**options):
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(**{**dict(
        input=str(folder / "text.txt"), model_prefix=str(folder / "spiece"), vocab_size=300,
        hard_vocab_limit=False, character_coverage=1.0, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        minloglevel=2), **options})
    return folder / "spiece.model"

  return train


@pytest.fixture(scope="session")
def vocabulary_path(train_vocabulary):
  """Path of a vocabulary with SentencePiece's default normalisation."""
  return train_vocabulary()


@pytest.fixture(scope="session")
def make_params():
  """Returns a function: T5Config -> random parameters, norm scales included, as NumPy arrays."""

  def make(config):
    tokens = np.zeros((1, 1), int)
    shapes = nn.unbox(jax.eval_shape(T5(config).init, jax.random.key(0), tokens, tokens))["params"]
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes)

  return make


@pytest.fixture(scope="session")
def config():
  """A v1.1 model with more encoder than decoder layers."""
  return t5_1_1("tiny", emb_dim=32, num_heads=2, head_dim=8, mlp_dim=48, num_encoder_layers=2,
                num_decoder_layers=1, vocab_size=512)


@pytest.fixture(scope="session")
def params(config, make_params):
  """Parameters of `config`."""
  return make_params(config)
