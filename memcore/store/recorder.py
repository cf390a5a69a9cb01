"""The audit of one open file: its key, where its chains stand, and when they are anchored."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from memcore.errors import AuditError, MemcoreError
from memcore.privacy.entry import Chainer
from memcore.store.base import MapMovedError
from memcore.store.call import WriterNeeded
from memcore.store.recording import Place, Recording, Tip

if TYPE_CHECKING:
    from memcore.store.environment import Environment
    from memcore.store.txn import WriteTxn

__all__ = ["AnchorFullError", "Anchorage", "Recorder", "anchored"]

_TIPS_MAX: Final = 4096
_ANCHORED_MAX: Final = 4096
_log = logging.getLogger("memcore.audit")


class AnchorFullError(AuditError):
    """No space is left for an anchor; what makes room goes on without."""


class Anchorage(Protocol):
    """Where the heads of chains are put down, outside of the file."""

    def write(self, tips: Mapping[Place, tuple[int, bytes]]) -> None:
        """Put down numbers and macs, durably.

        Raises:
            AnchorFullError: no space is left.
            AuditError: it cannot be done now.
        """


class Recorder:
    """What all transactions of an environment share. Only its leader writes here."""

    __slots__ = (
        "_anchorage",
        "_env",
        "_every_entries",
        "_every_seconds",
        "_failure",
        "_file",
        "_since",
        "_strict",
        "_txnid",
        "_waiting",
        "anchored",
        "chainer",
        "changed",
        "clock",
        "tips",
    )

    def __init__(
        self,
        env: Environment,
        chainer: Chainer,
        *,
        anchorage: Anchorage | None,
        every_entries: int,
        every_seconds: float,
        strict: bool,
    ) -> None:
        self._env = env
        self.chainer = chainer
        self._anchorage = anchorage
        self._every_entries = every_entries
        self._every_seconds = every_seconds
        self._strict = strict
        self._failure = ""
        self._txnid = 0
        self._file = env.key
        self._waiting = 0
        self.clock: Callable[[], float] = time.monotonic
        self._since = self.clock()
        self.tips: dict[Place, Tip] = {}
        """Where chains stand, as long as nobody else commits."""
        self.changed: dict[Place, tuple[int, bytes]] = {}
        """What no anchor covers yet."""
        self.anchored: dict[Place, int] = {}
        """What an anchor covers, and its mark is to go."""

    # --- transactions -----------------------------------------------------------------------------

    def begin(self, txn: WriteTxn, txnid: int) -> Recording:
        """The recording of a transaction that begins."""
        if txnid != self._txnid + 1 or self._file != self._env.key:
            self.tips.clear()  # somebody else has committed, or it is a compact copy now
            self._file = self._env.key
        return Recording(self, txn, txnid)

    def committed(
        self, txnid: int, tips: Mapping[Place, Tip], wrote: int, unmarked: Sequence[Place]
    ) -> None:
        """Take over what a stored transaction knows. May be called again after an interrupt."""
        if len(self.tips) > _TIPS_MAX:
            self.tips.clear()
        for place in unmarked:
            self.anchored.pop(place, None)
        self.tips.update(tips)
        if wrote and self._anchorage is not None:
            for place, tip in tips.items():
                if tip.marked and tip.number:
                    self.changed[place] = tip.number, tip.mac
            if self._txnid != txnid:
                self._waiting += wrote
        self._txnid = txnid

    def owe(self, tips: Mapping[Place, tuple[int, bytes]]) -> None:
        """What others left unanchored is due with the next anchor."""
        for place, tip in tips.items():
            self.changed.setdefault(place, tip)

    # --- anchoring --------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether a commit is to be followed, or preceded, by an anchor: one waits for a device."""
        return (
            self._anchorage is not None
            and bool(self.changed)
            and (
                self._waiting >= self._every_entries
                or self.clock() - self._since >= self._every_seconds
                or (self._strict and bool(self._failure))
            )
        )

    def need_anchored(self, *, hurried: bool) -> AnchorFullError | None:
        """Before a transaction: an anchor that failed is tried again.

        Returns:
            What to tell those who do not make room, where the anchor's device is full: who deletes
            must not have to delete first. Marks in the file say what is to be anchored later.

        Raises:
            WriterNeeded: ``hurried``, and an anchor is due.
            AuditError: it fails again, and nothing shall be written without.
        """
        if hurried and self.is_due:
            raise WriterNeeded
        if self._failure and self._strict:
            try:
                self.anchor()
            except AnchorFullError as error:
                return error
        return None

    def anchor_if_due(self) -> None:
        """After a commit. What fails is told by the next one: this one is stored."""
        if self.is_due:
            try:
                self.anchor()
            except MemcoreError as error:
                self._failure = str(error)

    def anchor(self, _: object = None) -> None:
        """Put down where the chains stand that have grown. Needs the lead.

        What is put down has to be durable in the file before: it would read as cut off.

        Raises:
            AuditError: it cannot be done now, and ``on_failure`` is ``"raise"``.
        """
        if self._anchorage is None or not self.changed or self._env.raw is None:
            return
        try:
            if not self._make_durable():
                return  # the next commit follows the map first
            self._anchorage.write(self.changed)
        except AuditError as error:
            self._failure = str(error)
            self._waiting, self._since = 0, self.clock()
            _log.error("%s: the audit could not be anchored: %s", self._env.path, error)
            if self._strict:
                raise
            return
        self._failure = ""
        self._waiting, self._since = 0, self.clock()
        if len(self.anchored) < _ANCHORED_MAX:
            self.anchored.update((place, tip[0]) for place, tip in self.changed.items())
        self.changed.clear()

    def _make_durable(self) -> bool:
        env = self._env
        if env.pin is not None:
            try:
                env.pin.point()
            except MapMovedError:
                return False
        elif env.redo is None and not env.private:
            env.leader.sync()
        return True


@contextmanager
def anchored(recorder: Recorder | None) -> Iterator[None]:
    """Around the closing of a file: a last anchor; the file is closed even if that fails.

    On a full device it is left to the next who opens the file; the log says so.
    """
    failure: MemcoreError | None = None
    if recorder is not None:
        try:
            recorder.anchor()
        except AnchorFullError:
            pass
        except MemcoreError as error:
            failure = error
    yield
    if failure is not None:
        raise failure
