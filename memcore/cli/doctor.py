"""``memcore doctor``: facts about a file and its environment, and advice."""

from __future__ import annotations

from typing import Any

import memcore
from memcore.cli.options import (
    exit_code_of,
    file_option,
    is_judged,
    json_option,
    key_options,
    need_file,
    verb,
)
from memcore.cli.output import complain, emit_json, escape, print_pairs, timestamp
from memcore.maintenance.doctor import examine
from memcore.store.interface import SERVER_SCHEMES

__all__ = [
    "examine_store",
]


_MIB, _GIB = 1024**2, 1024**3


@verb("doctor")
@file_option
@json_option
def examine_store(store: str, *, as_json: bool) -> None:
    """Show the state of the file, the processes using it, its location, the versions, and advice.

    Nothing is written. Works on a damaged file, too; the exit code is then that of the error that
    prevents it from being opened.
    """
    if store.startswith(SERVER_SCHEMES):
        msg = (
            "doctor examines files; for a store on a server use 'memcore check' and 'memcore stats'"
        )
        raise memcore.InvalidOptionError(msg)
    if store != ":memory:":
        need_file(store)
    found = examine(store, verify=is_judged(), **key_options())
    error = found.error
    found.facts["versions"] = {"memcore": memcore.__version__, **found.facts["versions"]}
    if as_json:
        fields: dict[str, Any] = {"path": found.path, **found.facts, "advice": found.advice}
        emit_json("doctor", fields | {"error": None if error is None else str(error)})
    else:
        print_pairs(
            (f"{about}: {name.removesuffix('_ms').replace('_', ' ')}", _shown(name, value))
            for about, facts in found.facts.items()
            for name, value in facts.items()
        )
        for line in found.advice:
            print(escape(f"advice: {line}"))
        if not found.advice and error is None:
            print("nothing needs to be done")
    if error is not None:
        complain(str(error))
        raise SystemExit(exit_code_of(error))


def _shown(name: str, value: Any) -> Any:
    """Return a fact as people read it: times as dates, shares in percent, sizes with units."""
    if name.endswith("_ms"):
        return timestamp(value / 1000)
    if name.endswith("_share"):
        return f"{value:.1%}"
    if "bytes" in name and value >= _MIB:
        size = f"{value / _GIB:,.1f} GiB" if value >= _GIB else f"{value / _MIB:.1f} MiB"
        return f"{value:,} ({size})"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return value
