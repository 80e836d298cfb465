"""The mesh refuses what cannot be split, with what could; what it lays out, and what that saves."""

import types

import jax
import numpy as np
import optax
import pytest

from t5jax import config, memory, optim, rundir, sharding, state as states
from t5jax.model.config import t5_1_1
from t5jax.sharding import MeshConfig
from tests import tiny


@pytest.mark.parametrize("mesh, shape", [
    (MeshConfig(), (8, 1, 1)), (MeshConfig(fsdp=8), (1, 8, 1)), (MeshConfig(fsdp=2, tensor=2), (2, 2, 2)),
    (MeshConfig(data=4, tensor=2), (4, 1, 2)), (MeshConfig(fsdp=None), (1, 8, 1)),
    (MeshConfig(data=2, fsdp=None), (2, 4, 1)), (MeshConfig(fsdp=None, tensor=4), (1, 2, 4))])
def test_data_or_fsdp_takes_the_devices_that_are_left(mesh, shape):
  assert tuple(mesh.shape().values()) == shape
  assert mesh.make().axis_names == ("data", "fsdp", "tensor")


@pytest.mark.parametrize("mesh, model, batch_size, num_microbatches, message", [
    (MeshConfig(data=3), {}, 8, 1, "MeshConfig.data = 3.*8, the number of devices"),
    (MeshConfig(data=3, fsdp=None), {}, 8, 1, "MeshConfig.data = 3.*8, the number of devices"),
    (MeshConfig(tensor=4), dict(num_heads=6), 8, 1, "MeshConfig.tensor = 4.*num_heads = 6.*: 1, 2.$"),
    (MeshConfig(tensor=4), dict(vocab_size=250), 8, 1, "MeshConfig.tensor = 4.*vocab_size = 250: 1, 2.$"),
    (MeshConfig(tensor=8), {}, 8, 1, "MeshConfig.tensor = 8.*num_heads = 4.*: 1, 2, 4.$"),
    (MeshConfig(fsdp=None), dict(emb_dim=60), 8, 1, "MeshConfig.fsdp = 8.*emb_dim = 60: 1, 2, 3, 4"),
    (MeshConfig(), {}, 12, 1, "batch_size = 12.*multiple of 8"),
    (MeshConfig(), {}, 8, 2, "batch_size = 8.*multiple of 16.*2 microbatches"),
    (MeshConfig(slices=3), {}, 8, 1, "MeshConfig.slices = 3.*divisor of data = 8: 1, 2, 4, 8")])
def test_what_does_not_divide_is_refused(mesh, model, batch_size, num_microbatches, message):
  with pytest.raises(ValueError, match=message):
    mesh.check(tiny.model(**model), batch_size, num_microbatches)


def test_evaluation_batches_must_divide_too():
  with pytest.raises(ValueError, match="eval_batch_size = 12.*multiple of 8"):
    MeshConfig().check(tiny.model(), 8, 1, eval_batch_size=12)


def test_degrees_are_whole_numbers():
  with pytest.raises(ValueError, match="MeshConfig.fsdp = 0"):
    MeshConfig(fsdp=0)


