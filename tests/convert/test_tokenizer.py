"""tokenizer.json against SentencePiece, and as AutoTokenizer loads it."""

import json
import pathlib
import re
import subprocess
import sys

import pytest
import sentencepiece

from t5jax.convert import tokenizer

CORPUS = pathlib.Path(__file__).parents[2] / "tasks" / "demo_corpus"
HARD_LINES = [
    "", " ", "a", "  to  mellemrum  ", "tab\there", "linje\nskift\r\nto", "ﬁn ﬂot ½ ①",
    "ＡＢＣ\u3000１２３", "a\u030angstrøm Å ÆØÅ æøå é ü", "😀👍🏽 test ☃☃ ☃", "▁tegn ▁▁ her▁", "slut▁",
    "... … “hej” – nej", "\u200bnul", "x\u00a0y", "日本語 テキスト", "\x00a\x01b", "한국어 किताब",
]
OPTIONS = {
    "default": {},
    "byte_fallback": dict(byte_fallback=True, character_coverage=0.98),
    "identity": dict(normalization_rule_name="identity"),
    "keeps whitespace": dict(remove_extra_whitespaces=False),
    "no dummy prefix": dict(add_dummy_prefix=False),
    "user-defined pieces": dict(user_defined_symbols=["<sep>", "fisk"]),
}


def lines(count=1000):
  """The hard lines and sentences of the demo corpus, Danish and English, `count` in all."""
  text = [path.read_text(encoding="utf-8") for path in sorted(CORPUS.glob("*.txt"))]
  sentences = [re.split(r"(?<=[.!?])\s+", language)[:count // 2] for language in text]
  return (HARD_LINES + [s for pair in zip(*sentences, strict=True) for s in pair])[:count]


@pytest.fixture(scope="module")
def folder(vocabulary_path, config, tmp_path_factory):
  """A folder with the tokenizer's files and a config.json."""
  from t5jax.convert import hf

  folder = tmp_path_factory.mktemp("tokenizer")
  tokenizer.save_tokenizer(vocabulary_path, folder)
  (folder / "config.json").write_text(json.dumps(hf.config_to_hf(config)))
  return folder


@pytest.mark.parametrize("name", OPTIONS)
def test_ids_and_text_equal_sentencepiece(train_vocabulary, name):
  path = train_vocabulary(**OPTIONS[name])
  ours = tokenizer.build_tokenizer(tokenizer.read_model(path))
  reference = sentencepiece.SentencePieceProcessor(model_file=str(path))
  for line in lines(300):
    if "\r\n" in line and name == "keeps whitespace":
      continue  # The tokenizers library normalises it as one character.
    ids = reference.encode(line)
    assert ours.encode(line, add_special_tokens=False).ids == ids, line
    if reference.unk_id() not in ids and "▁" not in line:
      assert ours.decode(ids) == reference.decode(ids), line


def test_a_character_map_of_its_own_is_kept(train_vocabulary, tmp_path):
  rules = tmp_path / "rules.tsv"
  rules.write_text("C5\t61 61\nE5\t61 61\n", encoding="utf-8")  # Å and å become aa.
  path = train_vocabulary(normalization_rule_name="", normalization_rule_tsv=str(rules))
  ours = tokenizer.build_tokenizer(tokenizer.read_model(path))
  reference = sentencepiece.SentencePieceProcessor(model_file=str(path))
  assert reference.encode("ål") == reference.encode("aal")
  for line in ["ål", "Århus på Ærø", "½ ﬁn  …"]:
    assert ours.encode(line, add_special_tokens=False).ids == reference.encode(line), line


def test_sentinels_and_eos(vocabulary_path):
  model = tokenizer.read_model(vocabulary_path)
  ours, size = tokenizer.build_tokenizer(model), len(model.pieces)
  assert ours.get_vocab_size() == size + 100
  assert ours.token_to_id("<extra_id_0>") == size + 99 and ours.token_to_id("<extra_id_99>") == size
  plain = lambda text: ours.encode(text, add_special_tokens=False).ids
  expected = [*plain("Jeg bor"), size + 99, *plain("Danmark."), 1]
  assert ours.encode("Jeg bor <extra_id_0> Danmark.").ids == expected
  assert ours.encode("en", "by").ids == [*plain("en"), 1, *plain("by"), 1]


@pytest.mark.parametrize("options, message", [
    (dict(model_type="bpe"), "not a unigram model"),
    (dict(pad_id=-1, eos_id=2, unk_id=0, bos_id=1), r"ids \(-1, 2, 0\)"),
    (dict(treat_whitespace_as_suffix=True), "treat_whitespace_as_suffix")])
def test_models_that_are_not_t5s(train_vocabulary, options, message):
  with pytest.raises(ValueError, match=message):
    tokenizer.read_model(train_vocabulary(**options))


def test_what_is_no_model(tmp_path):
  (tmp_path / "spiece.model").write_text("version https://git-lfs.github.com/spec/v1")
  with pytest.raises(ValueError, match="spiece.model is not a SentencePiece model"):
    tokenizer.read_model(tmp_path / "spiece.model")
  with pytest.raises(ValueError, match="none.model cannot be read: No such file"):
    tokenizer.read_model(tmp_path / "none.model")


@pytest.mark.parametrize("with_sentencepiece", [True, False])
def test_auto_tokenizer_on_a_thousand_lines(folder, with_sentencepiece):
  """In a process of its own, offline, where sentencepiece may not be importable."""
  pytest.importorskip("transformers")
  code = "\n".join([
      "import json, sys",
      "" if with_sentencepiece else "sys.modules['sentencepiece'] = None",
      "from transformers import AutoTokenizer",
      "tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])",
      "print(json.dumps([tokenizer(line).input_ids for line in json.load(sys.stdin)]))"])
  result = subprocess.run(
      [sys.executable, "-c", code, str(folder)], input=json.dumps(lines()), capture_output=True,
      text=True, timeout=120)
  assert result.returncode == 0, result.stderr
  reference = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
  assert json.loads(result.stdout) == [[*reference.encode(line), 1] for line in lines()]


def test_equal_to_transformers_own_conversion(folder, vocabulary_path, tmp_path):
  """T5Tokenizer of the exported folder and of a folder that holds spiece.model alone."""
  transformers = pytest.importorskip("transformers")
  (tmp_path / "spiece.model").write_bytes(vocabulary_path.read_bytes())
  auto = transformers.AutoTokenizer.from_pretrained(folder)
  assert auto.pad_token_id == 0 and auto.eos_token_id == 1 and auto.unk_token_id == 2
  assert len(auto) == len(tokenizer.read_model(vocabulary_path).pieces) + 100
  assert "token_type_ids" not in auto("en by")
  sentinel = ["en <extra_id_0> by <extra_id_99>"]
  for source in (folder, tmp_path):
    theirs = transformers.T5Tokenizer.from_pretrained(source)
    for line in lines(300) + sentinel:
      if "\x00" not in line:  # T5Tokenizer splits at it before it is normalised.
        assert auto(line).input_ids == theirs(line).input_ids, line
