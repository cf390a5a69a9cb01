"""``memcore search``: find items by their words, and build search indexes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from memcore.cli.options import (
    app_option,
    find_session,
    json_option,
    reading,
    store_option,
    user_option,
    verb,
    warn_of_stranger,
    writing,
)
from memcore.cli.output import emit_json, escape, timestamp, warn
from memcore.model import SearchHit
from memcore.options import counted

__all__ = [
    "search_sessions",
]


_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


@verb("search")
@click.argument("query", metavar="QUERY", help="Words to find.")
@store_option
@user_option
@app_option
@click.option("--session", multiple=True, metavar="SESSION", help="Only this session; repeatable.")
@click.option(
    "--kind",
    type=click.Choice(("user", "assistant", "call", "result")),
    multiple=True,
    metavar="KIND",
    help="Only user, assistant, call or result; repeatable.",
)
@click.option("-k", type=click.IntRange(min=1, max=1000), default=10, help="At most so many items.")
@click.option("--explain", is_flag=True, help="Say what scores are made of.")
@click.option("--index", is_flag=True, help="Bring the index up to date first; this writes.")
@click.option("--reindex", is_flag=True, help="Build the index anew first; this writes.")
@json_option
def search_sessions(
    query: str,
    store: str,
    *,
    user: str | None,
    app: str | None,
    session: tuple[str, ...],
    kind: tuple[str, ...],
    k: int,
    explain: bool,
    index: bool,
    reindex: bool,
    as_json: bool,
) -> None:
    """Find the items that best match some words. Reads the newest items that are not indexed."""
    with writing(store) if index or reindex else reading(store) as db:
        warn_of_stranger(db, user, app)
        if reindex:
            db.reindex(user=user, app=app)
        elif index:
            db.index_sessions(user=user, app=app)
        for name in session:
            find_session(db, name, user=user, app=app)  # a mistyped name is an error
        with _telling("memcore.search"):
            hits = db.search(
                query,
                k=k,
                user=user,
                app=app,
                sessions=session or None,
                kinds=kind or None,
                explain=explain,
            )
    if as_json:
        emit_json("search", {"hits": [_fields(hit) for hit in hits]})
        return
    for hit in hits:
        _print_hit(hit)
    if not hits:
        print("nothing was found")


class _Told(logging.Handler):
    """Prints what the library logs, as warnings."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        warn(record.getMessage())


@contextmanager
def _telling(name: str) -> Iterator[None]:
    """Print what the library logs under a name meanwhile."""
    log, handler = logging.getLogger(name), _Told(logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def _fields(hit: SearchHit) -> dict[str, object]:
    return {
        "app": hit.app,
        "user": hit.user,
        "session": hit.session_id,
        "seq": hit.seq,
        "score": hit.score,
        "kind": hit.item.kind.name.lower(),
        "created_at": hit.item.created_at,
        "snippet": hit.snippet,
        "highlights": [list(span) for span in hit.highlights],
        "neighbours": hit.neighbours,
        "why": [each._asdict() for each in hit.why],
        "message": hit.item.message,
    }


def _print_hit(hit: SearchHit) -> None:
    """Print a hit; its words are bold on a terminal and in brackets elsewhere."""
    before, behind = (_BOLD, _PLAIN) if sys.stdout.isatty() else ("[", "]")
    place = "/".join(escape(name) for name in (hit.user, hit.app, hit.session_id))
    print(f"{hit.score:6.2f}  {place} {hit.seq}  {timestamp(hit.item.created_at)}")
    shown, at = "", 0
    for start, stop in hit.highlights:
        shown += escape(hit.snippet[at:start]) + before + escape(hit.snippet[start:stop]) + behind
        at = stop
    print(f"        {hit.item.kind.name.lower()}: {shown}{escape(hit.snippet[at:])}")
    for each in hit.why:
        print(
            f"        {each.score:6.2f}  {escape(each.term)} × {each.times}, in "
            f"{counted(each.items, 'item')}"
        )
    if hit.neighbours:
        print(f"        {hit.neighbours:6.2f}  from the items beside it")
