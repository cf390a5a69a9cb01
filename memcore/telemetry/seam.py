"""Telemetry: what one open database tells its sinks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from memcore.errors import InvalidOptionError
from memcore.telemetry.record import Record, Sink

__all__ = ["Calling", "Telemetry", "telemetry_of"]

_log: Final = logging.getLogger("memcore")
_log.addHandler(logging.NullHandler())
_HASH_BYTES: Final = 9


class Calling(Sink):
    """A plain callable as a sink. What it does to databases itself is not told."""

    def __init__(self, call: Callable[[Record], object]) -> None:
        self._call = call
        self._within = threading.local()

    def __repr__(self) -> str:
        return f"Calling({self._call!r})"

    def tell(self, record: Record) -> None:
        """Call it, unless it is what runs already."""
        if getattr(self._within, "running", False):
            return
        self._within.running = True
        try:
            self._call(record)
        finally:
            self._within.running = False


class Telemetry:
    """The sinks of one open database, and what all its records have in common.

    ``failures`` counts what sinks raised; the first of each is logged.
    """

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self.sinks = tuple(sinks)
        self.failures = 0
        self.backend = "lmdb"
        self.durability = "full"
        self.enters: dict[str, tuple[Sink, ...]] = {}
        for sink in self.sinks:
            for operation in sink.enters:
                self.enters[operation] = (*self.enters.get(operation, ()), sink)
        self._seed = b""
        self._failed: set[int] = set()
        self._tells = tuple(sink.tell for sink in self.sinks if sink.names == "clear")
        self._masked = tuple(sink for sink in self.sinks if sink.names != "clear")

    def bind(self, store: Any) -> None:
        """The database is open: its secret keys the pseudonyms, or its seed if there is none."""
        self._seed = (store.secret.found() if self._masked else None) or store.seed
        self.durability = store.durability
        for sink in self.sinks:
            self._guarded(sink.attach, store)

    def tell(self, record: Record, entered: Sequence[tuple[Sink, Any]] = ()) -> None:
        """Hand a record to every sink; none of them breaks the operation."""
        for tell in self._tells:
            try:
                tell(record)
            except Exception as exc:  # noqa: BLE001 - a sink may fail in any way
                self.failed(tell, exc)
        for sink in self._masked:
            self._guarded(sink.tell, self._masked_for(sink, record))
        if self.enters and record.operation in self.enters:
            self._leave(record, dict(entered))
        self.durability = record.durability

    def enter(self, operation: str) -> list[tuple[Sink, Any]]:
        """Tell the sinks that asked for it that an operation begins."""
        entered = []
        for sink in self.enters.get(operation, ()):
            try:
                entered.append((sink, sink.enter(operation)))
            except Exception as exc:  # noqa: BLE001 - see tell
                self.failed(sink, exc)
        return entered

    def redacted(self, found: Mapping[str, int]) -> None:
        """Tell how many values of each class were redacted."""
        for sink in self.sinks:
            self._guarded(sink.redacted, found, self.backend)

    def flush(self) -> None:
        """The database is closed: nothing is kept back any more."""
        for sink in self.sinks:
            self._guarded(sink.flush)

    def pseudonym(self, name: str) -> str:
        """The name's keyed hash: the same for every handle and process of this file."""
        encoded = name.encode("utf-8", "surrogatepass")
        return blake2b(encoded, digest_size=_HASH_BYTES, key=self._seed).hexdigest()

    def _leave(self, record: Record, entered: dict[Sink, Any]) -> None:
        for sink in self.enters[record.operation]:
            self._guarded(sink.leave, entered.get(sink), self._masked_for(sink, record))

    def _masked_for(self, sink: Sink, record: Record) -> Record:
        if sink.names == "clear":
            return record
        if sink.names == "none":
            return record._replace(user=None, actor=None, session=None)
        user, actor, session = (
            None if name is None else self.pseudonym(name)
            for name in (record.user, record.actor, record.session)
        )
        return record._replace(user=user, actor=actor, session=session)

    def _guarded(self, call: Callable[..., object], *args: object) -> None:
        try:
            call(*args)
        except Exception as exc:  # noqa: BLE001 - see tell
            self.failed(call, exc)

    def failed(self, what: object, error: Exception) -> None:
        """Count it; the first of a sink is logged, without a text that might hold content."""
        self.failures += 1
        sink = getattr(what, "__self__", what)
        if id(sink) not in self._failed:
            self._failed.add(id(sink))
            _log.error(
                "telemetry: %s failed with %s; operations go on, and it is not logged again",
                type(sink).__name__,
                type(error).__name__,
            )


def telemetry_of(wanted: Any) -> Telemetry | None:
    """What ``memcore.open(telemetry=...)`` asks for; None: nothing.

    Raises:
        InvalidOptionError: it is no sink, or needs a package that is not installed.
    """
    if wanted is None:
        return None
    if isinstance(wanted, Telemetry):
        return wanted
    several = wanted if isinstance(wanted, list | tuple) else [wanted]
    sinks = [_sink(one) for one in several]
    return Telemetry(sinks) if sinks else None


def _sink(wanted: Any) -> Sink:
    if isinstance(wanted, Sink):
        return wanted
    if wanted == "log":
        from memcore.telemetry.logs import LogSink  # noqa: PLC0415 - as otel

        return LogSink()
    if wanted == "otel":
        from memcore.telemetry.otel import OpenTelemetry  # noqa: PLC0415 - loads its package

        return OpenTelemetry()
    if callable(wanted) and not isinstance(wanted, type):
        return Calling(wanted)
    msg = (
        "telemetry: expected None, 'log', 'otel', a callable that takes a Record, a Sink, or a "
        f"list of these, got {wanted!r:.80}"
    )
    raise InvalidOptionError(msg)
