"""``memcore ls``: the sessions of a database."""

from __future__ import annotations

from dataclasses import asdict

from memcore.cli.options import App, AsJson, StorePath, User, reading
from memcore.cli.output import emit_json, print_table, timestamp

__all__ = ["list_sessions"]

_HEADINGS = ("session", "user", "app", "items", "tokens", "open calls", "policy", "updated")


def list_sessions(
    store: StorePath, *, user: User = None, app: App = None, as_json: AsJson = False
) -> None:
    """List sessions with their items, tokens and open calls."""
    with reading(store) as db:
        found = list(db.sessions(user=user, app=app))
    if as_json:
        emit_json("ls", {"sessions": [asdict(entry) for entry in found]})
        return
    print_table(
        _HEADINGS,
        (
            (
                entry.session_id,
                entry.user,
                entry.app,
                entry.items,
                entry.tokens,
                entry.open_calls,
                entry.policy,
                timestamp(entry.updated_at),
            )
            for entry in found
        ),
        flexible=0,
    )
