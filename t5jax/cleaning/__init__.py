"""Raw text to text worth training on: repair, rules, languages, duplicates. No TensorFlow, no JAX."""
