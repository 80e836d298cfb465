"""Our parameters and configuration to a folder that Hugging Face's T5 loads, and back.

transformers 5 ties the head of every T5 that is built from a T5Config, and what its
`save_pretrained` writes means another model to transformers 4. So the files are written here,
without it: where the file holds a head beside the embedding, `from_pretrained` keeps them apart.
"""

import functools
import json
import pathlib
import re

import jax
import ml_dtypes
import numpy as np

from t5jax.convert import tokenizer
from t5jax.convert.folder import replacing
from t5jax.model.config import T5Config
from t5jax.state import abstract_params

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}

# Our path -> HF's name, `{}` the layer. Kernels are [inputs, outputs] here and transposed in
# PyTorch; so are the relative position tables. Nothing is rescaled.
_NAMES = {
    "token_embedder/embedding": "shared.weight",
    "encoder/relpos_bias/rel_embedding":
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    "encoder/encoder_norm/scale": "encoder.final_layer_norm.weight",
    "encoder/layers/pre_attention_layer_norm/scale": "encoder.block.{}.layer.0.layer_norm.weight",
    "encoder/layers/attention/query/kernel": "encoder.block.{}.layer.0.SelfAttention.q.weight",
    "encoder/layers/attention/key/kernel": "encoder.block.{}.layer.0.SelfAttention.k.weight",
    "encoder/layers/attention/value/kernel": "encoder.block.{}.layer.0.SelfAttention.v.weight",
    "encoder/layers/attention/out/kernel": "encoder.block.{}.layer.0.SelfAttention.o.weight",
    "encoder/layers/pre_mlp_layer_norm/scale": "encoder.block.{}.layer.1.layer_norm.weight",
    "encoder/layers/mlp/wi/kernel": "encoder.block.{}.layer.1.DenseReluDense.wi.weight",
    "encoder/layers/mlp/wi_0/kernel": "encoder.block.{}.layer.1.DenseReluDense.wi_0.weight",
    "encoder/layers/mlp/wi_1/kernel": "encoder.block.{}.layer.1.DenseReluDense.wi_1.weight",
    "encoder/layers/mlp/wo/kernel": "encoder.block.{}.layer.1.DenseReluDense.wo.weight",
    "decoder/relpos_bias/rel_embedding":
        "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    "decoder/decoder_norm/scale": "decoder.final_layer_norm.weight",
    "decoder/layers/pre_self_attention_layer_norm/scale":
        "decoder.block.{}.layer.0.layer_norm.weight",
    "decoder/layers/self_attention/query/kernel": "decoder.block.{}.layer.0.SelfAttention.q.weight",
    "decoder/layers/self_attention/key/kernel": "decoder.block.{}.layer.0.SelfAttention.k.weight",
    "decoder/layers/self_attention/value/kernel": "decoder.block.{}.layer.0.SelfAttention.v.weight",
    "decoder/layers/self_attention/out/kernel": "decoder.block.{}.layer.0.SelfAttention.o.weight",
    "decoder/layers/pre_cross_attention_layer_norm/scale":
        "decoder.block.{}.layer.1.layer_norm.weight",
    "decoder/layers/encoder_decoder_attention/query/kernel":
        "decoder.block.{}.layer.1.EncDecAttention.q.weight",
    "decoder/layers/encoder_decoder_attention/key/kernel":
        "decoder.block.{}.layer.1.EncDecAttention.k.weight",
    "decoder/layers/encoder_decoder_attention/value/kernel":
        "decoder.block.{}.layer.1.EncDecAttention.v.weight",
    "decoder/layers/encoder_decoder_attention/out/kernel":
        "decoder.block.{}.layer.1.EncDecAttention.o.weight",
    "decoder/layers/pre_mlp_layer_norm/scale": "decoder.block.{}.layer.2.layer_norm.weight",
    "decoder/layers/mlp/wi/kernel": "decoder.block.{}.layer.2.DenseReluDense.wi.weight",
    "decoder/layers/mlp/wi_0/kernel": "decoder.block.{}.layer.2.DenseReluDense.wi_0.weight",
    "decoder/layers/mlp/wi_1/kernel": "decoder.block.{}.layer.2.DenseReluDense.wi_1.weight",
    "decoder/layers/mlp/wo/kernel": "decoder.block.{}.layer.2.DenseReluDense.wo.weight",
    "logits_dense/kernel": "lm_head.weight",
}
_TRANSPOSED = ("kernel", "rel_embedding")

