"""What a train step needs of each device's memory: from shapes alone, and as compiled.

    parameters, optimizer   the state, as the mesh lays it out
    gradients               in the parameters' dtype; with microbatches float32 sums besides
    activations             what the forward pass keeps for the backward pass: JAX's own residuals,
                            traced, so that dtypes and recomputation count as they are
    workspace               the peak on top: float32 logits of a chunk of tokens and their gradient, or
                            those of a layer's largest array, and what the layer computes again

Activations and workspace are those of one microbatch on one device. The estimate knows neither what a
compiler fuses nor what it copies; `compiled` asks the compiler, which takes as long as it takes.

CPUs have no bfloat16 arithmetic. There the compiler works on float32 copies, and needs memory for
them: `native_bfloat16=False` counts these in.
"""

import collections
import dataclasses
import math

import jax
import jax.extend
import jax.numpy as jnp

from t5jax import sharding, state as states, step as steps
from t5jax.losses import CHUNK_TOKENS
from t5jax.model.t5 import T5
from t5jax.optim.by_layer import part_of
from t5jax.optim.matrices import is_stacked, names
from t5jax.optim.precision import param_dtype


@dataclasses.dataclass(frozen=True)
class Footprint:
  """Bytes per device of one train step; see the module."""

  parameters: int
  optimizer: int
  gradients: int
  activations: int
  workspace: int

  @property
  def total(self):
    """Bytes of everything together."""
    return sum(dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True)
class Compiled:
  """Bytes per device that the compiler has planned for a step.

  Attributes:
    arguments: the state and the batch.
    temporaries: everything between them and the new state, which takes the old one's place.
  """

  arguments: int
  temporaries: int

  @property
  def total(self):
    """Bytes of everything together."""
    return self.arguments + self.temporaries


def comparison(estimated, planned):
  """Returns a table of a Footprint beside the Compiled step, in MiB per device."""
  state = estimated.parameters + estimated.optimizer
  rows = [("parameters and optimizer", state, planned.arguments),
          ("gradients, activations, workspace", estimated.total - state, planned.temporaries),
          ("total", estimated.total, planned.total)]
  lines = [f"{'MiB per device':<36}{'estimated':>12}{'compiled':>12}{'ratio':>8}"]
  return "\n".join(lines + [f"{name:<36}{a / 2 ** 20:>12,.1f}{b / 2 ** 20:>12,.1f}{a / b:>8.2f}"
                            for name, a, b in rows])


def advice(trainer, error):
  """Returns what to say, in several lines, when a device's memory is full.

  Args:
    trainer: Trainer.
    error: what JAX raised.
  """
  model, data = trainer.model, trainer.data
  lengths = ", ".join(f"{name} {length}" for name, length in data.feature_lengths.items())
  remedies = [f"MICROBATCHES = {2 * trainer.num_microbatches}, for the same result"]
  if model.remat != "full":
    remedies.append(f"REMAT = {'minimal' if model.remat in ('none', 'dots') else 'full'}, for the same result")
  if trainer.mesh.shape()["data"] > 1:
    remedies.append(f"MeshConfig.fsdp = {jax.device_count() // trainer.mesh.tensor}, to share the "
                    "parameters, for the same result")
  if model.param_precision == "float32":
    remedies.append("PARAM_PRECISION = bfloat16_stochastic")
  if trainer.optimizer_memory == "device":
    remedies.append("OPTIMIZER_MEMORY = host, at some cost in time")
  remedies.append("BATCH_SIZE or TASK_FEATURE_LENGTHS, lower")
  listed = "".join(f"\n  {i}. --gin.{text}" for i, text in enumerate(remedies[:3], 1))
  return (f"A device's memory is full: batches of {data.batch_size} examples in "
          f"{trainer.num_microbatches} microbatch(es), lengths {lengths}, activations in {model.dtype}, "
          f"parameters in {model.param_precision}. What helps most, in this order:{listed}\n"
          f"--dry_run and tools/plan_memory.py tell what fits. JAX says: {str(error).splitlines()[0]}")


def num_parameters(model):
  """How many numbers the parameters of a T5Config are."""
  return sum(math.prod(x.shape) for x in jax.tree.leaves(states.abstract_params(model)))


