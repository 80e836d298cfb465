"""A SentencePiece unigram model as Hugging Face's tokenizer.json.

Everything is read from the model itself, normalisation included, so that a vocabulary trained with
a character map of its own keeps it. The folder names PreTrainedTokenizerFast as its tokenizer's
class: that class takes tokenizer.json as it is, in transformers 4 and 5, whether sentencepiece is
installed or not. (T5Tokenizer in transformers 5 takes only the pieces from the file and rebuilds
the rest, without byte fallback and with every kind of whitespace as a separator.)

Known to differ from SentencePiece: text that spells a special token, such as `</s>`, becomes that
token; a rule of the character map that matches only the start of a combined character, such as a
ligature with an accent, swallows the rest of it.
"""

import json
import pathlib
import re

EXTRA_IDS = 100

_UNIGRAM = 1  # TrainerSpec.ModelType
_USER_DEFINED = 4  # ModelProto.SentencePiece.Type
_SPACE = "\u2581"


def read_model(path):
  """Returns the protobuf (ModelProto) of a SentencePiece model that T5 can use.

  Raises:
    ValueError: no such file, no SentencePiece model, not unigram, or ids other than T5's: pad 0,
      eos 1, unk 2.
  """
  from google.protobuf.message import DecodeError
  from sentencepiece import sentencepiece_model_pb2

  model = sentencepiece_model_pb2.ModelProto()
  try:
    model.ParseFromString(pathlib.Path(path).read_bytes())
  except OSError as error:
    raise ValueError(f"{path} cannot be read: {error.strerror}. An export needs the vocabulary of "
                     "the run.") from error
  except DecodeError:
    raise ValueError(f"{path} is not a SentencePiece model.") from None
  spec = model.trainer_spec
  if spec.model_type != _UNIGRAM:
    raise ValueError(f"{path} is not a unigram model: train it with model_type='unigram'.")
  if spec.treat_whitespace_as_suffix:
    raise ValueError(
        f"{path} marks spaces after words: train it without treat_whitespace_as_suffix.")
  ids = (spec.pad_id, spec.eos_id, spec.unk_id)
  if ids != (0, 1, 2):
    raise ValueError(f"{path} has pad, eos and unk ids {ids}: T5 needs (0, 1, 2).")
  return model


def sentinels(extra_ids):
  """Returns the sentinel tokens in the order of their ids, the highest, `<extra_id_0>`, last."""
  return [f"<extra_id_{i}>" for i in reversed(range(extra_ids))]


def build_tokenizer(model, extra_ids=EXTRA_IDS):
  """Returns a tokenizers.Tokenizer that encodes as SentencePiece does and appends `</s>`.

  Args:
    model: a ModelProto from read_model.
    extra_ids: number of sentinels, whose ids follow those of the model's pieces. In text they are
      recognised, and the stretches between them are encoded one by one.
  """
  from tokenizers import AddedToken, Tokenizer, models, processors

  spec = model.trainer_spec
  pieces = [(piece.piece, piece.score) for piece in model.pieces]
  pad, eos, unk = (pieces[i][0] for i in (spec.pad_id, spec.eos_id, spec.unk_id))
  extra = sentinels(extra_ids)
  tokenizer = Tokenizer(models.Unigram(
      pieces + [(token, 0.0) for token in extra], unk_id=spec.unk_id,
      byte_fallback=spec.byte_fallback))
  # Not normalised: they are cut out of the raw text before anything else happens to it.
  tokenizer.add_special_tokens(
      [AddedToken(token, normalized=False, special=True) for token in (pad, eos, unk, *extra)])
  tokenizer.normalizer = _normalizer(model.normalizer_spec)
  user_defined = [piece.piece for piece in model.pieces if piece.type == _USER_DEFINED]
  if user_defined:
    tokenizer.pre_tokenizer = _isolate(user_defined)
  tokenizer.decoder = _decoder(spec.byte_fallback, model.normalizer_spec.add_dummy_prefix)
  tokenizer.post_processor = processors.TemplateProcessing(
      single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, spec.eos_id)])
  return tokenizer


def _normalizer(spec):
  """SentencePiece's normalisation, in its order; `spec` is a NormalizerSpec."""
  from tokenizers import Regex, normalizers

  space = _SPACE if spec.escape_whitespaces else " "
  steps = []
  if spec.precompiled_charsmap:
    steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
  if spec.remove_extra_whitespaces:  # Only of spaces: other whitespace is the character map's.
    # At the end SentencePiece strips what it escaped, so a literal space symbol goes as well.
    steps.append(normalizers.Replace(Regex(rf"\A +|[ {space}]+\z"), ""))
    steps.append(normalizers.Replace(Regex(r" {2,}"), " "))
  if spec.escape_whitespaces:
    steps.append(normalizers.Replace(" ", space))
  if spec.add_dummy_prefix:
    steps.append(normalizers.Prepend(space))
  return normalizers.Sequence(steps)


def _isolate(pieces):
  """Cuts user-defined pieces out: SentencePiece never merges them with their surroundings."""
  from tokenizers import Regex, pre_tokenizers

  longest_first = sorted(pieces, key=len, reverse=True)
  return pre_tokenizers.Split(Regex("|".join(map(re.escape, longest_first))), behavior="isolated")


def _decoder(byte_fallback, dummy_prefix):
  from tokenizers import decoders

  steps = [decoders.Replace(_SPACE, " ")]
  if byte_fallback:
    steps.append(decoders.ByteFallback())
  steps.append(decoders.Fuse())
  if dummy_prefix:
    steps.append(decoders.Strip(content=" ", left=1))
  return decoders.Sequence(steps)


def tokenizer_config(model, extra_ids=EXTRA_IDS):
  """Returns the content of tokenizer_config.json."""
  pad, eos, unk = (model.pieces[i].piece for i in range(3))
  return {
      "tokenizer_class": "PreTrainedTokenizerFast",
      "pad_token": pad,
      "eos_token": eos,
      "unk_token": unk,
      "additional_special_tokens": sentinels(extra_ids)[::-1],
      "extra_ids": extra_ids,
      "clean_up_tokenization_spaces": False,
      # Version 4 would add token_type_ids, which T5 does not take.
      "model_input_names": ["input_ids", "attention_mask"],
  }


def save_tokenizer(vocabulary_path, folder, extra_ids=EXTRA_IDS):
  """Writes spiece.model, tokenizer.json and tokenizer_config.json into an existing folder.

  Raises:
    ValueError: as read_model.
  """
  model = read_model(vocabulary_path)
  folder = pathlib.Path(folder)
  folder.joinpath("spiece.model").write_bytes(pathlib.Path(vocabulary_path).read_bytes())
  build_tokenizer(model, extra_ids).save(str(folder / "tokenizer.json"))
  text = json.dumps(tokenizer_config(model, extra_ids), indent=2)
  folder.joinpath("tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
