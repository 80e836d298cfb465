"""Greedy decoding against the plain definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5jax import decoding
from t5jax.model.t5 import T5
from tests import tiny


def slow_greedy(params, model, encoder_tokens, max_length):
  """Runs the whole decoder anew for each token."""
  whole = jax.jit(lambda inputs: T5(model).apply({"params": params}, encoder_tokens, inputs))
  output = np.zeros((len(encoder_tokens), max_length), np.int32)
  ended = np.zeros(len(encoder_tokens), bool)
  for i in range(max_length):
    decoder_input = np.pad(output, ((0, 0), (1, 0)))[:, :-1]
    logits = whole(decoder_input)
    token = np.where(ended, 0, np.argmax(logits[:, i], axis=-1))
    output[:, i] = token
    ended |= token == decoding.EOS
  return output


@pytest.mark.parametrize("version", ["t5_1_0", "t5_1_1"])
def test_greedy_is_the_likeliest_token_each_time(version):
  model = tiny.model(version, num_decoder_layers=3)
  params = tiny.parameters(model)
  tokens = tiny.batch(batch_size=4)["encoder_input_tokens"]
  tokens[1, 7:] = 0
  expected = slow_greedy(params, model, tokens, 10)
  np.testing.assert_array_equal(
      decoding.greedy(params, jnp.asarray(tokens), model=model, max_length=10), expected)


def test_rows_end_separately():
  model = tiny.model()
  params = tiny.parameters(model)
  # Few tokens are likely, the end among them, so that rows end at different lengths.
  params["logits_dense"]["kernel"] = params["logits_dense"]["kernel"].at[:, 8:].set(-0.01)
  tokens = tiny.batch(batch_size=8)["encoder_input_tokens"]
  expected = slow_greedy(params, model, tokens, 12)
  output = np.asarray(decoding.greedy(params, jnp.asarray(tokens), model=model, max_length=12))
  np.testing.assert_array_equal(output, expected)
  for row in output:
    if decoding.EOS in row:
      assert not row[list(row).index(decoding.EOS) + 1:].any()


@pytest.mark.parametrize("inputs, answer, filled", [
    ([5, 99, 6], [99, 7, 8, 98], [5, 7, 8, 6]), ([5, 99, 6, 98], [99, 7, 98, 8, 9], [5, 7, 6, 8, 9]),
    ([5, 99, 6], [7], [5, 99, 6]), ([5], [99, 7], [5]), ([99, 98], [98, 7], [99, 7]),
    ([99], [99], []), ([99], [99, 7, 99, 8], [7, 8])])
def test_splice(inputs, answer, filled):
  assert decoding.splice(inputs, answer, first_sentinel=90) == filled
