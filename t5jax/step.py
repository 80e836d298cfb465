"""The pure train and eval steps. Shapes: B global batch, L length, V vocab."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax

from t5jax import losses, metrics, sharding, state as states
from t5jax.model.t5 import T5, head_kernel
from t5jax.optim.by_layer import is_on_host, update_by_layer
from t5jax.optim.precision import as_float32
from t5jax.settings import SettingError


def forward(model, params, batch, z_loss, dropout_key=None, label_key=None):
  """Runs the model on a batch. No dropout without a key.

  With a `label_key` the targets are drawn from the model's own softmax.

  Returns:
    The sum of the losses, float32, which can be differentiated; and {name: (sum, weight)} of what it
    is made of: loss (cross entropy in nats), z_loss, accuracy.
  """
  rngs = {} if dropout_key is None else {"dropout": dropout_key}
  hidden = T5(model, deterministic=dropout_key is None).apply(
      {"params": params}, batch["encoder_input_tokens"], batch["decoder_input_tokens"],
      batch.get("encoder_segment_ids"), batch.get("decoder_segment_ids"), rngs=rngs, method="decode")
  weights = batch["decoder_loss_weights"]
  total, tokens = losses.head_losses(
      hidden, head_kernel(model, params), batch["decoder_target_tokens"], weights, z_loss, label_key)
  return total, metrics.of_tokens(tokens, weights)


def gradients(model, params, batch, z_loss, num_microbatches, dropout_key=None, label_key=None):
  """Gradient of the loss per target token, whatever the number of microbatches.

  Each microbatch's sum of losses is divided by the weights of the whole batch, so their gradients
  simply add up; targets of unequal lengths weigh by their tokens. Accumulated in float32.

  Args:
    model: T5Config.
    params: nested dict of arrays.
    batch: dict of arrays [B, ...]; B a multiple of num_microbatches.
    z_loss: weight of the penalty on the softmax's normaliser.
    num_microbatches: sequential parts of the batch.
    dropout_key: None for no dropout.
    label_key: None for the batch's own targets, else they are drawn from the model's softmax.

  Returns:
    (gradients like params, float32 if accumulated; metrics of the whole batch).
  """
  total = jnp.maximum(jnp.sum(batch["decoder_loss_weights"]), 1.0)

  def loss(params, part, keys):
    part_loss, sums = forward(model, params, part, z_loss, *keys)
    return part_loss / total, sums

  keys = dropout_key, label_key
  gradient = jax.grad(loss, has_aux=True)
  if num_microbatches == 1:
    return gradient(params, batch, keys)

  def accumulate(carry, part_and_index):
    part, index = part_and_index
    own = jax.tree.map(lambda key: jax.random.fold_in(key, index), keys)
    return jax.tree.map(jnp.add, carry, gradient(params, part, own)), None

  # Part i takes every num_microbatches-th row: each device cuts its own rows, none move.
  parts = jax.tree.map(
      lambda x: x.reshape(-1, num_microbatches, *x.shape[1:]).swapaxes(0, 1), batch)
  zeros = jax.tree.map(
      lambda x: jnp.zeros(x.shape, jnp.float32),
      jax.eval_shape(gradient, params, jax.tree.map(lambda x: x[0], parts), keys))
  return jax.lax.scan(accumulate, zeros, (parts, jnp.arange(num_microbatches)))[0]


def train_step(state, batch, learning_rate, key, curvature_batch=None, *, model, optimizer,
               z_loss=0.0, max_grad_norm=None, num_microbatches=1):
  """One optimizer update.

  Args:
    state: TrainState.
    batch: dict of arrays: encoder_input_tokens [B, L], decoder_input_tokens,
      decoder_target_tokens, decoder_loss_weights, each [B, target length].
    learning_rate: float32 scalar.
    key: the run's random key; the step folds its own number in.
    curvature_batch: another batch, for an optimizer that asks for curvature (optim/sophia.py).
    model: T5Config.
    optimizer: function of the learning rate that returns an optax transformation.
    z_loss: weight of the penalty on the softmax's normaliser.
    max_grad_norm: largest global norm of the gradient, or None.
    num_microbatches: sequential parts of the batch.

  Returns:
    (new TrainState, {name: (sum, weight)}): token metrics, norms of gradient (before clipping),
    parameters (after the update) and update.
  """
  dropout_key, rounding_key, label_key = jax.random.split(jax.random.fold_in(key, state.step), 3)
  grads, sums = gradients(model, state.params, batch, z_loss, num_microbatches,
                          dropout_key if model.dropout_rate else None)
  extra = dict(key=rounding_key, grad_norm=optax.tree.norm(as_float32(grads)))
  if curvature_batch is not None:
    curvature, _ = gradients(model, state.params, curvature_batch, 0.0, num_microbatches,
                             label_key=label_key)
    extra.update(curvature_gradients=states.clip(as_float32(curvature), max_grad_norm),
                 curvature_scale=jnp.sum(curvature_batch["decoder_loss_weights"]))

  state, update_norm = apply_gradients(state, grads, learning_rate, extra, model=model,
                                       optimizer=optimizer, max_grad_norm=max_grad_norm)
  norms = dict(grad_norm=extra["grad_norm"], param_norm=optax.tree.norm(as_float32(state.params)),
               update_norm=update_norm)
  return state, {**sums, **{name: metrics.single(norm) for name, norm in norms.items()}}


def apply_gradients(state, grads, learning_rate, extra, *, model, optimizer, max_grad_norm=None):
  """Returns (the next TrainState, norm of the update).

  Args:
    state: TrainState; what of it is in the host's memory is updated layer by layer, and stays there.
    grads: nested dict like the parameters.
    learning_rate: float32 scalar.
    extra: dict of what else the update of states.transformation takes.
    model, optimizer, max_grad_norm: as in train_step.
  """
  def update(kept, read, layer):
    (params, opt_state), (grads, learning_rate, extra) = kept, read
    chain = states.transformation(model, optimizer, learning_rate, max_grad_norm)
    updates, opt_state = chain.update(grads, opt_state, params, layer=layer, **extra)
    squares = jax.tree.map(lambda u: jnp.sum(jnp.square(u)), updates)
    return (optax.apply_updates(params, updates), opt_state), squares

  kept, read = (state.params, state.opt_state), (grads, learning_rate, extra)
  if any(map(is_on_host, jax.tree.leaves(state.opt_state))):
    (params, opt_state), square = update_by_layer(update, kept, read)
  else:
    (params, opt_state), squares = update(kept, read, None)
    square = optax.tree.sum(squares)
  return states.TrainState(state.step + 1, params, opt_state), jnp.sqrt(square)


def check_by_layer(model, optimizer):
  """Tries on a small model whether layers updated one by one end as those updated together.

  Args:
    model: T5Config.
    optimizer: function of the learning rate that returns an optax transformation.

  Raises:
    SettingError: they do not: the optimizer makes one layer's update depend on others, or draws
      random numbers for all at once.
  """
  small = dataclasses.replace(
      model, emb_dim=64, num_heads=2, head_dim=32, mlp_dim=64, num_encoder_layers=2, num_decoder_layers=2,
      vocab_size=32, dtype="float32", attention="xla", param_precision="float32")
  update = jax.jit(functools.partial(apply_gradients, model=small, optimizer=optimizer))
  begun, ended = [], []
  for memory in ("device", "host"):
    state = states.create(small, optimizer, None, sharding.local_mesh(), 0, memory)
    # Layers of unequal size, or what looks at all of them would find each as large as the whole.
    unequal = lambda x: x * (1 + jnp.arange(x.shape[0]).reshape(-1, *[1] * (x.ndim - 1)))
    state = state._replace(params=jax.tree.map(unequal, state.params))
    begun.append(state.params)
    for number in range(2):
      grads = optax.tree.random_like(jax.random.key(number), state.params)
      state, _ = update(state, jax.tree.map(unequal, grads), 0.1, {"key": jax.random.key(0)})
    ended.append(state.params)
  moves, others = (jax.tree.map(jnp.subtract, *pair) for pair in zip(ended, begun))
  for move, other in zip(jax.tree.leaves(moves), jax.tree.leaves(others)):
    # A hundredth of the whole: 8-bit states may round an entry the other way.
    if jnp.abs(move - other).sum() > 0.01 * jnp.abs(move).sum():
      raise SettingError("Trainer.optimizer_memory", "host", "'device': with this optimizer layers updated "
                         "one by one end elsewhere than together")


def eval_step(params, batch, *, model):
  """Returns the token metrics of a batch, without dropout."""
  return forward(model, params, batch, z_loss=0.0)[1]


def compile_train_step(layout, **settings):
  """Returns train_step jitted for a state of this layout (a tree of shardings), which it donates."""
  return jax.jit(functools.partial(train_step, **settings), donate_argnums=0,
                 out_shardings=(layout, None))
