"""``memcore fork``, ``checkpoint``, ``rewind``, ``uncompact``, ``delete``: a session's course."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

import memcore
from memcore.cli.options import (
    ExitCode,
    app_option,
    dry_run_option,
    find_position,
    find_session,
    json_option,
    need_choice,
    reading,
    session_argument,
    store_option,
    user_option,
    verb,
    writing,
    yes_option,
)
from memcore.cli.output import complain, emit_json, escape
from memcore.options import counted
from memcore.session import read
from memcore.session.checkpoints import get_checkpoint
from memcore.session.memory import would_forget
from memcore.session.session import ref_of

__all__ = [
    "delete_session",
    "fork_session",
    "rewind_session",
    "save_checkpoint",
    "uncompact_session",
]


_FIELDS_SHOWN = 8


@verb("fork")
@click.argument("at", metavar="SESSION", help="SESSION, SESSION@SEQ, @CHECKPOINT, @#NUMBER.")
@click.argument("name", metavar="NEW", help="The name of the fork.")
@store_option
@user_option
@app_option
@json_option
def fork_session(
    at: str, name: str, store: str, *, user: str | None, app: str | None, as_json: bool
) -> None:
    """Create a session that shares another one's history, up to a position if one is given.

    Nothing is copied, and the session stays as it is.
    """
    with writing(store) as db:
        session, position = find_position(db, at, user, app)
        if db.session(name, user=session.user, app=session.app).exists():
            complain(f"session {name!r} exists; give the fork another name")
            raise SystemExit(ExitCode.REFUSED)
        fork = session.fork(name, at=position)
        _told(as_json, "fork", f"{name}: {counted(len(fork), 'item')} of {session.id}",
              session=name, of=session.id, items=len(fork), revision=fork.revision)  # fmt: skip


@verb("checkpoint")
@session_argument
@store_option
@click.argument(
    "name", required=False, metavar="[NAME]", help="What to call it; need not be unique."
)
@user_option
@app_option
@json_option
def save_checkpoint(
    session_id: str,
    store: str,
    name: str | None,
    *,
    user: str | None,
    app: str | None,
    as_json: bool,
) -> None:
    """Save a session's current position, which 'rewind' and 'fork' accept by its name or number."""
    if name is not None and (name.isdecimal() or name.startswith("#")):
        msg = f"{name!r} would be read as a seq or a number: give a name that begins with a letter"
        raise memcore.InvalidOptionError(msg)
    with writing(store) as db:
        saved = find_session(db, session_id, user=user, app=app).checkpoint(name)
    called = "" if name is None else f" {name}"
    text = (
        f"checkpoint #{saved.number}{called} after seq {saved.seq}: {counted(saved.items, 'item')}"
    )
    _told(as_json, "checkpoint", text, session=session_id, checkpoint=asdict(saved))


@verb("rewind")
@click.argument("to", metavar="SESSION@AT", help="A seq (0: before all), a checkpoint, #NUMBER.")
@store_option
@user_option
@app_option
@dry_run_option
@yes_option
@click.option("--state/--no-state", default=True, help="Restore the state's values, too.")
@json_option
def rewind_session(
    to: str,
    store: str,
    *,
    user: str | None,
    app: str | None,
    dry_run: bool,
    yes: bool,
    state: bool,
    as_json: bool,
) -> None:
    """Take a session back to a position: to an item of its history, or to a checkpoint.

    What was taken back stays in the file, and a checkpoint saved before leads there again.
    """
    need_choice(dry_run, yes, see="what would be taken back", do="rewind")
    with reading(store) if dry_run else writing(store) as db:
        session, position = find_position(db, to, user, app)
        if position is None:
            msg = (
                f"{to!r} is the name of a session, without a position: expected SESSION@SEQ, "
                "SESSION@CHECKPOINT or SESSION@#NUMBER"
            )
            raise memcore.InvalidOptionError(msg)
        revision = session.revision
        found = db.compare(session, session, other_at=position)
        fields = _changed_fields(session, position) if state else []
        if not dry_run:  # what is told is what was done
            session.rewind(position, state=state, expected_revision=revision)
    away, back = len(found.only_a), len(found.only_b)
    text = f"{counted(away, 'item')} taken back, {back:,} put back; "
    if not state:
        text += "the state stays as it is"
    elif not fields:
        text += "the state is as it was then"
    else:
        names = ", ".join(map(escape, fields[:_FIELDS_SHOWN]))
        more = len(fields) - _FIELDS_SHOWN
        text += f"these fields get the values of then: {names}{f' and {more:,} more' * (more > 0)}"
    _told(as_json, "rewind", text, dry_run=dry_run, session=session.id,
          taken_back=away, put_back=back, state=state, fields=fields)  # fmt: skip