# Copies of the embedding that PyTorch checkpoints may hold beside it.
_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")

_FEED_FORWARD = {
    ("relu",): "relu",
    ("gelu",): "gelu_new",
    ("linear",): "linear",
    ("gelu", "linear"): "gated-gelu",
    ("relu", "linear"): "gated-relu",
    ("linear", "linear"): "gated-linear",
}


def params_to_hf(params, config):
  """Returns {HF name: array in PyTorch's layout}; a tied head is not repeated.

  Args:
    params: nested dict of arrays, as T5(config).init gives them, without partitioning boxes.
    config: their T5Config, vocab_size set.

  Returns:
    Views of `params` where they are NumPy arrays, any dtype; not contiguous.

  Raises:
    ValueError: `params` are not those of `config`; names the parameters.
  """
  flat = {_path(keys): np.asarray(leaf) for keys, leaf in jax.tree.leaves_with_path(params)}
  expected = _shapes(config)
  _check({path: leaf.shape for path, leaf in flat.items()}, expected, "the parameters")
  tensors = {}
  for path in expected:
    leaf = flat[path].swapaxes(-1, -2) if path.endswith(_TRANSPOSED) else flat[path]
    layers = leaf if "{}" in _NAMES[path] else [leaf]
    tensors.update(zip(_hf_names(path, expected), layers, strict=True))
  return tensors


def params_from_hf(tensors, config):
  """The inverse of params_to_hf.

  Args:
    tensors: {HF name: array}. Copies of the embedding under its other names are accepted.
    config: the T5Config they belong to.

  Returns:
    Nested dict of float32 NumPy arrays.

  Raises:
    ValueError: names the tensors that are missing, unexpected or of another shape.
  """
  shapes = _shapes(config)
  expected = {}
  for path, shape in shapes.items():
    shape = (*shape[:-2], *shape[:-3:-1]) if path.endswith(_TRANSPOSED) else shape
    shape = shape[1:] if "{}" in _NAMES[path] else shape
    expected.update(dict.fromkeys(_hf_names(path, shapes), shape))
  tensors = _without_copies(tensors, expected)
  _check({name: tensor.shape for name, tensor in tensors.items()}, expected, "the tensors")
  params = {}
  for path in shapes:
    leaves = [tensors[name] for name in _hf_names(path, shapes)]
    leaf = np.stack(leaves) if "{}" in _NAMES[path] else leaves[0]
    leaf = leaf.swapaxes(-1, -2) if path.endswith(_TRANSPOSED) else leaf
    *parents, last = path.split("/")
    node = functools.reduce(lambda tree, key: tree.setdefault(key, {}), parents, params)
    node[last] = np.ascontiguousarray(leaf, dtype=np.float32)
  return params


def _path(keys):
  return "/".join(key.key for key in keys)


def _hf_names(path, shapes):
  """The tensors that one parameter of ours becomes: one, or one for each layer."""
  name = _NAMES[path]
  return [name.format(i) for i in range(shapes[path][0])] if "{}" in name else [name]


@functools.lru_cache
def _shapes(config):
  """{path: shape} of the model's parameters."""
  params = abstract_params(config)
  return {_path(keys): leaf.shape for keys, leaf in jax.tree.leaves_with_path(params)}


def _check(found, expected, owner):
  """Raises ValueError unless both {name: shape} are the same."""
  problems = [f"{name} is missing" for name in expected if name not in found]
  problems += [f"{name} is unexpected" for name in found if name not in expected]
  problems += [f"{name} is {list(found[name])}, expected {list(shape)}"
               for name, shape in expected.items()
               if name in found and tuple(found[name]) != tuple(shape)]
  if problems:
    more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
    raise ValueError(
        f"{owner} do not fit the configuration: {'; '.join(problems[:5])}{more}.")


