"""The data of a run: a seqio task, tokenised as it goes or before, as batches of NumPy arrays.

TensorFlow and seqio are imported by `prepare` and what follows it, never before: a wrong setting or
file is reported first.
"""

import contextlib
import dataclasses
import hashlib
import importlib
import importlib.util
import json
import os
import pathlib
import shutil
import sys
import tempfile
import typing

import numpy as np

from t5jax.data import cached, features
from t5jax.data.online import Elements, OnlineIterator
from t5jax.data.text_files import DataError
from t5jax.data.vocabulary import Vocabulary
from t5jax.settings import (
    AT_LEAST_ONE, NON_NEGATIVE, SettingError, check_choice, check_settings, nearest)

VOCABULARY_NAME = "spiece.model"
_MAX_LISTED_FILES = 2000
_EVAL_SEED = 0  # Whatever the run's seed: held-out losses of all runs are over the same masks.


@dataclasses.dataclass(frozen=True)
class TaskData:
  """What a run reads.

  Attributes:
    task: name of a registered seqio task or mixture, or an object such as tasks.text.TextCorpus:
      it has `register(vocab_file) -> name`, `vocabulary_file(folder) -> path` and
      `check(feature_lengths)`.
    feature_lengths: {"inputs": int, "targets": int} in tokens, EOS included.
    batch_size: examples per step, over all hosts.
    module: module to import first, which registers `task`.
    seed: of order and masks; the same seed gives the same batches.
    shuffle_buffer_size: examples from which the next is drawn, of each part of a mixture. Small,
      since they are held in memory and saved with each checkpoint: about 2.5 KB each at 512/114.
      A cache needs none: it is shuffled as a whole.
    num_eval_batches: at most so many batches of the validation split.
    eval_batch_size: None for batch_size.
    use_cached: read what tools/cache_task.py has tokenised: faster, shuffled as a whole, and
      resumed at once.
    cache_dir: the folder of its --cache_dir.
    pack: put several examples of a task with short ones into a row, none of which sees another.
      batch_size then counts rows, and passes over the data are not counted.
  """

  task: typing.Any
  feature_lengths: dict
  batch_size: int
  module: str | None = None
  seed: int = 0
  shuffle_buffer_size: int = 1000
  num_eval_batches: int = 20
  eval_batch_size: int | None = None
  use_cached: bool = False
  cache_dir: str | None = None
  pack: bool = False

  def __post_init__(self):
    check_settings(self, batch_size=AT_LEAST_ONE, seed=NON_NEGATIVE,
                   shuffle_buffer_size=AT_LEAST_ONE, num_eval_batches=AT_LEAST_ONE,
                   eval_batch_size=AT_LEAST_ONE)
    if isinstance(self.task, type) or not isinstance(self.task, str) and not hasattr(
        self.task, "register"):
      raise SettingError("TaskData.task", self.task, "the name of a task, or a corpus such as "
                         "@text.TextCorpus(), with the brackets")
    for name in self.feature_lengths:
      check_choice("TaskData.feature_lengths", name, ("inputs", "targets"))
    for name in ("inputs", "targets"):
      length = self.feature_lengths.get(name)
      if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise SettingError("TaskData.feature_lengths", self.feature_lengths,
                           f"an int >= 1 for {name!r}")
    if self.use_cached and self.cache_dir is None:
      raise SettingError("TaskData.cache_dir", None, "the folder of the caches where use_cached "
                         "is set")
    if self.pack and hasattr(self.task, "objective"):
      raise self._needless_packing()

  def check(self):
    """Refuses what can be refused within a second: files, fields, lengths. No TensorFlow.

    Raises:
      SettingError, DataError: names the setting or file.
    """
    if self.module is not None and not _module_exists(self.module):
      raise SettingError("TaskData.module", self.module, "a module that can be imported")
    if self.use_cached:
      self._cache_folder()
    if hasattr(self.task, "check"):
      self.task.check(self.feature_lengths)

  def check_validation(self):
    """Raises SettingError for a corpus that holds out nothing to evaluate a run on."""
    if hasattr(self.task, "has_validation") and not self.task.has_validation():
      raise SettingError("TaskData.task", self.name, "a task with a validation split: set validation_files, "
                         "or validation_fraction above 0")

  def check_cache(self):
    """Opens the caches, if any are to be read, as a run does. Takes some seconds, for TensorFlow.

    Raises:
      DataError: one is missing, unfinished, or of another task, text or vocabulary.
    """
    if self.use_cached:
      with tempfile.TemporaryDirectory() as folder:
        self.prepare(folder)
        self.train_iterator()
        self.eval_batches()

  def prepare(self, model_dir):
    """Registers the task and puts its vocabulary, trained if need be, into the run's folder.

    Args:
      model_dir: folder of the run; spiece.model is written there.

    Returns:
      The Vocabulary.

    Raises:
      SettingError: no such task.
      DataError: the folder holds another vocabulary, or the text cannot be used.
    """
    _import_tensorflow()
    target = pathlib.Path(model_dir) / VOCABULARY_NAME
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(self.task, str):
      vocabulary = sentencepiece_of(self._registered())
      source, extra_ids = vocabulary.sentencepiece_model_file, vocabulary.extra_ids
    else:
      trained = self._cache_folder() if self.use_cached else target.parent
      source, extra_ids = self.task.vocabulary_file(trained), 100
    _install_vocabulary(source, target, extra_ids)
    if not isinstance(self.task, str):
      self.task.register(str(target))
    if self.pack and self._is_pretraining():
      raise self._needless_packing()
    return Vocabulary(target, extra_ids)

  def train_iterator(self, shards=(0,), num_shards=1):
    """Returns an iterator over this host's rows of the batches of an endless, shuffled stream.

    The batches, and the position that is saved, are the same whatever the number of hosts. From a
    cache a host makes its own rows alone. Online it reads the whole stream, as each of the others does,
    and takes its rows: a position of part of a stream would fit no other number of hosts.

    Args:
      shards: of the equal parts of each batch, the numbers of those to return, ascending.
      num_shards: how many parts there are; must divide batch_size.

    Returns:
      A CachedIterator or OnlineIterator: next, save, restore, epoch.
    """
    rows = _rows(self.batch_size, shards, num_shards)
    if self._has_own_cache():
      examples = self._cached_examples("train", self.seed)
      return cached.CachedIterator(examples, self.batch_size,
                                   self._cached_fingerprint(examples), rows)
    batches = self._online_batches("train", self.seed, self.batch_size)
    return OnlineIterator(batches, self._fingerprint(), rows)

  def eval_batches(self):
    """Returns the first batches of the validation split, as a whole on every host.

    The masks are the same in every call and run. The last batch is filled up with rows of weight 0.

    Returns:
      List of batches, each a dict of NumPy arrays [eval batch size, ...].
    """
    batch_size = self.eval_batch_size or self.batch_size
    if self._has_own_cache():
      examples = self._cached_examples("validation", _EVAL_SEED)
      count = min(examples.num_segments, self.num_eval_batches * batch_size)
      batches = cached.CachedIterator(examples, batch_size, fingerprint={}, num_examples=count)
    else:
      batches = OnlineIterator(self._online_batches("validation", _EVAL_SEED, batch_size).take(
          self.num_eval_batches), fingerprint=None)
    whole = [features.pad_rows(batch, batch_size) for batch in batches]
    if not whole:
      raise DataError(f"task {self.name!r}: the validation split is empty.")
    return whole

  def raw_texts(self, split):
    """Yields the documents of a split as str; string features side by side where there are more."""
    for task in self.tasks(split):
      for document in Elements(task.source.get_dataset(split, shuffle=False)):
        texts = [x.numpy().decode(errors="replace") for x in document.values()
                 if x.dtype.name == "string" and x.shape.rank == 0]
        yield "\n".join(texts)

  def examples(self, split, stretch=1):
    """Yields (inputs, targets), int32 [tokens] each, unpadded, of one unshuffled pass.

    Args:
      split: of the task.
      stretch: factor of the feature lengths for tasks other than pretraining, to see what they cut.
    """
    if self._is_pretraining():
      examples = self._pretraining_examples(split, _EVAL_SEED, 1, shuffle=False)
    else:
      lengths = {name: stretch * length for name, length in self.feature_lengths.items()}
      examples = dataclasses.replace(self, feature_lengths=lengths)._dataset(
          split, num_epochs=1, seed=_EVAL_SEED, shuffle=False)
    for x in Elements(examples):
      inputs, targets = x["inputs"].numpy(), x["targets"].numpy()
      yield inputs[inputs != features.PADDING], targets[targets != features.PADDING]

  def unigram_entropy(self, batches):
    """Returns the entropy of the target tokens of batches, in nats per token."""
    return features.unigram_entropy(batches)

  @property
  def name(self):
    """The name of the task."""
    return self.task if isinstance(self.task, str) else self.task.name

  def _registered(self):
    import seqio

    if self.module is not None:
      importlib.import_module(self.module)
    name = self.name
    known = [*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()]
    if name not in known:
      hint = nearest(name, known).rstrip("?") or " TaskData.module imports what registers it"
      raise SettingError("TaskData.task", name, f"a registered task or mixture;{hint}")
    return seqio.get_mixture_or_task(name)

  def tasks(self, split):
    """Returns the seqio tasks that have a split: one, or the parts of a mixture.

    Raises DataError where there is none. Only after `prepare`.
    """
    provider = self._registered()
    if split not in provider.splits:
      advice = " Set validation_files or validation_fraction." if split == "validation" else ""
      raise DataError(f"task {provider.name!r}: no split {split!r}, only "
                      f"{', '.join(provider.splits)}.{advice}")
    return [task for task in getattr(provider, "tasks", [provider]) if split in task.splits]

  def _has_own_cache(self):
    """Whether to read a cache of ours; tasks other than pretraining have seqio's."""
    return self.use_cached and self._is_pretraining()

  def _is_pretraining(self):
    from t5jax.data import preprocessors

    return all(preprocessors.objective_of(task) is not None for task in self.tasks("train"))

  def _needless_packing(self):
    return SettingError("TaskData.pack", True, f"False for {self.name!r}: pretraining fills its rows anyway")

  def _cache_folder(self):
    folder = pathlib.Path(self.cache_dir).expanduser() / self.name
    there = folder / VOCABULARY_NAME if hasattr(self.task, "register") else folder
    if not there.exists():  # Without its vocabulary, another would be trained now.
      other = " If it is no task for pretraining, seqio_cache_tasks makes it." if folder == there else ""
      raise DataError(f"{folder}: there is no cache of task {self.name!r}. {cached.HOW_TO_BUILD}{other}")
    return folder

  def _cached_examples(self, split, seed):
    from t5jax.data import preprocessors

    provider, tasks = self._registered(), self.tasks(split)
    vocabulary = Vocabulary.of(sentencepiece_of(provider))
    parts = []
    for task in tasks:
      folder = pathlib.Path(self.cache_dir).expanduser() / task.name / split
      stream = cached.TokenStream(folder)
      if stream.info["source"] != cached.source_of(task, split):
        raise DataError(f"{folder}: the cache is of other text than task {task.name!r} reads now. "
                        f"Delete it. {cached.HOW_TO_BUILD}")
      parts.append(cached.CachedExamples(
          stream, preprocessors.objective_of(task), vocabulary, self.feature_lengths, seed,
          shuffle=split == "train"))
    if len(parts) == 1:
      return parts[0]
    return cached.CachedMixture(parts, [provider.get_rate(task) for task in tasks], seed)

  def _cached_fingerprint(self, examples):
    return {"task": self.name, "feature_lengths": dict(self.feature_lengths), "seed": self.seed,
            "cached": examples.fingerprint}

  def _dataset(self, split, num_epochs, seed, shuffle):
    """The tf.data pipeline of single examples of a task other than pretraining."""
    import seqio

    self.tasks(split)
    provider = self._registered()
    if self.use_cached:
      seqio.add_global_cache_dirs([os.path.expanduser(self.cache_dir)])
    options = dict(sequence_length=self.feature_lengths, split=split,
                   shuffle=shuffle, seed=seed, num_epochs=num_epochs, use_cached=self.use_cached)
    if not isinstance(provider, seqio.Mixture):
      options["shuffle_buffer_size"] = self.shuffle_buffer_size
    try:
      return provider.get_dataset(**options)
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
      if isinstance(error, SettingError):
        raise
      message = " ".join(str(error).split())
      raise DataError(f"task {provider.name!r} cannot be built: {message}") from error

  def _online_batches(self, split, seed, batch_size):
    """The tf.data pipeline of padded batches: endless and shuffled of "train", else one pass."""
    from t5jax.data import preprocessors

    training = split == "train"
    num_epochs = None if training else 1
    if self._is_pretraining():
      # Past seqio's steps on single examples, which cost as much as tokenising.
      examples = self._pretraining_examples(split, seed, num_epochs, training)
      batches = examples.batch(batch_size, drop_remainder=training)
    else:
      examples = self._dataset(split, num_epochs, seed, training)
      batches = self._in_rows(examples, batch_size, drop_remainder=training)
    return preprocessors.deterministic(batches).prefetch(2)

  def _pretraining_examples(self, split, seed, num_epochs, shuffle):
    import seqio

    from t5jax.data import mixing, preprocessors

    parts, tasks = [], self.tasks(split)
    for task in tasks:
      documents = task.source.get_dataset(split, shuffle=shuffle, seed=seed)
      with seqio.utils.map_seed_manager(seed):
        part = preprocessors.padded_groups(
            documents.repeat(num_epochs), task.output_features, self.feature_lengths,
            preprocessors.objective_of(task)).unbatch()
      parts.append(part.shuffle(self.shuffle_buffer_size, seed) if shuffle else part)
    if len(parts) == 1:
      return parts[0]
    provider = self._registered()
    return mixing.sample(parts, [provider.get_rate(task) for task in tasks], seed)

  def _in_rows(self, dataset, batch_size, drop_remainder):
    """Batches of rows of the feature lengths: an example each, padded, or several if packed."""
    import tensorflow as tf

    from t5jax.data import packing

    spec = dataset.element_spec
    names = [n for n in ("inputs", "targets", "epoch") if n in spec]
    if names[:2] != ["inputs", "targets"]:
      raise DataError(f"task {self.name!r}: its last step must give the features 'inputs' and "
                      f"'targets'; present: {', '.join(map(repr, spec))}.")
    if self.pack:
      return packing.pack(dataset, self.feature_lengths).batch(batch_size, drop_remainder)
    shapes = {n: [] if n == "epoch" else [self.feature_lengths[n]] for n in names}
    padding = {n: tf.constant(features.PADDING, spec[n].dtype) for n in names}
    return dataset.map(lambda x: {n: x[n] for n in names}).padded_batch(
        batch_size, shapes, padding, drop_remainder)

  def _fingerprint(self):
    """What must be the same for a saved position to make sense."""
    provider = self._registered()
    vocabulary = Vocabulary.of(sentencepiece_of(provider))
    shards = {f"{task.name}/{name}": size or 0 for task in self.tasks("train")
              for name, size in cached.files_of(task, "train")}
    if len(shards) > _MAX_LISTED_FILES:  # A file for each document would fill the checkpoints.
      listing = json.dumps(shards, sort_keys=True).encode()
      shards = {f"{len(shards)} files": hashlib.sha256(listing).hexdigest()}
    return {"task": provider.name, "feature_lengths": dict(self.feature_lengths),
            "batch_size": self.batch_size, "seed": self.seed,
            "shuffle_buffer_size": self.shuffle_buffer_size, "pack": self.pack,
            "vocabulary": vocabulary.sha256, "files": shards}


