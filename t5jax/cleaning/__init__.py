"""Raw text to text worth training on: repair, rules, duplicates. No TensorFlow, no JAX."""
