"""Handles that tell of what is done through them.

With telemetry on, a handle is of a *twin* of its class: a subclass whose public methods run those
of the plain handle and tell of it. Without it there are only plain handles, which cost nothing
more. What a plain handle calls on itself is not observed, so an operation is told once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from time import perf_counter
from typing import Any, ParamSpec, TypeVar, cast

from memcore.telemetry.observer import (
    NOWHERE,
    Observer,
    Place,
    PlaceOf,
    counted,
    note_stored,
    noting,
)
from memcore.telemetry.seam import Telemetry, telemetry_of
from memcore.telemetry.shapes import observed
from memcore.telemetry.surface import SURFACE, Operation, operations_of

__all__ = ["adapting", "adapts", "adopt", "bound", "observe", "observer_of", "opening", "plain",
           "seen_compacting"]  # fmt: skip

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=type)
_OPEN = Operation("open")
_COMPACT = Operation("compact", measure="compaction")
_NOTED = "appending"
_PARTS = ("state", _NOTED)
"""What a session holds that is observed with it."""
_TWIN = "_memcore_twin"
_twins: dict[type, type | None] = {}


def observe(handle: T, observer: Observer) -> T:
    """A handle as ``handle`` that tells of what is done through it; itself if it is no handle."""
    twin = None if observer_of(handle) is not None else _twin(type(handle))
    if twin is None:
        return handle
    made: Any = object.__new__(twin)
    for name, value in _state_of(handle):
        object.__setattr__(made, name, value)
    made.observer = observer.beside(handle)
    for part in _PARTS:
        inner = getattr(made, "__dict__", {}).get(part)
        if inner is not None:
            setattr(made, part, observe(inner, made.observer))
    if _NOTED in getattr(made, "__dict__", ()):  # what the plain handle stores counts, too
        setattr(handle, _NOTED, getattr(made, _NOTED))
    return cast("T", made)


def adopt(handle: Any, other: object) -> None:
    """Make a handle tell of what is done through it if ``other``, which it stands on, does."""
    observer = observer_of(other)
    twin = None if observer is None else _twin(type(handle))
    if observer is not None and twin is not None:
        handle.observer = observer.beside(handle)
        handle.__class__ = twin


def observer_of(handle: object) -> Observer | None:
    """Who observes a handle, None if nobody does."""
    found = getattr(handle, "observer", None)
    return found if isinstance(found, Observer) else None


def plain(handle: T) -> T:
    """The handle as it is without telemetry."""
    observer = observer_of(handle)
    return handle if observer is None else observer.plain


@contextmanager
def seen_compacting(handle: object) -> Iterator[list[Any]]:
    """A compaction of a handle's session, told of when a result was put into the list."""
    observer = observer_of(handle)
    seen: list[Any] = []
    if observer is None:
        yield seen
        return
    running = observer.running((), {})
    token = noting.set(running)
    begun = perf_counter()
    try:
        yield seen
    except BaseException as exc:
        noting.reset(token)
        observer.tell(_COMPACT, running, perf_counter() - begun, None, exc)
        raise
    noting.reset(token)
    if any(result is not None for result in seen):
        observer.tell(_COMPACT, running, perf_counter() - begun, seen[-1])


def opening(open_: Callable[P, T]) -> Callable[P, T]:
    """Have a function that opens a database told of, if its ``telemetry`` asks for it.

    It is called with the ``Telemetry`` that was asked for, for ``bound``.
    """

    @wraps(open_)
    def run(*args: P.args, **options: P.kwargs) -> T:
        telemetry = telemetry_of(options.get("telemetry"))
        if telemetry is None:
            options.pop("telemetry", None)
            return open_(*args, **options)
        options["telemetry"] = telemetry
        observer = Observer(telemetry, None)
        running = observer.running((), {})
        begun = perf_counter()
        try:
            opened = open_(*args, **options)
        except BaseException as exc:
            observer.tell(_OPEN, running, perf_counter() - begun, None, exc)
            telemetry.flush()
            raise
        observer.tell(_OPEN, running, perf_counter() - begun, None)
        return opened

    return run


