"""``memcore tree``, ``ls``, ``diff`` and ``stats``: forks, sessions, differences, figures."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

import memcore
from memcore.cli.options import (
    app_option,
    find_position,
    json_option,
    reading,
    store_option,
    threads_of,
    user_option,
    verb,
    warn_of_stranger,
)
from memcore.cli.output import clip, emit_json, escape, print_pairs, print_table, timestamp
from memcore.cli.show import PREVIEW_CHARS, kind_of
from memcore.options import counted
from memcore.preview import preview

if TYPE_CHECKING:
    from memcore.graph import ThreadEntry

__all__ = [
    "list_sessions",
    "show_difference",
    "show_stats",
    "show_tree",
]


# --- ``memcore tree``: forks and checkpoints ------------------------------------------------------

Key = tuple[str, str, int]
"""App, user and number of a session."""


@verb("tree")
@store_option
@click.argument(
    "session_id", required=False, metavar="[SESSION]", help="Only this session and its forks."
)
@user_option
@app_option
@json_option
def show_tree(
    store: str, session_id: str | None, *, user: str | None, app: str | None, as_json: bool
) -> None:
    """Show the tree of sessions and their forks, with their checkpoints."""
    with reading(store) as db:
        warn_of_stranger(db, user, app)
        forest = _Forest(db.branches(user=user, app=app))
        if session_id is not None and not forest.starts(session_id):
            msg = f"there is no session {session_id!r} in {db.path}; 'memcore ls' lists them"
            raise memcore.NotFoundError(msg)
    roots = forest.starts(session_id)
    if as_json:
        emit_json("tree", {"sessions": [each for root in roots for each in forest.fields(root)]})
    elif sys.stdout.isatty():
        _print_rich(forest, roots)
    else:
        for branch in roots:
            for depth, text in forest.lines(branch, 0):
                print("  " * depth + text)


class _Forest:
    """The sessions as trees, each fork under the session from which it was forked."""

    def __init__(self, branches: list[memcore.Branch]) -> None:
        known = {_key(branch) for branch in branches}
        self._forks: dict[Key | None, list[memcore.Branch]] = defaultdict(list)
        self._all = branches
        for branch in branches:
            parent = (branch.app, branch.user, branch.parent)
            self._forks[parent if parent in known else None].append(branch)

    def starts(self, session_id: str | None) -> list[memcore.Branch]:
        """All roots, or the sessions of that name."""
        if session_id is None:
            return self._forks[None]
        return [branch for branch in self._all if branch.session_id == session_id]

    def under(self, branch: memcore.Branch) -> list[memcore.Branch]:
        """The forks of a session, ordered by fork point."""
        return sorted(self._forks[_key(branch)], key=lambda each: (each.fork_seq, each.number))

    def fields(self, root: memcore.Branch) -> Iterator[dict[str, Any]]:
        """Yield a session and all its descendants, parents before their forks."""
        todo = [root]
        while todo:
            branch = todo.pop()
            saved = [{**asdict(each), "live": live} for each, live in branch.checkpoints]
            yield {**asdict(branch), "checkpoints": saved}
            todo += reversed(self.under(branch))

    def lines(self, branch: memcore.Branch, depth: int) -> Iterator[tuple[int, str]]:
        """Yield the depth and text of a session, its checkpoints and its forks."""
        todo = [(branch, depth)]
        while todo:
            at, level = todo.pop()
            yield level, _title(at, is_root=level == depth)
            for checkpoint, live in at.checkpoints:
                yield level + 1, _saved(checkpoint, live=live)
            if at.damage is not None:
                yield level + 1, escape(f"damaged: {at.damage}")
            todo += [(fork, level + 1) for fork in reversed(self.under(at))]


def _key(branch: memcore.Branch) -> Key:
    return branch.app, branch.user, branch.number


def _title(branch: memcore.Branch, *, is_root: bool) -> str:
    name = "(deleted)" if branch.session_id is None else branch.session_id
    where = f" (user {branch.user}, app {branch.app})" if is_root else f" @{branch.fork_seq}"
    return escape(
        f"{name}{where}: {counted(branch.items, 'item')}, {counted(branch.tokens, 'token')}, "
        f"revision {branch.revision:,}"
    )


def _saved(checkpoint: memcore.Checkpoint, *, live: bool) -> str:
    name = "" if checkpoint.name is None else f" {checkpoint.name}"
    away = "" if live else ", not live"
    return escape(
        f"* {checkpoint.number}{name} @{checkpoint.seq}: {counted(checkpoint.items, 'item')}"
        f"{away}, {timestamp(checkpoint.created_at)}"
    )


def _print_rich(forest: _Forest, roots: list[memcore.Branch]) -> None:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    console = Console(highlight=False, emoji=False)
    for root in roots:
        trees: list[Tree] = []
        for depth, text in forest.lines(root, 0):
            del trees[depth:]
            style = "dim" if text.startswith("*") else ""
            trees.append(trees[-1].add(Text(text, style)) if trees else Tree(Text(text)))
        console.print(trees[0])


# --- ``memcore ls``: the sessions of a database ---------------------------------------------------

_HEADINGS = ("session", "user", "app", "items", "tokens", "open calls", "policy", "updated")


@verb("ls")
@store_option
@user_option
@app_option
@click.option("--threads", is_flag=True, help="List the threads of graphs instead.")
@json_option
def list_sessions(
    store: str, *, user: str | None, app: str | None, threads: bool, as_json: bool
) -> None:
    """List sessions with their items, tokens and open calls; or the threads of graphs."""
    with reading(store) as db:
        warn_of_stranger(db, user, app)
        graphs = threads_of(db, user, app)
        if threads:
            _list_threads(list(graphs), as_json=as_json)
            return
        found = list(db.sessions(user=user, app=app))
        others = 0 if as_json else sum(1 for _ in graphs)
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
    if others:
        print(
            f"and {counted(others, 'thread of a graph', 'threads of graphs')}: memcore ls --threads"
        )


def _list_threads(found: list[tuple[str, str, ThreadEntry]], *, as_json: bool) -> None:
    if as_json:
        told = [{"app": app, "user": user, **asdict(each)} for app, user, each in found]
        emit_json("ls", {"threads": told})
        return
    rows = (
        (each.thread, user, app, timestamp(each.created_at), each.newest or "")
        for app, user, each in found
    )
    print_table(("thread", "user", "app", "created", "newest checkpoint"), rows, flexible=0)


# --- ``memcore diff``: the point at which two histories diverge -----------------------------------

_SIDE_HELP = "SESSION, SESSION@SEQ or SESSION@CHECKPOINT."


@verb("diff")
@store_option
@click.argument("a", metavar="A", help=_SIDE_HELP)
@click.argument("b", metavar="B", help=_SIDE_HELP)
@user_option
@app_option
@json_option
def show_difference(
    store: str, a: str, b: str, *, user: str | None, app: str | None, as_json: bool
) -> None:
    """Show the number of leading items that two histories share, and the items of only one."""
    with reading(store) as db:
        (one, at), (other, other_at) = (find_position(db, spec, user, app) for spec in (a, b))
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
    also = f", {found.alike:,} more alike" if found.alike else ""
    print(f"{counted(found.shared, 'item')} shared{also}")
    rows = [("-", *_row(item)) for item in found.only_a]
    rows += [("+", *_row(item)) for item in found.only_b]
    if not rows:
        print("nothing differs")
        return
    print(escape(f"- only {a}: {len(found.only_a):,}"))
    print(escape(f"+ only {b}: {len(found.only_b):,}"))
    print_table(("", "seq", "kind", "text"), rows, flexible=3)


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


# --- ``memcore stats``: sizes and counters --------------------------------------------------------


@verb("stats")
@store_option
@json_option
def show_stats(store: str, *, as_json: bool) -> None:
    """Show sizes and counters of the file."""
    with reading(store) as db:
        found = db.stats()
    if as_json:
        emit_json("stats", {"stats": found})
        return
    print_pairs((name.replace("_", " "), value) for name, value in found.items())
