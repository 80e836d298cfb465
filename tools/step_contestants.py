"""The train steps that benchmark.py times: t5jax's of a run, and transformers' T5 in PyTorch.

A contestant is a class with `prepare() -> seconds` (compile, first step), `steps(n) -> seconds`,
`matmul_flops() -> FLOP/s` of its library's best large matmul, and `peak_bytes()`. Each lives in a
process of its own, so that neither library's threads or memory are in the other's way.
"""

import dataclasses
import os
import resource
import sys
import tempfile
import time

import numpy as np

_WARMUP = 2  # Steps after the first; allocators and caches settle.


class T5jax:
  """The train step of a run, on random tokens or on the run's own data.

  Args:
    gin_files: of the run.
    bindings: "NAME=value" of the run.
    model: T5Config with vocab_size set.
    with_data: read the run's data instead of random tokens; its vocabulary then sizes the model.
  """

  def __init__(self, gin_files, bindings, model, with_data):
    from t5jax import config

    self.trainer, _ = config.build("t5jax.trainer.Trainer", gin_files, bindings)
    self.model, self.with_data = model, with_data
    self.input_wait = 0.0  # Seconds, since `prepare`.

  def prepare(self):
    """Compiles and runs the first steps; returns the seconds until the first step was done."""
    import jax

    from t5jax import sharding, state as states, step as steps

    trainer = self.trainer
    trainer.check() if self.with_data else trainer.check_without_data()
    self.mesh = trainer.mesh.make()
    self._batches = self._read() if self.with_data else self._random()
    state = states.create(self.model, trainer.optimizer, trainer.max_grad_norm, self.mesh, 0,
                          trainer.optimizer_memory)
    jitted = steps.compile_train_step(
        jax.tree.map(lambda x: x.sharding, state), model=self.model, optimizer=trainer.optimizer,
        z_loss=trainer.z_loss, max_grad_norm=trainer.max_grad_norm,
        num_microbatches=trainer.num_microbatches)
    self._state, self._key = state, jax.random.key(0)
    batch = sharding.put_batch(next(self._batches), self.mesh)
    jax.block_until_ready((state, batch))
    begin = time.monotonic()
    with sharding.use(self.mesh):
      self.compiled = jitted.lower(state, batch, np.float32(1e-3), self._key).compile()
    self.compile_seconds = time.monotonic() - begin
    self.steps(1)
    seconds = time.monotonic() - begin
    self.steps(_WARMUP)
    self.input_wait = 0.0
    return seconds

  def steps(self, count):
    """Trains so many steps; returns the seconds, in which the device finished them."""
    import jax

    from t5jax import sharding

    begin = time.monotonic()
    for _ in range(count):
      asked = time.monotonic()
      batch = next(self._batches)
      self.input_wait += time.monotonic() - asked
      self._state, sums = self.compiled(
          self._state, sharding.put_batch(batch, self.mesh), np.float32(1e-3), self._key)
    jax.block_until_ready((self._state, sums))
    return time.monotonic() - begin

  def program(self):
    """Returns {"matmul_flops", "temporary_bytes"} of the compiled step: on one device, as planned."""
    from t5jax import compiled

    return dict(matmul_flops=compiled.matmul_flops(self.compiled.as_text()),
                temporary_bytes=self.compiled.memory_analysis().temp_size_in_bytes)

  def peak_flops(self):
    """Returns the FLOP/s that the data sheets of all devices promise, or None."""
    import jax

    from t5jax.model import flops

    peak = flops.peak_flops(jax.devices()[0])
    return peak and peak * self.num_devices()

  def num_devices(self):
    """Returns the number of devices that share the work."""
    return self.mesh.size

  def device(self):
    """Returns what the devices are."""
    import jax

    return f"jax {jax.__version__}, {self.num_devices()} x {jax.devices()[0].device_kind}"

  def matmul_flops(self):
    """Returns FLOP/s of XLA's best large matmul in the activations' dtype on one device."""
    import jax
    import jax.numpy as jnp

    size = 1536 if jax.default_backend() == "cpu" else 8192
    x = jax.device_put(jnp.ones((size, size), self.model.dtype), jax.devices()[0])
    multiply = jax.jit(jnp.matmul)
    return _best_flops(size, lambda: jax.block_until_ready(multiply(x, x)))

  def peak_bytes(self):
    """Returns the most memory held so far: the device's, or on a CPU this process'."""
    import jax

    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use") or _resident_peak()

  def _read(self):
    self._folder = tempfile.TemporaryDirectory()  # The iterator reads its vocabulary.
    self.model = self.trainer.model.with_vocabulary(self.trainer.data.prepare(self._folder.name).size)
    return self.trainer.data.train_iterator()

  def _random(self):
    data = self.trainer.data
    batch = random_batch(self.model.vocab_size, data.batch_size, data.feature_lengths)
    if data.pack:  # One segment a row is as much work as several.
      batch.update(encoder_segment_ids=np.ones_like(batch["encoder_input_tokens"]),
                   decoder_segment_ids=np.ones_like(batch["decoder_input_tokens"]))
    while True:
      yield batch


