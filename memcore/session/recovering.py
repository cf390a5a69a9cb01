"""Recovery of one session whose rows are damaged: to where it can go, and how it gets there.

It goes as a rewind goes: rows of items stay where they are, whole or damaged, and where the session
was is saved as a checkpoint if that can be told. Only what follows from items is written anew: the
head, index pages, token counts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from memcore.errors import (
    CorruptValueError,
    InvalidOptionError,
    LeaseHeldError,
    NotFoundError,
)
from memcore.lease import lease_key, read_lease
from memcore.log import Prepared
from memcore.log.survivors import Survivors
from memcore.options import checked_bool
from memcore.session.address import Address
from memcore.session.diagnosing import Diagnosis, Way, diagnose
from memcore.session.recovered import Recovery, RecoveryStep
from memcore.session.restoring import Restoring
from memcore.store.base import ReadTxn, Txn

__all__ = ["RECOVERY_STEPS", "Recovering"]

RECOVERY_STEPS: Final = ("mend", "checkpoint", "log", "empty")
_UNASKED: Final = ("mend", "checkpoint", "log")
"""What a recovery may do that nobody asked for at the time."""
_TOLD: Final = "session %r: %s: %d findings, %d items are live, %d were lost; see session.recover()"
_log = logging.getLogger("memcore")
_DAMAGED_ITEMS: Final = (
    "the damaged rows stay in the file, and 'memcore check' goes on reporting them; 'memcore "
    "salvage' makes a file without them"
)


class Recovering:
    """The recovery of one session."""

    __slots__ = ("_address",)

    def __init__(self, address: Address) -> None:
        self._address = address

    def run(self, *, plan: bool, steps: Iterable[str]) -> Recovery:
        """Find out what is wrong and, unless ``plan``, go the first way that serves."""
        allowed = _checked_steps(steps)
        store = self._address.backing.store
        if checked_bool("plan", plan):
            return store.read(lambda txn: self._look(txn, allowed)[0])
        self._address.refuse_read_only()
        return store.transact(lambda txn: self._recover(txn, allowed))

    def lazily(self) -> bool:
        """Recover the session at the first use of its handle; False: there is none yet.

        Never to an empty session: that is for a person to decide. What no step mends stays as it
        is, and whoever meets it meets the error.
        """
        name = self._address.name
        try:
            done = self.run(plan=False, steps=_UNASKED)
        except (NotFoundError, LeaseHeldError):
            return False  # nothing is there, or it is not this handle's to change for now
        if done.status != "sound":
            level = logging.WARNING if done.status == "recovered" else logging.ERROR
            found, lost = len(done.findings), len(done.lost)
            _log.log(level, _TOLD, name, done.status, found, done.items, lost)
        return True

    def _look(
        self, txn: ReadTxn, allowed: Sequence[str]
    ) -> tuple[Recovery, Diagnosis | None, Way | None]:
        """What would be done, and what it takes."""
        address = self._address
        place = address.find(txn)
        if place is None:
            msg = f"there is no session {address.name!r}"
            raise NotFoundError(msg)
        options, backing = address.options, address.backing
        counter = options.counter or backing.counter
        default = options.policy or backing.policy, counter.id
        found = diagnose(Survivors(txn, *place), backing.counter_named, default)
        if not found.findings:
            return Recovery("sound", items=found.count, notes=tuple(found.notes)), found, None
        tried: list[RecoveryStep] = []
        chosen: Way | None = None
        for name in allowed:
            for way in found.ways(name):
                tried.append(RecoveryStep(name, way.target, way.serves, way.reason))
                if way.serves:
                    chosen = way
                    break
            if chosen is not None:
                break
        notes = [*found.notes, *((_DAMAGED_ITEMS,) if found.lost else ())]
        told = Recovery("failed", tuple(found.findings), tuple(tried), notes=tuple(notes))
        if chosen is None:
            return told, found, None
        live = set(chosen.kept.steps()) | set(chosen.moved)
        told = replace(
            told,
            status="planned",
            items=chosen.kept.count + len(chosen.moved),
            moved=len(chosen.moved),
            lost=tuple(found.lost),
            left_out=sum(1 for step in found.readable if step not in live),
            checkpoint=None if chosen.saved is None else chosen.saved.checkpoint,
        )
        return told, found, chosen

    def _recover(self, txn: Txn, allowed: Sequence[str]) -> Recovery:
        told, found, way = self._look(txn, allowed)
        place = None if found is None else (found.survivors.scope, found.survivors.session)
        if place is not None and self._mend_lease(txn, place):
            told = replace(told, notes=(*told.notes, "its lease was damaged: nobody holds it now"))
        if way is None or found is None or place is None:
            return told
        self._address.admit(txn, place)
        restoring = Restoring(self._address, txn, found, way)
        before = restoring.run(self._moved(found, way))
        notes = (*told.notes, *restoring.notes)
        return replace(told, status="recovered", before=before, notes=notes)

    @staticmethod
    def _mend_lease(txn: Txn, place: tuple[int, int]) -> bool:
        """A damaged lease row would keep everybody out: it goes, and whose it was is fenced."""
        try:
            read_lease(txn, *place)
        except CorruptValueError:
            return txn.delete(lease_key(*place)) is not False
        return False

    def _moved(self, found: Diagnosis, way: Way) -> list[Prepared]:
        backing = self._address.backing
        return [found.prepared(step, seed=backing.seed) for step in way.moved]


def _checked_steps(steps: Iterable[str]) -> tuple[str, ...]:
    found = tuple(steps) if not isinstance(steps, str) else ()
    if not found or not set(found) <= set(RECOVERY_STEPS):
        msg = f"steps: expected some of {', '.join(RECOVERY_STEPS)}, got {steps!r:.80}"
        raise InvalidOptionError(msg)
    return found