def batch_shapes(batch_size, feature_lengths, mesh=None, packed=False):
  """Returns a batch as ShapeDtypeStructs, on the devices of a mesh if there is one."""
  layout = mesh and sharding.of_batch(mesh)
  array = lambda length, dtype: jax.ShapeDtypeStruct((batch_size, length), dtype, sharding=layout)
  inputs, targets = feature_lengths["inputs"], feature_lengths["targets"]
  segments = dict(encoder_segment_ids=array(inputs, jnp.int32),
                  decoder_segment_ids=array(targets, jnp.int32)) if packed else {}
  return dict(
      encoder_input_tokens=array(inputs, jnp.int32), decoder_input_tokens=array(targets, jnp.int32),
      decoder_target_tokens=array(targets, jnp.int32),
      decoder_loss_weights=array(targets, jnp.float32), **segments)


def estimate(model, optimizer, mesh, batch_size, feature_lengths, num_microbatches=1,
             native_bfloat16=True, optimizer_memory="device"):
  """Returns the Footprint of a step; nothing is allocated or compiled.

  Args:
    model: T5Config with vocab_size set.
    optimizer: function of the learning rate.
    mesh: jax.sharding.Mesh or AbstractMesh with the axes of MeshConfig.
    batch_size: examples over all devices.
    feature_lengths: {"inputs": ..., "targets": ...}.
    num_microbatches: sequential parts of the batch.
    native_bfloat16: False for a CPU.
    optimizer_memory: as Trainer's.
  """
  if not native_bfloat16:
    attention = "xla" if model.attention == "cudnn" else model.attention
    model = dataclasses.replace(model, dtype="float32", attention=attention)
  rows = batch_size / (mesh.shape["data"] * mesh.shape["fsdp"] * num_microbatches)
  fixed = state_bytes(model, optimizer, mesh, num_microbatches, native_bfloat16, optimizer_memory)
  activations, workspace = activation_bytes(model, mesh, feature_lengths)
  return dataclasses.replace(fixed, activations=activations(rows),
                             workspace=fixed.workspace + workspace(rows))


def state_bytes(model, optimizer, mesh, num_microbatches=1, native_bfloat16=True,
                optimizer_memory="device"):
  """Returns the part of `estimate` that no batch changes, as a Footprint without activations."""
  state = states.abstract(model, optimizer, None, mesh, optimizer_memory)
  parameters = gradients = _bytes_per_device(state.params)
  as_float32 = 4 * sum(_size_per_device(leaf) for leaf in jax.tree.leaves(state.params))
  copies = _gathered_bytes(state.params, mesh)
  if not native_bfloat16:
    gradients, copies = as_float32, copies + (as_float32 if parameters < as_float32 else 0)
  if num_microbatches > 1:
    gradients += as_float32
  return Footprint(parameters, _optimizer_bytes(state), gradients, 0, copies)


def activation_bytes(model, mesh, feature_lengths):
  """Returns two functions of the rows of one microbatch on one device: activations and workspace.

  Both are linear in the rows, so that two of them, traced, give all.
  """
  local = _share_of_model(model, mesh.shape["tensor"])
  chunk = lambda rows: 4 * local.vocab_size * min(rows * feature_lengths["targets"], CHUNK_TOKENS)
  saved = _linear(lambda rows: _bytes(_saved(local, rows, feature_lengths)))
  layer = _linear(lambda rows: _backward_bytes_of_layer(local, rows, feature_lengths))
  return saved, lambda rows: max(2 * chunk(rows), layer(rows))


def compiled(*arguments, **options):
  """Returns the Compiled memory of a step; see compile_step."""
  analysis = compile_step(*arguments, **options).memory_analysis()
  return Compiled(analysis.argument_size_in_bytes, analysis.temp_size_in_bytes)


