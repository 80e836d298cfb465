"""The device mesh and the rules that lay logical axes on it."""

import contextlib
import dataclasses
import math

import flax.linen as nn
import jax
from jax.sharding import NamedSharding, PartitionSpec

from t5jax.settings import AT_LEAST_ONE, SettingError, check_settings

# Logical axis of a tensor -> axis of the mesh. The first rule that still fits is taken.
RULES = (
    ("batch", ("data", "fsdp")),
    ("vocab", "tensor"),
    ("mlp", "tensor"),
    ("heads", "tensor"),
    ("joined_kv", "tensor"),
    ("embed", "fsdp"),
    ("length", None),
    ("kv", None),
    ("relpos_buckets", None),
    ("layers", None),
)


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """How many devices share which work.

  Attributes:
    data: replicas that split the batch. None: all devices that the other two leave.
    fsdp: devices that split the batch and also hold a share of each parameter.
    tensor: devices that split heads, feed-forward width and vocabulary.
  """

  data: int | None = None
  fsdp: int = 1
  tensor: int = 1

  def __post_init__(self):
    check_settings(self, data=AT_LEAST_ONE, fsdp=AT_LEAST_ONE, tensor=AT_LEAST_ONE)

  def check(self, model, batch_size, num_microbatches, num_devices=None):
    """Raises SettingError if model dims or batch do not split evenly over the mesh."""
    shape = self.shape(num_devices)
    for dim in ("num_heads", "mlp_dim", "vocab_size"):
      if getattr(model, dim) is not None and getattr(model, dim) % shape["tensor"]:
        raise SettingError("MeshConfig.tensor", self.tensor,
                           f"a divisor of T5Config.{dim} = {getattr(model, dim)}")
    if model.emb_dim % shape["fsdp"]:
      raise SettingError("MeshConfig.fsdp", self.fsdp, f"a divisor of T5Config.emb_dim = {model.emb_dim}")
    shards = shape["data"] * shape["fsdp"] * num_microbatches
    if batch_size % shards:
      raise SettingError(
          "TaskData.batch_size", batch_size,
          f"a multiple of {shards} = {shape['data'] * shape['fsdp']} devices that split the batch x "
          f"{num_microbatches} microbatches")

  def shape(self, num_devices=None):
    """Returns {"data": ..., "fsdp": ..., "tensor": ...}; without a number for the devices there are."""
    num_devices = jax.device_count() if num_devices is None else num_devices
    rest = self.fsdp * self.tensor
    data = num_devices // rest if self.data is None else self.data
    if data * rest != num_devices:
      raise SettingError("MeshConfig.data", self.data,
                         f"data x fsdp x tensor = {num_devices}, the number of devices")
    return dict(data=data, fsdp=self.fsdp, tensor=self.tensor)

  def make(self, devices=None):
    """Returns the jax.sharding.Mesh. Its axes are Auto: constraints are hints for GSPMD.

    Args:
      devices: None for all there are.
    """
    devices = jax.devices() if devices is None else devices
    shape = self.shape(len(devices))
    return jax.make_mesh(tuple(shape.values()), tuple(shape), devices=devices,
                         axis_types=(jax.sharding.AxisType.Auto,) * len(shape))

  def make_abstract(self, num_devices):
    """Returns the mesh of so many devices, which need not exist, for shapes alone."""
    shape = self.shape(num_devices)
    return jax.sharding.AbstractMesh(tuple(shape.values()), tuple(shape))


@contextlib.contextmanager
def use(mesh):
  """Within it, logical axis names in the model mean axes of `mesh`."""
  with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
    yield


def constrain(x, axes):
  """Asks the compiler to lay `x` out by logical axes, on the mesh of `use`; nothing without one."""
  return nn.with_logical_constraint(x, axes)


def num_batch_shards():
  """How many devices of the mesh of `use` split the batch; 1 without one."""
  shape = jax.sharding.get_abstract_mesh().shape
  return math.prod(shape.get(axis, 1) for axis in dict(RULES)["batch"])


def replicated(mesh):
  """The sharding of what every device holds in full."""
  return NamedSharding(mesh, PartitionSpec())


def of_batch(mesh):
  """The sharding of a batch's arrays: split over their first dim."""
  return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))


def of_parameters(boxed, mesh):
  """Maps a tree of parameters that carry logical axes (as flax boxes) to their shardings."""
  return nn.logical_to_mesh_sharding(nn.get_partition_spec(boxed), mesh, RULES)


def fit(layout, shape):
  """A NamedSharding for `shape`: `layout` without the mesh axes that do not divide its dim.

  For another rank than the layout's: replicated.
  """
  if len(layout.spec) != len(shape):
    return replicated(layout.mesh)
  def divides(axes, dim):
    names = (axes,) if isinstance(axes, str) else axes or ()
    return dim % math.prod(layout.mesh.shape[name] for name in names) == 0

  return NamedSharding(layout.mesh, PartitionSpec(*(
      axes if divides(axes, dim) else None for dim, axes in zip(shape, layout.spec))))


def unbox(tree):
  """Takes parameters out of their boxes without asking the compiler to lay them out here and now."""
  is_box = lambda x: isinstance(x, nn.LogicallyPartitioned)
  return jax.tree.map(lambda x: x.unbox(apply_constraint=False) if is_box(x) else x, tree,
                      is_leaf=is_box)


def put_batch(batch, mesh):
  """Moves this process's share of a host batch to the devices as global arrays, asynchronously."""
  sharding = of_batch(mesh)
  return {name: jax.make_array_from_process_local_data(sharding, array)
          for name, array in batch.items()}