class Transformers:
  """transformers' T5 with AdamW, of the same shape, on random tokens.

  Args:
    model: T5Config with vocab_size set.
    batch_size: examples.
    lengths: {"inputs": int, "targets": int}.
    compile: whether to torch.compile the model.
  """

  def __init__(self, model, batch_size, lengths, compile):
    self.model, self.batch_size, self.lengths, self.compile = model, batch_size, lengths, compile

  def prepare(self):
    """Compiles, if asked to, and runs the first steps; returns the seconds of the first step."""
    import torch

    self.device = "cuda" if torch.cuda.is_available() else "cpu"
    network = _torch_model(self.model).to(self.device).train()
    self._optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True)
    self._parameters = list(network.parameters())
    self._network = torch.compile(network) if self.compile else network
    batch = random_batch(self.model.vocab_size, self.batch_size, self.lengths)
    tensor = lambda name: torch.from_numpy(batch[name].astype(np.int64)).to(self.device)
    self._batch = dict(input_ids=tensor("encoder_input_tokens"),
                       decoder_input_ids=tensor("decoder_input_tokens"),
                       labels=tensor("decoder_target_tokens"))
    self._batch["attention_mask"] = torch.ones_like(self._batch["input_ids"])
    seconds = self.steps(1)
    self.steps(_WARMUP)
    return seconds

  def steps(self, count):
    """Trains so many steps; returns the seconds, in which the device finished them."""
    import torch

    cast = torch.autocast(self.device, torch.bfloat16, enabled=self.model.dtype == "bfloat16")
    begin = time.monotonic()
    for _ in range(count):
      with cast:
        loss = self._network(**self._batch).loss
      loss.backward()
      torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
      self._optimizer.step()
      self._optimizer.zero_grad(set_to_none=True)
    if self.device == "cuda":
      torch.cuda.synchronize()
    return time.monotonic() - begin

  def matmul_flops(self):
    """Returns FLOP/s of PyTorch's best large matmul in the activations' dtype."""
    import torch

    size = 1536 if self.device == "cpu" else 8192
    x = torch.ones(size, size, dtype=getattr(torch, self.model.dtype), device=self.device)

    def multiply():
      x @ x
      if self.device == "cuda":
        torch.cuda.synchronize()

    return _best_flops(size, multiply)

  def peak_bytes(self):
    """Returns the most memory held so far: the device's, or on a CPU this process'."""
    import torch

    return torch.cuda.max_memory_allocated() if self.device == "cuda" else _resident_peak()


def _torch_model(config):
  """A T5ForConditionalGeneration of a T5Config's shape, in float32."""
  import torch
  import transformers

  from t5jax.convert import hf

  values = hf.config_to_hf(config) | dict(use_cache=False)
  network = transformers.T5ForConditionalGeneration(transformers.T5Config(**values))
  network.config.dropout_rate = config.dropout_rate
  for module in network.modules():
    if isinstance(module, torch.nn.Dropout):
      module.p = config.dropout_rate
  if not config.logits_via_embedding:  # transformers 5 ties the head of any model made of a config.
    network.lm_head = torch.nn.Linear(config.emb_dim, config.vocab_size, bias=False)
  return network


def random_batch(vocab_size, batch_size, lengths):
  """Returns a model batch of full rows of random tokens, as NumPy arrays."""
  rng = np.random.default_rng(0)
  draw = lambda name: rng.integers(2, vocab_size, (batch_size, lengths[name]), dtype=np.int32)
  targets = draw("targets")
  return dict(encoder_input_tokens=draw("inputs"), decoder_target_tokens=targets,
              decoder_input_tokens=np.pad(targets, [(0, 0), (1, 0)])[:, :-1],
              decoder_loss_weights=np.ones(targets.shape, np.float32))


def _best_flops(size, multiply):
  multiply()
  times = []
  for _ in range(10):
    begin = time.monotonic()
    multiply()
    times.append(time.monotonic() - begin)
  return 2 * size ** 3 / min(times)


def _resident_peak():
  scale = 1 if sys.platform == "darwin" else 1024
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def serve(connection, make, arguments):
  """Makes a contestant in this process, and answers (method, arguments) until None comes.

  What a user can do something about, a ValueError, is an answer as well.
  """
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  contestant = make(*arguments)
  while (call := connection.recv()) is not None:
    method, values = call
    answer = getattr(contestant, method)
    try:
      connection.send(answer(*values) if callable(answer) else answer)
    except ValueError as error:
      connection.send(ValueError(str(error)))  # Any of its kinds can be sent as this one.
