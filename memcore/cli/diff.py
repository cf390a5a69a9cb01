"""``memcore diff``: where two histories part."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import memcore
from memcore.cli.options import App, AsJson, StoreFile, User, find_session, reading
from memcore.cli.output import clip, emit_json, escape, print_table
from memcore.cli.transcript import PREVIEW_CHARS, kind_of, preview

__all__ = ["show_difference"]

_SIDE_HELP = "SESSION, SESSION@SEQ or SESSION@CHECKPOINT."


def show_difference(
    store: StoreFile,
    a: Annotated[str, typer.Argument(metavar="A", help=_SIDE_HELP)],
    b: Annotated[str, typer.Argument(metavar="B", help=_SIDE_HELP)],
    *,
    user: User = None,
    app: App = None,
    as_json: AsJson = False,
) -> None:
    """Show how many items two histories begin with together, and what only one of them has."""
    with reading(store) as db:
        (one, at), (other, other_at) = (_side(db, spec, user, app) for spec in (a, b))
        found = db.compare(one, other, at=at, other_at=other_at)
    if as_json:
        emit_json(
            "diff",
            {
                "a": a,
                "b": b,
                "shared": found.shared,
                "alike": found.alike,
                "only_a": [_fields(item) for item in found.only_a],
                "only_b": [_fields(item) for item in found.only_b],
            },
        )
        return
    also = f", and {found.alike:,} more are alike" if found.alike else ""
    print(f"{found.shared:,} items are shared{also}")
    rows = [("-", *_row(item)) for item in found.only_a]
    rows += [("+", *_row(item)) for item in found.only_b]
    if not rows:
        print("nothing differs")
        return
    print(escape(f"- only {a}: {len(found.only_a):,}"))
    print(escape(f"+ only {b}: {len(found.only_b):,}"))
    print_table(("", "seq", "kind", "text"), rows, flexible=3)


def _side(
    db: memcore.Database, spec: str, user: str | None, app: str | None
) -> tuple[memcore.Session, int | str | None]:
    """The session and the position that are meant; a name may hold an ``@`` itself."""
    cut = len(spec)
    while cut > 0:
        try:
            session = find_session(db, spec[:cut], user=user, app=app)
        except memcore.NotFoundError:
            cut = spec.rfind("@", 0, cut)
            continue
        position = spec[cut + 1 :]
        if cut < len(spec) and not position:
            break
        if not position:
            return session, None
        return session, int(position) if position.isdecimal() else position
    return find_session(db, spec, user=user, app=app), None


def _fields(item: memcore.Item) -> dict[str, Any]:
    return {
        "seq": item.seq,
        "kind": kind_of(item),
        "created_at": item.created_at,
        "tokens": item.tokens,
        "item": item.message,
    }


def _row(item: memcore.Item) -> tuple[int, str, str]:
    return item.seq, kind_of(item), clip(preview(item.message), PREVIEW_CHARS)
