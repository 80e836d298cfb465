"""Several corpora as one, in fixed proportions.

In gin:

    from t5jax.tasks import danish
    from t5jax.tasks import mixture
    from t5jax.tasks import text
    TaskData.task = @mixture.CorpusMixture()
    mixture.CorpusMixture.corpora = [@danish.dynaword(), @text.TextCorpus()]
    mixture.CorpusMixture.rates = [0.7, 0.3]
    mixture.CorpusMixture.vocab_size = 32000
"""

import dataclasses

from t5jax.data.mixing import Turns, sample as sample_datasets
from t5jax.data.objectives import Objective
from t5jax.data.text_files import DataError
from t5jax.settings import POSITIVE, SettingError, check_settings
from t5jax.tasks.corpus import Corpus


@dataclasses.dataclass(frozen=True)
class CorpusMixture(Corpus):
  """Corpora that take turns by rates, with one vocabulary for all.

  Training and validation mix alike. A rate counts examples, and so tokens: all are equally long.

  Attributes:
    corpora: list of Corpus with different names; what they say of a vocabulary does not count.
    rates: one for each corpus, in any unit; None to go by sizes.
    sizes: of the corpora, in any one unit such as tokens; None where all are to be drawn equally.
    temperature: rates are sizes ** (1 / temperature): 1 draws in proportion to size, and the
      larger it is, the more the small corpora are drawn (mT5 took 1 / 0.3, arXiv:2010.11934).
    objective: for all; None leaves each corpus its own.
    name: of the seqio mixture.
    vocab_file, vocab_size, byte_fallback: see Corpus. A vocabulary is trained on all corpora in
      the proportions of the mixture.
  """

  corpora: list | tuple
  _: dataclasses.KW_ONLY
  rates: list | tuple | None = None
  sizes: list | tuple | None = None
  temperature: float = 1.0
  objective: Objective | None = None
  name: str = "mixture"

  def __post_init__(self):
    super().__post_init__()
    check_settings(self, temperature=POSITIVE)
    object.__setattr__(self, "corpora", tuple(self.corpora))
    for corpus in self.corpora:
      if not isinstance(corpus, Corpus):
        raise self._setting_error("corpora", corpus, "corpora, in gin with brackets behind each: "
                                  "@danish.dynaword()")
    names = [corpus.name for corpus in self.corpora]
    if not names or len({*names, self.name}) <= len(names):
      raise self._setting_error("corpora", names, "corpora with different names, none of them "
                                f"{self.name!r}")
    if self.rates is not None and self.sizes is not None:
      raise self._setting_error("sizes", self.sizes, "None where rates are set")
    for field in ("rates", "sizes"):
      values = getattr(self, field)
      if values is not None and len(values) != len(names):
        raise self._setting_error(field, values, f"a number for each of {', '.join(names)}")
    Turns(self._weights(), 0)

  def mixing_rates(self):
    """Returns the share of each corpus: floats that add up to 1."""
    weights = self._weights()
    return [weight / sum(weights) for weight in weights]

  def _weights(self):
    if self.rates is not None:
      return list(self.rates)
    return [size ** (1 / self.temperature) for size in self.sizes or [1] * len(self.corpora)]

  def parts(self):
    """Returns the corpora with the objective of the mixture, if it has one."""
    if self.objective is None:
      return list(self.corpora)
    return [dataclasses.replace(corpus, objective=self.objective) for corpus in self.corpora]

  def check_lengths(self, feature_lengths):
    """Refuses lengths that do not fit one of the objectives; see Corpus."""
    for part in self.parts():
      part.check_lengths(feature_lengths)

  def has_validation(self):
    """Whether one of the corpora holds some text out; see Corpus."""
    return any(corpus.has_validation() for corpus in self.corpora)

  def check_text(self):
    """Refuses text that cannot be had or used, of any of the corpora; see Corpus."""
    for corpus in self.corpora:
      try:
        corpus.check_text()
      except (SettingError, DataError) as error:
        raise DataError(f"{error}\n(This is the corpus {corpus.name!r} of the mixture "
                        f"{self.name!r}; `corpora` may also do without it.)") from error

  def sample(self, max_bytes):
    """Yields training documents in the proportions of the mixture, by size; see Corpus.

    A corpus that ends before the others begins again, until each has been read once.
    """
    texts = [corpus.sample(max_bytes) for corpus in self.corpora]
    rates, read, unread = self.mixing_rates(), [0] * len(texts), set(range(len(texts)))
    while sum(read) < max_bytes:
      part = min(range(len(texts)), key=lambda i: read[i] / rates[i])
      text = next(texts[part], None)
      if text is None:
        unread.discard(part)
        if not unread:
          return
        texts[part] = self.corpora[part].sample(max_bytes)
        text = next(texts[part])
      read[part] += len(text.encode())
      yield text

  def register(self, vocab_file=None):
    """Registers the corpora as seqio tasks and a seqio mixture of them; see Corpus."""
    import seqio

    vocab_file = self._vocabulary_to_register(vocab_file)
    names = [part.register(vocab_file) for part in self.parts()]
    if self.name in seqio.MixtureRegistry.names():
      seqio.MixtureRegistry.remove(self.name)
    seqio.MixtureRegistry.add(self.name, list(zip(names, self.mixing_rates())),
                              sample_fn=sample_datasets)
    return self.name
