"""Parameters of which the gate tries a part; the others are marked ``long``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def thinned(values: Iterable[Any], keep: int | Callable[[int], bool]) -> list[Any]:
    """All of the values, of which ``keep``, evenly spread or chosen by place, are not long."""
    found = list(values)
    if isinstance(keep, int):
        kept = {at * len(found) // keep for at in range(keep)}
    else:
        kept = set(filter(keep, range(len(found))))
    return [value if at in kept else _long(value) for at, value in enumerate(found)]


def _long(value: Any) -> Any:
    values = value if type(value) is tuple else (value,)
    return pytest.param(*values, marks=pytest.mark.long)
