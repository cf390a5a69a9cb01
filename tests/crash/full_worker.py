"""Cases on a nearly full device, each in a process of its own: a signal's death is a finding, too.

``python -m tests.crash.full_worker DIRECTORY tmpfs|limit`` reads one case a line, as JSON, and
answers each with its findings. DIRECTORY is the small file system, or any for a limit.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import memcore
from memcore.errors import MemcoreError, StoreFullError
from memcore.store import commit as room
from memcore.store import redo_log as redo
from memcore.store import steady

from .full_device import Ballast, Device, Limit
from .full_workload import Workload, plant, said

_STEPS_MAX: Final = 80
_REFUSALS: Final = 6
_KILLED: Final = 9
_KEY: Final = bytes(range(32))
_OF_BOB: Final = said("bob's")


class Case:
    """One case: what is left free, under which mode, and from which seed."""

    def __init__(self, device: Device, root: Path, planted: Path, asked: dict[str, Any]) -> None:
        self.device = device
        self.mode: str = asked["mode"]
        self.more: int = asked["more"]
        self.seed: int = asked["seed"]
        self.path = root / "work.memcore"
        self.planted = planted / f"{self.mode}.memcore"
        self.findings: list[str] = []
        self.facts: dict[str, int] = {}
        self.root = root

    def start(self, *, locks: bool = True) -> None:
        """A fresh copy of the planted store."""
        shutil.copyfile(self.planted, self.path)
        if locks:  # the lock file is there as a rule, its first pages at hand
            memcore.open(self.path).close()

    def squeeze(self) -> None:
        """Leave what the case says."""
        self.device.leave(self.path, self.more)

    def expect(self, *, holds: bool, what: str) -> None:
        """Note a finding unless it holds."""
        if not holds:
            self.findings.append(what)


def workload(case: Case, *, frees: bool = False) -> None:
    """The device fills up in the middle of work; then a deletion frees it, or somebody else."""
    case.start()
    with memcore.open(case.path) as db:
        work = Workload(db, case.seed, may_take_back=not frees)
        case.squeeze()
        for _ in range(_STEPS_MAX):
            refused = work.refused
            work.step()
            if work.refused > refused:
                case.findings += work.differences(db)
            if work.refused == _REFUSALS:
                break
        work.fill()
        case.facts["refusals"] = work.refused
        case.findings += work.differences(db)
        case.findings += db.check()
    with memcore.open(case.path, read_only=True) as db:
        case.findings += work.differences(db)
    with memcore.open(case.path) as db:
        case.findings += work.differences(db)
        work.move(db)
        if frees:
            case.device.free()
        work.delete_long()
        work.append_again()
        case.findings += work.differences(db)
        case.findings += db.check()
    with memcore.open(case.path, verify=True) as db:
        case.findings += work.differences(db)


def blind(case: Case) -> None:
    """No room is kept, so LMDB's own writes fail, anywhere in a commit; later there is space."""
    room.SpaceReserve.reserve = lambda *_: True  # type: ignore[method-assign]
    workload(case, frees=True)


def roomless(case: Case) -> None:
    """A control: no room is kept for those who delete."""
    room.SpaceReserve.reserve = lambda *_: True  # type: ignore[method-assign]
    workload(case)


def hasty(case: Case) -> None:
    """A control: what was refused is acknowledged."""
    append = memcore.Session.append

    def acknowledge(self: memcore.Session, *args: Any, **options: Any) -> Any:
        with suppress(StoreFullError):
            return append(self, *args, **options)

    memcore.Session.append = acknowledge  # type: ignore[method-assign]
    workload(case)


def create(case: Case) -> None:
    """A new store comes whole or not at all."""
    case.squeeze()
    try:
        memcore.open(case.path, durability=case.mode).close()
    except StoreFullError:
        case.facts["refusals"] = 1
        case.expect(holds=not case.path.exists(), what="a refused creation left a file")
    case.device.free()
    memcore.open(case.path, durability=case.mode).close()
    left = sorted(p.name for p in case.root.iterdir() if ".new-" in p.name)
    case.expect(holds=not left, what=f"left behind: {left}")


