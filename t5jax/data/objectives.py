"""What a model learns from plain text: segments of tokens become inputs and targets. NumPy only.

An objective works on a batch of segments at once. Each row has a random generator of its own, so
that an example does not depend on the batch, the host or the pipeline it comes in. Every masked
span is replaced by one sentinel in the inputs and follows the same sentinel in the targets; both
end with EOS. No id in a text is special: where the spans are is known by position.
"""

import dataclasses

import numpy as np

from t5jax.data import spans
from t5jax.data.features import PADDING
from t5jax.settings import (AT_LEAST_ONE, FRACTION, NON_NEGATIVE, POSITIVE, SettingError,
                            check_settings)


class Objective:
  """Base of all objectives: frozen dataclasses, so that two of equal settings are equal."""

  def segment_length(self, feature_lengths, num_sentinels):
    """Returns the tokens per segment that fill the features best.

    Args:
      feature_lengths: {"inputs": int, "targets": int}, EOS included.
      num_sentinels: sentinel ids in the vocabulary.

    Raises:
      SettingError: the lengths do not fit, or there are more spans than sentinels.
    """
    length = self.longest_segment(feature_lengths)
    spans.require_sentinels(self.num_spans(length), self.free_sentinels(num_sentinels),
                            feature_lengths["inputs"])
    return length

  def longest_segment(self, feature_lengths):
    """Returns the same, whatever the number of sentinels."""
    raise NotImplementedError

  def num_spans(self, length):
    """Returns how many sentinels the examples of segments of a length use."""
    raise NotImplementedError

  def free_sentinels(self, num_sentinels):
    """Returns how many sentinels there are for spans."""
    return num_sentinels

  def corrupt(self, tokens, generators, vocabulary, feature_lengths):
    """Makes examples of segments.

    Args:
      tokens: int32 [B, L], L at most `segment_length`; rows of any ids.
      generators: B numpy Generators, of which only one row each depends.
      vocabulary: Vocabulary, for its sentinels and EOS.
      feature_lengths: as above.

    Returns:
      (inputs int32 [B, <= inputs], targets int32 [B, <= targets]), padded with -1.
    """
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class SpanCorruption(Objective):
  """T5's objective (arXiv:1910.10683, section 3.1.4): spans of random lengths at random places.

  "We hold these truths to be self evident" may become inputs "We hold <extra_id_0> to be
  <extra_id_1> evident </s>", targets "<extra_id_0> these truths <extra_id_1> self </s>".
  The number of noise tokens and spans depends on a segment's length alone, and all masks that begin
  with text and end with noise are equally likely, as in T5. Only where there is a single span it
  may lie anywhere, while T5 always puts it last.

  Attributes:
    noise_density: fraction of the tokens to mask.
    mean_noise_span_length: tokens per masked span.
  """

  noise_density: float = 0.15
  mean_noise_span_length: float = 3.0

  def __post_init__(self):
    check_settings(self, noise_density=spans.DENSITY, mean_noise_span_length=AT_LEAST_ONE)

  def longest_segment(self, feature_lengths):
    """See Objective."""
    return spans.longest_segment(feature_lengths, self.noise_density, self.mean_noise_span_length)

  def num_spans(self, length):
    """See Objective."""
    return spans.noise_counts(length, self.noise_density, self.mean_noise_span_length)[1]

  def mask(self, length, generators):
    """Draws masks: bool [B, length], True where masked."""
    total = max(length, 2)
    num_noise, num_spans = spans.noise_counts(length, self.noise_density,
                                              self.mean_noise_span_length)
    num_kept = total - num_noise
    uniform = np.stack([g.random(max(total - 2, 1)) for g in generators])
    if num_spans == 1:
      position = np.arange(total) - (uniform[:, :1] * (num_kept + 1)).astype(int)
      return ((position >= 0) & (position < num_noise))[:, :length]
    noise = _random_partition(uniform[:, :num_noise - 1], num_spans)
    kept = _random_partition(uniform[:, num_noise - 1:], num_spans)
    is_noise = np.tile([False, True], noise.size)
    lengths = np.stack([kept, noise], axis=-1).ravel()
    return np.repeat(is_noise, lengths).reshape(-1, total)[:, :length]

  def corrupt(self, tokens, generators, vocabulary, feature_lengths):
    """See Objective."""
    return mask_to_examples(tokens, self.mask(tokens.shape[1], generators), vocabulary)


