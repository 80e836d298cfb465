"""Hooks for the end of a run: a picture of the losses, the export, a filled gap, a summary."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys

from t5jax import decoding, distributed, sharding
from t5jax.settings import AT_LEAST_ONE, check_settings


@dataclasses.dataclass
class PlotLoss:
  """Draws training and held-out loss over the steps into MODEL_DIR/loss.png.

  Attributes:
    every: steps between drawings; None: at the end alone.
  """

  every: int | None = None
  first_only = True

  def __post_init__(self):
    check_settings(self, every=AT_LEAST_ONE)

  def __call__(self, run):
    import matplotlib
    matplotlib.use("Agg")  # No window, and no display needed.
    from matplotlib import pyplot
    lines = (run.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for key, label, marker in (("loss", "training", ""), ("eval/loss", "held out", "o")):
      points = [(r["step"], r[key]) for r in records if key in r]
      if points:
        axes.plot(*zip(*points), marker=marker, markersize=3, label=label)
    entropy = run.trainer.data.unigram_entropy(run.eval_batches)
    axes.axhline(entropy, color="gray", linestyle=":", label="unigram entropy, held out")
    axes.set(xlabel="step", ylabel="loss, nats per target token", title=str(run.path))
    axes.legend()
    figure.savefig(run.path / "loss.png", dpi=120)
    pyplot.close(figure)


@dataclasses.dataclass
class ExportHF:
  """Writes MODEL_DIR/hf, a folder for transformers, and verifies it by loading it.

  Without torch and transformers it is written all the same, and said to be unverified. Put it after
  Save: what it exports is the checkpoint.

  Attributes:
    every: None: at the end alone.
  """

  every: int | None = None

  def __call__(self, run):
    run.checkpoints.wait()
    if not distributed.is_first():
      return
    # In a process of its own: torch's CUDA builds crash when they are loaded beside TensorFlow, and
    # the accelerator stays with the run.
    command = [sys.executable, "-m", "t5jax.tools.convert_hf", f"--model_dir={run.path}",
               f"--output_dir={run.path / 'hf'}", f"--step={run.spent.steps}"]
    if not all(map(importlib.util.find_spec, ("torch", "transformers"))):
      command.append("--skip_verification")
      run.say("The export is not verified: that needs pip install 't5jax[hf]'.")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
      raise ValueError((done.stderr.strip().splitlines() or ["the export failed"])[-1])
    run.say(done.stdout.rstrip())


@dataclasses.dataclass
class FillGaps:
  """Prints what the model puts into the gaps of some texts.

  Attributes:
    texts: with `<extra_id_0>` and so on for the gaps.
    every: steps between; None: at the end alone.
  """

  texts: tuple[str, ...]
  every: int | None = None

  def __post_init__(self):
    check_settings(self, every=AT_LEAST_ONE)

  def __call__(self, run):
    params = sharding.to_host(run.state.eval_params(), run.mesh)
    if not distributed.is_first():
      return
    with sharding.use(sharding.local_mesh()):
      answers = decoding.fill_gaps(params, run.model, run.vocabulary, list(self.texts), max_length=32)
    for text, (_, filled) in zip(self.texts, answers):
      run.say(f"  {text}\n  -> {filled}")


@dataclasses.dataclass
class Summary:
  """Says at the end what was made, where it lies, and what can be done next.

  Attributes:
    every: None: at the end alone.
  """

  every: int | None = None
  first_only = True

  def __call__(self, run):
    # The interpreter of this run, as one would type it: demos run in a virtual environment.
    python = os.path.relpath(sys.executable)
    python = "python" if python.startswith("..") else python
    loss = f", held-out loss {run.evaluation['loss']:.3f}" if run.evaluation else ""
    text = f"""
Made: a T5 trained for {run.spent.steps} steps on {run.spent.tokens:,} tokens{loss}.
  {run.path}/hf           for transformers: AutoModelForSeq2SeqLM.from_pretrained("{run.path}/hf")
  {run.path}/loss.png     the loss curve; all numbers are in metrics.jsonl and tensorboard/
  {run.path}/checkpoints  to go on training
Next:
  {python} -m t5jax.infer --model_dir={run.path} --text="Jeg bor <extra_id_0> Danmark."
  {python} -m t5jax.train --gin_file=text.gin --gin.MODEL_DIR=runs/mine \\
    --gin.TRAIN_FILES='YOUR/*.txt' --gin.VOCAB_SIZE=8000 --gin.MODEL_SIZE=mini --gin.DTYPE=float32 \\
    --gin.BATCH_SIZE=16 --gin.TASK_FEATURE_LENGTHS='{{"inputs": 128, "targets": 29}}'"""
    run.say(text)
