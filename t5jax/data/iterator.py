"""The data of a run: a seqio task as batches of NumPy arrays whose position can be saved.

TensorFlow and seqio are imported by `prepare` and what follows it, never before: a wrong setting or
file is reported first.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import sys
import typing
import weakref

import numpy as np

from t5jax.data import features
from t5jax.data.text_files import DataError
from t5jax.data.vocabulary import Vocabulary
from t5jax.settings import AT_LEAST_ONE, NON_NEGATIVE, SettingError, check_settings, nearest

VOCABULARY_NAME = "spiece.model"
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
    shuffle_buffer_size: examples from which the next is drawn. Small, since they are held in
      memory and saved with each checkpoint: about 2.5 KB each at 512/114. The tasks of a mixture
      have their own, seqio's 1000 unless they were registered with another.
    num_eval_batches: at most so many batches of the validation split.
    eval_batch_size: None for batch_size.
  """

  task: typing.Any
  feature_lengths: dict
  batch_size: int
  module: str | None = None
  seed: int = 0
  shuffle_buffer_size: int = 1000
  num_eval_batches: int = 20
  eval_batch_size: int | None = None

  def __post_init__(self):
    check_settings(self, batch_size=AT_LEAST_ONE, seed=NON_NEGATIVE,
                   shuffle_buffer_size=AT_LEAST_ONE, num_eval_batches=AT_LEAST_ONE,
                   eval_batch_size=AT_LEAST_ONE)
    if not isinstance(self.task, str) and not hasattr(self.task, "register"):
      raise SettingError("TaskData.task", self.task, "the name of a task, or a corpus such as "
                         "@TextCorpus()")
    for name in ("inputs", "targets"):
      length = self.feature_lengths.get(name)
      if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise SettingError("TaskData.feature_lengths", self.feature_lengths,
                           f"an int >= 1 for {name!r}")

  def check(self):
    """Refuses what can be refused within a second: files, fields, lengths. No TensorFlow.

    Raises:
      SettingError, DataError: names the setting or file.
    """
    if self.module is not None and not _module_exists(self.module):
      raise SettingError("TaskData.module", self.module, "a module that can be imported")
    if hasattr(self.task, "check"):
      self.task.check(self.feature_lengths)

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
      vocabulary = _sentencepiece(self._registered())
      source, extra_ids = vocabulary.sentencepiece_model_file, vocabulary.extra_ids
    else:
      source, extra_ids = self.task.vocabulary_file(target.parent), 100
    _install_vocabulary(source, target, extra_ids)
    if not isinstance(self.task, str):
      self.task.register(str(target))
    return Vocabulary(target, extra_ids)

  def train_iterator(self, process_index=0, process_count=1):
    """Returns a DataIterator over this host's part of an endless, shuffled stream.

    Args:
      process_index: of this host.
      process_count: number of hosts; must divide batch_size.
    """
    if self.batch_size % process_count:
      raise SettingError("TaskData.batch_size", self.batch_size,
                         f"a multiple of the number of hosts, {process_count}")
    import seqio

    shard = seqio.ShardInfo(process_index, process_count) if process_count > 1 else None
    dataset = self._dataset("train", num_epochs=None, seed=self.seed, shard_info=shard)
    batches = self._batched(dataset, self.batch_size // process_count, drop_remainder=True)
    return DataIterator(batches, self._fingerprint(process_index, process_count))

  def eval_batches(self, process_index=0, process_count=1):
    """Returns this host's rows of the first batches of the validation split.

    The masks are the same in every call and run, and whatever the number of hosts. Each host reads
    the whole, so all have equally many batches; the last is filled up with rows of weight 0.

    Args:
      process_index: of this host.
      process_count: number of hosts; must divide the evaluation batch size.

    Returns:
      List of batches, each a dict of NumPy arrays [eval batch size / process_count, ...].
    """
    batch_size = self.eval_batch_size or self.batch_size
    if batch_size % process_count:
      raise SettingError("TaskData.eval_batch_size", batch_size,
                         f"a multiple of the number of hosts, {process_count}")
    dataset = self._dataset("validation", num_epochs=1, seed=_EVAL_SEED)
    batches = self._batched(dataset, batch_size, drop_remainder=False)
    rows = batch_size // process_count
    mine = slice(process_index * rows, (process_index + 1) * rows)
    whole = [features.pad_rows(batch, batch_size)
             for batch in DataIterator(batches.take(self.num_eval_batches), fingerprint={})]
    if not whole:
      raise DataError(f"task {self._name()!r}: the validation split is empty.")
    return [{name: x[mine] for name, x in batch.items()} for batch in whole]

  def unigram_entropy(self, batches):
    """Returns the entropy of the target tokens of batches, in nats per token."""
    return features.unigram_entropy(batches)

  def _name(self):
    return self.task if isinstance(self.task, str) else self.task.name

  def _registered(self):
    import seqio

    if self.module is not None:
      importlib.import_module(self.module)
    name = self._name()
    known = [*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()]
    if name not in known:
      hint = nearest(name, known).rstrip("?") or " TaskData.module imports what registers it"
      raise SettingError("TaskData.task", name, f"a registered task or mixture;{hint}")
    return seqio.get_mixture_or_task(name)

  def _dataset(self, split, num_epochs, seed, shard_info=None):
    """The tf.data pipeline of single examples."""
    import seqio

    provider = self._registered()
    if split not in provider.splits:
      raise DataError(f"task {provider.name!r}: no split {split!r}, only "
                      f"{', '.join(provider.splits)}. Set validation_files or "
                      "validation_fraction.")
    options = dict(sequence_length=self.feature_lengths, split=split, shuffle=split == "train",
                   seed=seed, shard_info=shard_info, num_epochs=num_epochs)
    if isinstance(provider, seqio.Mixture):
      options["passthrough_features"] = ["epoch"]
    else:
      options["shuffle_buffer_size"] = self.shuffle_buffer_size
    try:
      return provider.get_dataset(**options)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
      if isinstance(error, SettingError):
        raise
      message = " ".join(str(error).split())
      raise DataError(f"task {provider.name!r} cannot be built: {message}") from error

  def _batched(self, dataset, batch_size, drop_remainder):
    import tensorflow as tf

    spec = dataset.element_spec
    names = [n for n in ("inputs", "targets", "epoch") if n in spec]
    if names[:2] != ["inputs", "targets"]:
      raise DataError(f"task {self._name()!r}: its last step must give the features 'inputs' and "
                      f"'targets'; present: {', '.join(map(repr, spec))}.")
    shapes = {n: [] if n == "epoch" else [self.feature_lengths[n]] for n in names}
    padding = {n: tf.constant(features.PADDING, spec[n].dtype) for n in names}
    batches = dataset.map(lambda x: {n: x[n] for n in names}).padded_batch(
        batch_size, shapes, padding, drop_remainder)
    options = tf.data.Options()
    options.deterministic = True
    return batches.with_options(options).prefetch(2)

  def _fingerprint(self, process_index, process_count):
    """What must be the same for a saved position to make sense."""
    provider = self._registered()
    vocabulary = Vocabulary(_sentencepiece(provider).sentencepiece_model_file)
    shards = {}
    for task in getattr(provider, "tasks", None) or [provider]:
      for shard in task.source.list_shards("train"):
        size = os.path.getsize(shard) if os.path.exists(shard) else 0
        shards[f"{task.name}/{os.path.basename(shard)}"] = size
    return {"task": provider.name, "feature_lengths": dict(self.feature_lengths),
            "batch_size": self.batch_size, "seed": self.seed,
            "shuffle_buffer_size": self.shuffle_buffer_size, "vocabulary": vocabulary.sha256,
            "files": shards, "process_index": process_index, "process_count": process_count}


class DataIterator:
  """Batches of NumPy arrays, with a position that can be saved and restored.

  Attributes:
    epoch: the pass over the data that the last batch belongs to, from 0, by its median where a
      shuffle buffer larger than a pass mixes several; None before the first batch, and where the
      task does not count passes.
  """

  def __init__(self, batches, fingerprint):
    """Wraps a tf.data.Dataset of padded {"inputs", "targets"}, and what identifies it."""
    # TensorFlow's threads call Python to read the files. Were the iterator alive when Python
    # shuts down, each would wait for the other for ever: it goes before, by finalize's atexit.
    alive = [iter(batches)]
    weakref.finalize(self, alive.clear)
    self._alive = alive
    self._fingerprint = fingerprint
    self.epoch = None

  @property
  def _iterator(self):
    return self._alive[0]

  def __iter__(self):
    return self

  def __next__(self):
    with clean_errors():
      batch = next(self._iterator)
    batch = features.to_model_batch({name: x.numpy() for name, x in batch.items()})
    if "epoch" in batch:
      self.epoch = int(np.median(batch["epoch"]))
    return batch

  def save(self, path):
    """Writes the position behind the last batch, as files whose names begin with `path`."""
    import tensorflow as tf

    with clean_errors():
      tf.train.Checkpoint(iterator=self._iterator).write(str(path))
    state = {"epoch": self.epoch, "pipeline": self._fingerprint}
    pathlib.Path(f"{path}.json").write_text(json.dumps(state, indent=1))

  def restore(self, path):
    """Continues with the batch that came next when `save(path)` was called.

    Raises:
      DataError: no position was saved there, or it is of another pipeline: the message says what
        differs.
    """
    import tensorflow as tf

    try:
      state = json.loads(pathlib.Path(f"{path}.json").read_text())
    except (OSError, ValueError) as error:
      raise DataError(f"{path}: holds no position in the data that can be read.") from error
    saved, current = state["pipeline"], json.loads(json.dumps(self._fingerprint))
    changed = [f"{name}: {_short(saved.get(name))} then, {_short(current.get(name))} now"
               for name in current if saved.get(name) != current[name]]
    if changed:
      raise DataError(f"{path}: the position is of another data pipeline; {'; '.join(changed)}.")
    try:
      tf.train.Checkpoint(iterator=self._iterator).read(str(path)).assert_consumed()
    except (tf.errors.OpError, AssertionError) as error:
      raise DataError(f"{path}: the position does not fit this data pipeline, perhaps because "
                      "t5jax or TensorFlow changed since. Resume with the versions it was saved "
                      "with.") from error
    self.epoch = state["epoch"]


@contextlib.contextmanager
def clean_errors():
  """Turns errors that TensorFlow passes on from our readers back into a DataError of one line."""
  import tensorflow as tf

  try:
    yield
  except tf.errors.OpError as error:
    found = re.search(r"DataError: (.*)", error.message)
    if not found:
      raise
    raise DataError(found[1]) from None


def _import_tensorflow():
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  with _silent_stderr():
    import seqio  # noqa: F401  (it loads TensorFlow Text, which logs as well)
    import tensorflow as tf

  with contextlib.suppress(RuntimeError):  # Too late once TensorFlow has started.
    tf.config.set_visible_devices([], "GPU")


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


def _sentencepiece(provider):
  """The seqio vocabulary of a task's targets, which must be SentencePiece."""
  vocabulary = provider.output_features["targets"].vocabulary
  if not hasattr(vocabulary, "sentencepiece_model_file"):
    raise DataError(f"task {provider.name!r}: its targets have a {type(vocabulary).__name__}; a "
                    "SentencePieceVocabulary is needed.")
  return vocabulary


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


def _short(value):
  text = json.dumps(value)
  return text if len(text) <= 80 else text[:77] + "..."