def bound(database: T, store: Any, telemetry: Telemetry | None) -> T:
    """The database as it is handed out; its store's runs are counted if anybody is told of them."""
    if telemetry is None:
        return database
    telemetry.bind(store)
    _count_runs(store)
    return observe(database, Observer(telemetry, None))


def adapts(**operations: str) -> Callable[[C], C]:
    """Have the methods of an adapter's class told of, where ``observer`` is set.

    Frameworks look at their classes, so they get no twins: the methods are wrapped where they are.
    Each is described as in ``surface``: the operation, its shape, its measure.
    """

    def wrapped(cls: C) -> C:
        cls.observer = None  # type: ignore[attr-defined]
        for name, operation in operations_of(**operations).items():
            setattr(cls, name, observed(getattr(cls, name), operation))
        return cls

    return wrapped


def adapting(
    source: object, adapter: str, place: Place = NOWHERE, *, place_of: PlaceOf | None = None
) -> Observer | None:
    """The observer of an adapter on a database or scope; None if nobody is told of it.

    Args:
        source: what the adapter was given.
        adapter: its name in records.
        place: application, user and session of all its calls.
        place_of: or those of a call, by its arguments.
    """
    observer = observer_of(source) or observer_of(getattr(source, "sync", None))
    if observer is None:
        return None
    actor = observer.actor
    return Observer(
        observer.telemetry, None, place, actor=actor, adapter=adapter, place_of=place_of
    )


def _state_of(handle: object) -> Iterator[tuple[str, Any]]:
    """What a handle consists of: its slots, and its dictionary."""
    for cls in type(handle).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(handle, name):
                yield name, getattr(handle, name)
    yield from getattr(handle, "__dict__", {}).items()


def _twin(cls: type) -> type | None:
    """The class of observed handles; None if the class is none of the public surface."""
    if _TWIN in cls.__dict__:
        return cls
    if cls not in _twins:
        _twins[cls] = _made(cls)
    return _twins[cls]


def _made(cls: type) -> type | None:
    operations: dict[str, Operation] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("memcore."):
            operations |= SURFACE.get(base.__name__, {})
    if not operations:
        return None
    body: dict[str, Any] = {
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        _TWIN: True,
    }
    if cls.__dictoffset__:
        body |= {"__slots__": (), "observer": None}
    else:
        body["__slots__"] = ("observer",)
    for name, operation in operations.items():
        method = getattr(cls, name, None)
        if method is not None:
            body[name] = _method(method, operation)
    return type(cls)(cls.__name__, (cls,), body)


def _method(method: Any, operation: Operation) -> Any:
    if isinstance(method, property):
        find: Any = method.fget
        return property(lambda self: observe(find(plain(self)), self.observer))
    if operation.shape == "noted":
        return _noted(method)
    if operation.shape in ("handle", "pair"):
        return _giving(method, of_plain=True, second=operation.shape == "pair")
    run = observed(method, operation)
    gives = operation.measure == "handle" and not inspect.iscoroutinefunction(method)
    return _giving(run) if gives else run


def _count_runs(store: Any) -> None:
    """Count how often the closures of a store's transactions are run."""
    cls = type(store)

    def transact(self: Any, fn: Any, **options: Any) -> Any:
        return cls.transact(self, counted(fn), **options)

    def submit(self: Any, fn: Any, *args: Any, **options: Any) -> Any:
        return cls.submit(self, counted(fn), *args, **options)

    body = {"__slots__": (), "transact": transact, "submit": submit, "__doc__": cls.__doc__}
    store.__class__ = type(cls.__name__, (cls,), body)


def _giving(
    method: Callable[..., Any], *, of_plain: bool = False, second: bool = False
) -> Callable[..., Any]:
    """A method whose result is a handle, or has one behind it, that is observed, too."""

    @wraps(method)
    def run(self: Any, *args: Any, **options: Any) -> Any:
        observer = observer_of(self)
        found = method(plain(self) if of_plain else self, *args, **options)
        if observer is None:
            return found
        return (found[0], observe(found[1], observer)) if second else observe(found, observer)

    return run


def _noted(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that stores prepared items, for the operation under way."""

    @wraps(method)
    def run(self: Any, prepared: Any, *args: Any) -> Any:
        note_stored(prepared)
        return method(self, prepared, *args)

    return run