def _changed_fields(session: memcore.Session, to: int | str | memcore.Checkpoint) -> list[str]:
    """Return the names of the session's own fields that have other values at a position.

    Raises:
        NotFoundError: there is no such checkpoint, or the values from that time were trimmed.
    """
    now = session.state.all(shared=False)
    if isinstance(to, int):
        then = session.state.at_seq(to)
    else:
        counter = get_checkpoint(ref_of(session), to).state
        if counter is None:
            return []  # what it was is not known, and stays as it is
        then = session.state.at(counter)
    missing = object()
    names = now.keys() | then.keys()
    return sorted(name for name in names if now.get(name, missing) != then.get(name, missing))


@verb("uncompact")
@session_argument
@store_option
@user_option
@app_option
@dry_run_option
@yes_option
@json_option
def uncompact_session(
    session_id: str,
    store: str,
    *,
    user: str | None,
    app: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Revert a session's last compaction: contexts show again what its summary stood for."""
    need_choice(dry_run, yes, see="what contexts would show again", do="revert it")
    with reading(store) if dry_run else writing(store) as db:
        session = find_session(db, session_id, user=user, app=app)
        view = read.find_view(ref_of(session), None)
        covered = 0 if view is None else _covered(session, view.number)
        if view is not None and view.parent:
            covered -= _covered(session, view.parent)
        if not dry_run:
            session.uncompact()
    text = (
        f"{counted(covered, 'item is', 'items are')} shown again"
        if view is not None
        else "nothing is compacted"
    )
    _told(as_json, "uncompact", text, dry_run=dry_run, session=session_id, shown_again=covered)


def _covered(session: memcore.Session, number: int) -> int:
    found = read.find_view(ref_of(session), number)
    return sum(1 for _ in session.covered(found))


@verb("delete")
@session_argument
@store_option
@user_option
@app_option
@dry_run_option
@yes_option
@json_option
def delete_session(
    session_id: str,
    store: str,
    *,
    user: str | None,
    app: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete a session. Its forks stay, with the history that they share.

    Memories that rest on it alone are forgotten. To leave no byte of it in the file, see 'memcore
    erase' and 'memcore copy-compact'.
    """
    need_choice(dry_run, yes, see="what would go", do="delete it")
    with reading(store) if dry_run else writing(store) as db:
        session = find_session(db, session_id, user=user, app=app)
        items, tokens = len(session), session.tokens
        log = ref_of(session).resolve()
        going = (
            []
            if log is None
            else db.engine.store.read(
                lambda txn: would_forget(txn, db.engine, log.scope, log.session)
            )
        )
        holds = db.holds(user=session.user, app=session.app)
        if not dry_run:
            db.delete_session(session.id, user=session.user, app=session.app)
    is_held = any(each.session_id in (None, session.id) for each in holds)
    what = f"{session_id}: {counted(items, 'item')}, {counted(tokens, 'token')}"
    if going:
        resting = counted(len(going), "memory that rests", "memories that rest")
        what += f", and {resting} on it alone"
    if is_held:
        what += "; under a legal hold: --yes is refused"
    _told(as_json, "delete", what if dry_run else f"deleted {what}", dry_run=dry_run,
          session=session_id, items=items, tokens=tokens, memories=len(going),
          held=is_held)  # fmt: skip


def _told(as_json: bool, command: str, text: str, **fields: Any) -> None:
    if as_json:
        emit_json(command, fields)
        return
    print(escape(text))
    if fields.get("dry_run"):
        print("nothing was written")