def devices(num_slices, hosts_per_slice=2, devices_per_host=2, platform="tpu"):
  """Made-up devices, out of order."""
  made = [types.SimpleNamespace(platform=platform, id=i, process_index=i // devices_per_host,
                                slice_index=i // (hosts_per_slice * devices_per_host))
          for i in range(num_slices * hosts_per_slice * devices_per_host)]
  return made[::-1]


@pytest.mark.parametrize("found, count, groups", [
    (devices(2), None, [[0, 1, 2, 3], [4, 5, 6, 7]]),
    (devices(1), None, [[0, 1, 2, 3]]), (devices(2, 1, 2, "gpu"), None, [[0, 1, 2, 3]]),
    (devices(1, hosts_per_slice=4, platform="gpu"), 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),
    (devices(1, hosts_per_slice=1, devices_per_host=4, platform="gpu"), 2, [[0, 1], [2, 3]])])
def test_slices_are_the_tpu_s_or_neighbouring_hosts(found, count, groups):
  assert [[d.id for d in group] for group in sharding._slices(found, count)] == groups


def test_slices_that_are_not_there_are_refused():
  with pytest.raises(ValueError, match="slices = 4.*2, the number of TPU slices"):
    sharding._slices(devices(2), 4)
  with pytest.raises(ValueError, match="slices = 4.*divisor of the 2 processes: 1, 2"):
    sharding._slices(devices(1, platform="gpu"), 4)


def test_slices_share_data_alone():
  mesh = MeshConfig(data=4, fsdp=2, slices=2).make()
  ids = np.vectorize(lambda d: d.id)(mesh.devices)
  assert ids.shape == (4, 2, 1) and set(ids[:2].ravel()) == {0, 1, 2, 3}


@pytest.mark.parametrize("preset, bindings, shape", [
    ("data", [], (8, 1, 1)), ("fsdp", [], (1, 8, 1)), ("tensor", ["TENSOR=4"], (2, 1, 4)),
    ("fsdp_tensor", [], (1, 4, 2)), ("slices", [], (2, 4, 1))])
def test_presets(preset, bindings, shape):
  files = ["text.gin", f"meshes/{preset}.gin"]
  needed = ["MODEL_DIR=x", "TRAIN_FILES=x", "VOCAB_SIZE=8000"]
  trainer, _ = config.build("t5jax.trainer.Trainer", files, needed + bindings)
  assert tuple(trainer.mesh.make().shape.values()) == shape


OPTIMIZERS = {**{name: getattr(optim, name) for name in (
    "adafactor", "adafactor_hf", "adamw", "adamw_rms", "lion", "momentum", "muon", "schedule_free_adamw",
    "sophia_g")}, "adamw_8bit": optim.quantized(optim.adamw), "lion_8bit": optim.quantized(optim.lion),
    "lamb of optax": optax.lamb, "adan of optax": optax.adan}


@pytest.mark.parametrize("precision", ["float32", "bfloat16_master"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_eight_devices_hold_an_eighth_of_the_state_each(name, precision):
  """But for 5 %: the sums over rows and columns, and the scales, that are too small to be cut."""
  model = t5_1_1("small", vocab_size=32_128, param_precision=precision)
  one, eight = (memory.state_bytes(model, OPTIMIZERS[name], MeshConfig(fsdp=n).make_abstract(n))
                for n in (1, 8))
  assert eight.parameters + eight.optimizer <= (1 / 8) * 1.05 * (one.parameters + one.optimizer)


def test_model_info_shows_the_mesh_and_every_layout(tmp_path):
  mesh = MeshConfig(fsdp=2, tensor=2).make()
  rundir.write_model_info(tmp_path, states.abstract(tiny.model(), optim.adamw, None, mesh), mesh)
  text = (tmp_path / "model-info.txt").read_text()
  assert "mesh: {'data': 2, 'fsdp': 2, 'tensor': 2}" in text and "data 1: [0:4 0:5] [0:6 0:7]" in text
  rows = {line.split()[0]: line for line in text.splitlines() if " P(" in line}
  table = rows["params/token_embedder/embedding"]
  assert table.endswith("P('tensor', 'fsdp')")
  moments = [row for name, row in rows.items() if name.endswith("u/token_embedder/embedding")]
  assert len(moments) == 2 and all(row.endswith("('tensor', 'fsdp')") for row in moments)
  on_host = states.abstract(tiny.model(), optim.adamw, None, mesh, "host")
  rundir.write_model_info(tmp_path, on_host, mesh)
  assert (tmp_path / "model-info.txt").read_text().count(" in the host's memory\n") == 2 * len(
      jax.tree.leaves(on_host.params))


def test_batches_arrive_as_they_are():
  batch, mesh = tiny.batch(batch_size=16), MeshConfig(fsdp=2, tensor=2).make()
  assert sharding.local_shards(mesh) == ([0, 1, 2, 3], 4)
  for placed in (sharding.put_batch(batch, mesh), sharding.put_whole_batch(batch, mesh)):
    for name, array in sharding.to_host(placed, mesh).items():
      np.testing.assert_array_equal(array, batch[name])
    assert {x.sharding for x in jax.tree.leaves(placed)} == {sharding.of_batch(mesh)}
