"""The device mesh and the rules that lay logical axes on it."""

import contextlib
import dataclasses
import math

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import NamedSharding, PartitionSpec

from t5jax.settings import AT_LEAST_ONE, SettingError, check_settings

HOST_MEMORY = "pinned_host"  # JAX's name of the host memory that devices can reach.

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
  """How many devices share which work. See gin/meshes for the usual ones.

  Attributes:
    data: replicas that split the batch. None: all devices that the others leave.
    fsdp: devices that split the batch and also hold a share of each parameter, its gradient and its
      optimizer states (ZeRO-3). None: all devices that the others leave, `data` being 1 if not given.
    tensor: devices that split heads, feed-forward width and vocabulary.
    slices: groups of devices between which the network is slow. They only share `data`, of which
      this is a divisor: gradients alone cross it. None: the TPU slices there are, else one.
  """

  data: int | None = None
  fsdp: int | None = 1
  tensor: int = 1
  slices: int | None = None

  def __post_init__(self):
    check_settings(self, data=AT_LEAST_ONE, fsdp=AT_LEAST_ONE, tensor=AT_LEAST_ONE,
                   slices=AT_LEAST_ONE)

  def check(self, model, batch_size, num_microbatches, num_devices=None, eval_batch_size=None):
    """Raises SettingError if model dims or batches do not split evenly over the mesh."""
    shape = self.shape(num_devices)
    for axis, dims in _SPLIT_DIMS.items():
      sizes = {dim: getattr(model, dim) for dim in dims if getattr(model, dim) is not None}
      if any(size % shape[axis] for size in sizes.values()):
        listed = " and ".join(f"T5Config.{dim} = {size}" for dim, size in sizes.items())
        raise SettingError(f"MeshConfig.{axis}", shape[axis],
                           f"a divisor of {listed}: {_listed_divisors(sizes.values())}")
    shards = shape["data"] * shape["fsdp"] * num_microbatches
    if batch_size % shards:
      raise SettingError(
          "TaskData.batch_size", batch_size,
          f"a multiple of {shards} = {shape['data'] * shape['fsdp']} devices that split the batch x "
          f"{num_microbatches} microbatches")
    if eval_batch_size and eval_batch_size % (shape["data"] * shape["fsdp"]):
      raise SettingError("TaskData.eval_batch_size", eval_batch_size,
                         f"a multiple of {shape['data'] * shape['fsdp']}, the devices that split it")

  def shape(self, num_devices=None):
    """Returns {"data": ..., "fsdp": ..., "tensor": ...}; without a number for the devices there are."""
    num_devices = jax.device_count() if num_devices is None else num_devices
    given = self.data if self.fsdp is None else self.fsdp
    rest = num_devices // ((given or 1) * self.tensor)
    data, fsdp = (given or 1, rest) if self.fsdp is None else (self.data or rest, given)
    if data * fsdp * self.tensor != num_devices:
      degrees = dict(data=self.data, fsdp=self.fsdp, tensor=self.tensor)
      name = next((n for n in ("tensor", "fsdp", "data") if degrees[n] and num_devices % degrees[n]), "data")
      raise SettingError(
          f"MeshConfig.{name}", degrees[name], f"data x fsdp x tensor = {num_devices}, the number of "
          f"devices, so a divisor of it ({_listed_divisors([num_devices])}); given are "
          + ", ".join(f"{n} = {degree}" for n, degree in degrees.items() if degree))
    if self.slices and data % self.slices:
      raise SettingError("MeshConfig.slices", self.slices,
                         f"a divisor of data = {data}: {_listed_divisors([data])}")
    return dict(data=data, fsdp=fsdp, tensor=self.tensor)

  def make(self, devices=None):
    """Returns the jax.sharding.Mesh. Its axes are Auto: constraints are hints for GSPMD.

    Args:
      devices: None for all there are.
    """
    devices = jax.devices() if devices is None else devices
    shape = self.shape(len(devices))
    groups = _slices(devices, self.slices)
    inner = shape["data"] // len(groups), shape["fsdp"], shape["tensor"]
    if shape["data"] % len(groups):
      raise SettingError("MeshConfig.data", self.data, f"a multiple of the {len(groups)} TPU slices")
    arranged = [mesh_utils.create_device_mesh(inner, group) for group in groups]
    return jax.sharding.Mesh(np.concatenate(arranged), tuple(shape),
                             axis_types=(jax.sharding.AxisType.Auto,) * len(shape))

  def make_abstract(self, num_devices):
    """Returns the mesh of so many devices, which need not exist, for shapes alone."""
    shape = self.shape(num_devices)
    return jax.sharding.AbstractMesh(tuple(shape.values()), tuple(shape))


