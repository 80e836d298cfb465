"""Shared by all tests: eight fake CPU devices, quiet TensorFlow, a cache for compiled programs."""

import contextlib
import os
import pathlib
import tempfile

# Before JAX starts its backend. Tests that need one device take jax.devices()[:1].
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = " ".join([
    "--xla_force_host_platform_device_count=8",
    # Machine code of small models is compiled and hardly run: plain code takes a third of the time.
    "--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
    # XLA ends a process whose devices have not met within 40 seconds: a busy machine may need more.
    "--xla_cpu_collective_timeout_seconds=600",
    "--xla_cpu_collective_call_terminate_timeout_seconds=600"])
# Programs of all devices share one pool of threads. A device may wait in two collectives at a time, so
# with a thread for each device some would find none, and all would wait for ever.
os.environ.setdefault("PJRT_NPROC", "16")
# NumPy's threads wait for each other: matrices as small as the tests' take seven times as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# The compiler of torch's CUDA builds crashes when it is loaded after TensorFlow; before, it does not.
with contextlib.suppress(ImportError):
  import triton  # noqa: F401

_cache = pathlib.Path(tempfile.gettempdir()) / f"t5jax-test-compilations-{os.getuid()}"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_cache))
# Small programs too: the many processes of tests/entry compile the same ones.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
