"""``memcore doctor``: facts about a file and its environment, and advice."""

from __future__ import annotations

import os
from typing import Any

import memcore
from memcore.cli.options import (
    exit_code_of,
    file_option,
    is_judged,
    json_option,
    key_options,
    verb,
)
from memcore.cli.output import complain, emit_json, escape, print_pairs
from memcore.maintenance.doctor import examine
from memcore.store.interface import SERVER_SCHEMES

__all__ = [
    "examine_store",
]


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
    if not os.path.lexists(store) and store != ":memory:":
        msg = f"{store}: there is no such file; 'memcore import' makes one"
        raise memcore.NotFoundError(msg)
    found = examine(store, verify=is_judged(), **key_options())
    error = found.error
    found.facts["versions"] = {"memcore": memcore.__version__, **found.facts["versions"]}
    if as_json:
        fields: dict[str, Any] = {"path": found.path, **found.facts, "advice": found.advice}
        emit_json("doctor", fields | {"error": None if error is None else str(error)})
    else:
        print_pairs(
            (f"{about}: {name.replace('_', ' ')}", _shown(value))
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


def _shown(value: Any) -> Any:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return value
