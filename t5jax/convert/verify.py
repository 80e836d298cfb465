"""Proof that an exported folder is our model: transformers loads it, and the results are compared.

Uses torch and transformers, imported inside functions; `pip install 't5jax[hf]'` brings both.
"""

import contextlib
import dataclasses
import json
import os
import pathlib

import jax
import ml_dtypes
import numpy as np

from t5jax.convert import tokenizer
from t5jax.model.t5 import T5

SAMPLE_LINES = (
    "Jeg bor i Danmark, og om aftenen læser jeg en bog ved åen.",
    "ÆØÅ æøå: blåbærgrød, Ærø, Ångström, smørrebrød à la carte.",
    "Den 17. november 1831 kostede det 1.250,75 kr. - ca. 12 % mere end året før!",
    "  The  quick brown fox\tjumps over the lazy dog.  ",
    "It's a naïve idea: e-mail me at anna@example.org, or call (+45) 12 34 56 78.",
    "ﬁn ½ … “quotes” – dashes — ＡＢＣ １２３ a\u030a e\u0301",
    "Emoji 😀👍🏽, 日本語, Ελληνικά, русский, ☃☃.",
    "",
)
SENTINEL_LINES = ("Jeg bor <extra_id_0> Danmark.", "<extra_id_0> fox <extra_id_1> dog<extra_id_99>")


def verify(folder, params, config, vocabulary_path, lines=(), tolerance=1e-5):
  """Loads `folder` with transformers and compares it with the model it was exported from.

  - No key is missing, unexpected or of another shape; the head is tied only if it should be.
  - Logits in float32, of a batch with padding: the largest difference is below `tolerance` times
    the largest logit. 1e-5 is some 80 float32 roundings; the two programs were seen to differ by
    5 to 16 from tiny to 24 layers. Of a bfloat16 folder the same is asked, against our weights
    rounded to bfloat16.
  - Ids of sample lines and of `lines` are the same from our Vocabulary, spiece.model and
    AutoTokenizer. Lines that spell a special token are left out: see tokenizer.py.

  Args:
    folder: what hf.export wrote.
    params: nested dict of float32 arrays.
    config: their T5Config.
    vocabulary_path: the SentencePiece model of the run.
    lines: further text to tokenise.
    tolerance: as above.

  Returns:
    dict of figures: num_parameters, max_logit, max_logit_difference, num_lines, num_ties (lines
    that have two best segmentations of equal score).

  Raises:
    ValueError: anything is not equal; says what, with an example.
    ModuleNotFoundError: transformers or torch is not installed.
  """
  folder = pathlib.Path(folder)
  with _offline_transformers() as transformers:
    model = _load_model(transformers, folder, config)
    figures = {"num_parameters": sum(p.numel() for p in model.parameters())}
    figures.update(_compare_logits(model, _as_stored(params, folder), config, tolerance))
    auto_tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    figures.update(_compare_tokens(folder, auto_tokenizer, vocabulary_path, lines))
  return figures


@contextlib.contextmanager
def _offline_transformers():
  """Yields the module, silenced and never asking the network about a local folder."""
  try:
    import torch  # noqa: F401  (transformers imports without it, and then has no models)
    import transformers
  except ImportError as error:
    raise ModuleNotFoundError(f"{error}: verification needs torch and transformers, "
                              "pip install 't5jax[hf]'.") from None
  logging = transformers.utils.logging
  verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
  logging.set_verbosity_error()
  logging.disable_progress_bar()
  try:
    yield transformers
  finally:
    logging.set_verbosity(verbosity)
    if bars:
      logging.enable_progress_bar()


def _load_model(transformers, folder, config):
  import torch

  model, info = transformers.AutoModelForSeq2SeqLM.from_pretrained(
      folder, dtype=torch.float32, local_files_only=True, output_loading_info=True)
  wrong = [f"{kind}: {', '.join(map(str, sorted(info[kind])[:3]))}"
           for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[kind]]
  if wrong:
    raise ValueError(f"transformers does not find its weights in {folder}: {'; '.join(wrong)}.")
  tied = model.lm_head.weight.data_ptr() == model.shared.weight.data_ptr()
  if tied != config.logits_via_embedding:
    found = "tied" if tied else "untied"
    raise ValueError(f"transformers loads {folder} with a head that is {found}, while "
                     f"logits_via_embedding = {config.logits_via_embedding}.")
  return model.eval()


