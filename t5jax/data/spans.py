"""Lengths of span corruption: plain arithmetic, so that a misfit is refused before anything runs.

The number of noise tokens and spans depends on the length alone (arXiv:1910.10683, section 3.1.4).
It is computed in float32, as the mask in preprocessors.py does, so both always round alike.
"""

import numpy as np

from t5jax.settings import AT_LEAST_ONE, Range, SettingError, check_numbers

DENSITY = Range(low=0, high=0.9, open_low=True)


def noise_counts(length, noise_density=0.15, mean_noise_span_length=3.0):
  """Counts what a mask of `length` tokens corrupts.

  Args:
    length: number of tokens, at least 1.
    noise_density: fraction of the tokens to corrupt.
    mean_noise_span_length: tokens per corrupted span.

  Returns:
    (noise tokens, noise spans). As the mask is at least two tokens long, a single token has
    one noise token "after its end".
  """
  length = max(length, 2)
  num_noise = int(np.round(np.float32(length) * np.float32(noise_density)))
  num_noise = min(max(num_noise, 1), length - 1)
  num_spans = int(np.round(np.float32(num_noise) / np.float32(mean_noise_span_length)))
  return num_noise, min(max(num_spans, 1), length - num_noise)


def corrupted_lengths(length, noise_density=0.15, mean_noise_span_length=3.0):
  """Returns (inputs, targets) lengths, EOS included, that `length` >= 2 tokens turn into."""
  num_noise, num_spans = noise_counts(length, noise_density, mean_noise_span_length)
  return length - num_noise + num_spans + 1, num_noise + num_spans + 1


def random_spans_helper(inputs_length, noise_density=0.15, mean_noise_span_length=3.0):
  """Finds how many tokens to corrupt so that the inputs fill their length exactly.

  Args:
    inputs_length: length of the inputs, EOS included.
    noise_density: fraction of the tokens to corrupt.
    mean_noise_span_length: tokens per corrupted span.

  Returns:
    (tokens_length, targets_length): (568, 114) for 512 at T5's 0.15 and 3.0.

  Raises:
    SettingError: a value is out of range.
  """
  check_numbers("random_spans_helper", inputs_length=(inputs_length, Range(low=3)),
                noise_density=(noise_density, DENSITY),
                mean_noise_span_length=(mean_noise_span_length, AT_LEAST_ONE))
  settings = (noise_density, mean_noise_span_length)
  length = 2
  while corrupted_lengths(length + 1, *settings)[0] <= inputs_length:
    length += 1
  # At half noise T5 prefers targets that are no longer than the inputs.
  if noise_density == 0.5 and corrupted_lengths(length, *settings)[1] > inputs_length:
    length -= 1
  return length, corrupted_lengths(length, *settings)[1]


def longest_segment(feature_lengths, noise_density=0.15, mean_noise_span_length=3.0):
  """Returns the tokens per segment, before corruption, that fill the inputs.

  Args:
    feature_lengths: {"inputs": int, "targets": int}.
    noise_density: fraction of the tokens to corrupt.
    mean_noise_span_length: tokens per corrupted span.

  Raises:
    SettingError: a length is missing, or the targets are too short.
  """
  inputs, targets = require_lengths(feature_lengths)
  length, needed = random_spans_helper(inputs, noise_density, mean_noise_span_length)
  if needed > targets:
    raise SettingError("feature_lengths['targets']", targets,
                       f">= {needed}, which inputs of {inputs} give at noise_density "
                       f"{noise_density} and mean_noise_span_length {mean_noise_span_length}")
  return length


def require_lengths(feature_lengths):
  """Returns the lengths of (inputs, targets); raises SettingError where one is not given."""
  for name in ("inputs", "targets"):
    if name not in feature_lengths:
      raise SettingError("feature_lengths", feature_lengths, f"a length for {name!r}")
  return feature_lengths["inputs"], feature_lengths["targets"]


def require_sentinels(num_spans, num_sentinels, inputs_length):
  """Raises SettingError where inputs of a length have more spans than there are sentinels."""
  if num_spans > num_sentinels:
    raise SettingError("feature_lengths['inputs']", inputs_length,
                       f"fewer tokens, a larger mean_noise_span_length or a smaller noise_density: "
                       f"{num_spans} spans need as many sentinels, the vocabulary has "
                       f"{num_sentinels} free")