@dataclasses.dataclass(frozen=True)
class IidDenoising(Objective):
  """Each token is masked by a draw of its own; neighbours share a sentinel (T5's baseline, ibid.).

  How many are masked varies from row to row. In the rare row with more than the targets or
  sentinels hold, what comes last stays unmasked.

  Attributes:
    noise_density: probability of a token to be masked.
  """

  noise_density: float = 0.15

  def __post_init__(self):
    check_settings(self, noise_density=spans.DENSITY)

  def longest_segment(self, feature_lengths):
    """See Objective."""
    inputs, targets = spans.require_lengths(feature_lengths)
    length = inputs - 1  # Should every masked token stand alone, the inputs are as long as this.
    needed = _three_deviations_above(length * self.noise_density * (2 - self.noise_density)) + 1
    if needed > targets:
      raise SettingError("feature_lengths['targets']", targets, f">= {needed} for independent "
                         f"noise of density {self.noise_density} on inputs of {inputs}")
    return length

  def num_spans(self, length):
    """See Objective: as good as never more."""
    return _three_deviations_above(length * self.noise_density * (1 - self.noise_density))

  def corrupt(self, tokens, generators, vocabulary, feature_lengths):
    """See Objective."""
    mask = np.stack([g.random(tokens.shape[1]) for g in generators]) < self.noise_density
    num_spans = np.cumsum(_begins(mask), axis=1)
    target_length = np.cumsum(mask, axis=1) + num_spans + 1
    mask &= (target_length <= feature_lengths["targets"]) & (num_spans <= vocabulary.extra_ids)
    return mask_to_examples(tokens, mask, vocabulary)


@dataclasses.dataclass(frozen=True)
class PrefixLM(Objective):
  """The inputs hold the beginning of a segment, the targets go on with the rest (ibid., 3.2).

  Attributes:
    target_fraction: of the tokens, to be the targets. None draws the split evenly from all that
      fit, the segment being as long as the inputs.
    sentinel: end the inputs and begin the targets with `<extra_id_0>`, as UL2 does.
  """

  target_fraction: float | None = None
  sentinel: bool = False

  def __post_init__(self):
    check_settings(self, target_fraction=FRACTION)

  def num_spans(self, length):
    """See Objective."""
    return int(self.sentinel)

  def longest_segment(self, feature_lengths):
    """See Objective."""
    inputs, targets = (n - 1 - self.sentinel for n in spans.require_lengths(feature_lengths))
    if min(inputs, targets) < 1:
      raise SettingError("feature_lengths", feature_lengths, "room for a token besides EOS")
    if self.target_fraction is None:
      return inputs + 1
    length = 2
    while True:
      num_targets = self._num_targets(length + 1)
      if num_targets > targets or length + 1 - num_targets > inputs:
        return length
      length += 1

  def _num_targets(self, length):
    return min(max(round(length * self.target_fraction), 1), length - 1)

  def corrupt(self, tokens, generators, vocabulary, feature_lengths):
    """See Objective."""
    length = tokens.shape[1]
    if self.target_fraction is None:
      most = min(length - 1, feature_lengths["targets"] - 1 - self.sentinel)
      num_targets = np.array([int(g.random() * most) + 1 if most else 0 for g in generators])
    else:
      num_targets = np.full(len(tokens), self._num_targets(length))
    mask = np.arange(length) >= length - num_targets[:, None]
    if self.sentinel:
      return mask_to_examples(tokens, mask, vocabulary)
    return (_pack_rows(tokens, ~mask, vocabulary.eos_id),
            _pack_rows(tokens, mask, vocabulary.eos_id))


@dataclasses.dataclass(frozen=True)
class Denoiser:
  """One of the objectives of a mixture.

  Attributes:
    objective: what it does.
    rate: how often it is drawn, relative to the others.
    mode: None, or the number N of the sentinel `<extra_id_N>` that begins its inputs, to tell the
      model which kind of task it faces.
  """

  objective: Objective
  rate: float = 1.0
  mode: int | None = None

  def __post_init__(self):
    check_settings(self, rate=POSITIVE, mode=NON_NEGATIVE)

  def room(self, feature_lengths):
    """Returns the feature lengths that are left beside the mode token."""
    inputs, targets = spans.require_lengths(feature_lengths)
    return {"inputs": inputs - (self.mode is not None), "targets": targets}


