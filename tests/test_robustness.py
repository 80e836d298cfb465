"""Donated buffers, NaNs, full memory, TensorFlow's hands off accelerators, layouts that compile well."""

import ast
import pathlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from t5jax import config, optim, sharding, state as states, step as steps, train
from t5jax.data import cache, iterator
from tests import tiny

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture
def trained():
  """A mesh of one device, a state on it, its train step and a batch."""
  mesh = sharding.local_mesh()

  def make(optimizer):
    model = tiny.model(num_encoder_layers=1, num_decoder_layers=1)
    with sharding.use(mesh):
      state = states.create(model, optimizer, None, mesh, seed=0)
      step = steps.compile_train_step(jax.tree.map(lambda x: x.sharding, state), model=model,
                                      optimizer=optimizer)
    evaluate = jax.jit(lambda params, batch: steps.eval_step(params, batch, model=model))
    return mesh, state, step, evaluate, sharding.put_batch(tiny.batch(), mesh)

  return make


@pytest.mark.parametrize("optimizer", [optim.adamw_rms, optim.schedule_free_adamw])
def test_donated_buffers_are_used_up_and_never_touched_again(trained, optimizer):
  mesh, state, step, evaluate, batch = trained(optimizer)
  with warnings.catch_warnings(), sharding.use(mesh):
    warnings.filterwarnings("error", message=".*donated")
    for _ in range(2):
      old = state
      state, _ = step(state, batch, np.float32(0.01), jax.random.key(0))
      assert np.isfinite(evaluate(state.eval_params(), batch)["loss"][0])
      assert all(x.is_deleted() for x in jax.tree.leaves(old.params))


def test_nans_can_be_debugged(trained):
  """JAX_DEBUG_NANS finds none in a sound run, and says so where there is one."""
  with jax.debug_nans(True):  # Set before anything is compiled, as by the variable: JAX donates less.
    mesh, state, step, _, batch = trained(optim.adamw_rms)
  with sharding.use(mesh), jax.debug_nans(True):
    state, _ = step(state, batch, np.float32(0.01), jax.random.key(0))
    spoiled = state._replace(params=jax.tree.map(lambda x: jnp.full_like(x, jnp.inf), state.params))
    with pytest.raises(FloatingPointError, match="nan"):
      step(spoiled, batch, np.float32(0.01), jax.random.key(0))


@pytest.fixture
def compiling_anew():
  """Nothing is taken from the cache of compiled programs, which would also keep the compiler silent."""
  jax.config.update("jax_enable_compilation_cache", False)
  compilation_cache.reset_cache()
  yield
  jax.config.update("jax_enable_compilation_cache", True)
  compilation_cache.reset_cache()


def test_the_lookup_needs_no_full_copy(capfd, compiling_anew):
  """XLA warns where it knows of no way between two layouts but to put the whole array together."""
  model = tiny.model(num_encoder_layers=1, num_decoder_layers=1)
  mesh = sharding.MeshConfig(data=2, fsdp=2, tensor=2).make()
  params = states.abstract(model, optim.momentum, None, mesh).params
  batch = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding.of_batch(mesh))
           for name, x in tiny.batch().items()}
  gradient = jax.jit(lambda params, batch: steps.gradients(model, params, batch, 0.0, 1)[0],
                     out_shardings=jax.tree.map(lambda x: x.sharding, params))
  with sharding.use(mesh):
    gradient.lower(params, batch).compile()
  assert "rematerialization" not in capfd.readouterr().err


def test_full_memory_is_explained():
  trainer, _ = config.build("t5jax.trainer.Trainer", ["text.gin"], [
      "MODEL_DIR=x", "TRAIN_FILES=x", "VOCAB_SIZE=8000", "MICROBATCHES=2", "REMAT=minimal"])
  with pytest.raises(ValueError) as caught, train.memory_advice(trainer):
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nmore")
  text = str(caught.value)
  for part in ("batches of 128 examples in 2 microbatch(es)", "inputs 512, targets 114",
               "activations in bfloat16", "1. --gin.MICROBATCHES = 4", "2. --gin.REMAT = full",
               "3. --gin.MeshConfig.fsdp = 8", "Out of memory allocating 9 bytes."):
    assert part in text
  assert "4. " not in text and "more" not in text.splitlines()[-1]
  with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), train.memory_advice(trainer):
    raise jax.errors.JaxRuntimeError("INTERNAL: something else")


def test_variables_that_users_set_are_left_alone():
  """The package writes to os.environ by setdefault alone."""
  for path in (p for folder in ("t5jax", "tools", "tasks") for p in (ROOT / folder).rglob("*.py")):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
      is_environ = lambda x: isinstance(x, ast.Attribute) and x.attr == "environ"
      written = isinstance(node, ast.Subscript) and is_environ(node.value) and not isinstance(
          node.ctx, ast.Load)
      called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and (
          node.func.attr == "putenv" or is_environ(node.func.value) and node.func.attr not in (
              "get", "setdefault", "items", "copy"))
      assert not written and not called, f"{path}:{node.lineno}"


def test_tensorflow_sees_no_accelerator(monkeypatch):
  import tensorflow as tf

  hidden = []
  monkeypatch.setattr(tf.config, "set_visible_devices", lambda *arguments: hidden.append(arguments))
  iterator._import_tensorflow()
  assert hidden == [([], "GPU"), ([], "TPU")]


def test_nor_does_it_in_worker_processes(tmp_path, monkeypatch):
  """A process that writes a part of a cache prepares, which hides them, before all else."""

  class Data:
    """A TaskData that goes no further."""
    name = "task"

    def prepare(self, folder):
      raise EOFError

  with pytest.raises(EOFError):
    cache._write_part(Data(), str(tmp_path), "task", "train", 0, 2)
  called = []
  monkeypatch.setattr(iterator, "_import_tensorflow", lambda: called.append(1) or 1 / 0)
  data = iterator.TaskData("task", {"inputs": 8, "targets": 8}, 4)
  with pytest.raises(ZeroDivisionError):
    data.prepare(tmp_path)
  assert called
