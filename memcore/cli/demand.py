"""``memcore demand``: show and change the guards and redaction that a file requires of writers."""

from __future__ import annotations

import json
from typing import Final

import click

from memcore.cli.options import (
    ExitCode,
    json_option,
    reading,
    store_option,
    verb,
    writing,
    yes_option,
)
from memcore.cli.output import complain, emit_json, escape, print_pairs

__all__ = [
    "demand_of_store",
]


_NONE: Final = "none"


@verb("demand")
@store_option
@click.option("--redact", metavar="PRESET", help="Demand this redaction from now on, or 'none'.")
@click.option("--no-guards", is_flag=True, help="Demand no guards from now on.")
@yes_option
@json_option
def demand_of_store(
    store: str, *, redact: str | None, no_guards: bool, yes: bool, as_json: bool
) -> None:
    """Show the redaction and guards that a file requires of its writers, or change them.

    The first open with redact= or guard= records them. A change needs --yes, is recorded in the
    audit, and takes effect at the next open.
    """
    if redact is None and not no_guards:
        with reading(store) as db:
            found = db.demands
    else:
        if not yes:
            complain(
                "this changes how all that is stored from now on is redacted or judged: say --yes"
            )
            raise SystemExit(ExitCode.REFUSED)
        with writing(store) as db:
            db.demand(
                redact=False if redact == _NONE else redact, guard=False if no_guards else None
            )
            found = db.demands
    if as_json:
        emit_json("demand", found)
        return
    policy, guards = found["redact"], found["guards"]
    rows: list[tuple[str, object]] = [
        (name, value if isinstance(value, bool | str) else json.dumps(value, ensure_ascii=False))
        for name, value in ({} if policy is None else policy).items()
    ]
    rows += [("guard", json.dumps(guard)) for guard in guards]
    print_pairs([(name, escape(str(value))) for name, value in rows] or [("demands", "nothing")])
