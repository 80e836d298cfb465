"""The input pipeline of nanoT5 (arXiv:2309.02373), written anew from its description, as a measure.

Documents are streamed by the datasets library, tokenised 1,000 at a time by a fast tokenizer of
transformers and each ended by EOS. Each thousand is joined and cut into rows, and its tail dropped.
Rows go through a shuffle buffer of 10,000 in each of two workers of torch's DataLoader, which mask
them. All three libraries come with `pip install '.[bench]'` and are imported where they are used.
"""

import dataclasses
import pathlib

import numpy as np

from t5jax.convert.tokenizer import save_tokenizer
from t5jax.data.spans import noise_counts

PACKAGES = ("datasets", "torch", "transformers")
_WORKERS = 2


def nanot5_batches(files, vocab_file, folder, length, batch_size, shuffle_buffer=10_000):
  """Returns an endless iterator of batches.

  Args:
    files: paths of JSON lines with the field "text"; two or more, as a worker takes whole files.
    vocab_file: a SentencePiece model.
    folder: an existing folder, for the tokenizer made from it.
    length: tokens of a row before masking.
    batch_size: rows of a batch.
    shuffle_buffer: rows from which a worker draws the next.

  Returns:
    Iterator of {"input_ids": int64 tensor [B, inputs], "labels": int64 tensor [B, targets]}.
  """
  import datasets
  import torch
  import transformers

  pathlib.Path(folder).mkdir(exist_ok=True)
  save_tokenizer(vocab_file, folder)
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  documents = datasets.load_dataset("json", data_files=list(files), split="train", streaming=True)
  # Repeated at the source: no pass over a small text ends the workers or empties their buffers.
  rows = documents.repeat(None).map(
      _Rows(tokenizer, length), batched=True, batch_size=1000, remove_columns=["text"])
  loader = torch.utils.data.DataLoader(
      rows.shuffle(seed=0, buffer_size=shuffle_buffer), batch_size=batch_size,
      num_workers=_WORKERS, collate_fn=SpanCollator(len(tokenizer) - 1, tokenizer.eos_token_id))
  return iter(loader)


@dataclasses.dataclass(frozen=True)
class _Rows:
  """Tokenises documents together and cuts them into rows; what is left at the end is dropped."""

  tokenizer: object
  length: int

  def __call__(self, documents):
    encoded = self.tokenizer(documents["text"], return_attention_mask=False)["input_ids"]
    tokens = np.concatenate(encoded)
    num_rows = len(tokens) // self.length
    return {"input_ids": tokens[:num_rows * self.length].reshape(num_rows, self.length)}


@dataclasses.dataclass(frozen=True)
class SpanCollator:
  """Masks rows and makes a batch: T5's span corruption at 15 %, mean span 3.

  Attributes:
    first_sentinel: id of `<extra_id_0>`; the following ones count down.
    eos_id: id that ends inputs and labels.
  """

  first_sentinel: int
  eos_id: int

  def __call__(self, rows):
    """Makes a batch.

    Args:
      rows: list of {"input_ids": int [L]}, of one length.

    Returns:
      As nanot5_batches.
    """
    import torch

    tokens = np.array([row["input_ids"] for row in rows])
    masks = np.stack([_random_mask(tokens.shape[1]) for _ in rows])
    return {"input_ids": torch.from_numpy(self._replace(tokens, masks)),
            "labels": torch.from_numpy(self._replace(tokens, ~masks))}

  def _replace(self, tokens, masks):
    """Puts a sentinel for each run of masked tokens, and EOS at the end."""
    begins = masks & ~np.pad(masks, [(0, 0), (1, 0)])[:, :-1]
    sentinels = self.first_sentinel + 1 - np.cumsum(begins, axis=1)
    # Every row has equally many spans and masked tokens, so equally many are kept.
    kept = np.where(begins, sentinels, tokens)[begins | ~masks].reshape(len(tokens), -1)
    return np.pad(kept, [(0, 0), (0, 1)], constant_values=self.eos_id)


def _random_mask(length):
  """Draws a mask, bool [length]: kept and masked runs take turns, kept ones first."""
  num_noise, num_spans = noise_counts(length)
  kept, noise = (_random_parts(n, num_spans) for n in (length - num_noise, num_noise))
  return np.repeat(np.arange(2 * num_spans) % 2 == 1, np.stack([kept, noise], axis=1).ravel())


def _random_parts(total, num_parts):
  """Cuts a number into `num_parts` of at least one, all ways equally likely."""
  begins = np.arange(total - 1) < num_parts - 1
  np.random.shuffle(begins)  # From the worker's global state, as nanoT5 does.
  return np.bincount(np.cumsum(np.concatenate([[0], begins])))