@dataclasses.dataclass(frozen=True)
class MixtureOfDenoisers(Objective):
  """Each segment gets one of several objectives, drawn by rate (UL2, arXiv:2205.05131).

  Attributes:
    denoisers: tuple of Denoiser.
  """

  denoisers: tuple

  def __post_init__(self):
    object.__setattr__(self, "denoisers", tuple(self.denoisers))
    if not self.denoisers:
      raise SettingError("MixtureOfDenoisers.denoisers", (), "at least one Denoiser")

  def longest_segment(self, feature_lengths):
    """See Objective: the longest that all denoisers can take."""
    return min(d.objective.longest_segment(d.room(feature_lengths)) for d in self.denoisers)

  def num_spans(self, length):
    """See Objective."""
    return max(d.objective.num_spans(length) for d in self.denoisers)

  def free_sentinels(self, num_sentinels):
    """See Objective: those below the modes."""
    return min([num_sentinels, *(d.mode for d in self.denoisers if d.mode is not None)])

  def corrupt(self, tokens, generators, vocabulary, feature_lengths):
    """See Objective."""
    rates = np.cumsum([d.rate for d in self.denoisers])
    draws = np.array([g.random() for g in generators])
    chosen = np.searchsorted(rates / rates[-1], draws, side="right")
    inputs = np.full((len(tokens), feature_lengths["inputs"]), PADDING, np.int32)
    targets = np.full((len(tokens), feature_lengths["targets"]), PADDING, np.int32)
    for number in np.unique(chosen):
      rows = np.flatnonzero(chosen == number)
      denoiser = self.denoisers[number]
      read, write = denoiser.objective.corrupt(
          tokens[rows], [generators[row] for row in rows], vocabulary,
          denoiser.room(feature_lengths))
      if denoiser.mode is not None:
        mode = vocabulary.sentinel_id(denoiser.mode)
        read = np.pad(read, [(0, 0), (1, 0)], constant_values=mode)
      inputs[rows, :read.shape[1]] = read
      targets[rows, :write.shape[1]] = write
    return inputs, targets


def ul2():
  """Returns UL2's seven denoisers, drawn evenly (arXiv:2205.05131, section 3).

  Regular (R: spans of 3 or 8 at 15 %), sequential (S: the last quarter) and extreme ones (X: spans
  of 3 or 8 at 50 %, of 64 at 15 % or 50 %). The modes R, S and X are `<extra_id_99>`,
  `<extra_id_98>` and `<extra_id_97>`, which no text holds. Targets must be as long as the inputs.
  """
  regular = [SpanCorruption(0.15, 3.0), SpanCorruption(0.15, 8.0)]
  extreme = [SpanCorruption(0.5, 3.0), SpanCorruption(0.5, 8.0), SpanCorruption(0.15, 64.0),
             SpanCorruption(0.5, 64.0)]
  return MixtureOfDenoisers((
      *(Denoiser(objective, mode=99) for objective in regular),
      Denoiser(PrefixLM(0.25, sentinel=True), mode=98),
      *(Denoiser(objective, mode=97) for objective in extreme)))


def row_generators(key, rows):
  """Returns a numpy Generator for each row, which depends on nothing but (key, row).

  Args:
    key: int in [0, 2**64).
    rows: iterable of int in [0, 2**64).
  """
  rows = np.asarray(rows, np.uint64)
  keys = np.stack([np.full_like(rows, key), rows], axis=-1)
  return [np.random.Generator(np.random.Philox(key=pair)) for pair in keys]


def mask_to_examples(tokens, mask, vocabulary):
  """Replaces masked spans by sentinels, and lists them behind the same sentinels.

  Args:
    tokens: int32 [B, L].
    mask: bool [B, L], True where masked.
    vocabulary: Vocabulary.

  Returns:
    (inputs, targets), int32 [B, ...], each row ended by EOS and padded with -1.
  """
  begins = _begins(mask)
  num_spans = np.cumsum(begins, axis=1)
  sentinels = (vocabulary.sentinel_id(0) + 1 - num_spans).astype(np.int32)
  inputs = _pack_rows(np.where(begins, sentinels, tokens), ~mask | begins, vocabulary.eos_id)
  # In the targets a span's first token takes two places, the first of them for the sentinel.
  pairs = np.stack([sentinels, tokens], axis=-1).reshape(len(tokens), -1)
  used = np.stack([begins, mask], axis=-1).reshape(len(tokens), -1)
  return inputs, _pack_rows(pairs, used, vocabulary.eos_id)


def _begins(mask):
  return mask & ~np.pad(mask, [(0, 0), (1, 0)])[:, :-1]


def _pack_rows(tokens, used, eos_id):
  """Moves the used tokens of each row to its left, with EOS behind them and padding behind EOS."""
  counts = used.sum(axis=1)
  packed = np.full((len(tokens), counts.max(initial=0) + 1), PADDING, np.int32)
  packed[np.arange(packed.shape[1]) < counts[:, None]] = tokens[used]
  packed[np.arange(len(tokens)), counts] = eos_id
  return packed


def _random_partition(uniform, num_parts):
  """Cuts n things into parts of at least one, all ways equally likely.

  Args:
    uniform: float [B, n - 1], one number for each place to cut.
    num_parts: at least 2.

  Returns:
    int [B, num_parts].
  """
  cuts = np.argpartition(uniform, num_parts - 2, axis=1)[:, :num_parts - 1]
  cuts, count = np.sort(cuts, axis=1) + 1, uniform.shape[1] + 1
  return np.diff(np.pad(cuts, [(0, 0), (1, 1)], constant_values=((0, 0), (0, count))))


def _three_deviations_above(mean):
  """A bound that a count of rare, nearly independent events hardly passes."""
  return int(np.ceil(mean + 3 * np.sqrt(mean)))
