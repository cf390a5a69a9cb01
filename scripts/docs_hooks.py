"""Hooks of the documentation's build: links out of docs/, and docstrings that list errors."""

from __future__ import annotations

import re
from typing import Any

import griffe

_OUT = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")
_NAMES = re.compile(r"^(\s+)((?:\w+Error|\w+Conflict)(?:, (?:\w+Error|\w+Conflict))*),?(:.*)?$")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name files of the repository, which are not on the site, instead of linking them."""
    return _OUT.sub(r"\1 (`\2`)", markdown)


class RaisesLines(griffe.Extension):
    """Gives each error that a docstring names a line of its own, as griffe reads them.

    ``A, B: text`` becomes two lines with the text; of an error without a text, its class says what
    it means.
    """

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        docstring = obj.docstring
        if docstring is not None and "Raises:" in docstring.value:
            docstring.value = _split(docstring.value)


class RecordsAreDataclasses(griffe.Extension):
    """Shows the fields of records as arguments: griffe knows dataclasses alone."""

    def on_class_instance(self, *, cls: griffe.Class, **_: Any) -> None:
        """Read ``memcore.records.record`` as the decorator that it stands for."""
        for decorator in cls.decorators:
            called = decorator.value
            if decorator.callable_path == "memcore.records.record" and isinstance(
                called, griffe.ExprCall
            ):
                called.function = griffe.ExprName("dataclasses.dataclass")


def _split(text: str) -> str:
    """Return a docstring with one error a line below ``Raises:``."""
    made, inside = [], False
    for line in text.splitlines():
        if line.strip() == "Raises:":
            inside = True
        elif inside and line.strip() and not line.startswith(" "):
            inside = False
        found = _NAMES.match(line) if inside else None
        if found is None:
            made.append(line)
            continue
        indent, names, said = found.groups()
        made += [f"{indent}{name}{said or ': see the errors.'}" for name in names.split(", ")]
    return "\n".join(made)
