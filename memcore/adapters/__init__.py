"""memcore under other frameworks: one package a framework, imported only by whoever uses it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = [
    "on_first_use",
]


def on_first_use(
    package: str, homes: Mapping[str, str], *, needs: str, extra: str, imports: tuple[str, ...]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's ``__getattr__`` and ``__dir__``, which import public names when they are used.

    Args:
        package: the package's name.
        homes: public names and the modules of the package that they are in.
        needs: what the framework calls itself.
        extra: memcore's extra that installs it.
        imports: the packages of the framework; that one of them is missing is told in these words.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807 - what it is to the package
        if name not in homes:
            msg = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(msg)
        try:
            found = getattr(import_module(f"{package}.{homes[name]}"), name)
        except ModuleNotFoundError as exc:
            if (exc.name or "").partition(".")[0] not in imports:
                raise
            msg = f'{name} needs {needs}: install it with pip install "memcore[{extra}]" ({exc})'
            raise ImportError(msg, name=exc.name) from exc
        setattr(sys.modules[package], name, found)
        return found

    def __dir__() -> list[str]:  # noqa: N807
        return sorted({*vars(sys.modules[package]), *homes})

    return __getattr__, __dir__
