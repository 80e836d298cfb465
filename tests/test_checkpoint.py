"""Checkpoints: nothing lost, nothing changed, failures heard."""

import functools
import os
import pathlib

import jax
import numpy as np
import pytest

from t5jax import checkpoint, optim, sharding, state as states
from tests import tiny


class Position:
  """An input whose position is one number."""

  def __init__(self, position=0):
    self.position = position

  def save(self, path):
    pathlib.Path(path).write_text(str(self.position))

  def restore(self, path):
    self.position = int(pathlib.Path(path).read_text())


@pytest.fixture(scope="module")
def mesh():
  return sharding.MeshConfig().make()


@functools.lru_cache
def fresh(optimizer=optim.adamw_rms, precision="float32"):
  mesh = sharding.MeshConfig().make()
  return states.create(tiny.model(param_precision=precision), optimizer, 1.0, mesh, seed=0)


def at_step(step, **kwargs):
  return fresh(**kwargs)._replace(step=np.int32(step))


@pytest.mark.parametrize("optimizer, precision", [
    (optim.adamw_rms, "float32"), (functools.partial(optim.adafactor, beta1=0.9), "bfloat16_kahan"),
    (optim.quantized(optim.adamw), "bfloat16_master")])
def test_state_comes_back_as_it_was(tmp_path, mesh, optimizer, precision):
  state = fresh(optimizer, precision)
  with checkpoint.Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(state, {"tokens": 2 ** 53 + 1, "x": 0.1}, Position(7))
  abstract = states.abstract(tiny.model(param_precision=precision), optimizer, 1.0, mesh)
  position = Position()
  with checkpoint.Checkpoints(tmp_path) as checkpoints:
    restored, host = checkpoints.restore(abstract, position)
  assert jax.tree.structure(restored) == jax.tree.structure(state)
  for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(restored)):
    assert (old.dtype, old.shape, old.sharding) == (new.dtype, new.shape, new.sharding)
    np.testing.assert_array_equal(old, new)
  assert host == {"tokens": 2 ** 53 + 1, "x": 0.1} and position.position == 7


@pytest.mark.parametrize("kept, wanted", [("host", "host"), ("device", "host"), ("host", "device")])
def test_states_come_back_into_the_memory_that_is_wanted(tmp_path, mesh, kept, wanted):
  state = states.create(tiny.model(), optim.adamw_rms, None, mesh, seed=0, optimizer_memory=kept)
  with checkpoint.Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(state, {}, Position())
  abstract = states.abstract(tiny.model(), optim.adamw_rms, None, mesh, wanted)
  with checkpoint.Checkpoints(tmp_path) as checkpoints:
    restored, _ = checkpoints.restore(abstract, Position())
  assert {x.sharding.memory_kind for x in jax.tree.leaves(restored.opt_state) if x.ndim} == {
      sharding.HOST_MEMORY if wanted == "host" else "device"}
  for old, new in zip(*map(jax.tree.leaves, jax.device_get((state, restored))), strict=True):
    np.testing.assert_array_equal(old, new)


def test_what_is_evaluated_is_what_is_loaded(tmp_path):
  """The averages of a schedule-free optimizer, in float32 whatever they are kept in."""
  precision = "bfloat16_stochastic"
  state = fresh(optim.schedule_free_adamw, precision)
  moved = jax.tree.map(lambda x: x + 1, state.params)
  state = state._replace(params=moved)
  checkpoint.write_model_config(tmp_path, tiny.model(param_precision=precision))
  with checkpoint.Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(state, {}, Position())
  _, _, loaded = checkpoint.load_params(tmp_path)
  for average, trained, got in zip(*map(jax.tree.leaves, (state.eval_params(), moved, loaded))):
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.asarray(average, np.float32))
    assert (got != np.asarray(trained, np.float32)).any()


def test_states_of_another_optimizer_are_refused_in_a_line(tmp_path, mesh):
  with checkpoint.Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(fresh(), {}, Position())
    abstract = states.abstract(tiny.model(), optim.lion, 1.0, mesh)
    with pytest.raises(ValueError, match="another optimizer or PARAM_PRECISION.*--overwrite"):
      checkpoints.restore(abstract, Position())