# Axis of the mesh -> dims of T5Config that it splits.
_SPLIT_DIMS = {"tensor": ("num_heads", "mlp_dim", "vocab_size"), "fsdp": ("emb_dim",)}


def _listed_divisors(numbers):
  common = math.gcd(*numbers)
  return ", ".join(str(i) for i in range(1, common + 1) if common % i == 0)


def _slices(devices, count):
  """Returns lists of equally many devices: TPU slices, else neighbours among the hosts."""
  number = lambda device: getattr(device, "slice_index", None) or 0
  num_found = len(set(map(number, devices)))
  # Other devices have no slices, or every process one of its own; a slice is whole hosts there.
  is_tpu = devices[0].platform == "tpu"
  count = count or (num_found if is_tpu else 1)
  if is_tpu and num_found > 1 and count != num_found:
    raise SettingError("MeshConfig.slices", count, f"{num_found}, the number of TPU slices")
  num_hosts = len({device.process_index for device in devices})
  if not is_tpu and num_hosts > 1 and num_hosts % count:
    raise SettingError("MeshConfig.slices", count,
                       f"a divisor of the {num_hosts} processes: {_listed_divisors([num_hosts])}")
  key = lambda device: (number(device) if is_tpu else 0, device.process_index, device.id)
  ordered, size = sorted(devices, key=key), len(devices) // count
  return [ordered[i * size:(i + 1) * size] for i in range(count)]


def check_host_memory(setting, value, valid):
  """Raises SettingError if the devices cannot reach the host's memory."""
  device = jax.local_devices()[0]
  if HOST_MEMORY not in {memory.kind for memory in device.addressable_memories()}:
    raise SettingError(setting, value, f"{valid}: {device.device_kind} has no {HOST_MEMORY} memory")


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


def local_shards(mesh):
  """Which of the equal parts of a batch this process needs: (their numbers ascending, how many)."""
  count = mesh.shape["data"] * mesh.shape["fsdp"]
  parts = of_batch(mesh).addressable_devices_indices_map((count,)).values()
  return sorted({part[0].start or 0 for part in parts}), count


def put_batch(batch, mesh):
  """Moves this process's parts of a host batch to the devices as global arrays, asynchronously."""
  shards, count = local_shards(mesh)

  def put(array):
    size = len(array) // len(shards)
    local = lambda index: shards.index((index[0].start or 0) // size) * size
    return jax.make_array_from_callback(
        (size * count, *array.shape[1:]), of_batch(mesh),
        lambda index: array[local(index):local(index) + size])

  return {name: put(array) for name, array in batch.items()}


def put_whole_batch(batch, mesh):
  """Like put_batch, of a batch that every process has as a whole."""
  return {name: jax.make_array_from_callback(array.shape, of_batch(mesh), array.__getitem__)
          for name, array in batch.items()}


def put_everywhere(number, mesh):
  """Copies a NumPy scalar, the same in every process, to all devices, asynchronously."""
  return jax.make_array_from_callback((), replicated(mesh), lambda _: number)


def to_host(tree, mesh):
  """Returns a tree of global arrays as NumPy arrays, in each process. All must call it."""
  if jax.process_count() > 1:
    tree = jax.jit(lambda x: x, out_shardings=replicated(mesh))(tree)
  return jax.device_get(tree)


def local_mesh():
  """A mesh of one device, for what one process does alone while its others wait."""
  return jax.sharding.Mesh(np.array(jax.local_devices()[:1]).reshape(1, 1, 1),
                           ("data", "fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
