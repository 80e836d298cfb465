"""Every gin file of ours builds, uses all that it sets, and describes a model that can be."""

import inspect
import itertools
import pathlib
import shutil

import jax
import pytest

from t5jax import config, optim, schedules, sharding, state as states
from t5jax.data import objectives
from t5jax.model.flops import train_step_flops
from t5jax.tasks import danish

GIN = pathlib.Path(config.search_path()[1])
FILES = sorted(p.name for p in GIN.glob("*.gin"))
ALL_DANISH = ["dynaword", "fineweb2_danish", "danish_gigaword", "danish_wikipedia", "mc4_danish"]
ALL_CORPORA = ["@c4.C4Corpus()", "@text.TextCorpus()",
               *(f"@danish.{name}()" for name in ALL_DANISH)]
NEEDED = {"base.gin": [], "demo.gin": [],
          "danish.gin": ["VOCAB_SIZE=32000", "TRAIN_FILES=*.txt",
                         f"CORPORA=[{', '.join(ALL_CORPORA)}]"],
          "text.gin": ["TRAIN_FILES=*.txt", "VOCAB_SIZE=8000"]}
OBJECTIVES = {"span_corruption": objectives.SpanCorruption(), "prefix_lm": objectives.PrefixLM(),
              "iid": objectives.IidDenoising(), "ul2": objectives.ul2()}
OPTIMIZERS = sorted(p.stem for p in (GIN / "optimizers").glob("*.gin"))
COMBINED = """from __gin__ import dynamic_registration
from t5jax.data import iterator
include "models/{model}.gin"
include "optimizers/{optimizer}.gin"
include "runs/pretrain.gin"
TRAIN_STEPS = 20_000
iterator.TaskData.task = "some_task"
"""


@pytest.fixture
def build(tmp_path, monkeypatch):
  """Returns a function: (file name, bindings) -> Trainer. The files are copies, so that every
  setting in them counts as a user's and must be used."""
  shutil.copytree(GIN, tmp_path, dirs_exist_ok=True)
  monkeypatch.chdir(tmp_path)

  def call(name, *bindings):
    return config.build("t5jax.trainer.Trainer", [name], [f"MODEL_DIR={tmp_path}/run", *bindings])[0]

  return call


def check_shapes(trainer):
  """The whole training state of the run, in shapes only."""
  model = trainer.model.with_vocabulary(32_100)
  mesh = sharding.MeshConfig().make()
  state = states.abstract(model, trainer.optimizer, trainer.max_grad_norm, mesh)
  assert sum(leaf.size for leaf in jax.tree.leaves(state.params)) > 1e5
  assert train_step_flops(model, trainer.data.batch_size, **{
      f"{name.removesuffix('s')}_length": length
      for name, length in trainer.data.feature_lengths.items()}) > 0


@pytest.mark.parametrize("name", FILES)
def test_runnable_files(build, name):
  trainer = build(name, *NEEDED[name])
  check_shapes(trainer)
  order = [type(hook).__name__ for hook in trainer.hooks]
  guard, log, evaluate, save = map(order.index, ("StopOnDivergence", "Log", "Evaluate", "Save"))
  assert guard < log < evaluate < save


@pytest.mark.parametrize("model, optimizer", [
    *(("t5_1_1", name) for name in OPTIMIZERS), ("t5_1_0", "adafactor")])
def test_fragments_combine(build, tmp_path, model, optimizer):
  (tmp_path / "mine.gin").write_text(COMBINED.format(model=model, optimizer=optimizer))
  trainer = build("mine.gin", "MODEL_SIZE=small")
  assert trainer.optimizer.__name__ == optimizer
  assert trainer.model.logits_via_embedding == (model == "t5_1_0")
  check_shapes(trainer)


# Every optimizer and every schedule at least once, next to another each time.
@pytest.mark.parametrize("optimizer, schedule", list(zip(
    OPTIMIZERS, itertools.cycle(sorted(p.stem for p in (GIN / "schedules").glob("*.gin"))))))
def test_any_optimizer_takes_any_schedule(tmp_path, monkeypatch, optimizer, schedule):
  monkeypatch.chdir(tmp_path)
  text = COMBINED.format(model="t5_1_1", optimizer=optimizer)
  (tmp_path / "mine.gin").write_text(f'{text}include "schedules/{schedule}.gin"\n')
  factory = getattr(schedules, schedule)
  takes_warmup = "warmup_steps" in inspect.signature(factory).parameters
  trainer, _ = config.build(
      "t5jax.trainer.Trainer", ["mine.gin"],
      ["MODEL_DIR=run", "LEARNING_RATE=1e-2", *(["WARMUP_STEPS=10_000"] if takes_warmup else [])])
  assert trainer.learning_rate == 1e-2
  reference = factory(20_000, **({"warmup_steps": 10_000} if takes_warmup else {}))
  for progress in (0.0, 0.1, 0.6, 0.95):
    assert trainer.schedule(progress) == reference(progress) > 0


@pytest.mark.parametrize("name", ["base.gin", "danish.gin", "text.gin"])
@pytest.mark.parametrize("objective", sorted(p.stem for p in (GIN / "objectives").glob("*.gin")))
def test_objectives_combine(build, tmp_path, name, objective):
  (tmp_path / "mine.gin").write_text(f'include "{name}"\ninclude "objectives/{objective}.gin"\n')
  data = build("mine.gin", *NEEDED[name]).data
  assert data.task.objective == OBJECTIVES[objective]
  data.task.check_lengths(data.feature_lengths)


