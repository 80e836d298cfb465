"""Hooks: what happens beside training, every so many steps. They observe a run, never change it.

A hook is a callable of the Run with an attribute `every`: a number of steps, or None for the end
alone. All run when the budget is spent; those with `on_stop` also when the run is stopped early.

In a run of several processes each of them calls the hooks, since what happens on all devices, all must
ask for. What needs only the host, and happens once, has `first_only`.
"""

import dataclasses
import functools
import math
import sys
import time

import jax
from tqdm import tqdm

from t5jax import distributed, metrics, sharding, step as steps
from t5jax.model import flops
from t5jax.settings import AT_LEAST_ONE, POSITIVE, Range, check_settings


def is_due(hook, run):
  """True if `hook` is to be called after the step that `run` has just done, in this process."""
  if getattr(hook, "first_only", False) and not distributed.is_first():
    return False
  if run.status == "done" or (run.status == "stopped" and getattr(hook, "on_stop", False)):
    return True
  return hook.every is not None and run.spent.steps % hook.every == 0


class TrainingDiverged(RuntimeError):
  """The loss is not finite or has jumped; the message says where the last good state lies."""


class ProgressBar:
  """A bar over the budget, in its own unit, with time left and the newest loss."""

  every = 1
  on_stop = True
  first_only = True

  def __init__(self):
    self._bar = None

  def __call__(self, run):
    budget = run.trainer.budget
    spent = min(getattr(run.spent, budget.unit), budget.amount)
    if self._bar is None:
      # A log file gets a line every half minute, a terminal ten a second.
      self._bar = tqdm(total=budget.amount, unit=f" {budget.unit}", desc="training", initial=spent,
                       dynamic_ncols=True, mininterval=0.1 if sys.stderr.isatty() else 30)
    newest = {"loss": run.logged.get("loss"), "held_out_loss": (run.evaluation or {}).get("loss")}
    self._bar.set_postfix({k: f"{v:.3f}" for k, v in newest.items() if v is not None}, refresh=False)
    self._bar.update(spent - self._bar.n)
    if run.status != "running":
      self._bar.close()
      self._bar = None


@dataclasses.dataclass
class Log:
  """Writes the means since the last log to metrics.jsonl and TensorBoard.

  Loss is in nats per target token, without the z-loss, which has its own column.

  Attributes:
    every: steps between records.
    warn_repeats: say once, a tenth into the run, if the data will be seen more often than this.
  """

  every: int = 100
  warn_repeats: float = 10
  on_stop = False

  def __post_init__(self):
    check_settings(self, every=AT_LEAST_ONE, warn_repeats=POSITIVE)
    self._last, self._warned = None, False

  def __call__(self, run):
    totals = run.fold_metrics()
    if not totals:
      return
    values = metrics.means(totals)
    run.window = {}
    # The device has just finished the step: this is the time that the steps really took.
    now = time.monotonic()
    since, before = self._last or (run.began, run.before)
    self._last = now, run.spent
    values.update(learning_rate=run.learning_rate, tokens=run.spent.tokens,
                  examples=run.spent.examples, seconds=run.spent.seconds)
    if run.data.epoch is not None:  # Some tasks do not number their documents.
      values.update(epoch=run.data.epoch)
    num_steps = run.spent.steps - before.steps
    if num_steps:
      seconds = now - since
      values.update(tokens_per_second=(run.spent.tokens - before.tokens) / seconds,
                    seconds_per_step=seconds / num_steps, **self._mfu(run, num_steps / seconds))
    run.record.write(run.spent.steps, values)
    run.logged = values
    self._warn(run)

  def _mfu(self, run, steps_per_second):
    """{"mfu": ...}, the share of the devices' peak that the model's own work uses, if known."""
    peak = flops.peak_flops(jax.devices()[0])
    if peak is None:
      return {}
    data = run.trainer.data
    work = flops.train_step_flops(run.model, data.batch_size, data.feature_lengths["inputs"],
                                  data.feature_lengths["targets"])
    return dict(mfu=work * steps_per_second / (peak * jax.device_count()))

  def _warn(self, run):
    progress = run.trainer.budget.progress(run.spent)
    if run.data.epoch and progress >= 0.1 and not self._warned:  # Earlier it would be a guess.
      self._warned = True
      repeats = (run.data.epoch + 0.5) / progress
      if repeats > self.warn_repeats:
        run.say(f"Note: at this rate the data will be seen about {repeats:.0f} times.")


