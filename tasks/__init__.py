"""seqio tasks: your own text files (text), the corpus of the demo (demo), C4 (c4).

Imported as `t5jax.tasks`, from a checkout and from an installation alike. A corpus here is a frozen
dataclass that costs nothing until t5jax.data.iterator.TaskData prepares it.
"""
