"""Faces of packages: their public names, each imported from its home when it is first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from errno import EMFILE, ENFILE
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

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
    """Map each public name of a face to its module and its name there (empty: the module)."""
    found: dict[str, tuple[str, str]] = {}
    for home, names in homes.items():
        for name in names.split():
            public, _, defined = name.partition("=")
            found[public] = (home, defined or public) if home else (public, "")
    # Constants, classes, functions, as the linter sorts them.
    order = sorted(found, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    return {name: found[name] for name in order}


def face(
    package: str, homes: Mapping[str, str], *, extra: tuple[str, str, tuple[str, ...]] | None = None
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """A package's ``__all__``, ``__getattr__`` and ``__dir__``.

    ``homes`` is the one list of its public names; ``scripts/make_faces`` writes it down for type
    checkers, in the ``__init__.pyi`` beside it. Who uses little of a package loads little of it.

    Args:
        package: the package's name.
        homes: its modules, and the names in each, separated by spaces; ``name=other`` is public as
            ``name`` and defined as ``other``. Under an empty text: modules that are public.
        extra: what a framework calls itself, memcore's extra that installs it, and its packages;
            that one of these is missing is told in these words.
    """
    where = homes_of(homes)

    def __getattr__(name: str) -> Any:  # noqa: N807 - what it is to the package
        if name not in where:
            msg = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(msg)
        home, defined = where[name]
        try:
            found: Any = import_module(f"{package}.{home}")
            found = getattr(found, defined) if defined else found
        except ModuleNotFoundError as exc:
            if extra is None or (exc.name or "").partition(".")[0] not in extra[2]:
                raise
            needs, by, _ = extra
            msg = f'{name} needs {needs}: install it with pip install "memcore[{by}]" ({exc})'
            raise ImportError(msg, name=exc.name) from exc
        except OSError as exc:
            if exc.errno not in (EMFILE, ENFILE):
                raise
            # No module is missing: the next use may load it.
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
    """A part of an object that is made when it is first asked for.

    As ``functools.cached_property``, without its lock, which all objects of a class share before
    Python 3.12: a thread that held it when the process forked would hold it in the child for ever.
    Two threads may both make the part, and get the same.
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
    """A logger below ``memcore``, which prints nothing unless the host asks for it.

    The package ``logging`` is loaded by who has something to say: that is a fortieth of a start.
    """
    import logging  # noqa: PLC0415

    root = logging.getLogger("memcore")
    if not root.handlers:
        root.addHandler(logging.NullHandler())
    return logging.getLogger(name)
