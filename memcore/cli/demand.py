"""``memcore demand``: show and change the guards and redaction that a file requires of writers."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from memcore.cli.options import (
    REDACTIONS,
    dry_run_option,
    json_option,
    need_choice,
    reading,
    store_option,
    verb,
    writing,
    yes_option,
)
from memcore.cli.output import emit_json, escape, print_pairs
from memcore.privacy import redaction_policy
from memcore.session.content_filter import demand

__all__ = [
    "demand_of_store",
]


_NONE: Final = "none"


@verb("demand")
@store_option
@click.option(
    "--redact",
    metavar="PRESET",
    help=f"Demand this redaction from now on: {REDACTIONS}; 'none': demand none.",
)
@click.option("--no-guards", is_flag=True, help="Demand no guards from now on.")
@dry_run_option
@yes_option
@json_option
def demand_of_store(
    store: str, *, redact: str | None, no_guards: bool, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Show the redaction and guards that a file requires of its writers, or change them.

    The first open with redact= or guard= records them. A change needs --yes, is recorded in the
    audit, and takes effect at the next open.
    """
    changes = redact is not None or no_guards
    if redact not in (None, _NONE):
        redaction_policy(redact)  # an unknown one is told before anything is asked
    if changes:
        do = "change how all that is stored from now on is redacted or judged"
        need_choice(dry_run, yes, see="what would be demanded", do=do)
    with writing(store) if changes and not dry_run else reading(store) as db:
        if changes:  # also of demands that are damaged
            wanted = False if redact == _NONE else redact
            no_more = False if no_guards else None
            found = demand(db.engine.store, wanted, no_more, dry_run=dry_run).shown()
        else:
            found = db.demands
    if as_json:
        emit_json("demand", ({"dry_run": dry_run} if changes else {}) | found)
        return
    policy, guards = found["redact"], found["guards"]
    rows: list[tuple[str, object]] = [
        (name, _shown(value))
        for name, value in ({} if policy is None else policy).items()
        if value not in ({}, [])
    ]
    rows += [("guard", json.dumps(guard)) for guard in guards]
    print_pairs([(name, escape(str(value))) for name, value in rows] or [("demands", "nothing")])
    if changes and dry_run:
        print("nothing was written")


def _shown(value: Any) -> str:
    """Return a value of a policy as people read it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