def backup(case: Case) -> None:
    """A copy comes whole or not at all, and the store goes on."""
    case.start()
    target = case.root / "copy.memcore"
    with memcore.open(case.path) as db:
        work = Workload(db, case.seed)
        case.squeeze()
        try:
            db.backup(target)
        except StoreFullError:
            case.facts["refusals"] = 1
            case.expect(holds=not target.exists(), what="a refused backup left a file")
        left = sorted(p.name for p in case.root.iterdir() if ".new-" in p.name)
        case.expect(holds=not left, what=f"left behind: {left}")
        case.findings += work.differences(db)
    if target.exists():
        case.device.free()
        with memcore.open(target) as copy:
            case.findings += work.differences(copy)


def recover(case: Case) -> None:
    """Killed between record and commit, then the device is full: the opener commits it."""
    case.start()
    size = random.Random(case.seed).choice((100, 20_000, 120_000))
    text = "r" * size

    def die() -> None:
        write = redo.RedoLog.write

        def write_and_die(self: Any, *args: Any) -> None:
            write(self, *args)
            os._exit(_KILLED)

        with memcore.open(case.path) as db:
            session = db.session("chat")
            session.append(said("before"))
            redo.RedoLog.write = write_and_die  # type: ignore[method-assign]
            session.append(said(text))

    case.expect(holds=in_child(die) == _KILLED, what="the writer was not killed")
    case.squeeze()
    with memcore.open(case.path, read_only=True) as db:
        case.expect(holds=len(db.session("chat")) == 11, what="a reader sees another history")
    with memcore.open(case.path) as db:
        found = [item.message["content"] for item in db.session("chat").tail(2)]
        case.expect(holds=found == ["before", text], what="the record was not replayed")
        work = Workload(db, case.seed)
        work.delete_long()
        work.append_again()
        case.findings += work.differences(db)
        case.findings += db.check()


def roll_back(case: Case) -> None:
    """The power was cut under a relaxed store, then the device is full."""
    case.start()

    def die() -> None:
        db = memcore.open(case.path)
        for at in range(20):
            db.session("chat").append(said(f"unsteady {at}"))
        os._exit(_KILLED)

    case.expect(holds=in_child(die) == _KILLED, what="the writer was not killed")
    case.squeeze()
    steady.boot_id = lambda: b"the boot after.."
    with memcore.open(case.path) as db:
        case.expect(holds=10 <= len(db.session("chat")) <= 30, what="no prefix of the history")
        work = Workload(db, case.seed)
        work.delete_long()
        work.append_again()
        case.findings += work.differences(db)
        case.findings += db.check()


def open_anew(case: Case) -> None:
    """No lock file is there, and no room for one: it opens, or says what is the matter."""
    case.start(locks=False)
    case.squeeze()
    try:
        with memcore.open(case.path) as db:
            work = Workload(db, case.seed)
            work.delete_long()
            work.append_again()
            case.findings += work.differences(db)
    except StoreFullError:
        case.facts["refusals"] = 1
        case.expect(holds=case.more < 2**17, what="refused in spite of room")


def shred(case: Case) -> None:
    """A user of an encrypted store is erased: rows go, and keys as soon as there is room."""
    _two_users(case, key=_KEY)
    with memcore.open(case.path, key=_KEY) as db:
        ring = db.engine.store.vault.ring
        case.squeeze()
        receipt = db.erase("alice")
        waits = ring.of_scope(1) is not None
        case.facts["refusals"] = int(waits)
        told = any("await shredding" in note for note in receipt.pending)
        case.expect(holds=not receipt.verification["rows_left"], what="rows are left")
        case.expect(holds=waits == told, what=f"the keys wait: {waits}, told: {receipt.pending}")
        case.expect(holds=not (waits and receipt.bytes_gone), what="gone, and its keys are not")
        case.findings += db.check()
    with memcore.open(case.path, key=_KEY) as db:
        case.expect(holds=db.session("s", user="bob").get(1).message == _OF_BOB, what="bob's item")
        case.findings += db.check()
    case.device.free()
    with memcore.open(case.path, key=_KEY) as db:
        case.expect(holds=db.engine.store.vault.ring.shredded() == [1], what="keys are left")
        left = [each.pending for each in db.finish_erasures() if not each.bytes_gone]
        case.expect(holds=not left, what=f"not finished: {left}")
        case.expect(holds=db.session("s", user="bob").get(1).message == _OF_BOB, what="bob's item")
        case.findings += db.check()


