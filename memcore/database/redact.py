"""Redaction of stored rows: findings of a policy, and items, views and states written anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from memcore import blobs
from memcore.audit import record_event
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import decode_json, decoding, encode_json, open_value, seal_value
from memcore.database.scope import Scope, engine_of, rows_of
from memcore.errors import CorruptValueError, InvalidItemError
from memcore.kv.rows import KvEntry, encoded, entry_of, hold, read_content, write_entry
from memcore.limits import BLOB_INLINE_COMMIT_BYTES_MAX
from memcore.log import Head
from memcore.log.checkpoint import checkpoint_numbers, read_checkpoint, write_checkpoint
from memcore.log.history import read_rows, sound
from memcore.log.read import opened
from memcore.log.rewrite import Rewriting, plan_rewriting
from memcore.model import Item, ItemKind
from memcore.privacy.write_filter import Redacts
from memcore.rows import names
from memcore.rows.head import head_key
from memcore.rows.lifecycle import memory_namespaces
from memcore.rows.views import StoredView, read_view
from memcore.session import Engine, Session
from memcore.session.rewrite import Rewritten, rewrite_planned, rewrite_views
from memcore.state import prefix_of
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "Finding",
    "findings_beside",
    "findings_in",
    "findings_of",
    "redact_beside",
    "redact_session",
    "redact_state_of",
]


_PAGE: Final = 256
_PAGE_BYTES: Final = 1024**2
_OF_ADAPTERS: Final = ("\x00", "adk.", "deepagents:", "langgraph.", "openai_agents.")
"""How the names of namespaces begin whose rows only an adapter can read."""


@dataclass(slots=True)
class Finding:
    """How often each class was found at one place; never what."""

    app: str
    user: str
    session: str | None
    where: str
    """``items``, ``views``, ``state``, ``app state``, ``checkpoints`` or ``kv``."""
    classes: Counter[str] = field(default_factory=Counter)
    rewritten: int = 0
    """Rows that were written anew."""
    unreadable: int = 0
    """Rows that are damaged, and stay as they are."""
    kept: int = 0
    """Rows that stay though something was found: without it they would be of other calls."""


def findings_in(engine: Engine, place: tuple[str, str, str], redacts: Redacts) -> Iterator[Finding]:
    """What is found in the items of a session (undone ones, too) and in its views."""
    found = engine.store.read(lambda txn: _numbers(txn, *place))
    if found is None:
        return
    items, views = Finding(*place, "items"), Finding(*place, "views")
    for row in _rows(engine, *found, items):
        items.classes.update(redacts.value([row[1].message, row[1].meta])[1])
    for stored in _views_of(engine, found):
        views.classes.update(redacts.value(_said(stored))[1])
    yield items
    yield views


def findings_of(session: Session, redacts: Redacts) -> Iterator[Finding]:
    """What is found in the state of a session and in the names and meta of its checkpoints."""
    place = session.app, session.user, session.id
    state, saved = Finding(*place, "state"), Finding(*place, "checkpoints")
    own = {key: value for key, value in session.state.all().items() if not prefix_of(key)}
    state.classes.update(redacts.value(own)[1])
    for each in session.checkpoints():
        saved.classes.update(redacts.value([each.name, each.meta])[1])
    yield state
    yield saved


def findings_beside(scope: Scope, redacts: Redacts) -> Iterator[Finding]:
    """What is found in the state of a user, in key/value entries and in blobs of a scope."""
    app, user, engine = scope.app, scope.user, engine_of(scope)
    state = Finding(app, user, None, "state")
    state.classes.update(redacts.value(scope.state.all())[1])
    yield state
    shared = Finding(app, user, None, "app state")
    shared.classes.update(redacts.value(scope.app_state.all())[1])
    yield shared
    for name in engine.store.read(lambda txn: _namespaces(txn, app, user)):
        entries, kv = Finding(app, user, None, "kv"), rows_of(scope, name)
        for key, value in kv.scan():
            entries.classes.update(_classes(redacts, value))
            content = kv.content(key)
            if content is not None:
                entries.classes.update(redacts.counted_bytes(content)[1])
        yield entries


def _classes(redacts: Redacts, value: Any) -> Any:
    return (redacts.counted_bytes if isinstance(value, bytes) else redacts.value)(value)[1]


def _namespaces(txn: ReadTxn, app: str, user: str) -> list[str]:
    scope = names.scope_of(txn, app, user)
    if scope is None:
        return []
    return [name for name, _ in names.namespaces(txn, scope)]


def redact_session(engine: Engine, place: tuple[str, str, str], redacts: Redacts) -> Finding:
    """Write the items of a session anew that hold what is looked for, and the views with them.

    Items keep seq, time, calls and prefix hash; forks that share them see what stands there now.
    The old bytes leave the file with the next copy-compact.

    Raises:
        StorageError: what was written until then stays written.
    """
    done = Finding(*place, "items")
    found = engine.store.read(lambda txn: _numbers(txn, *place))
    if found is None:
        return done

    def views(stored: StoredView) -> StoredView:
        return _shown(stored, redacts)

    planned: list[Rewriting] = []
    for value, item, seq in _rows(engine, *found, done):
        made, classes = redacts.value([item.message, item.meta])
        if not classes:
            continue
        done.classes.update(classes)
        told, shown = made[1], made[0]
        if item.kind == ItemKind.EVENT:
            shown = {**shown, "type": item.message["type"]}
        try:
            plan = plan_rewriting(
                (*found, seq),
                value,
                (item.message, shown),
                seed=engine.seed,
                envelope=lambda envelope, told=told: _marked(envelope, told),  # type: ignore[misc]
            )
        except InvalidItemError:  # a name by which its calls are paired
            done.kept += 1
            continue
        planned.append(plan)
        if len(planned) == _PAGE:
            done.rewritten += _commit(engine, found, planned, views)
            planned = []
    done.rewritten += _commit(engine, found, planned, views)
    if any(views(each) is not each for each in _views_of(engine, found)):
        _commit_views(engine, found, views)
    return done


# --- states, checkpoints, entries -----------------------------------------------------------------


class _Planned(NamedTuple):
    """A row, as it was read, and what is to stand in its place."""

    key: bytes
    before: bytes
    after: Any


def redact_state_of(
    engine: Engine, place: tuple[str, str, str], redacts: Redacts
) -> Iterator[Finding]:
    """Write the values of a session's state anew, earlier ones too, and its checkpoints.

    Names of fields stay, as does what is damaged.

    Raises:
        StorageError: what was written until then stays written; a further call goes on.
    """
    found = engine.store.read(lambda txn: _numbers(txn, *place))
    if found is None:
        return
    yield _redact_state(engine, found, redacts, Finding(*place, "state"))
    saved = Finding(*place, "checkpoints")
    for number in engine.store.read(lambda txn: list(checkpoint_numbers(txn, *found))):
        _redact_saved(engine, (*found, number), redacts, saved)
    yield saved


def redact_beside(
    engine: Engine, app: str, user: str, redacts: Redacts, shared: Redacts
) -> Iterator[Finding]:
    """Write the states that sessions share and the caller's key/value entries anew.

    Entries that adapters wrote stay: they have indexes and parts that only these know. So do keys
    and names of namespaces. ``shared`` redacts what all users of the application share.

    Raises:
        StorageError: what was written until then stays written; a further call goes on.
    """
    of_app = engine.store.read(lambda txn: names.app_scope_of(txn, app))
    if of_app is not None:
        told = Finding(app, user, None, "app state")
        yield _redact_state(engine, (of_app, 0), shared, told)
    scope = engine.store.read(lambda txn: names.scope_of(txn, app, user))
    if scope is None:
        return
    yield _redact_state(engine, (scope, 0), redacts, Finding(app, user, None, "state"))

    def look(txn: ReadTxn) -> list[int]:
        marked = memory_namespaces(txn, scope)
        return [
            number
            for name, number in names.namespaces(txn, scope)
            if number not in marked and not name.startswith(_OF_ADAPTERS)
        ]

    for number in engine.store.read(look):
        yield _redact_entries(engine, (scope, number), redacts, Finding(app, user, None, "kv"))


def _redact_state(
    engine: Engine, place: tuple[int, int], redacts: Redacts, told: Finding
) -> Finding:
    rows = keys.state_rows(*place)
    start: bytes | None = keys.behind(keys.numbered(rows, 0))
    while start is not None:
        page, start = _read_page(engine, start, keys.after(rows))
        planned: list[_Planned] = []
        for key, value in page:
            try:
                flags, body = open_value(key, value)
                if not body:
                    continue  # deleted
                name = keys.split_state_row(key)[0]
                with decoding(key, "state"):
                    before = decode_json(body, flags)
            except CorruptValueError:
                told.unreadable += 1
                continue
            made, classes = redacts.value({name: before})
            (after,) = made.values()
            if after is not before:
                told.classes.update(classes)
                planned.append(_Planned(key, value, seal_value(key, *encode_json(after))))
        if planned:
            told.rewritten += engine.store.transact(
                lambda txn, planned=planned: _replace(txn, place[0], planned, "state")  # type: ignore[misc]
            )
    return told


def _replace(txn: Txn, scope: int, planned: list[_Planned], what: str) -> int:
    """Put values in the place of those that are still there as they were read; how many."""
    done = 0
    for key, before, after in planned:
        if txn.get(key) == before:
            txn.put(key, after)
            done += 1
    if done:
        record_event(txn, scope, "redact", {what: done})
    return done


def _redact_saved(
    engine: Engine, place: tuple[int, int, int], redacts: Redacts, told: Finding
) -> None:
    def closure(txn: Txn) -> Any:
        try:
            saved = read_checkpoint(txn, *place)
        except CorruptValueError:
            return None
        if saved is None:
            return {}
        said = [saved.checkpoint.name, saved.checkpoint.meta]
        made, classes = redacts.value(said)
        if made is not said:
            after = replace(saved.checkpoint, name=made[0], meta=made[1])
            write_checkpoint(txn, place[0], place[1], replace(saved, checkpoint=after))
            record_event(txn, place[0], "redact", {"session": place[1], "checkpoints": 1})
        return classes

    classes = engine.store.transact(closure)
    if classes is None:
        told.unreadable += 1
    elif classes:
        told.classes.update(classes)
        told.rewritten += 1


def _redact_entries(
    engine: Engine, place: tuple[int, int], redacts: Redacts, told: Finding
) -> Finding:
    prefix = keys.kv_prefix(*place)
    start: bytes | None = prefix
    while start is not None:
        page, start = _read_page(engine, start, keys.after(prefix))
        planned: list[_Planned] = []
        for key, value in page:
            try:
                entry = entry_of(key, value)
                name = keys.unpack_text(key[len(prefix) :])
                made = _redacted_entry(redacts, name, entry, told)
                content = _redacted_content(engine, place[0], redacts, (name, entry), told)
            except CorruptValueError:
                told.unreadable += 1
                continue
            if content is not None and len(content) > BLOB_INLINE_COMMIT_BYTES_MAX:
                told.rewritten += _write_large(engine, _Planned(key, value, made), content)
            elif made is not entry or content is not None:
                planned.append(_Planned(key, value, (made, content)))
        if planned:
            told.rewritten += _write_entries(engine, place[0], planned)
    return told


def _redacted_entry(redacts: Redacts, name: str, entry: KvEntry, told: Finding) -> KvEntry:
    before = entry.value()
    if isinstance(before, bytes):
        after, classes = redacts.counted_bytes(before, name)
    else:
        made, classes = redacts.value({name: before})
        (after,) = made.values()
    if after is before:
        return entry
    told.classes.update(classes)
    flags, payload = encoded(after)
    return replace(entry, flags=flags, payload=payload)


def _redacted_content(
    engine: Engine, scope: int, redacts: Redacts, named: tuple[str, KvEntry], told: Finding
) -> bytes | None:
    """The content that an entry is to have; None: the one that it has, if any."""
    ref = named[1].ref
    if ref is None:
        return None
    before = engine.store.read(lambda txn: read_content(txn, scope, ref))
    after, classes = redacts.counted_bytes(before, named[0])
    if after is before:
        return None
    told.classes.update(classes)
    return after


def _write_entries(engine: Engine, scope: int, planned: list[_Planned]) -> int:
    seed, now_ms = _blob_seed(engine), engine.now_ms()

    def closure(txn: Txn) -> tuple[int, list[bytes]]:
        done = 0
        leaving: list[bytes] = []
        for key, before, (entry, content) in planned:
            if txn.get(key) != before:
                continue
            held = entry.ref if content is None else content
            ref = None if held is None else hold(txn, scope, held, seed)
            write_entry(txn, key, replace(entry, ref=ref), now_ms, leaving)
            done += 1
        if done:
            record_event(txn, scope, "redact", {"entries": done})
        return done, leaving

    done, leaving = engine.store.transact(closure)
    blobs.finish_leaving(engine.store, leaving)
    return done


def _write_large(engine: Engine, planned: _Planned, content: bytes) -> int:
    """As ``_write_entries``, of one whose content is staged ahead."""
    scope = keys.split_session_prefix(planned.key)[0]

    def closure(txn: Txn, ref: blobs.BlobRef) -> tuple[int, list[bytes]]:
        leaving: list[bytes] = []
        if txn.get(planned.key) != planned.before:
            return 0, leaving
        blobs.acquire(txn, scope, ref)
        entry = replace(planned.after, ref=ref)
        write_entry(txn, planned.key, entry, engine.now_ms(), leaving)
        record_event(txn, scope, "redact", {"entries": 1})
        return 1, leaving

    done, leaving = blobs.refer(engine.store, scope, content, closure, seed=_blob_seed(engine))
    blobs.finish_leaving(engine.store, leaving)
    return done


def _blob_seed(engine: Engine) -> int:
    return int.from_bytes(engine.seed[:8], "little")


def _read_page(
    engine: Engine, start: bytes, stop: bytes
) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
    """Rows of a range for one commit, and where the next ones start; None: there are no more."""

    def read(txn: ReadTxn) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        page: list[tuple[bytes, bytes]] = []
        size = 0
        for key, value in txn.scan(start, stop):
            if len(page) == _PAGE or (page and size + len(value) > _PAGE_BYTES):
                return page, key
            page.append((key, value))
            size += len(value)
        return page, None

    return engine.store.read(read)


# --- items ----------------------------------------------------------------------------------------


def _commit(engine: Engine, found: tuple[int, int], planned: list[Rewriting], views: Any) -> int:
    if not planned:
        return 0

    def closure(txn: Txn) -> Rewritten:
        rewritten = rewrite_planned(txn, engine, *found, planned, views=views)
        if rewritten.seqs:
            told = {"session": found[1], "items": len(rewritten.seqs)}
            record_event(txn, found[0], "redact", told)
        return rewritten

    done = engine.store.transact(closure)
    blobs.finish_leaving(engine.store, done.leaving)
    return len(done.seqs)


def _commit_views(engine: Engine, found: tuple[int, int], views: Any) -> None:
    """Write those views anew that no item that was rewritten took along."""

    def closure(txn: Txn) -> None:
        done = rewrite_views(txn, engine, *found, views)
        if done:
            record_event(txn, found[0], "redact", {"session": found[1], "views": done})

    engine.store.transact(closure)


def _marked(envelope: dict[str, Any], meta: Any) -> dict[str, Any]:
    told = {**(envelope.get("envelope") or {}), "redacted": True}
    return {"request_id": envelope.get("request_id"), "envelope": told, "meta": meta}


def _numbers(txn: ReadTxn, app: str, user: str, name: str) -> tuple[int, int] | None:
    scope = names.scope_of(txn, app, user)
    session = None if scope is None else names.session_of(txn, scope, name)
    return None if scope is None or session is None else (scope, session)


def _rows(
    engine: Engine, scope: int, session: int, told: Finding
) -> Iterator[tuple[bytes, Item, int]]:
    """Row, item and seq of all that a session owns; damaged ones are counted."""
    key = head_key(scope, session)
    value = engine.store.read(lambda txn: txn.get(key))
    if value is None:
        return
    head = Head.unpack(key, value)
    for first in range(head.parent_seq + 1, head.next_seq, _PAGE):
        last = min(first + _PAGE, head.next_seq) - 1
        yield from engine.store.read(
            lambda txn, first=first, last=last: list(  # type: ignore[misc]
                _page(txn, (scope, session), first, last, told)
            )
        )


def _page(
    txn: ReadTxn, place: tuple[int, int], first: int, last: int, told: Finding
) -> Iterator[tuple[bytes, Item, int]]:
    for row in read_rows(txn, *place, position=0, lo=first, hi=last):
        try:
            item, _ = opened(txn, place[0], sound(row))
        except CorruptValueError:
            told.unreadable += 1
            continue
        value = txn.get(keys.session_row(*place, Row.ITEM, item.seq))
        if value is not None:
            yield value, item, item.seq


def _views_of(engine: Engine, found: tuple[int, int]) -> list[StoredView]:
    return engine.store.read(lambda txn: list(_views(txn, *found)))


def _views(txn: ReadTxn, scope: int, session: int) -> Iterator[StoredView]:
    rows = keys.session_rows(scope, session, Row.VIEW)
    for number in [keys.number_of(key) for key, _ in txn.scan(rows, keys.after(rows))]:
        stored = read_view(txn, scope, session, number)
        if stored is not None:
            yield stored


def _said(stored: StoredView) -> list[Any]:
    view = stored.view
    return [view.summary, view.reason, [mask.message for mask in view.masks]]


def _shown(stored: StoredView, redacts: Redacts) -> StoredView:
    said = _said(stored)
    made = redacts.value(said)[0]
    if made is said:
        return stored
    summary, reason, messages = made
    masks = tuple(
        mask._replace(message=message)
        for mask, message in zip(stored.view.masks, messages, strict=True)
    )
    return replace(stored, view=replace(stored.view, summary=summary, reason=reason, masks=masks))
