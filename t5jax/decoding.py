"""Text generation with a key/value cache. Shapes: B batch, M encoder length, V vocab."""

import functools

import jax
import jax.numpy as jnp

from t5jax.model.t5 import T5

PAD, EOS = 0, 1


@functools.partial(jax.jit, static_argnames=("model", "max_length"))
def greedy(params, encoder_input_tokens, *, model, max_length):
  """Takes the likeliest token again and again, until every row has ended.

  Args:
    params: nested dict of arrays.
    encoder_input_tokens: int32 [B, M], padded with 0.
    model: T5Config.
    max_length: most tokens to generate.

  Returns:
    int32 [B, max_length]: tokens, the end-of-sequence id included, then 0.
  """
  t5 = T5(model, cache_length=max_length)
  encoded, segments = t5.apply({"params": params}, encoder_input_tokens, method="encode")

  def decode(cache, token, position):
    logits, updated = t5.apply({"params": params, **cache}, encoded, segments, token, position,
                               method="decode_token", mutable=["cache"])
    return updated, jnp.argmax(logits, axis=-1).astype(jnp.int32)

  def unfinished(carry):
    _, _, position, _, ended = carry
    return (position < max_length) & ~jnp.all(ended)

  def advance(carry):
    cache, token, position, output, ended = carry
    # `token` is the one for this position; the cache holds all before it.
    token = jnp.where(ended, PAD, token)
    output = output.at[:, position].set(token)
    ended |= token == EOS
    cache, following = decode(cache, token, position + 1)
    return cache, following, position + 1, output, ended

  batch_size = encoder_input_tokens.shape[0]
  # The first call, on the start token (the padding id), makes the cache that the loop carries.
  cache, first = decode({}, jnp.full([batch_size], PAD, jnp.int32), 0)
  output = jnp.full([batch_size, max_length], PAD, jnp.int32)
  carry = cache, first, jnp.int32(0), output, jnp.zeros([batch_size], bool)
  return jax.lax.while_loop(unfinished, advance, carry)[3]


def fill_gaps(params, model, vocabulary, texts, max_length=64):
  """Lets the model fill the gaps of each text, greedily.

  Args:
    params: nested dict of arrays.
    model: T5Config.
    vocabulary: data.vocabulary.Vocabulary.
    texts: strings; `<extra_id_0>`, `<extra_id_1>` ... stand for the gaps.
    max_length: most tokens of an answer.

  Returns:
    A list of (answer, sentinels shown as `<extra_id_N>`; text with its gaps filled).
  """
  inputs = [vocabulary.encode(text, sentinels=True) for text in texts]
  # Lengths in steps of 32, so that few lengths mean few compilations.
  width = -(-(max(map(len, inputs)) + 1) // 32) * 32
  tokens = jnp.array([row + [EOS] + [PAD] * (width - len(row) - 1) for row in inputs], jnp.int32)
  outputs = jax.device_get(greedy(params, tokens, model=model, max_length=max_length)).tolist()
  outputs = [row[:row.index(EOS)] if EOS in row else row for row in outputs]
  return [(vocabulary.decode(answer), vocabulary.decode(splice(row, answer, vocabulary.num_pieces)))
          for row, answer in zip(inputs, outputs)]


def splice(inputs, answer, first_sentinel):
  """Puts the spans of an answer in the place of their sentinels.

  Args:
    inputs: token ids with sentinels.
    answer: token ids, each span after its sentinel.
    first_sentinel: sentinels are the ids from here on.

  Returns:
    `inputs` as a list, spans in place of sentinels; a sentinel without a span stays.
  """
  spans, span = {}, None
  for token in answer:
    if token >= first_sentinel:
      span = spans.setdefault(token, [])
    elif span is not None:
      span.append(token)
  return [new for token in inputs for new in spans.get(token, [token])]