def _import_tensorflow():
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  with _silent_stderr():
    import seqio  # noqa: F401  (it loads TensorFlow Text, which logs as well)
    import tensorflow as tf

  for kind in ("GPU", "TPU"):  # They are JAX's; TensorFlow would take all of their memory.
    with contextlib.suppress(RuntimeError):  # Too late once TensorFlow has started.
      tf.config.set_visible_devices([], kind)


@contextlib.contextmanager
def _silent_stderr():
  """Hides what TensorFlow's C++ code writes while it loads, before its log level is in force."""
  sys.stderr.flush()
  saved = os.dup(2)
  with open(os.devnull, "w") as null:
    os.dup2(null.fileno(), 2)
  try:
    yield
  finally:
    os.dup2(saved, 2)
    os.close(saved)


def sentencepiece_of(provider):
  """Returns the seqio vocabulary of a task's targets; DataError unless it is SentencePiece."""
  vocabulary = provider.output_features["targets"].vocabulary
  if not hasattr(vocabulary, "sentencepiece_model_file"):
    raise DataError(f"task {provider.name!r}: its targets have a {type(vocabulary).__name__}; a "
                    "SentencePieceVocabulary is needed.")
  return vocabulary


def _rows(batch_size, shards, num_shards):
  """The rows of a batch, int64, that are in these of its equal parts."""
  if batch_size % num_shards:
    raise SettingError("TaskData.batch_size", batch_size,
                       f"a multiple of the {num_shards} parts that the devices split it into")
  return np.arange(batch_size).reshape(num_shards, -1)[list(shards)].ravel()


def _module_exists(name):
  try:
    return importlib.util.find_spec(name) is not None
  except (ImportError, ValueError):
    return False


def _install_vocabulary(source, target, extra_ids):
  new = Vocabulary(source, extra_ids)
  if target.exists():
    if Vocabulary(target, extra_ids).sha256 != new.sha256:
      raise DataError(f"{target}: is another vocabulary than {source}, with which the run was "
                      "started. Choose another model_dir, or remove the file.")
    return
  partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
  shutil.copyfile(source, partial)
  os.replace(partial, target)