def test_another_mesh_can_go_on(tmp_path):
  state = fresh()
  with checkpoint.Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(state, {}, Position())
  other = sharding.MeshConfig(fsdp=4, tensor=2).make()
  abstract = states.abstract(tiny.model(), optim.adamw_rms, 1.0, other)
  with checkpoint.Checkpoints(tmp_path) as checkpoints:
    restored, _ = checkpoints.restore(abstract, Position())
  kernel = restored.params["encoder"]["layers"]["mlp"]["wo"]["kernel"]
  assert kernel.sharding.mesh.shape["fsdp"] == 4
  for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(restored)):
    np.testing.assert_array_equal(old, new)


def test_newest_and_best_are_kept(tmp_path):
  config = checkpoint.CheckpointConfig(keep_latest=2, keep_best=1)
  with checkpoint.Checkpoints(tmp_path, config) as checkpoints:
    for step, loss in enumerate([5.0, 3.0, 4.0, None, 4.5, 4.4], start=1):
      checkpoints.save(at_step(step), {}, Position(), loss)
  assert sorted(os.listdir(tmp_path / "checkpoints")) == ["2", "5", "6"]


def test_parameters_alone_for_readers(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with checkpoint.Checkpoints("runs/æ ø") as checkpoints:  # relative, a space, not ASCII
    checkpoints.save(at_step(3), {}, Position())
    checkpoints.save(at_step(5), {}, Position())
  checkpoint.write_model_config("runs/æ ø", tiny.model())
  step, model, params = checkpoint.load_params("runs/æ ø")
  assert (step, model) == (5, tiny.model())
  assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(params))
  jax.tree.map(np.testing.assert_array_equal, params, jax.device_get(fresh().params))
  assert checkpoint.load_params("runs/æ ø", step=3)[0] == 3
  with pytest.raises(ValueError, match="--step=4.*3, 5"):
    checkpoint.load_params("runs/æ ø", step=4)
  with pytest.raises(ValueError, match="two levels up"):
    checkpoint.load_params("runs/æ ø/checkpoints/5")
  with pytest.raises(ValueError, match="nowhere is not a model directory"):
    checkpoint.load_params("nowhere")


def test_a_step_is_saved_once(tmp_path):
  with checkpoint.Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(at_step(4), {"n": 1}, Position())
    checkpoints.save(at_step(4), {"n": 2}, Position())


class FailingPosition(Position):
  def save(self, path):
    raise OSError(28, "No space left on device", path)


def test_a_failed_save_is_heard_and_the_previous_one_stays(tmp_path, mesh):
  config = checkpoint.CheckpointConfig(keep_latest=1, keep_best=0)
  with pytest.raises(OSError, match="No space left"):
    with checkpoint.Checkpoints(tmp_path, config) as checkpoints:
      checkpoints.save(at_step(1), {"n": 1}, Position(11))
      checkpoints.save(at_step(2), {"n": 2}, FailingPosition())
  abstract = states.abstract(tiny.model(), optim.adamw_rms, 1.0, mesh)
  position = Position()
  with checkpoint.Checkpoints(tmp_path, config) as checkpoints:
    assert checkpoints.latest_step() == 1
    _, host = checkpoints.restore(abstract, position)
  assert host == {"n": 1} and position.position == 11


def test_a_damaged_checkpoint_is_named(tmp_path, mesh):
  with checkpoint.Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(at_step(1), {}, Position())
  (tmp_path / "checkpoints" / "1" / "params" / "_METADATA").write_text("{")
  abstract = states.abstract(tiny.model(), optim.adamw_rms, 1.0, mesh)
  with checkpoint.Checkpoints(tmp_path) as checkpoints:
    with pytest.raises(ValueError, match="checkpoints/1 cannot be restored.*delete that folder"):
      checkpoints.restore(abstract, Position())


def test_a_model_of_another_shape_is_refused(tmp_path, mesh):
  with checkpoint.Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(at_step(1), {}, Position())
  larger = states.abstract(tiny.model(vocab_size=384), optim.adamw_rms, 1.0, mesh)
  with checkpoint.Checkpoints(tmp_path) as checkpoints, pytest.raises(ValueError):
    checkpoints.restore(larger, Position())
