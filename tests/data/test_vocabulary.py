"""Ids, sentinels and round trips; transformers is the reference for sentinels in text."""

import io

import pytest
import sentencepiece

from t5jax.data.vocabulary import Vocabulary
from tests.data.conftest import make_documents

DANISH = "æøå ÆØÅ é ü"


def test_layout_is_that_of_t5(vocabulary):
  assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id) == (0, 1, 2)
  assert (vocabulary.num_pieces, vocabulary.size, vocabulary.padded_size()) == (400, 500, 512)
  assert vocabulary.sentinel_id(0) == 499 and vocabulary.sentinel_id(99) == 400
  with pytest.raises(ValueError, match="extra_id_100"):
    vocabulary.sentinel_id(100)


def test_padded_size_of_32000_pieces(vocabulary, monkeypatch):
  monkeypatch.setattr(Vocabulary, "num_pieces", 32000)
  assert (vocabulary.size, vocabulary.padded_size(), vocabulary.sentinel_id(0)) == (
      32100, 32128, 32099)


@pytest.mark.parametrize("text", [DANISH, "2½ æbler", "»ja« – § 12 på Ærø, Århus og Øresund"])
def test_danish_round_trips(vocabulary, text):
  assert vocabulary.decode(vocabulary.encode(text)) == text
  assert vocabulary.unknown_rate(text) == 0.0


@pytest.mark.parametrize("text", [
    "a\u030a og å", "to  mellemrum\tog\u00a0flere\nlinjer ", "sund\u00adheds", "m² … ﬁ"])
def test_decoding_gives_the_normalised_text(vocabulary, text):
  normal = vocabulary.normalize(text)
  assert vocabulary.decode(vocabulary.encode(text)) == normal
  assert vocabulary.normalize(normal) == normal


def test_composed_and_decomposed_letters_are_the_same(vocabulary):
  assert vocabulary.encode("a\u030a") == vocabulary.encode("å")
  assert vocabulary.encode("sund\u00adheds") == vocabulary.encode("sundheds")


def test_text_never_becomes_a_control_id(vocabulary):
  ids = vocabulary.encode("<extra_id_3> </s> <pad>")
  assert not {0, 1} & set(ids) and max(ids) < vocabulary.num_pieces


def test_decode_skips_padding_and_survives_ids_of_a_padded_embedding(vocabulary):
  ids = [vocabulary.sentinel_id(0), *vocabulary.encode("Ærø"), vocabulary.sentinel_id(1), 1, 0, 511]
  assert vocabulary.decode(ids) == "<extra_id_0> Ærø <extra_id_1>  \u2047 "


def test_sentinels_in_text_as_in_transformers(vocabulary, vocab_file, tmp_path):
  transformers = pytest.importorskip("transformers")
  tokenizer = transformers.T5Tokenizer.from_pretrained(_hf_folder(vocab_file, tmp_path))
  for text in ("Jeg bor <extra_id_0> Danmark.", "<extra_id_0> ved havet <extra_id_1>",
               "a<extra_id_9>b", "båden  <extra_id_0>  sejler", "ingen"):
    expected = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert vocabulary.encode(text, sentinels=True) == expected, text


def _hf_folder(vocab_file, tmp_path):
  (tmp_path / "spiece.model").write_bytes(vocab_file.read_bytes())
  return str(tmp_path)


def test_seqio_agrees(vocabulary):
  stock = vocabulary.seqio()
  assert stock.vocab_size == vocabulary.size
  assert stock.encode(DANISH) == vocabulary.encode(DANISH)


def test_missing_and_broken_files_are_named(tmp_path):
  with pytest.raises(ValueError, match="none.model.*cannot be read"):
    Vocabulary(tmp_path / "none.model")
  (tmp_path / "broken.model").write_bytes(b"no model")
  with pytest.raises(ValueError, match="broken.model: is not a SentencePiece model"):
    Vocabulary(tmp_path / "broken.model")


def test_other_ids_are_refused(tmp_path):
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(make_documents(50)), model_writer=model, vocab_size=200,
      minloglevel=2)
  path = tmp_path / "bos.model"
  path.write_bytes(model.getvalue())
  with pytest.raises(ValueError, match="bos.model: has pad -1, eos 2, unk 0, bos 1; T5 needs"):
    Vocabulary(path)
