"""Each optimizer written out in float64, for one original matrix, after paper or authors' code.

A reference `name(key, p, g, t, lr, memory, **settings)` returns the matrix after update t (from 1).
`key` is (path, layer), `memory` a dict of the matrix's own. Nothing is shared with the package.
adafactor_hf, adamw, momentum and schedule_free_adamw equal, within 2e-15, what transformers 5.24,
torch 2.13 and schedulefree 1.4.1 make of the same fifty gradients.
"""

import functools

import numpy as np

from tests.optim import trees

NOT_DECAYED = ("scale", "rel_embedding")
CURVATURE_EVERY = 10


def trajectory(one, rates):
  """Yields {key: matrix} after each update."""
  params = trees.original_matrices(trees.parameters())
  memories = {key: {} for key in params}
  for t, lr in enumerate(rates, start=1):
    grads = trees.original_matrices(trees.gradients(t - 1))
    params = {key: one(key, p, grads[key], t, lr, memories[key]) for key, p in params.items()}
    yield params


def rms(x):
  return np.sqrt(np.mean(x * x))


def decay_of(key, weight_decay):
  return 0.0 if key[0][-1] in NOT_DECAYED else weight_decay


def average(memory, name, decay, new):
  memory[name] = decay * memory.get(name, 0.0) + (1 - decay) * new
  return memory[name]


def adamw(key, p, g, t, lr, memory, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0):
  m, v = average(memory, "m", b1, g), average(memory, "v", b2, g ** 2)
  u = m / (1 - b1 ** t) / (np.sqrt(v / (1 - b2 ** t)) + eps)
  return p - lr * (u + decay_of(key, weight_decay) * p)


def adamw_rms(key, p, g, t, lr, memory, b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.0):
  m, v = average(memory, "m", b1, g), average(memory, "v", b2, g ** 2)
  size = lr * max(1e-3, rms(p)) * np.sqrt(1 - b2 ** t) / (1 - b1 ** t)
  p = p - size * m / (np.sqrt(v) + eps)
  return p - lr * decay_of(key, weight_decay) * p


def _factored(g, t, memory, smallest):
  beta, square = 1 - t ** -0.8, g ** 2 + 1e-30
  if g.ndim == 2 and min(g.shape) >= smallest:
    row = average(memory, "row", beta, square.mean(axis=1))
    col = average(memory, "col", beta, square.mean(axis=0))
    u = g / np.sqrt(np.outer(row, col) / row.mean())
  else:
    u = g / np.sqrt(average(memory, "v", beta, square))
  return u / max(1, rms(u))


def adafactor(key, p, g, t, lr, memory, beta1=None, weight_decay=0.0):
  d = lr * max(1e-3, rms(p)) * _factored(g, t, memory, 128)
  if beta1 is not None:
    d = average(memory, "m", beta1, d)
  return p - d - lr * decay_of(key, weight_decay) * p


def adafactor_hf(key, p, g, t, lr, memory, beta1=None, scale_parameter=True, relative_step=True,
                 warmup_init=False, weight_decay=0.0):
  if relative_step:
    lr = lr * min(1e-6 * t if warmup_init else 1e-2, 1 / np.sqrt(t))
  if scale_parameter:
    lr = lr * max(1e-3, rms(p))
  d = lr * _factored(g, t, memory, 1)
  if beta1 is not None:
    d = average(memory, "m", beta1, d)
  return p - lr * decay_of(key, weight_decay) * p - d


def lion(key, p, g, t, lr, memory, b1=0.9, b2=0.99, weight_decay=0.0):
  u = np.sign(b1 * memory.get("m", 0.0) + (1 - b1) * g)
  average(memory, "m", b2, g)
  return p - lr * (u + decay_of(key, weight_decay) * p)


def lion_rms(key, p, g, t, lr, memory, **settings):
  return lion(key, p, g, t, lr * max(1e-3, rms(p)), memory, **settings)


def momentum(key, p, g, t, lr, memory, decay=0.9, nesterov=False, weight_decay=0.0):
  m = memory["m"] = decay * memory.get("m", 0.0) + g
  u = g + decay * m if nesterov else m
  return p - lr * (u + decay_of(key, weight_decay) * p)


def sophia_g(key, p, g, t, lr, memory, b1=0.965, b2=0.99, rho=0.04, curvature_batch_size=None,
             weight_decay=0.0, scaled=False):
  """No Train No Gain's: B multiplies in the denominator, RMS is that of the decayed matrix."""
  if (t - 1) % CURVATURE_EVERY == 0:
    curvature = trees.original_matrices(trees.gradients(trees.CURVATURE + t - 1))[key]
    average(memory, "h", b2, curvature ** 2)
  batch_size = curvature_batch_size or trees.CURVATURE_BATCH_SIZE
  m = average(memory, "m", b1, g)
  p = p * (1 - lr * decay_of(key, weight_decay))
  ratio = np.minimum(np.abs(m) / (rho * batch_size * memory["h"] + 1e-15), 1)
  return p - lr * (max(1e-3, rms(p)) if scaled else 1) * np.sign(m) * ratio


sophia_g_rms = functools.partial(sophia_g, rho=0.01, curvature_batch_size=5120, scaled=True)


def muon(key, p, g, t, lr, memory, beta=0.95, consistent_rms=0.2, weight_decay=0.0):
  if key[0][-1] != "kernel" or "logits_dense" in key[0]:
    return adamw(key, p, g, t, lr, memory, b2=0.95, weight_decay=weight_decay)
  m = average(memory, "m", beta, g)
  x = beta * m / (1 - beta ** (t + 1)) + (1 - beta) * g / (1 - beta ** t)
  x = x / (np.linalg.norm(x) + 1e-8)
  for _ in range(5):
    square = x @ x.T
    x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
  rows, columns = p.shape
  scale = (max(1, columns / rows) ** 0.5 if consistent_rms is None
           else consistent_rms * max(rows, columns) ** 0.5)
  return p - lr * (scale * x + decay_of(key, weight_decay) * p)


def schedule_free_adamw(key, p, g, t, lr, memory, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0):
  """The three sequences of the paper; p is y."""
  x, z = memory.get("x", p), memory.get("z", p)
  v = average(memory, "v", b2, g ** 2)
  z = z - lr * (g / (np.sqrt(v / (1 - b2 ** t)) + eps) + decay_of(key, weight_decay) * p)
  memory["highest"] = max(lr, memory.get("highest", 0.0))
  weight = memory["highest"] ** 2
  memory["sum"] = memory.get("sum", 0.0) + weight
  x = x + weight / memory["sum"] * (z - x)
  memory.update(x=x, z=z)
  return b1 * x + (1 - b1) * z
