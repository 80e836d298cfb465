"""Text files in, batches of token ids out. The home of TensorFlow and seqio, imported late."""