def _without_copies(tensors, expected):
  shared = tensors.get("shared.weight")
  is_copy = lambda name: (
      name in _COPIES and name not in expected and np.array_equal(tensors[name], shared))
  return {name: tensor for name, tensor in tensors.items() if not is_copy(name)}


def config_to_hf(config, dtype="float32", dropout_rate=0.1):
  """Returns the content of config.json for a T5Config.

  Args:
    config: vocab_size set.
    dtype: of the tensors in the folder, "float32" or "bfloat16".
    dropout_rate: what those who fine-tune the model start from; not what it was pretrained with
      (v1.1 is pretrained without and fine-tuned with 0.1).

  Raises:
    ValueError: feed-forward activations that HF's T5 has no name for.
  """
  if config.mlp_activations not in _FEED_FORWARD:
    choices = ", ".join(map(str, _FEED_FORWARD))
    raise ValueError(f"T5Config.mlp_activations = {config.mlp_activations} cannot be exported: "
                     f"Hugging Face's T5 knows {choices}.")
  return {
      "model_type": "t5",
      "architectures": ["T5ForConditionalGeneration"],
      "is_encoder_decoder": True,
      "vocab_size": config.vocab_size,
      "d_model": config.emb_dim,
      "d_kv": config.head_dim,
      "d_ff": config.mlp_dim,
      "num_heads": config.num_heads,
      "num_layers": config.num_encoder_layers,
      "num_decoder_layers": config.num_decoder_layers,
      "feed_forward_proj": _FEED_FORWARD[config.mlp_activations],
      "tie_word_embeddings": config.logits_via_embedding,
      "relative_attention_num_buckets": config.relative_attention_num_buckets,
      "relative_attention_max_distance": config.relative_attention_max_distance,
      "layer_norm_epsilon": config.layer_norm_epsilon,
      "dropout_rate": dropout_rate,
      "initializer_factor": 1.0,
      "use_cache": True,
      "pad_token_id": 0,
      "eos_token_id": 1,
      "decoder_start_token_id": 0,
      "dtype": dtype,
  }


def config_from_hf(values):
  """Returns the T5Config of a config.json of T5 or mT5, given as a dict.

  `dropout_rate` is the file's: the rate for fine-tuning.

  Raises:
    ValueError: another model type, or a feed_forward_proj that T5Config cannot express.
  """
  if values.get("model_type") not in ("t5", "mt5"):
    raise ValueError(
        f"model_type = {values.get('model_type')!r} in config.json: expected t5 or mt5.")
  projection = values.get("feed_forward_proj", "relu")
  activations = {name: key for key, name in _FEED_FORWARD.items()}.get(projection)
  if activations is None:
    raise ValueError(f"feed_forward_proj = {projection!r} in config.json is not supported: "
                     f"expected one of {', '.join(_FEED_FORWARD.values())}.")
  # transformers 5 saves every model as tied and says with another key whether it really is.
  tied = values.get("scale_decoder_outputs", values.get("tie_word_embeddings", True))
  return T5Config(
      emb_dim=values["d_model"], num_heads=values["num_heads"], head_dim=values["d_kv"],
      mlp_dim=values["d_ff"], num_encoder_layers=values["num_layers"],
      num_decoder_layers=values.get("num_decoder_layers") or values["num_layers"],
      vocab_size=values["vocab_size"], mlp_activations=activations, logits_via_embedding=tied,
      dropout_rate=values.get("dropout_rate", 0.1),
      relative_attention_num_buckets=values.get("relative_attention_num_buckets", 32),
      relative_attention_max_distance=values.get("relative_attention_max_distance", 128),
      layer_norm_epsilon=values.get("layer_norm_epsilon", 1e-6))