def compile_step(model, optimizer, mesh, batch_size, feature_lengths, num_microbatches=1,
                 max_grad_norm=None, z_loss=0.0, optimizer_memory="device", packed=False):
  """Compiles the train step for the devices of `mesh`, and returns the jax.stages.Compiled."""
  state = states.abstract(model, optimizer, max_grad_norm, mesh, optimizer_memory)
  step = steps.compile_train_step(
      jax.tree.map(lambda x: x.sharding, state), model=model, optimizer=optimizer, z_loss=z_loss,
      max_grad_norm=max_grad_norm, num_microbatches=num_microbatches)
  batch = batch_shapes(batch_size, feature_lengths, mesh, packed)
  rate, key = jax.ShapeDtypeStruct((), jnp.float32), jax.eval_shape(lambda: jax.random.key(0))
  with sharding.use(mesh):
    return step.lower(state, batch, rate, key).compile()


def _backward_bytes_of_layer(model, rows, feature_lengths):
  """Bytes for the backward pass of a layer: what it computes again, and twice its largest array."""
  stacks = dict(num_encoder_layers=101, num_decoder_layers=103)  # By which their arrays can be told.
  model = dataclasses.replace(model, **stacks)
  kept = _saved(model, rows, feature_lengths)
  needed = _saved(dataclasses.replace(model, remat="none", decoder_remat=None), rows, feature_lengths)
  of_stack = lambda arrays, depth: [x for x in arrays if x.shape[:1] == (depth,)]
  return max(
      (_bytes(of_stack(needed, depth)) - _bytes(of_stack(kept, depth))) // depth
      + 2 * 4 * max(math.prod(x.shape[1:]) for x in of_stack(needed, depth)) for depth in stacks.values())


def _saved(model, rows, feature_lengths):
  """The results, other than parameters and batch, that the backward pass uses, without those on the host."""
  if model.attention == "cudnn":  # Cannot be traced where there is no GPU. What it saves is the same.
    model = dataclasses.replace(model, attention="pallas")
  params = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, param_dtype(model.param_precision)),
      states.abstract_params(model))

  def forward(params, batch):
    return jax.vjp(lambda p: T5(model).apply(
        {"params": p}, batch["encoder_input_tokens"], batch["decoder_input_tokens"], method="decode"), params)

  jaxpr = jax.make_jaxpr(forward)(params, batch_shapes(rows, feature_lengths)).jaxpr
  results = {x for x in jaxpr.outvars if not isinstance(x, jax.extend.core.Literal)
             and x.aval.memory_space != jax.memory.Space.Host}
  return [x.aval for x in results - set(jaxpr.invars)]


def _bytes(arrays):
  return sum(math.prod(x.shape) * x.dtype.itemsize for x in arrays)


def _optimizer_bytes(state):
  """Bytes of the states that stay on a device, and of the most that are there of those from the host."""
  params = {names(path) for path, _ in jax.tree_util.tree_leaves_with_path(state.params)}
  staying, coming = 0, collections.Counter()
  for path, leaf in jax.tree_util.tree_leaves_with_path(state.opt_state):
    if leaf.sharding.memory_kind == sharding.HOST_MEMORY:
      part = part_of(path, params)
      coming[part] += _bytes_per_device(leaf) // (leaf.shape[0] if part else 1)
    else:
      staying += _bytes_per_device(leaf)
  return staying + max(coming.values(), default=0)


def _gathered_bytes(params, mesh):
  """Bytes of the largest matrix that devices which share parameters (fsdp) put together to use it."""
  if mesh.shape["fsdp"] == 1:
    return 0

  def of_matrix(path, leaf):
    return _bytes_per_device(leaf) // (leaf.shape[0] if is_stacked(path) else 1)

  return mesh.shape["fsdp"] * max(
      of_matrix(*item) for item in jax.tree_util.tree_leaves_with_path(params))


def _linear(measure):
  """A function through measure(1) and measure(2)."""
  one, two = measure(1), measure(2)
  return lambda x: int(one + (x - 1) * (two - one))


def _share_of_model(model, tensor):
  """The T5Config of what one of `tensor` devices computes."""
  return dataclasses.replace(model, num_heads=model.num_heads // tensor,
                             mlp_dim=model.mlp_dim // tensor, vocab_size=model.vocab_size // tensor)


def _size_per_device(leaf):
  return math.prod(leaf.sharding.shard_shape(leaf.shape))


def _bytes_per_device(tree):
  return sum(_size_per_device(leaf) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
