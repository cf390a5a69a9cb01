"""Lazy package faces: public names, each imported from its defining module on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from errno import EMFILE, ENFILE
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast, overload

from memcore.errors import StoreAccessError

if TYPE_CHECKING:
    import logging

__all__ = [
    "MadeLate",
    "face",
    "homes_of",
    "logger",
]


def homes_of(homes: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Map each public name to its module and its name there (empty: the module itself)."""
    found: dict[str, tuple[str, str]] = {}
    for home, names in homes.items():
        for name in names.split():
            public, _, defined = name.partition("=")
            found[public] = (home, defined or public) if home else (public, "")
    # Constants, classes, functions: the linter's order.
    order = sorted(found, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    return {name: found[name] for name in order}


def face(
    package: str, homes: Mapping[str, str], *, extra: tuple[str, str, tuple[str, ...]] | None = None
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Build a package's ``__all__``, ``__getattr__`` and ``__dir__``.

    ``homes`` is the single list of its public names; ``scripts/make_faces`` generates the
    ``__init__.pyi`` for type checkers from it. A program loads only the modules it uses.

    Args:
        package: the package's name.
        homes: its modules, and the names in each, separated by spaces; ``name=other`` is public as
            ``name`` and defined as ``other``. Under the empty string: public modules.
        extra: a framework's name, the memcore extra that installs it, and its packages; the error
            for a missing one of these packages names the extra.
    """
    where = homes_of(homes)

    def __getattr__(name: str) -> Any:  # noqa: N807 - becomes the package's __getattr__
        if name not in where:
            msg = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(msg, name=name, obj=sys.modules.get(package))
        home, defined = where[name]
        try:
            found: Any = import_module(f"{package}.{home}")
            found = getattr(found, defined) if defined else found
        except ModuleNotFoundError as exc:
            if extra is None or (exc.name or "").partition(".")[0] not in extra[2]:
                raise
            needs, by, _ = extra
            msg = f'{name} needs {needs}: install it with pip install "memcore-db[{by}]" ({exc})'
            raise ImportError(msg, name=exc.name) from exc
        except OSError as exc:
            if exc.errno not in (EMFILE, ENFILE):
                raise
            # Too many open files, not a missing module: a later use may load it.
            msg = (
                f"{package}.{home}: cannot be loaded ({exc.strerror}); close what holds too many "
                "files open, and try again"
            )
            raise StoreAccessError(msg) from exc
        setattr(sys.modules[package], name, found)
        return found

    def __dir__() -> list[str]:  # noqa: N807
        special = (name for name in vars(sys.modules[package]) if name.startswith("__"))
        return sorted({*where, *special})

    return list(where), __getattr__, __dir__


T = TypeVar("T")


class MadeLate(Generic[T]):
    """Descriptor for an attribute that is built on first access.

    Like ``functools.cached_property``, but without its lock, which before Python 3.12 is shared by
    all instances of a class: a fork while a thread holds it leaves it locked in the child forever.
    Two threads may both build the value; both get the same one.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> T | Self:
        if instance is None:
            return self
        made: T = instance.__dict__.setdefault(self._name, self._make(instance))
        return made


def logger(name: str = "memcore") -> logging.Logger:
    """A logger below ``memcore``, silent unless the host application configures logging.

    ``logging`` is imported on first use, because the import takes a fortieth of the startup time.
    """
    found = _loggers.get(name)
    if found is None:
        try:
            import logging  # noqa: PLC0415
        except (ImportError, OSError):  # out of file descriptors, or at interpreter exit
            return cast("logging.Logger", _LateLogger(name))
        root = logging.getLogger("memcore")
        if not root.handlers:
            root.addHandler(logging.NullHandler())
        found = _loggers[name] = logging.getLogger(name)
    return found


_loggers: dict[str, logging.Logger] = {}


class _LateLogger:
    """Stands in for a logger until ``logging`` can be loaded; until then it drops records."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        if method.startswith("__"):
            raise AttributeError(method)
        found: Any = logger(self._name)
        return (lambda *_, **__: False) if type(found) is _LateLogger else getattr(found, method)
