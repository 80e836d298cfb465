"""What the tests of corpora share; the vocabulary is that of tests/data."""

import numpy as np
import pytest

from t5jax.data.iterator import TaskData
from tests.data.conftest import vocab_file, vocabulary  # noqa: F401

LENGTHS = {"inputs": 64, "targets": 20}


def texts_of(corpus, split):
  """The texts of a split, as the source of a corpus gives them to tf.data."""
  dataset = corpus.source().get_dataset(split, shuffle=False)
  return [example["text"].decode() for example in dataset.as_numpy_iterator()]


@pytest.fixture
def check(tmp_path):
  """check(corpus, training texts, validation texts): it gives these, and batches to train on.

  Where no validation texts are given, some of the training texts must be held out.
  """

  def call(corpus, training, validation=None):
    found = {split: texts_of(corpus, split) for split in ("train", "validation")}
    if validation is None:
      assert found["train"] and found["validation"]
      assert sorted(found["train"] + found["validation"]) == sorted(training)
    else:
      assert sorted(found["train"]) == sorted(training)
      assert sorted(found["validation"]) == sorted(validation)
    data = TaskData(corpus, LENGTHS, 4, shuffle_buffer_size=10)
    data.check()
    data.prepare(tmp_path / "run")
    batch = next(data.train_iterator())
    assert batch["encoder_input_tokens"].shape == (4, 64)
    assert np.any(data.eval_batches()[0]["decoder_loss_weights"])

  return call


@pytest.fixture
def no_tfds(tmp_path, monkeypatch):
  """No data that TFDS has prepared."""
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "no_tfds"))