@pytest.mark.parametrize("setting, message", [
    ("curvature_every=10", "Trainer.curvature_every = 10.*does not use"),
    ("optimizer=@optim.sophia_g", "Trainer.curvature_every = None.*Sophia"),
    ("optimizer=@optim.grouped()", "grouped.frozen = '.foo/'")])
def test_what_only_parameters_show_is_refused_by_check(tmp_path, monkeypatch, setting, message):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "mine.gin").write_text(f"""from __gin__ import dynamic_registration
from t5jax import optim
from t5jax import trainer
include "text.gin"
trainer.Trainer.{setting}
{'optim.grouped.optimizer = @optim.adamw' if 'grouped' in setting else ''}
{'optim.grouped.frozen = ["^foo/"]' if 'grouped' in setting else ''}
""")
  text = tmp_path / "mine.txt"
  text.write_text("Et hus.\nEn by.\n")
  trainer, _ = config.build(
      "t5jax.trainer.Trainer", ["mine.gin"],
      ["MODEL_DIR=run", f"TRAIN_FILES={text}", "VOCAB_SIZE=8000", "MODEL_SIZE=tiny"])
  with pytest.raises(ValueError, match=message):
    trainer.check()


def test_danish_is_the_default_mixture():
  trainer, _ = config.build("t5jax.trainer.Trainer", ["danish.gin"],
                            ["MODEL_DIR=run", "VOCAB_SIZE=8000"])
  assert trainer.data.task == danish.danish_mixture(
      vocab_size=8000, objective=objectives.SpanCorruption())


def test_parts_can_be_chosen_and_set_on_the_command_line():
  trainer, _ = config.build("t5jax.trainer.Trainer", ["danish.gin"], [
      "MODEL_DIR=run", "VOCAB_SIZE=8000", "SpanCorruption.noise_density=0.25",
      "CORPORA=[@danish.danish_gigaword()]", "GIGAWORD_DIR=sektioner",
      "danish_gigaword.sections=['ft']"])
  assert trainer.data.task.objective == objectives.SpanCorruption(0.25)
  assert trainer.data.task.corpora == (danish.danish_gigaword("sektioner", ["ft"]),)


def test_base_is_nanot5s_default(build):
  trainer = build("base.gin")
  assert trainer.optimizer.__name__ == optim.adamw_rms.__name__
  assert (trainer.budget.amount, trainer.data.batch_size, trainer.max_grad_norm) == (65_536, 128, 1.0)
  assert trainer.data.feature_lengths == {"inputs": 512, "targets": 114}
  assert (trainer.model.emb_dim, trainer.model.mlp_dim, trainer.model.num_encoder_layers) == (
      768, 2048, 12)
  assert trainer.learning_rate == 2e-2
  for step, rate in ((0, 1e-2), (10_000, 2e-2), (65_536, 1e-5)):
    assert trainer.learning_rate * trainer.schedule(step / 65_536) == pytest.approx(rate)


@pytest.mark.parametrize("binding, message", [
    ("trainer.Trainer.optimizer = @optim.adamw()", "@adamw\\(\\).*write @adamw"),
    ("trainer.Trainer.optimizer = @optim.quantized", "quantized.optimizer.*@optim.quantized\\(\\)"),
    ("""trainer.Trainer.optimizer = @optim.grouped()
optim.grouped.optimizer = @optim.quantized""", "quantized.optimizer.*@optim.quantized\\(\\)")])
def test_brackets_of_optimizers(build, tmp_path, binding, message):
  """Some are functions of the learning rate, others give one."""
  (tmp_path / "mine.gin").write_text(f"""from __gin__ import dynamic_registration
from t5jax import optim
from t5jax import trainer
include "base.gin"
{binding}
optim.quantized.optimizer = @optim.adamw
""")
  with pytest.raises(config.ConfigError, match=message):
    build("mine.gin")


def test_groups_of_parameters(build, tmp_path):
  (tmp_path / "mine.gin").write_text("""from __gin__ import dynamic_registration
from t5jax import optim
from t5jax import trainer
include "base.gin"
trainer.Trainer.optimizer = @optim.grouped()
optim.grouped:
  optimizer = @optim.adamw_rms
  frozen = ["^token_embedder/"]
  learning_rates = {"^logits_dense/": 0.1}
""")
  trainer = build("mine.gin")
  check_shapes(trainer)
  params = states.abstract_params(trainer.model.with_vocabulary(32_100))
  moments = jax.eval_shape(trainer.optimizer(0.1).init, params)
  frozen = params["token_embedder"]["embedding"].size
  assert sum(x.size for x in jax.tree.leaves(moments) if x.ndim) == 2 * (
      sum(x.size for x in jax.tree.leaves(params)) - frozen)


def test_a_device_without_host_memory_refuses_to_use_it(tmp_path, monkeypatch):
  (tmp_path / "mine.txt").write_text("Et hus.\nEn by.\n")
  bindings = ["MODEL_DIR=run", f"TRAIN_FILES={tmp_path / 'mine.txt'}", "VOCAB_SIZE=8000",
              "MODEL_SIZE=tiny", "OPTIMIZER_MEMORY=host"]
  trainer, _ = config.build("t5jax.trainer.Trainer", ["text.gin"], bindings)
  trainer.check()
  monkeypatch.setattr(sharding, "HOST_MEMORY", "memory_that_is_not_there")
  with pytest.raises(ValueError, match="optimizer_memory = 'host'.*'device': cpu has no memory_that"):
    trainer.check()
