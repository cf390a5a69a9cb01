"""Compiles the preloadable shims of this folder, and reads the flush counter in the preloaded
process. Used by tests and benchmarks: ``sys.path`` must hold this folder, or load it by path.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def compiler() -> str | None:
    """The C compiler of this machine, if it has one."""
    return shutil.which("gcc") or shutil.which("cc")


def shim(name: str = "flushcount") -> Path:
    """The shared object of ``<name>.c``, compiled once for each content."""
    source = HERE / f"{name}.c"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    target = Path(tempfile.gettempdir()) / f"memcore-{name}-{os.getuid()}-{digest}.so"
    if not target.exists():
        gcc = compiler()
        if gcc is None:
            raise RuntimeError("no C compiler")
        fresh = target.with_suffix(f".{os.getpid()}")
        subprocess.run(
            [gcc, "-O2", "-Wall", "-shared", "-fPIC", "-o", fresh, source, "-ldl"], check=True
        )
        fresh.rename(target)
    return target


def preloaded(delay_us: int = 0) -> dict[str, str]:
    """The environment for a process that is to run under the flush counter."""
    return {**os.environ, "LD_PRELOAD": str(shim()), "FLUSHCOUNT_DELAY_US": str(delay_us)}


class Counter:
    """The counters of the shim that this process was started with."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL(os.environ["LD_PRELOAD"])
        for name in ("flushes", "writes", "bytes"):
            getattr(self.lib, f"flushcount_{name}").restype = ctypes.c_ulonglong
        self.lib.flushcount_delay.argtypes = [ctypes.c_long]

    def reset(self) -> None:
        self.lib.flushcount_reset()

    def delay(self, microseconds: int) -> None:
        self.lib.flushcount_delay(microseconds)

    @property
    def flushes(self) -> int:
        return self.lib.flushcount_flushes()

    @property
    def writes(self) -> int:
        return self.lib.flushcount_writes()

    @property
    def bytes(self) -> int:
        return self.lib.flushcount_bytes()
