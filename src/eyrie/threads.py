"""One place that says how many cores a job uses.

Two torch processes that each spin on every core are about ten times slower than one thread each, so each command
takes `--threads` from what the scheduler gave it. OpenMP's spinning is left on: on quiet cores it decodes 1.4 to 1.8
times faster than sleeping. Who shares the cores with something else sets OMP_WAIT_POLICY=PASSIVE, as the tests do.
"""

from __future__ import annotations

import argparse
import ctypes
import os

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


def available() -> int:
    """Cores that this process may run on (its affinity, not the machine's count)."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--threads N` (default: every core this process may use)."""
    parser.add_argument("--threads", type=int, default=available(), metavar="N", help="cores to use (default: all)")


def set_threads(count: int | None) -> int:
    """Make torch, OpenMP and the tokenizers use `count` cores (None: all available); returns the count.

    Call it before the first heavy computation. The environment is set as well, so that libraries loaded later and
    child processes follow; torch is told directly, since it may have read the environment already.
    """
    count = max(1, count if count is not None else available())
    for name in VARIABLES:
        os.environ[name] = str(count)
    keep_memory()
    import torch

    torch.set_num_threads(count)
    return count


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h>


def keep_memory() -> None:
    """Have freed blocks of up to 32 MB reused instead of given back, and larger ones made of huge pages.

    Activations are allocated anew at every step; a fresh page costs several times what writing to it does, most of
    all in a virtual machine, so that products ran at half their rate. glibc only; elsewhere nothing changes.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch asks the kernel for huge pages
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the most that glibc takes
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
