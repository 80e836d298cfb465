"""Our checkpoints to other programs' formats and back.

The Hugging Face export (hf, tokenizer) needs neither torch nor transformers; verify imports both,
and hub imports huggingface_hub, inside functions.
"""
