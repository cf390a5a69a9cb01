"""Observer: begins and ends the record of each operation on one handle."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from time import perf_counter, time
from typing import Any, Final

from memcore.telemetry.measures import MEASURES, Figures
from memcore.telemetry.record import OK, Record, Sink
from memcore.telemetry.seam import Telemetry
from memcore.telemetry.surface import Operation

__all__ = ["Observer", "Place", "PlaceOf", "Running", "counted", "note_stored", "noting"]

noting: Final[ContextVar[Figures | None]] = ContextVar("memcore_operation", default=None)
"""The figures of the operation under way in this context."""
Args = tuple[Any, ...]
Options = dict[str, Any]
Place = tuple[str | None, str | None, str | None]
"""Application, user, session."""
PlaceOf = Callable[[Args, Options], Place]
"""Where a call works, by its arguments."""
NOWHERE: Final[Place] = (None, None, None)
_SESSIONS: Final = ("session_id", "thread", "source")
"""How arguments are called that name a session."""


class Running(Figures):
    """An operation that has begun."""

    __slots__ = ("args", "begun", "entered", "operation", "options", "owner", "token")

    def __init__(
        self, owner: Observer, operation: Operation, args: Args = (), options: Options | None = None
    ) -> None:
        super().__init__()
        self.owner = owner
        self.operation = operation
        self.args = args
        self.options = options or {}
        self.entered: list[tuple[Sink, Any]] | tuple[()] = ()
        self.token: Token[Figures | None] | None = None
        self.begun = 0.0

    def given(self) -> Any:
        """The first argument."""
        return self.args[0] if self.args else next(iter(self.options.values()), None)


class Observer:
    """What the records of one handle have in common.

    ``plain`` is the handle as it is without telemetry: what it calls on itself is part of the
    operation, and no operation of its own. Adapters have none: see ``is_within``; where a call of
    theirs works, ``place_of`` tells.
    """

    __slots__ = (
        "_place_of", "_seen_revision", "actor", "adapter", "place", "plain", "telemetry",
    )  # fmt: skip

    def __init__(
        self,
        telemetry: Telemetry,
        plain: Any,
        place: Place = NOWHERE,
        *,
        actor: str | None = None,
        adapter: str | None = None,
        place_of: PlaceOf | None = None,
    ) -> None:
        self.telemetry = telemetry
        self.plain = plain
        self.place = place
        self.actor = actor
        self.adapter = adapter
        self._place_of = place_of
        self._seen_revision = getattr(plain, "seen_revision", None)

    def beside(self, handle: Any) -> Observer:
        """The observer of a handle that this one's handle made, or is made of."""
        app, user, session = self.place
        place = (
            getattr(handle, "app", app),
            getattr(handle, "user", user),
            getattr(handle, "id", session),
        )
        actor = getattr(handle, "actor", None) or self.actor
        return Observer(self.telemetry, handle, place, actor=actor)

    def is_within(self) -> bool:
        """Whether a method of an adapter was called by another one of the same object."""
        if self.plain is not None:
            return False
        under_way = noting.get()
        return isinstance(under_way, Running) and under_way.owner is self

    def begin(
        self,
        operation: Operation,
        args: Args = (),
        options: Options | None = None,
        *,
        live: bool = True,
    ) -> Running:
        """An operation begins in this context; ``live``: sinks may have it as their current one."""
        running = Running(self, operation, args, options)
        if live and operation.name in self.telemetry.enters:
            running.entered = self.telemetry.enter(operation.name)
        running.token = noting.set(running)
        running.begun = perf_counter()
        return running

    def drop(self, running: Running) -> None:
        """It turned out to be none."""
        if running.token is not None:
            noting.reset(running.token)

    def end(self, running: Running, result: Any, error: BaseException | None = None) -> None:
        """It has ended, with a result or an error."""
        seconds = perf_counter() - running.begun
        self.drop(running)
        self.tell(running, seconds, result, error)

    def tell(
        self, running: Running, seconds: float, result: Any, error: BaseException | None
    ) -> None:
        """Make the record, and hand it on."""
        telemetry, operation = self.telemetry, running.operation
        if self._seen_revision is not None:
            running.revision = self._seen_revision()
        if error is None:
            status = OK
            measure = MEASURES[operation.measure]
            if measure is not None:
                telemetry.guarded(measure, running, result)
        else:
            status = type(error).__name__
        request = running.options.get("request_id")
        record = Record(
            operation.name,
            status,
            seconds,
            time() - seconds,
            *self._place(running),
            self.actor,
            request if type(request) is str else None,
            self.adapter,
            running.revision,
            running.items,
            running.bytes,
            running.tokens,
            running.cut,
            running.ratio,
            max(running.runs - running.transactions, 0) if running.runs else 0,
            telemetry.backend,
            running.durability or telemetry.durability,
        )
        telemetry.tell(record, running.entered)
        if operation.name == "close":
            telemetry.flush()

    def _place(self, running: Running) -> Place:
        if self._place_of is not None:
            found = self.telemetry.guarded(self._place_of, running.args, running.options)
            return self.place if found is None else found
        if running.operation.names_session or self.place[1] is None:
            return _asked_for(running, self.place)
        return self.place


def _asked_for(running: Running, place: Place) -> Place:
    """The place that the arguments of a call name, where the handle is of none."""
    app, user, session = place
    options = running.options
    if user is None:
        app, user = _text(options.get("app")) or app, _text(options.get("user"))
    if running.operation.names_session:
        named = (options[key] for key in _SESSIONS if key in options)
        session = _text(running.args[0] if running.args else next(named, None))
    return app, user, session


def _text(name: object) -> str | None:
    return name if type(name) is str else None


def note_stored(prepared: Any) -> None:
    """Items were prepared that the operation under way is about to store."""
    figures = noting.get()
    if figures is not None:
        figures.stored(prepared)


def counted(closure: Any) -> Any:
    """The closure of a transaction; its runs are counted for the operation under way."""
    figures = noting.get()
    if figures is None:
        return closure
    figures.transactions += 1

    def run(txn: Any) -> Any:
        figures.runs += 1
        return closure(txn)

    return run
