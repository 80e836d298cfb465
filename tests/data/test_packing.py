"""Packed rows of a task of short examples: nothing lost, nothing seen of neighbours, resumable."""

import jax
import numpy as np
import pytest

from t5jax import memory, step as steps
from t5jax.data.iterator import TaskData
from t5jax.data.text_files import DataError
from t5jax.model.t5 import T5
from t5jax.settings import SettingError
from t5jax.tasks.text import TextCorpus
from tests import tiny

LENGTHS = {"inputs": 24, "targets": 12}
MODEL_INPUTS = ("encoder_input_tokens", "decoder_input_tokens", "encoder_segment_ids",
                "decoder_segment_ids")


def pairs_of(count):
  """Returns [(inputs, targets)], lists of 1 to 10 and of 1 to 5 ids, with the end token 1."""
  rng = np.random.default_rng(0)
  draw = lambda most: [*rng.integers(2, tiny.VOCAB_SIZE, rng.integers(most)).tolist(), 1]
  return [(draw(10), draw(5)) for _ in range(count)]


@pytest.fixture
def register(vocabulary):
  """register(name, pairs) -> a seqio task that reads them."""
  import seqio
  import tensorflow as tf

  def add(name, pairs):
    def dataset(split, shuffle_files, seed=None):
      del split, shuffle_files, seed
      return tf.data.Dataset.from_tensor_slices(
          {key: tf.ragged.constant(column, tf.int32) for key, column in zip(LENGTHS, zip(*pairs))})

    feature = seqio.Feature(vocabulary.seqio(), add_eos=False)
    if name in seqio.TaskRegistry.names():
      seqio.TaskRegistry.remove(name)
    seqio.TaskRegistry.add(
        name, source=seqio.FunctionDataSource(dataset, ["train", "validation"]), preprocessors=[],
        output_features={key: feature for key in LENGTHS})
    return name

  return add


def examples_of(batch):
  """Takes rows apart: [(inputs, targets, decoder inputs)] in their order."""
  found = []
  for row in range(len(batch["encoder_input_tokens"])):
    ids, decoder_ids = batch["encoder_segment_ids"][row], batch["decoder_segment_ids"][row]
    for number in range(1, ids.max() + 1):
      of_encoder, of_decoder = ids == number, decoder_ids == number
      found.append((batch["encoder_input_tokens"][row, of_encoder].tolist(),
                    batch["decoder_target_tokens"][row, of_decoder].tolist(),
                    batch["decoder_input_tokens"][row, of_decoder].tolist()))
  return found


def test_rows_hold_every_example_once(register, tmp_path):
  pairs = pairs_of(200)
  data = TaskData(register("pairs", pairs), LENGTHS, 4, pack=True, num_eval_batches=100)
  data.prepare(tmp_path)
  batches = data.eval_batches()
  assert [x for batch in batches for x in examples_of(batch)] == [
      (inputs, targets, [0, *targets[:-1]]) for inputs, targets in pairs]
  assert len(batches) < 0.5 * len(pairs) / 4
  for batch in batches:
    np.testing.assert_array_equal(batch["decoder_loss_weights"], batch["decoder_segment_ids"] != 0)
    for name in ("encoder_input_tokens", "decoder_target_tokens", "decoder_input_tokens"):
      ids = batch[f"{name.split('_')[0]}_segment_ids"]
      assert not batch[name][ids == 0].any()


@pytest.mark.parametrize("attention", ["xla", "pallas"])
def test_losses_of_tokens_do_not_depend_on_packing(register, tmp_path, attention):
  pairs = pairs_of(12)
  losses = []
  for pack in (False, True):
    data = TaskData(register("pairs", pairs), LENGTHS, len(pairs), pack=pack)
    data.prepare(tmp_path)
    batch, = data.eval_batches()
    model = tiny.model(attention=attention)
    params = tiny.parameters(model)
    logits = jax.jit(T5(model).apply)({"params": params}, *(batch.get(name) for name in MODEL_INPUTS))
    entropies = -np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)),
                                    batch["decoder_target_tokens"][..., None], 2)[..., 0]
    losses.append(entropies[batch["decoder_loss_weights"] > 0])
    total, weight = steps.eval_step(params, batch, model=model)["loss"]
    assert total / weight == pytest.approx(np.mean(losses[-1]), rel=1e-5)
  np.testing.assert_allclose(losses[1], losses[0], atol=1e-5)


@pytest.mark.parametrize("pack", [False, True])
def test_a_mixture_with_pretraining(register, corpus_file, vocab_file, tmp_path, pack):
  import seqio

  name, target = f"both_{pack}", tmp_path / "run"
  TextCorpus(files=str(corpus_file), vocab_file=str(vocab_file), name="of_text").register()
  seqio.MixtureRegistry.add(name, [(register("pairs", pairs_of(200)), 1.0), ("of_text", 1.0)])
  data = TaskData(name, LENGTHS, 4, pack=pack)
  data.prepare(target)
  tokens = np.concatenate([next(iterator)["encoder_input_tokens"] for iterator in [data.train_iterator()]
                           for _ in range(10)])
  lengths = np.count_nonzero(tokens, axis=1)
  assert LENGTHS["inputs"] in lengths and (lengths < 20).any()


def test_positions_are_restored(register, tmp_path):
  data = TaskData(register("pairs", pairs_of(300)), LENGTHS, 4, pack=True)
  data.prepare(tmp_path)
  iterator = data.train_iterator()
  for _ in range(3):
    next(iterator)
  iterator.save(tmp_path / "position")
  expected = [next(iterator) for _ in range(20)]
  again = data.train_iterator()
  again.restore(tmp_path / "position")
  for batch in expected:
    jax.tree.map(np.testing.assert_array_equal, next(again), batch)
  unpacked = TaskData("pairs", LENGTHS, 4).train_iterator()
  with pytest.raises(DataError, match="pack: true then, false now"):
    unpacked.restore(tmp_path / "position")


def test_the_step_is_compiled_for_what_comes(register, tmp_path):
  """A run compiles its step before the first batch is there."""
  data = TaskData(register("pairs", pairs_of(50)), LENGTHS, 4, pack=True)
  data.prepare(tmp_path)
  describe = lambda x: (x.shape, x.dtype)
  assert jax.tree.map(describe, next(data.train_iterator())) == jax.tree.map(
      describe, memory.batch_shapes(4, LENGTHS, packed=True))


@pytest.mark.parametrize("inputs, targets, problem", [
    ([], [5, 1], r"with the inputs \[\]"), ([5, 1], [], r"with the targets \[\]"),
    ([5, 0, 1], [5, 1], r"with the inputs \[5, 0, 1\]")])
def test_what_cannot_be_packed_is_refused(register, tmp_path, inputs, targets, problem):
  data = TaskData(register("odd", [([5, 1], [5, 1]), (inputs, targets)]), LENGTHS, 4, pack=True)
  data.prepare(tmp_path)
  with pytest.raises(DataError, match=f"{problem} cannot be packed: .*TaskData.pack = False"):
    data.eval_batches()


def test_pretraining_needs_no_packing(corpus_file, vocab_file, tmp_path):
  corpus = TextCorpus(files=str(corpus_file), vocab_file=str(vocab_file), name="to_pack")
  refusal = "TaskData.pack = True .*False for 'to_pack': pretraining fills its rows"
  with pytest.raises(SettingError, match=refusal):
    TaskData(corpus, LENGTHS, 4, pack=True)
  corpus.register()
  with pytest.raises(SettingError, match=refusal):
    TaskData("to_pack", LENGTHS, 4, pack=True).prepare(tmp_path)