@dataclasses.dataclass
class Evaluate:
  """Held-out loss (nats per target token) and accuracy, without dropout, always on the same masks.

  Attributes:
    every: steps between evaluations.
  """

  every: int | None = 1000

  def __post_init__(self):
    check_settings(self, every=AT_LEAST_ONE)

  def __call__(self, run):
    compiled = _compile_eval_step(run.model)
    params = run.state.eval_params()
    sums = [compiled(params, sharding.put_whole_batch(batch, run.mesh))
            for batch in run.eval_batches]
    means = metrics.means(metrics.total_on_host(sums))
    run.evaluation = dict(step=run.spent.steps, loss=means["loss"], accuracy=means["accuracy"])
    run.record.write(run.spent.steps, {f"eval/{k}": means[k] for k in ("loss", "accuracy")})
    run.say(f"step {run.spent.steps}: held-out loss {means['loss']:.4f} nats per target token, "
            f"perplexity {math.exp(min(means['loss'], 700)):.2f}, accuracy {means['accuracy']:.1%}")


@functools.lru_cache(maxsize=4)
def _compile_eval_step(model):
  return jax.jit(functools.partial(steps.eval_step, model=model))


@dataclasses.dataclass
class Profile:
  """Records what the devices do in some steps, for TensorBoard's profiler (pip install xprof).

  Attributes:
    first: number of the first step, at least 2: the first one compiles.
    last: number of the last step.
  """

  first: int
  last: int
  every = 1
  on_stop = True
  first_only = True

  def __post_init__(self):
    check_settings(self, first=Range(low=2), last=Range(low=self.first))
    self._is_on = self._was_on = False

  def __call__(self, run):
    is_inside = self.first <= run.spent.steps + 1 <= self.last and run.status == "running"
    if is_inside != self._is_on:
      jax.block_until_ready(run.state)  # The devices are behind.
      if is_inside:
        jax.profiler.start_trace(str(run.path / "tensorboard"))
      else:
        jax.profiler.stop_trace()
        run.say(f"Profile up to step {run.spent.steps}: tensorboard --logdir={run.path / 'tensorboard'}")
    self._is_on = is_inside
    self._was_on |= is_inside
    if run.status != "running" and not self._was_on:
      run.say(f"Note: no profile, since no step from {self.first} to {self.last} was done: the run is at step "
              f"{run.spent.steps}.")


@dataclasses.dataclass
class Save:
  """Saves a checkpoint in the background. Put it after Evaluate, so that the best can be kept.

  Attributes:
    every: steps between checkpoints; the last step is always saved.
  """

  every: int | None = 1000
  on_stop = True

  def __post_init__(self):
    check_settings(self, every=AT_LEAST_ONE)

  def __call__(self, run):
    is_fresh = run.evaluation is not None and run.evaluation["step"] == run.spent.steps
    run.checkpoints.save(run.state, run.host_state(), run.data,
                         run.evaluation["loss"] if is_fresh else None)


@dataclasses.dataclass
class StopOnDivergence:
  """Ends the run with an error when the loss is not finite or jumps.

  The loss is that of the whole batch in every process, so that all of them end at the same step.

  Put it before Log, which starts a new window, and before Save, so that the bad state is not kept.

  Attributes:
    every: steps between looks.
    max_increase: nats per token by which the window's loss may exceed the lowest one so far.
  """

  every: int = 100
  max_increase: float = 2.0

  def __post_init__(self):
    check_settings(self, every=AT_LEAST_ONE, max_increase=POSITIVE)
    self._lowest = math.inf

  def __call__(self, run):
    totals = run.fold_metrics()
    if not totals:
      return
    loss = metrics.means(totals)["loss"]
    if not math.isfinite(loss) or loss > self._lowest + self.max_increase:
      raise TrainingDiverged(
          f"Loss {loss:.3f} at step {run.spent.steps}, after {self._lowest:.3f} at best. Newest "
          f"checkpoint: {run.checkpoints.latest_step() or 'none yet'}. Try a lower learning rate, "
          "max_grad_norm, or a longer warm-up.")
    self._lowest = min(self._lowest, loss)