def secret(case: Case) -> None:
    """The secret of a store is needed first when there is no room for its file: it is one only."""
    _two_users(case)
    file = case.root / f"{case.path.name}.secret"
    with memcore.open(case.path) as db:
        case.squeeze()
        receipt = db.erase("alice", compact=False)
        known = db.receipt_key
        case.expect(holds=memcore.verify_receipt(receipt, key=known), what="a receipt unproven")
        case.facts["refusals"] = int(not file.exists())
    with memcore.open(case.path) as db:
        case.expect(holds=db.receipt_key == known, what="another secret")
        case.findings += db.check()
    case.device.free()
    with memcore.open(case.path) as db:
        case.expect(holds=file.exists() and db.receipt_key == known, what="another secret later")
        case.findings += db.check()
    case.expect(holds=file.read_bytes() not in case.path.read_bytes()[: 2**12], what="it is left")


def anchor(case: Case) -> None:
    """No room is left for anchors of the audit: a deletion goes on, and is chained."""
    audit = memcore.Audit(key=_KEY, anchor=case.root / "anchors", every_entries=1)
    _two_users(case, audit=memcore.Audit(key=_KEY))
    with memcore.open(case.path, audit=audit) as db:
        case.squeeze()
        receipt = db.erase("alice", compact=False)
        case.expect(holds=not receipt.verification["rows_left"], what="rows are left")
        case.facts["refusals"] = sum("audit" in note for note in receipt.pending)
    case.device.free()
    with memcore.open(case.path, audit=audit) as db:
        db.session("s", user="bob").append(said("later"))
        db.flush()
        left = [each.pending for each in db.finish_erasures() if not each.bytes_gone]
        case.expect(holds=not left, what=f"not finished: {left}")
        case.findings += db.check()
        case.findings += [str(each) for each in db.verify_audit().findings]


def _two_users(case: Case, **options: Any) -> None:
    with memcore.open(case.path, durability=case.mode, **options) as db:
        db.session("s", user="alice").extend([said("a" * 9_000) for _ in range(20)])
        db.session("s", user="bob").append(_OF_BOB)


CASES: Final[dict[str, Callable[[Case], None]]] = {
    case.__name__: case
    for case in (
        workload,
        blind,
        create,
        backup,
        recover,
        roll_back,
        open_anew,
        shred,
        secret,
        anchor,
        roomless,
        hasty,
    )
}


def in_child(fn: Callable[[], None]) -> int:
    """Run ``fn`` in a forked process; its exit code, negative for a signal."""
    child = os.fork()
    if not child:
        code = 1
        try:
            fn()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def answer(case: Case, kind: str) -> dict[str, Any]:
    """Run a case; whatever it raises is a finding."""
    try:
        CASES[kind](case)
    except (MemcoreError, AssertionError, OSError) as error:
        cause = f" <- {error.__cause__!r}" if error.__cause__ else ""
        case.findings.append(f"{type(error).__name__}: {error}{cause} at {place_of(error)}")
    return {"findings": case.findings[:5], "facts": case.facts}


def place_of(error: BaseException) -> str:
    """The calls of this harness that the error came through."""
    trace, names = error.__traceback__, []
    while trace is not None:
        code = trace.tb_frame.f_code
        if "/crash/" in code.co_filename:
            names.append(f"{code.co_name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " > ".join(names)


def serve(device: Device, root: Path, planted: Path) -> None:
    """Answer each line of the standard input."""
    for line in sys.stdin:
        asked = json.loads(line)
        into, out = os.pipe()

        def run(asked: dict[str, Any] = asked, out: int = out) -> None:
            found = answer(Case(device, root, planted, asked), asked["kind"])
            os.write(out, json.dumps(found).encode())

        code = in_child(run)
        os.close(out)
        with os.fdopen(into, "rb") as pipe:
            told = pipe.read()
        found = json.loads(told) if told else {"findings": [], "facts": {}}
        if code:
            found["findings"].append(f"its process ended with {code}")
        device.free()
        for leftover in root.iterdir():
            leftover.unlink()
        sys.stdout.write(json.dumps(asked | found) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Plant the stores, then serve."""
    root, planted, kind = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    device = Ballast(root) if kind == "tmpfs" else Limit()
    for mode in ("full", "relaxed"):
        path = planted / f"{mode}.memcore"
        if not path.exists():
            in_child(lambda path=path, mode=mode: plant(str(path), mode))  # type: ignore[misc]
    serve(device, root, planted)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(0 if error.errno == errno.EPIPE else f"{error}")