def _as_stored(params, folder):
  """The float32 values of `params` after a stay in the folder's dtype."""
  dtype = json.loads((folder / "config.json").read_text(encoding="utf-8"))["dtype"]
  if dtype == "float32":
    return params
  return jax.tree.map(lambda x: np.asarray(x).astype(ml_dtypes.bfloat16).astype(np.float32), params)


def _compare_logits(model, params, config, tolerance):
  import torch

  rng = np.random.default_rng(0)
  encoder_tokens, decoder_tokens = (
      rng.integers(1, config.vocab_size, (2, length)) for length in (24, 12))
  encoder_tokens[1, 15:] = 0
  config = dataclasses.replace(config, dtype="float32", dropout_rate=0.0, remat="none", decoder_remat=None,
                               attention="xla")
  with jax.default_matmul_precision("highest"):  # Accelerators multiply float32 coarsely otherwise.
    ours = np.asarray(jax.jit(T5(config).apply)({"params": params}, encoder_tokens, decoder_tokens))
  mask = torch.from_numpy((encoder_tokens != 0).astype(np.int64))
  with torch.no_grad():
    theirs = model(input_ids=torch.from_numpy(encoder_tokens), attention_mask=mask,
                   decoder_input_ids=torch.from_numpy(decoder_tokens)).logits.numpy()
  largest, difference = float(np.abs(ours).max()), float(np.abs(ours - theirs).max())
  if not difference <= tolerance * largest:  # Not >: NaN must not pass.
    raise ValueError(f"logits of transformers differ from ours by {difference:.3g}, with a largest "
                     f"logit of {largest:.3g}: expected at most {tolerance:g} of it.")
  return {"max_logit": largest, "max_logit_difference": difference}


def _compare_tokens(folder, auto_tokenizer, vocabulary_path, lines):
  import sentencepiece

  from t5jax.data.vocabulary import Vocabulary

  vocabulary = Vocabulary(os.fspath(vocabulary_path), extra_ids=tokenizer.EXTRA_IDS)
  if len(auto_tokenizer) != vocabulary.size:
    raise ValueError(
        f"AutoTokenizer has {len(auto_tokenizer)} ids, the vocabulary {vocabulary.size}.")
  pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
  encode = lambda line: auto_tokenizer(line, add_special_tokens=False).input_ids
  special = auto_tokenizer.all_special_tokens
  plain = [line for line in (*SAMPLE_LINES, *lines) if not any(token in line for token in special)]
  num_ties = 0
  for line in plain:
    ours = list(vocabulary.encode(line))
    _require_equal(line, "our Vocabulary", ours, "spiece.model", pieces.encode(line))
    theirs = encode(line)
    if _is_tie(pieces, ours, theirs):
      num_ties += 1
    else:
      _require_equal(line, "our Vocabulary", ours, "AutoTokenizer", theirs)
  for line in SENTINEL_LINES:
    ours = list(vocabulary.encode(line, sentinels=True))
    _require_equal(line, "our Vocabulary", ours, "AutoTokenizer", encode(line))
  return {"num_lines": len(plain) + len(SENTINEL_LINES), "num_ties": num_ties}


def _require_equal(line, name, ids, other_name, other_ids):
  if ids != other_ids:
    at = next((i for i, (a, b) in enumerate(zip(ids, other_ids)) if a != b),
              min(len(ids), len(other_ids)))
    raise ValueError(f"{line[:200]!r} has other ids in {other_name} than in {name}, from number "
                     f"{at} on: {other_ids[at:at + 5]} instead of {ids[at:at + 5]}.")


def _is_tie(pieces, ids, other_ids):
  """Whether different ids spell the same text at the same score, within float32's rounding.

  SentencePiece adds scores in float32, the tokenizers library in float64, so that of two equally
  good segmentations ("000" as 00+0 or 0+00) each may choose its own.
  """
  if ids == other_ids or max(ids + other_ids) >= pieces.get_piece_size():
    return False
  text, score = _spelling(pieces, ids)
  other_text, other_score = _spelling(pieces, other_ids)
  return text == other_text and abs(score - other_score) <= 1e-6 * abs(score)


def _spelling(pieces, ids):
  return "".join(map(pieces.id_to_piece, ids)), sum(map(pieces.get_score, ids))
