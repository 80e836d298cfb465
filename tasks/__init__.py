"""Corpora as seqio tasks: your own files (text), any dataset of the hub (hub), C4 (c4), Danish text
(danish), several of them at once (mixture), and the text of the demo (demo).

Imported as `t5jax.tasks`, from a checkout and from an installation alike. A corpus here is a frozen
dataclass that costs nothing until t5jax.data.iterator.TaskData prepares it.
"""
