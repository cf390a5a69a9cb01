"""A process on a device that fails: what its threads and handles are told. Run under ``eio.c``."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import memcore
import memcore.aio
from memcore.errors import MemcoreError

THREADS = 4
ACKNOWLEDGED_MIN = 10
REFUSALS = 5
LATER_MAX = 50


class Device:
    """The preloaded shim."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL(os.environ["LD_PRELOAD"])
        self.lib.eio_failures.restype = self.lib.eio_calls.restype = ctypes.c_long
        self.lib.eio_arm.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_long, ctypes.c_long]

    def fail(self, kinds: str, *, error: int = errno.EIO, skip: int = 0, count: int = -1) -> None:
        self.lib.eio_arm(kinds.encode(), error, skip, count)

    def heal(self) -> None:
        self.fail("", count=0)

    @property
    def failures(self) -> int:
        return int(self.lib.eio_failures())


def outcome(fn: Callable[[], Any]) -> str:
    """``fine``, or the name of the error."""
    try:
        fn()
    except MemcoreError as error:
        return type(error).__name__
    except Exception as error:  # noqa: BLE001 - an untyped one is what the test looks for
        return f"untyped {error!r}"
    return "fine"


class Crowd:
    """Threads on two handles that append until they have been refused a few times."""

    def __init__(self, device: Device, path: str) -> None:
        self.device = device
        self.handles = [memcore.open(path), memcore.open(path)]
        self.acknowledged: list[list[int]] = [[] for _ in range(THREADS)]
        self.errors: set[str] = set()
        self.late = 0
        self.warm = threading.Barrier(THREADS + 1)
        self.threads = [threading.Thread(target=self.work, args=(n,)) for n in range(THREADS)]

    def work(self, me: int) -> None:
        session = self.handles[me % 2].session(f"s{me}")
        refused = number = later = 0
        while refused < REFUSALS and later < LATER_MAX:
            if number == ACKNOWLEDGED_MIN:
                self.warm.wait()
            began_after = self.device.failures > 0
            later += began_after
            told = outcome(lambda n=number: session.append({"role": "user", "content": f"{n}"}))
            if told == "fine":
                self.acknowledged[me].append(number)
                self.late += began_after
            else:
                self.errors.add(told)
                refused += 1
            number += 1


def stored(db: memcore.Database) -> list[list[int]]:
    return [
        [int(i.message["content"]) for i in db.session(f"s{n}").items()] for n in range(THREADS)
    ]


def poisoned(path: str, kinds: str, skip: int, count: int) -> dict[str, Any]:
    """The device fails under four threads; everybody is refused until the file is reopened."""
    device = Device()
    crowd = Crowd(device, path)
    for thread in crowd.threads:
        thread.start()
    crowd.warm.wait()
    device.fail(kinds, skip=skip, count=count)
    for thread in crowd.threads:
        thread.join()
    third = memcore.open(path)  # shares the environment, and so what is wrong with it
    crowd.handles.append(third)
    is_poisoned = third.engine.store.stats()["poisoned"]

    async def facade() -> str:
        async with memcore.aio.open(path) as db:
            try:
                await db.session("aio").append({"role": "user", "content": "never"})
            except MemcoreError as error:
                return type(error).__name__
        return "fine"

    told = {
        "append": outcome(lambda: third.session("new").append({"role": "user", "content": "x"})),
        "kv": outcome(lambda: third.scope().kv("k").put("k", 1)),
        "undo": outcome(lambda: third.session("s0").undo()),
        "aio": asyncio.run(facade()),
        "read": outcome(lambda: stored(third)),
    }
    closing = [outcome(handle.close) for handle in crowd.handles]
    device.heal()
    with memcore.open(path) as db:
        after = outcome(lambda: db.session("new").append({"role": "user", "content": "works"}))
        findings = db.check()
        rows = stored(db)
    return {
        "acknowledged": crowd.acknowledged,
        "late": crowd.late,
        "poisoned": is_poisoned,
        "errors": sorted(crowd.errors),
        "told": told,
        "closing": closing,
        "after": after,
        "findings": findings,
        "stored": rows,
    }


def flushed(path: str) -> dict[str, Any]:
    """An explicit flush fails; a later commit must not be acknowledged on top of it."""
    device = Device()
    db = memcore.open(path)
    session = db.session("s0")
    session.append({"role": "user", "content": "0"})
    device.fail("f", count=1)
    told = [
        outcome(db.flush),
        outcome(lambda: session.append({"role": "user", "content": "1"})),
        outcome(db.close),
    ]
    device.heal()
    with memcore.open(path) as db:
        return {"told": told, "stored": stored(db)[0], "findings": db.check()}


def unreadable(path: str) -> dict[str, Any]:
    """Reads by descriptor fail: every call that needs one says so, in a typed error."""
    device = Device()
    with memcore.open(path) as db:
        db.session("s0").append({"role": "user", "content": "0"})
        target = Path(path).with_name("copy")
        calls: dict[str, Callable[[], Any]] = {
            "stats": db.stats,
            "check": db.check,
            "backup": lambda: db.backup(target),
            "append": lambda: db.session("s0").append({"role": "user", "content": "1"}),
        }
        told = {}
        for name, call in calls.items():
            device.fail("r")
            told[name] = outcome(call)
            device.heal()
        told["a half copy is left"] = str(told["backup"] != "fine" and target.exists())
    device.fail("r")
    told["open"] = outcome(lambda: memcore.open(path))
    told["open, verify"] = outcome(lambda: memcore.open(path, verify=True))
    told["open, read-only"] = outcome(lambda: memcore.open(path, read_only=True))
    device.heal()
    with memcore.open(path) as db:
        return {"told": told, "stored": stored(db)[0], "findings": db.check()}


def work(path: str) -> None:
    """A little of everything, acknowledged line by line; killed at some system call of it."""
    with memcore.open(path, map_bytes=2**20) as db:
        session = db.session("s0")
        for number in range(3):
            session.append({"role": "user", "content": f"{number}"})
            os.write(1, b"%d\n" % number)
        session.append({"role": "user", "content": "3" + " " * 600_000})
        os.write(1, b"3\n")
        db.session("other").append({"role": "user", "content": "x" * 700_000})
        db.delete_session("other")
        session.append({"role": "user", "content": "4"})
        os.write(1, b"4\n")
    os.write(1, b"%d\n" % Device().lib.eio_calls())


def main() -> None:
    name, path, *rest = sys.argv[1:]
    if name == "work":
        work(path)
        return
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        "poisoned": lambda: poisoned(path, rest[0], int(rest[1]), int(rest[2])),
        "flushed": lambda: flushed(path),
        "unreadable": lambda: unreadable(path),
    }
    os.write(1, json.dumps(cases[name]()).encode())


if __name__ == "__main__":
    main()
