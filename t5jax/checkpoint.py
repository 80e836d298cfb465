"""Checkpoints: the whole state of a run under MODEL_DIR/checkpoints/<step>. The only user of Orbax.

A checkpoint has four parts: `params`; `optimizer`, with the step; `host`, the counters as JSON; and
`data`, the position in the input, which is the same in all processes. A fifth, `eval_params`, is there where other parameters
are evaluated than trained. It appears under its final name only when complete.
"""

import dataclasses
import json
import pathlib

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as managers

from t5jax.data.text_files import DataError
from t5jax.model.config import T5Config
from t5jax.settings import AT_LEAST_ONE, NON_NEGATIVE, check_settings
from t5jax.state import TrainState, abstract_params

_LOSS = "eval_loss"
_AVERAGES = "eval_params"


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
  """Which checkpoints stay on disk.

  Attributes:
    keep_latest: the newest so many.
    keep_best: besides them, those with the lowest held-out loss.
  """

  keep_latest: int = 2
  keep_best: int = 1

  def __post_init__(self):
    check_settings(self, keep_latest=AT_LEAST_ONE, keep_best=NON_NEGATIVE)


class _DataHandler(ocp.CheckpointHandler):
  """Lets an iterator with `save(path)` and `restore(path)` take part in a checkpoint."""

  def _path(self, directory):
    # One file for all, and for any number of processes that will go on from it.
    return str(directory / "process_0")

  def save(self, directory, args):
    if jax.process_index() == 0:
      args.iterator.save(self._path(directory))

  def restore(self, directory, args):
    args.iterator.restore(self._path(directory))
    return args.iterator


@ocp.args.register_with_handler(_DataHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class _DataArgs(ocp.args.CheckpointArgs):
  iterator: object


class Checkpoints:
  """The checkpoints of one model directory. Close it, or use it as a context, before leaving."""

  def __init__(self, model_dir, config=CheckpointConfig()):
    # Written in the background: the loop goes on as soon as the arrays are copied off the device.
    keep_best = managers.BestN(
        get_metric_fn=lambda metrics: metrics[_LOSS], reverse=True, n=config.keep_best,
        keep_checkpoints_without_metrics=False)
    self._manager = ocp.CheckpointManager(
        checkpoint_dir(model_dir),
        options=ocp.CheckpointManagerOptions(preservation_policy=managers.AnyPreservationPolicy(
            [managers.LatestN(config.keep_latest), keep_best])))

  def __enter__(self):
    return self

  def __exit__(self, exception_type, exception, traceback):
    self.close()

  def latest_step(self):
    """Returns the step of the newest complete checkpoint, or None."""
    return self._manager.latest_step()

  def save(self, state, host, iterator, eval_loss=None):
    """Saves in the background; does nothing if this step is on disk.

    Args:
      state: TrainState.
      host: what json can hold.
      iterator: with `save(path)`, at the position after the last batch used.
      eval_loss: held-out loss at this step, by which the best are kept; or None.

    Raises:
      OSError or ValueError: this save, or an earlier one in the background, failed.
    """
    step = int(state.step)
    self._manager.check_for_errors()
    if step in self._manager.all_steps():
      return
    eval_params = state.eval_params()
    averages = {} if eval_params is state.params else {_AVERAGES: ocp.args.StandardSave(eval_params)}
    self._manager.save(
        step,
        args=ocp.args.Composite(
            **averages,
            params=ocp.args.StandardSave(state.params),
            optimizer=ocp.args.StandardSave(dict(step=state.step, opt_state=state.opt_state)),
            host=ocp.args.JsonSave(host),
            data=_DataArgs(iterator)),
        metrics=None if eval_loss is None else {_LOSS: eval_loss})

  def restore(self, abstract_state, iterator):
    """Returns (TrainState, host) of the newest checkpoint; moves `iterator` to its position.

    `abstract_state` gives every leaf's shape, dtype and sharding: that of the mesh there is now.

    Raises:
      ValueError: it cannot be read, is of another model, or of other data.
    """
    step = self.latest_step()
    items = ocp.args.Composite(
        params=ocp.args.StandardRestore(abstract_state.params),
        optimizer=ocp.args.StandardRestore(
            dict(step=abstract_state.step, opt_state=abstract_state.opt_state)),
        host=ocp.args.JsonRestore(),
        data=_DataArgs(iterator))
    try:
      restored = self._manager.restore(step, args=items)
    except DataError:
      raise
    except (ValueError, OSError, KeyError) as error:
      if "tree structures do not match" in str(error):
        raise ValueError(
            f"{self._manager.directory / str(step)} holds the states of another optimizer or "
            "PARAM_PRECISION. Go on with those, or start anew in another MODEL_DIR or with "
            "--overwrite.") from error
      raise ValueError(
          f"{self._manager.directory / str(step)} cannot be restored: {' '.join(str(error).split())[:300]}"
          "... If it is damaged, delete that folder to go on from the one before.") from error
    return TrainState(params=restored.params, **restored.optimizer), restored.host

  def wait(self):
    """Waits for the save in the background; raises if it failed."""
    self._manager.wait_until_finished()
    self._manager.check_for_errors()

  def close(self):
    """Waits, and gives up what the manager holds."""
    self.wait()
    self._manager.close()


def checkpoint_dir(model_dir):
  """Where the checkpoints of a model directory lie; Orbax wants the path absolute."""
  return pathlib.Path(model_dir).expanduser().absolute() / "checkpoints"


def saved_steps(model_dir):
  """Returns the steps of the complete checkpoints in a model directory, ascending."""
  return sorted(int(p.name) for p in checkpoint_dir(model_dir).glob("*") if p.name.isdigit())


def write_model_config(model_dir, model):
  """Writes the architecture beside the checkpoints, for whoever only reads them."""
  path = pathlib.Path(model_dir) / "model_config.json"
  path.write_text(json.dumps(dataclasses.asdict(model), indent=2) + "\n")


def read_model_config(model_dir):
  """Returns the T5Config of a model directory.

  Raises:
    ValueError: the folder is no model directory.
  """
  path = pathlib.Path(model_dir).expanduser() / "model_config.json"
  if not path.is_file():
    hint = " It looks like a checkpoint: give the folder two levels up." if (
        path.parent.parent.name == "checkpoints") else ""
    raise ValueError(f"{path.parent} is not a model directory: it has no {path.name}.{hint}")
  return T5Config(**json.loads(path.read_text()))


def load_params(model_dir, step=None):
  """Reads the parameters to use of a run onto the host, whatever devices wrote them.

  Args:
    model_dir: the run's folder.
    step: which checkpoint; None for the newest.

  Returns:
    (step, T5Config, nested dict of float32 NumPy arrays).

  Raises:
    ValueError: no such folder, checkpoint or step.
  """
  model = read_model_config(model_dir)
  directory, steps = checkpoint_dir(model_dir), saved_steps(model_dir)
  if not steps:
    raise ValueError(f"{directory} holds no checkpoint yet.")
  if step is not None and step not in steps:
    raise ValueError(f"--step={step}: {directory} holds {', '.join(map(str, steps))}.")
  step = steps[-1] if step is None else step
  host = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
  abstract = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=host), abstract_params(model))
  with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
    folder = directory / str(step) / _AVERAGES
    params = checkpointer.restore(folder if folder.is_dir() else folder.with_name("params"),
                                  args=ocp.args.StandardRestore(abstract))
  return step, model, jax.device_get(params)
