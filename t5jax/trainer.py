"""The trainer: a frozen dataclass of parts, and `run`, the loop."""

import concurrent.futures
import dataclasses
import functools
import itertools
import pathlib
from typing import Any, Callable, Literal

import jax
import numpy as np

from t5jax import distributed, memory, rundir, sharding, state as states, step as steps
from t5jax.budget import Budget, Spent
from t5jax.checkpoint import CheckpointConfig, Checkpoints, write_model_config
from t5jax.hooks import is_due
from t5jax.model.attend import check_machine
from t5jax.model.config import VOCAB_MULTIPLE, T5Config
from t5jax.optim import takes_curvature
from t5jax.run import Run, StopSignal
from t5jax.settings import (
    AT_LEAST_ONE, NON_NEGATIVE, POSITIVE, SettingError, check_optimizer, check_settings)


def every_batch(state, batch):
  """The `select` of a plain run: trains on the batch as it comes, at no extra cost."""
  del state
  return batch, Spent()


def same_state(state, progress):
  """The `grow` of a plain run: changes nothing."""
  del progress
  return state


def _put(batch, mesh):
  """Moves what the step uses of a host batch to the devices: all but the epoch."""
  return sharding.put_batch({name: x for name, x in batch.items() if name != "epoch"}, mesh)


