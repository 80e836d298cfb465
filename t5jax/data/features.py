"""From padded token ids to the batch that the model takes. NumPy only."""

import numpy as np

PADDING = -1  # Of the batches that come in: no id, so that the real ones need not be told apart.


def to_model_batch(batch):
  """Builds the model's batch of an encoder-decoder.

  Args:
    batch: {"inputs": int [B, inputs], "targets": int [B, targets], "epoch": int [B], optional},
      padded with -1 behind the tokens; of packed rows also the segment ids of packing.pack.

  Returns:
    Dict of arrays, padded with 0: encoder_input_tokens int32 [B, inputs]; decoder_target_tokens
    int32 [B, targets]; decoder_input_tokens, the same shifted right behind a 0, in each segment;
    decoder_loss_weights float32 [B, targets], 1 on targets by position, whatever their ids; epoch
    int32 [B], for the host, if given; encoder_segment_ids and decoder_segment_ids, if given.
  """
  inputs, targets = batch["inputs"], batch["targets"]
  is_target = targets != PADDING
  target_tokens = np.where(is_target, targets, 0).astype(np.int32)
  model_batch = {
      "encoder_input_tokens": np.where(inputs != PADDING, inputs, 0).astype(np.int32),
      "decoder_target_tokens": target_tokens,
      "decoder_input_tokens": np.pad(target_tokens, [(0, 0), (1, 0)])[:, :-1],
      "decoder_loss_weights": is_target.astype(np.float32),
  }
  if "targets_segment_ids" in batch:
    segments = batch["targets_segment_ids"]
    is_first = np.diff(segments, prepend=0) != 0
    model_batch["decoder_input_tokens"][is_first] = 0
    model_batch.update(encoder_segment_ids=batch["inputs_segment_ids"], decoder_segment_ids=segments)
  if "epoch" in batch:
    model_batch["epoch"] = batch["epoch"].astype(np.int32)
  return model_batch


def widen(rows, width):
  """Pads rows, int [B, n], with -1 to a width."""
  return np.pad(rows, [(0, 0), (0, width - rows.shape[1])], constant_values=PADDING)


def pad_rows(batch, num_rows):
  """Adds rows of zeros, which weigh nothing, to every array [B, ...] of a batch, up to num_rows."""
  return {name: np.pad(x, [(0, num_rows - len(x))] + [(0, 0)] * (x.ndim - 1))
          for name, x in batch.items()}


def unigram_entropy(batches):
  """Entropy of the target tokens: the loss of a model that knows only how frequent each one is.

  Args:
    batches: iterable of model batches.

  Returns:
    float, in nats per target token.
  """
  tokens = np.concatenate([b["decoder_target_tokens"][b["decoder_loss_weights"] > 0]
                           for b in batches])
  frequency = np.unique(tokens, return_counts=True)[1] / max(len(tokens), 1)
  return float(-np.sum(frequency * np.log(frequency)))
