"""A full device, at every point where it may strike: nothing is lost, and deleting frees it.

On a tmpfs of a few MiB in a mount namespace of its own (for root), and under RLIMIT_FSIZE (for
everybody; it cuts writes short at any byte). The free space is swept in small steps, so that it
ends in the redo record, LMDB's pages, the growth ahead of need, a staged blob, the file's creation,
a backup, or the opener's replay.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from .outcome import Outcome, Part, Plan, Say

__all__ = ["cases", "parts"]

_ROOT: Final = Path(__file__).parents[2]
_TMPFS_BYTES: Final = 24 * 1024**2
_PAGE: Final = 4096
_KIB: Final = 1024
_MODES: Final = ("full", "relaxed")

SWEEPS: Final = {
    # kind: (modes, most bytes left free, bytes of a step in the long run, cases in the short one)
    "workload": (_MODES, 4 * _KIB**2, 8 * _KIB, 4),
    "blind": (_MODES, 4 * _KIB**2, 8 * _KIB, 4),
    "create": (_MODES, 900 * _KIB, 2 * _KIB, 4),
    "backup": (_MODES, 4 * _KIB**2, 16 * _KIB, 2),
    "recover": (("full",), 256 * _KIB, 2 * _KIB, 2),
    "roll_back": (("relaxed",), 64 * _KIB, 2 * _KIB, 2),
    "open_anew": (_MODES, 256 * _KIB, 4 * _KIB, 2),
    "shred": (_MODES, 256 * _KIB, 4 * _KIB, 4),
    "secret": (_MODES, 64 * _KIB, 2 * _KIB, 4),
    "anchor": (_MODES, 64 * _KIB, 2 * _KIB, 4),
}
"""The sweeps; the short run takes some of each at random, nothing left free always among them."""

CONTROLS: Final = ("roomless", "hasty")
"""Cases with a planted bug: each of them must be found."""
_CONTROL_CASES: Final = 3


def cases(*, long: bool, seed: int, odd: bool, thin: int = 1) -> Iterator[dict[str, Any]]:
    """The cases of one device; ``odd``: not whole pages only; ``thin``: one in so many steps."""
    chance = random.Random(seed)
    for kind, (modes, most, step, few) in SWEEPS.items():
        for mode in modes:
            if long:
                left = [0, *range(step * (1 + chance.randrange(thin)), most, step * thin)]
            else:
                left = [
                    0,
                    *(chance.randrange(0, most, _PAGE) for _ in range(few // len(modes) - 1)),
                ]
            for more in left:
                yield {
                    "kind": kind,
                    "mode": mode,
                    "more": more + (chance.randrange(_PAGE) if odd and more else 0),
                    "seed": chance.randrange(2**32),
                }


def may_mount() -> bool:
    """Whether this process may have a file system of its own."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    probe = ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=64k tmpfs /mnt"]
    return subprocess.run(probe, check=False, capture_output=True).returncode == 0


def command(device: str, root: Path, planted: Path) -> list[str]:
    """The worker, on its own file system if it shall have one."""
    worker = [sys.executable, "-m", "tests.crash.full_worker", str(root), str(planted), device]
    if device == "limit":
        return worker
    mount = f'mount -t tmpfs -o size={_TMPFS_BYTES} tmpfs "$1" && shift && exec "$@"'
    return ["unshare", "-m", "sh", "-c", mount, "sh", str(root), *worker]


class Worker:
    """The process that serves the cases of one device."""

    def __init__(self, device: str, directory: str) -> None:
        root, planted = Path(directory, "device"), Path(directory, "planted")
        root.mkdir()
        planted.mkdir()
        path = os.pathsep.join(map(str, (_ROOT, *sys.path)))
        self._process = subprocess.Popen(
            command(device, root, planted), cwd=_ROOT, env=os.environ | {"PYTHONPATH": path},
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def ask(self, case: dict[str, Any]) -> dict[str, Any]:
        """What came of a case."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        told: dict[str, Any] = json.loads(self._process.stdout.readline())
        return told


def controls(worker: Worker, device: str, seed: int) -> list[str]:
    """The planted bugs that were not found."""
    missed = []
    for kind in CONTROLS:
        asked = [
            {"kind": kind, "mode": "full", "more": more * _KIB, "seed": seed}
            for more in range(_CONTROL_CASES)
        ]
        if not any(worker.ask(case)["findings"] for case in asked):
            missed.append(f"{device}: the planted bug {kind!r} was not found")
    return missed


def sweep(device: str, say: Say, *, long: bool, seed: int, thin: int = 1) -> Outcome:
    """All cases on one sort of full device."""
    done = refusals = 0
    with (
        tempfile.TemporaryDirectory(prefix="memcore-full-") as directory,
        Worker(device, directory) as worker,
    ):
        findings = controls(worker, device, seed)
        for asked in cases(long=long, seed=seed, odd=device == "limit", thin=thin):
            found = worker.ask(asked)
            done += 1
            refusals += found["facts"].get("refusals", 0)
            findings += [f"{device} {json.dumps(asked)}: {what}" for what in found["findings"]]
            if long and done % 100 == 0:
                say(f"full on {device}: {done} cases, {len(findings)} findings")
    if not refusals:
        findings.append(f"{device}: nothing was ever refused, so the device was never full")
    facts = {"refusals": refusals, "controls caught": len(CONTROLS)}
    return Outcome(f"full {device}", done, findings, facts)


def parts(plan: Plan) -> list[Part]:
    """The sweeps on every sort of full device that this user may have: a tmpfs takes root."""
    return [
        Part(
            f"full {device}: {plan.seed}{f', long, 1 in {plan.thin}' if plan.long else ''}",
            partial(sweep, device, long=plan.long, seed=plan.seed, thin=plan.thin),
        )
        for device in (["tmpfs", "limit"] if may_mount() else ["limit"])
    ]