def export(params, config, vocabulary_path, output_dir, dtype="float32", max_shard_size="5GB",
           check=None):
  """Writes a folder that transformers loads: weights, configuration and tokenizer.

  The folder appears under its name only when it is complete; an earlier export there is replaced as
  a whole, but for README.md, LICENSE and .gitattributes. Needs neither torch nor transformers.

  Args:
    params: nested dict of float32 arrays, as checkpoint.load_params gives them.
    config: their T5Config, vocab_size set.
    vocabulary_path: the SentencePiece model of the run, `spiece.model`.
    output_dir: a new or an earlier export's folder.
    dtype: of the tensors, "float32" or "bfloat16" (rounded to nearest even).
    max_shard_size: bytes, or text such as "500MB" or "5GB": larger weights are cut into several
      files and an index. A single tensor is never cut.
    check: called with the finished folder before it is put in place; if it raises, nothing is.

  Returns:
    {file name: bytes}, in order of name.

  Raises:
    ValueError: params, config, vocabulary, dtype, max_shard_size or output_dir do not fit.
  """
  if dtype not in DTYPES:
    raise ValueError(f"dtype = {dtype!r} is not valid: expected one of {', '.join(DTYPES)}.")
  values = config_to_hf(config, dtype)
  tensors = params_to_hf(params, config)
  num_tokens = len(tokenizer.read_model(vocabulary_path).pieces) + tokenizer.EXTRA_IDS
  if num_tokens > config.vocab_size:
    raise ValueError(f"{vocabulary_path} has {num_tokens} ids, sentinels included, and the model's "
                     f"vocab_size is {config.vocab_size}: give the vocabulary it was trained with.")
  with replacing(output_dir, owned=_OWNED, kept=_KEPT) as folder:
    save_weights(tensors, folder, dtype, max_shard_size)
    _write_json(folder / "config.json", values)
    special_ids = ("pad_token_id", "eos_token_id", "decoder_start_token_id")
    _write_json(folder / "generation_config.json", {key: values[key] for key in special_ids})
    tokenizer.save_tokenizer(vocabulary_path, folder)
    if check is not None:
      check(folder)
  return {path.name: path.stat().st_size for path in sorted(pathlib.Path(output_dir).iterdir())}


_OWNED = ("model*.safetensors", "model.safetensors.index.json", "config.json",
          "generation_config.json", "spiece.model", "tokenizer.json", "tokenizer_config.json")
_KEPT = ("README.md", "LICENSE", ".gitattributes")


def save_weights(tensors, folder, dtype="float32", max_shard_size="5GB"):
  """Writes {HF name: array} as model.safetensors, or as shards with model.safetensors.index.json.

  Only one shard at a time is copied to the new layout and dtype.

  Raises:
    ValueError: max_shard_size is not a positive size.
  """
  from safetensors.numpy import save_file

  itemsize = DTYPES[dtype].itemsize
  shards = _shards({name: tensor.size * itemsize for name, tensor in tensors.items()},
                   parse_size(max_shard_size))
  files = {}
  for i, names in enumerate(shards, start=1):
    part = f"-{i:05d}-of-{len(shards):05d}" if len(shards) > 1 else ""
    path = pathlib.Path(folder) / f"model{part}.safetensors"
    # The writer takes the memory as it lies: a transposed view would be written untransposed.
    shard = {name: np.ascontiguousarray(tensors[name], dtype=DTYPES[dtype]) for name in names}
    save_file(shard, path, metadata={"format": "pt"})  # Older loaders insist on the header.
    path.chmod(0o644)  # It comes readable by its owner alone.
    files.update(dict.fromkeys(names, path.name))
  if len(shards) > 1:
    total_size = sum(tensor.size for tensor in tensors.values()) * itemsize
    _write_json(pathlib.Path(folder) / "model.safetensors.index.json",
                {"metadata": {"total_size": total_size}, "weight_map": files})


def _shards(sizes, limit):
  """Packs {name: bytes} in order into lists of names of at most `limit` bytes, or of one name."""
  shards, room = [], 0
  for name, size in sizes.items():
    if not shards or size > room:
      shards.append([])
      room = limit
    shards[-1].append(name)
    room -= size
  return shards


def parse_size(size):
  """Returns a size in bytes: an int, or a number with B, KB, MB or GB (powers of 1000).

  Raises:
    ValueError: anything else, or nothing positive.
  """
  match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)B?", str(size).strip().upper())
  num_bytes = int(float(match[1]) * 1000 ** " KMG".index(match[2] or " ")) if match else 0
  if num_bytes < 1:
    raise ValueError(
        f"max_shard_size = {size!r} is not valid: expected a size such as 500MB or 5GB.")
  return num_bytes


def _write_json(path, values):
  path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
