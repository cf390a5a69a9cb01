"""Observer: begins and ends the record of each operation on one handle."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from time import time
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

    args: Args = ()
    options: Options = {}  # noqa: RUF012 - of a call without any; nobody writes to it
    entered: list[tuple[Sink, Any]] | tuple[()] = ()
    owner: Observer | None = None

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
        "_place_of", "_seen_revision", "actor", "adapter", "is_special", "place", "plain",
        "telemetry",
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
        self.is_special = plain is None or place_of is not None or bool(telemetry.enters)
        """Whether its operations need more to begin than their figures."""
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
        under_way = noting.get()
        return isinstance(under_way, Running) and under_way.owner is self

    def running(self, args: Args, options: Options) -> Running:
        """An operation of this handle, with the arguments of its call."""
        running = Running()
        running.owner = self
        if args:
            running.args = args
        if options:
            running.options = options
        return running

    def begin(
        self, operation: Operation, args: Args, options: Options
    ) -> tuple[Running, Token[Figures | None]]:
        """An operation begins in this context."""
        running = self.running(args, options)
        enters = self.telemetry.enters
        if enters and operation.name in enters:
            running.entered = self.telemetry.enter(operation.name)
        return running, noting.set(running)

    def tell(
        self,
        operation: Operation,
        running: Running,
        seconds: float,
        result: Any,
        error: BaseException | None = None,
    ) -> None:
        """An operation has ended, with a result or an error: make the record, and hand it on."""
        telemetry = self.telemetry
        name, _, measure, names_session = operation
        place, status, request = self.place, OK, None
        try:
            if error is not None:
                status = type(error).__name__
            elif measure != "nothing":
                MEASURES[measure](running, result)
            if running.revision is None and self._seen_revision is not None:
                running.revision = self._seen_revision()
            if self._place_of is not None:
                place = self._place_of(running.args, running.options)
            elif names_session or place[1] is None:
                place = _asked_for(running, place, names_session=names_session)
            options = running.options
            if options:
                request = _text(options.get("request_id"))
        except Exception as exc:  # noqa: BLE001 - frameworks hand over what they like
            telemetry.failed(self, exc)
        # Not by name: it would take as long as all the rest.
        record: Record = tuple.__new__(
            Record,
            (
                name, status, seconds, time() - seconds, *place, self.actor, request, self.adapter,
                running.revision, running.items, running.bytes, running.tokens, running.cut,
                running.ratio, running.runs - running.transactions if running.runs else 0,
                telemetry.backend, running.durability or telemetry.durability,
            ),
        )  # fmt: skip
        telemetry.tell(record, running.entered)
        if name == "close":
            telemetry.flush()


def _asked_for(running: Running, place: Place, *, names_session: bool) -> Place:
    """The place that the arguments of a call name, where the handle is of none."""
    app, user, session = place
    options = running.options
    if user is None:
        app, user = _text(options.get("app")) or app, _text(options.get("user"))
    if names_session:
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
