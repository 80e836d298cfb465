"""The mesh refuses what cannot be split, with what could."""

import pytest

from t5jax.sharding import MeshConfig
from tests import tiny


@pytest.mark.parametrize("mesh, shape", [
    (MeshConfig(), (8, 1, 1)), (MeshConfig(fsdp=8), (1, 8, 1)), (MeshConfig(fsdp=2, tensor=2), (2, 2, 2)),
    (MeshConfig(data=4, tensor=2), (4, 1, 2))])
def test_data_takes_the_devices_that_are_left(mesh, shape):
  assert tuple(mesh.shape().values()) == shape
  assert mesh.make().axis_names == ("data", "fsdp", "tensor")


@pytest.mark.parametrize("mesh, model, batch_size, num_microbatches, message", [
    (MeshConfig(data=3), {}, 8, 1, "MeshConfig.data = 3.*8, the number of devices"),
    (MeshConfig(tensor=8), {}, 8, 1, "MeshConfig.tensor = 8.*num_heads = 4"),
    (MeshConfig(fsdp=8), dict(emb_dim=60), 8, 1, "MeshConfig.fsdp = 8.*emb_dim = 60"),
    (MeshConfig(), {}, 12, 1, "batch_size = 12.*multiple of 8"),
    (MeshConfig(), {}, 8, 2, "batch_size = 8.*multiple of 16.*2 microbatches")])
def test_what_does_not_divide_is_refused(mesh, model, batch_size, num_microbatches, message):
  with pytest.raises(ValueError, match=message):
    mesh.check(tiny.model(**model), batch_size, num_microbatches)


def test_degrees_are_whole_numbers():
  with pytest.raises(ValueError, match="MeshConfig.fsdp = 0"):
    MeshConfig(fsdp=0)