@dataclasses.dataclass(frozen=True)
class Trainer:
  """All that a run is made of.

  Attributes:
    model: the architecture.
    data: batches and tokenizer, a data.iterator.TaskData.
    optimizer: a function of the learning rate that returns an optax transformation.
    learning_rate: what `schedule` multiplies; the peak, for most schedules.
    schedule: a function of progress, see schedules.py.
    budget: how long to train.
    model_dir: the folder of all that the run leaves.
    hooks: what observes the run, in this order; see hooks.py.
    seed: of initialisation and dropout.
    num_microbatches: sequential parts of a batch, to save memory; the result does not depend on it.
    max_grad_norm: the gradient is scaled down to this global norm; None for never.
    z_loss: weight of the penalty on log(softmax normaliser)^2.
    optimizer_memory: where the optimizer's states are kept, "device" or "host"; from the host's
      memory they come to the devices layer by layer.
    curvature_every: steps between the extra batches from which Sophia learns the curvature; they
      count in the budget. None for every other optimizer.
    mesh: how devices share the work.
    checkpoints: which checkpoints stay.
    select: (state, this process's part of the batch) -> (the part to train on, Spent on choosing).
    grow: (state, progress) -> state, before each step.
  """

  model: T5Config
  data: Any
  optimizer: Callable
  learning_rate: float
  schedule: Callable
  budget: Budget
  model_dir: str
  hooks: tuple = ()
  seed: int = 0
  num_microbatches: int = 1
  max_grad_norm: float | None = None
  z_loss: float = 0.0
  optimizer_memory: Literal["device", "host"] = "device"
  curvature_every: int | None = None
  mesh: sharding.MeshConfig = sharding.MeshConfig()
  checkpoints: CheckpointConfig = CheckpointConfig()
  select: Callable = every_batch
  grow: Callable = same_state

  def __post_init__(self):
    object.__setattr__(self, "hooks", tuple(self.hooks))
    check_settings(self, learning_rate=POSITIVE, num_microbatches=AT_LEAST_ONE,
                   max_grad_norm=POSITIVE, z_loss=NON_NEGATIVE, curvature_every=AT_LEAST_ONE,
                   seed=NON_NEGATIVE)
    # Raises on settings that cannot be, before anything is compiled.
    check_optimizer("Trainer.optimizer", self.optimizer)
    self.schedule(0.0)

  def check(self):
    """Raises ValueError for what cannot work, without compiling or reading much."""
    self.data.check()
    self.data.check_validation()
    self.check_without_data()

  def check_without_data(self):
    """Raises ValueError for what cannot work on these devices, whatever is read."""
    self._check_mesh(self.model)
    check_machine(self.model.attention, *self.data.feature_lengths.values())
    if self.optimizer_memory == "host":
      sharding.check_host_memory("Trainer.optimizer_memory", "host", "'device'")
    if "offload" in (self.model.remat, self.model.decoder_remat):
      sharding.check_host_memory("T5Config.remat", "offload", "'minimal' or 'full'")
    # Patterns and curvature: of any vocabulary, since nothing of it matters here but a shape.
    size = self.model.vocab_size or VOCAB_MULTIPLE * self.mesh.tensor
    model = dataclasses.replace(self.model, vocab_size=size)
    state = self._abstract(model, self.mesh.make())
    self._check_curvature(state.opt_state)
    if self.optimizer_memory == "host":
      steps.check_by_layer(model, self.optimizer)

  def run(self, stop_at_step=None):
    """Trains until the budget is spent, going on from the newest checkpoint if there is one.

    Args:
      stop_at_step: save and leave at this step, as if the machine were needed back; the schedules
        still run to the whole budget. None: train to the end.

    Returns:
      The Run: its state, counters, and `status`, "done" or "stopped".
    """
    self.check()
    with self._start() as run, sharding.use(run.mesh), StopSignal() as stop, \
        distributed.failing_together(), jax.debug_nans(jax.config.jax_debug_nans):
      # The last: JAX forgets the variable JAX_DEBUG_NANS when it leaves an inner context of this kind.
      train_step = steps.compile_train_step(
          jax.tree.map(lambda x: x.sharding, run.state), model=run.model, optimizer=self.optimizer,
          z_loss=self.z_loss, max_grad_norm=self.max_grad_norm,
          num_microbatches=self.num_microbatches)
      key = jax.jit(lambda: jax.random.key(self.seed), out_shardings=sharding.replicated(run.mesh))()
      if run.status == "done":
        self._call_hooks(run)
        return run
      batches = itertools.chain([self._first_batch(run, train_step, key)], run.data)
      while run.status == "running":
        progress = self.budget.progress(run.spent)
        run.state = self.grow(run.state, progress)
        batch, extra = self.select(run.state, next(batches))
        curvature_batch, cost = self._curvature_batch(run)
        run.learning_rate = self.learning_rate * self.schedule(progress)
        run.state, metrics = train_step(
            run.state, _put(batch, run.mesh),
            sharding.put_everywhere(np.float32(run.learning_rate), run.mesh), key, curvature_batch)
        run.spend(batch, extra + cost, metrics, stop.received)
        run.status = self._status(run.spent, run.signal or run.spent.steps == stop_at_step)
        self._call_hooks(run)
      run.signal = run.signal if run.status == "stopped" else None
    return run

  def _first_batch(self, run, train_step, key):
    """Returns the next batch, for which the data may take long, and meanwhile compiles the step."""
    if self.select is not every_batch or self.grow is not same_state:
      return next(run.data)  # What the step will be given is not known yet.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
      batch = pool.submit(next, run.data)
      shapes = memory.batch_shapes(
          self.data.batch_size, self.data.feature_lengths, run.mesh, self.data.pack)
      rate = sharding.put_everywhere(np.float32(0), run.mesh)
      curvature = shapes if self._needs_curvature(run) else None
      train_step.lower(run.state, shapes, rate, key, curvature).compile()
      return batch.result()

  def _needs_curvature(self, run):
    return self.curvature_every is not None and run.spent.steps % self.curvature_every == 0

  def _curvature_batch(self, run):
    """Returns (a batch on the devices or None, the Spent on it) for the coming step."""
    if not self._needs_curvature(run):
      return None, Spent()
    batch = next(run.data)
    return _put(batch, run.mesh), run.cost_of(batch)

  def _status(self, spent, stop=False):
    if self.budget.progress(spent) >= 1:
      return "done"
    return "stopped" if stop else "running"

  def _call_hooks(self, run):
    for hook in self.hooks:
      if is_due(hook, run):
        hook(run)

  def _start(self):
    """Returns the Run, fresh or restored, after all that can be refused has been looked at."""
    path = pathlib.Path(self.model_dir).expanduser()
    vocabulary = distributed.first_then_others(lambda: self.data.prepare(path))
    model = self.model.with_vocabulary(vocabulary.size)
    self._check_mesh(model)
    rundir.check_tokenizer(path, vocabulary)
    mesh = self.mesh.make()
    shards = sharding.local_shards(mesh)
    eval_batches, data = distributed.together(
        lambda: (self.data.eval_batches(), self.data.train_iterator(*shards)))
    abstract = self._abstract(model, mesh)
    checkpoints = Checkpoints(path, self.checkpoints)
    if checkpoints.latest_step() is None:
      state, host = states.create(model, self.optimizer, self.max_grad_norm, mesh, self.seed,
                                  self.optimizer_memory), None
    else:
      state, host = checkpoints.restore(abstract, data)
    if distributed.is_first():
      rundir.write_run_info(path, vocabulary)
      rundir.write_model_info(path, abstract, mesh)
      write_model_config(path, model)
    run = Run(self, path, model, vocabulary, mesh, state, data, eval_batches,
              rundir.open_record(path, int(state.step)), checkpoints, shard=shards[0][0])
    if host is not None:
      run.restore_host_state(host)
    run.status = self._status(run.spent)
    self._introduce(run)
    return run

  def _abstract(self, model, mesh):
    return states.abstract(model, self.optimizer, self.max_grad_norm, mesh, self.optimizer_memory)

  def _check_mesh(self, model):
    self.mesh.check(model, self.data.batch_size, self.num_microbatches,
                    eval_batch_size=self.data.eval_batch_size)

  def _check_curvature(self, opt_state):
    if takes_curvature(opt_state) != (self.curvature_every is not None):
      raise SettingError(
          "Trainer.curvature_every", self.curvature_every,
          "None: the optimizer does not use curvature" if self.curvature_every else
          "an int >= 1: Sophia needs an extra batch every so many steps (its authors: 10)")

  def _introduce(self, run):
    """Says what is about to be trained, and on what."""
    num_params = sum(leaf.size for leaf in jax.tree.leaves(run.state.params))
    entropy = self.data.unigram_entropy(run.eval_batches)
    run.say(f"jax {jax.__version__} on {jax.device_count()} x {jax.devices()[0].device_kind}, "
            f"{jax.process_count()} process(es), mesh {dict(run.mesh.shape)}")
    run.say(f"{num_params:,} parameters; {run.model.vocab_size:,} embedding rows for "
            f"{run.vocabulary.num_pieces:,} pieces and {run.vocabulary.extra_ids} sentinels; "
            f"{self.data.batch_size} examples a batch")
    run.say(f"unigram entropy of the held-out targets: {entropy:.4f} nats per token")
    if run.spent.steps:
      run.say(f"going on from step {run.spent.steps} of {run.path}" if run.status == "running" else
              f"{run.path} is finished: {run.spent.steps} steps are done")
