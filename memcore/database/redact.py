"""Redaction of stored rows: findings of a policy, and rewritten items, views and states."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeGuard

from memcore import blobs, memory
from memcore.audit import record_event
from memcore.codec import keys
from memcore.codec.keys import KIND_U64_2, Kind, Row
from memcore.codec.values import decode_json, decoding, encode_json, open_value, seal_value
from memcore.errors import (
    CorruptValueError,
    CounterUnavailableError,
    InvalidItemError,
    NotFoundError,
    PolicyMismatchError,
)
from memcore.kv.rows import KvEntry, encoded, entry_of, hold, read_content, write_entry
from memcore.limits import BLOB_INLINE_COMMIT_BYTES_MAX
from memcore.log import Head
from memcore.log.checkpoint import checkpoint_numbers, read_checkpoint, write_checkpoint
from memcore.log.history import count_message
from memcore.log.read import opened
from memcore.log.rewrite import Rewriting, plan_rewriting
from memcore.model import Item, ItemKind, Mask, View
from memcore.privacy.write_filter import Redacts
from memcore.records import record
from memcore.rows import names
from memcore.rows.head import FLAG_REWRITTEN, head_key
from memcore.rows.lifecycle import is_held, memory_namespaces
from memcore.rows.views import StoredView, read_view
from memcore.session import Engine
from memcore.session.engine import SessionOptions, SessionRef
from memcore.session.memory import would_forget
from memcore.session.recount import recount
from memcore.session.rewrite import Rewritten, family_of, rewrite_planned, rewrite_views
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "Finding",
    "SessionPlace",
    "recount_rewritten",
    "redact_all",
    "redact_session",
    "sessions_in",
]


_PAGE: Final = 256
_PAGE_BYTES: Final = 1024**2
_ITEM_KEY_BYTES: Final = len(keys.session_row(0, 0, Row.ITEM, 0))
_OF_ADAPTERS: Final = ("\x00", "adk.", "deepagents:", "langgraph.", "openai_agents.")
"""Name prefixes of namespaces whose rows only an adapter can interpret."""


@record(slots=True)
class Finding:
    """Number of findings of each class in one place; never their content."""

    app: str
    user: str
    session: str | None
    where: str
    """``items``, ``views``, ``state``, ``app state``, ``checkpoints``, ``kv``, ``memories``,
    ``tokens`` or ``names``.

    State shared by an application has no user; neither has a scope whose name cannot be read.
    """
    classes: Counter[str] = field(default_factory=Counter)
    rewritten: int = 0
    """Rows that were rewritten."""
    unreadable: int = 0
    """Rows that are damaged, and left unchanged."""
    kept: int = 0
    """Rows left unchanged despite a finding, or that cannot be searched: an item whose calls would
    change, a value nested too deep or that would become too large, a row only its adapter can
    write, a row that was changed concurrently."""
    held: int = 0
    """Rows left unchanged because they are under a legal hold."""
    forgotten: int = 0
    """Memories that rest on rewritten items alone, and go with them."""

    @property
    def is_left(self) -> bool:
        """True if findings remain or may remain."""
        return bool(self.unreadable or self.kept or self.held)


class SessionPlace(NamedTuple):
    """A session that has rows."""

    app: str
    user: str
    session: str | None
    """Its name; None: deleted while its forks share its items, or its name is damaged."""
    scope: int
    number: int


@record(slots=True)
class _DryRun:
    """Effects of the changes so far in a scope, if they were made: the next ones depend on them."""

    gone: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """The items that would be rewritten, by the session that owns them."""
    forgotten: set[int] = field(default_factory=set)
    """Memories that would go with these items."""
    renewed: set[int] = field(default_factory=set)
    """Sessions that show something rewritten, and would be counted anew."""


RedactsAt = Callable[[str, str, str | None], Redacts]
"""Redactor at ``(app, user, session)``; a user without a name: the state that all users share."""


class _Owner(NamedTuple):
    """A scope and its owner."""

    app: str
    user: str
    scope: int


def redact_all(
    engine: Engine,
    redacts_at: RedactsAt,
    *,
    user: str | None = None,
    app: str | None = None,
    write: bool,
) -> Iterator[Finding]:
    """Redact everything that users own, or only count the findings without ``write``.

    Without ``write``, the findings are those that the same call would yield with it. Rows that are
    damaged, held or cannot be redacted are left, and the finding counts them. A scope with one
    damaged name row of its two is found by the other; one without a readable name is reported.

    Args:
        engine: engine of the open database.
        redacts_at: returns the redactor of a place.
        user: only this user's, and what all users of the same applications share.
        app: only this application's.
        write: rewrite the rows.

    Raises:
        StorageError: what was written so far stays written; another call resumes.
    """
    found, damaged = engine.store.read(names.found_scopes)
    for pair, count in Counter(damaged).items():
        if pair is None or (app in (None, pair[0]) and user in (None, pair[1])):
            yield Finding(*(pair or ("", "")), None, "names", unreadable=count)
    apps = {name: scope for scope, (name, whose) in found.items() if not whose}
    shared = set(apps) if user is None else set()
    for scope, (its_app, its_user) in sorted(found.items()):
        if its_user and user in (None, its_user) and app in (None, its_app):
            shared.add(its_app)
            owner = _Owner(its_app, its_user, scope)
            dry = None if write else _DryRun()
            yield from _redact_user(engine, owner, redacts_at, dry)
    for name, scope in sorted(apps.items()):
        if name in shared and app in (None, name):
            told = Finding(name, "", None, "app state")
            its = redacts_at(name, "", None)
            yield _redact_state(engine, (scope, 0), its, told, None if write else _DryRun())


def _redact_user(
    engine: Engine, owner: _Owner, redacts_at: RedactsAt, dry: _DryRun | None
) -> Iterator[Finding]:
    app, user, _ = owner
    found, damaged = engine.store.read(lambda txn: _sessions_of(txn, owner))
    yield Finding(app, user, None, "names", unreadable=damaged)
    beside = redacts_at(app, user, None)
    # First what goes, or is rewritten, along with items: nobody would count its findings then.
    memories = _redact_memories(engine, owner, beside, dry)
    its = [redacts_at(app, user, place.session) for place in found]
    views = [
        _redact_views(engine, place, redacts, dry)
        for place, redacts in zip(found, its, strict=True)
    ]
    for place, redacts, told in zip(found, its, views, strict=True):
        yield from _redact_session(engine, place, redacts, told, dry)
    for place in found:
        yield from recount_rewritten(engine, place, dry)
    told = Finding(app, user, None, "state")
    yield _redact_state(engine, (owner.scope, 0), beside, told, dry)
    yield memories
    yield from _redact_namespaces(engine, owner, beside, dry)


def sessions_in(txn: ReadTxn, app: str, user: str) -> list[SessionPlace]:
    """List a user's sessions that have rows, including deleted ones that forks share."""
    scope = names.scope_of(txn, app, user)
    return [] if scope is None else _sessions_of(txn, _Owner(app, user, scope))[0]


def _sessions_of(txn: ReadTxn, owner: _Owner) -> tuple[list[SessionPlace], int]:
    """List a scope's sessions like ``sessions_in``, and count the unreadable names."""
    scope = owner.scope
    named, damaged = names.found_names(txn, Kind.SESSION_NAME, scope)
    found = [
        SessionPlace(owner.app, owner.user, named.get(number), scope, number)
        for number in _numbers(txn, Kind.SESSION, scope)
    ]
    return found, damaged


def _numbers(txn: ReadTxn, kind: int, scope: int) -> list[int]:
    """List the numbers of sessions or namespaces with rows of a kind in a scope."""
    found: list[int] = []
    start = keys.scoped(kind, scope)
    stop = keys.after(start)
    while (row := next(iter(txn.scan(start, stop, limit=1)), None)) is not None:
        found.append(keys.split_session_prefix(row[0])[1])
        start = keys.after(row[0][: KIND_U64_2.size])
    return found


def redact_session(engine: Engine, place: SessionPlace, redacts: Redacts) -> Iterator[Finding]:
    """Rewrite a session's rows with findings: items, views, state and checkpoints.

    Items (including undone ones) keep seq, time, calls and prefix hash; forks that share them see
    the redacted ones. Field names stay. The old bytes leave the file with the next copy-compact.

    Raises:
        StorageError: what was written so far stays written; another call resumes.
    """
    yield from _redact_session(engine, place, redacts, _redact_views(engine, place, redacts))


def _redact_session(
    engine: Engine,
    place: SessionPlace,
    redacts: Redacts,
    views: Finding,
    dry: _DryRun | None = None,
) -> Iterator[Finding]:
    found = place[3:]
    yield _redact_items(engine, place, redacts, dry)
    yield views
    yield _redact_state(engine, found, redacts, Finding(*place[:3], "state"), dry)
    saved = Finding(*place[:3], "checkpoints")
    for number in engine.store.read(lambda txn: list(checkpoint_numbers(txn, *found))):
        _redact_saved(engine, (*found, number), redacts, saved, dry)
    yield saved


def _redact_items(
    engine: Engine, place: SessionPlace, redacts: Redacts, dry: _DryRun | None
) -> Finding:
    done = Finding(*place[:3], "items")
    unseen = Finding(*place[:3], "views")  # discarded: views count their own findings
    commit = partial(_commit, views=(redacts, unseen))
    if dry is not None:
        commit = partial(_foresee_items, dry=dry)
    planned: list[Rewriting] = []
    size = 0
    for value, item in _items(engine, place, done):
        try:
            made, classes = redacts.value(item.message)
            told, more = redacts.value(item.meta)
        except InvalidItemError:  # nested too deep to be searched
            done.kept += 1
            continue
        if made is item.message and told is item.meta:
            continue
        done.classes.update(classes)
        done.classes.update(more)
        if item.kind == ItemKind.EVENT:
            made = {**made, "type": item.message["type"]}
        try:
            plan = plan_rewriting(
                (*place[3:], item.seq),
                value,
                (item.message, made),
                seed=engine.seed,
                envelope=lambda envelope, told=told: _marked(envelope, told),  # type: ignore[misc]
            )
        except InvalidItemError:  # it would change a name that pairs calls, or grew too large
            done.kept += 1
            continue
        planned.append(plan)
        size += plan.size + len(plan.encoded)
        if len(planned) == _PAGE or size >= _PAGE_BYTES:
            commit(engine, place, planned, told=done)
            planned, size = [], 0
    if planned:
        commit(engine, place, planned, told=done)
    return done


def _redact_views(
    engine: Engine, place: SessionPlace, redacts: Redacts, dry: _DryRun | None = None
) -> Finding:
    """Redact the views that were not rewritten along with an item."""
    told = Finding(*place[:3], "views")
    changed = 0
    for number in engine.store.read(lambda txn: _view_numbers(txn, place)):
        try:
            look = partial(read_view, scope=place.scope, owner=place.number, number=number)
            stored = engine.store.read(look)
        except CorruptValueError:
            told.unreadable += 1
            continue
        if stored is not None:
            changed += _shown(engine, stored, redacts, told) is not stored
    if not changed:
        return told
    if dry is not None:
        if _foresee(engine, place[3:], changed, told):
            dry.renewed.add(place.number)
        return told

    def closure(txn: Txn) -> int | None:
        if is_held(txn, *place[3:]):
            return None
        shown = partial(_shown, engine, redacts=redacts, told=Finding(*place[:3], "views"))
        done = rewrite_views(txn, engine, *place[3:], shown)
        if done:
            record_event(txn, place.scope, "redact", {"session": place.number, "views": done})
        return done

    done = engine.store.transact(closure)
    if done is None:
        told.held += changed
    else:
        told.rewritten += done
    return told


def _view_numbers(txn: ReadTxn, place: SessionPlace) -> list[int]:
    rows = keys.session_rows(*place[3:], Row.VIEW)
    return [keys.number_of(key) for key, _ in txn.scan(rows, keys.after(rows))]


def _shown(engine: Engine, stored: StoredView, redacts: Redacts, told: Finding) -> StoredView:
    """Return the redacted view, or the same object if nothing was found."""
    view = stored.view
    said = [view.summary, view.reason, [mask.message for mask in view.masks]]
    try:
        made, classes = redacts.value(said)
    except InvalidItemError:  # nested too deep to be searched
        told.kept += 1
        return stored
    if made is said:
        return stored
    told.classes.update(classes)
    summary, reason, messages = made
    masks = tuple(
        mask if message is mask.message else _counted(engine, mask._replace(message=message), view)
        for mask, message in zip(view.masks, messages, strict=True)
    )
    return stored._replace(view=replace(view, summary=summary, reason=reason, masks=masks))


def _counted(engine: Engine, mask: Mask, view: View) -> Mask:
    try:
        counter = engine.counter_named(view.counter)
    except CounterUnavailableError:
        return mask  # its session cannot be counted either, which is reported
    return mask._replace(tokens=count_message(mask.message or {}, counter))


# --- states, checkpoints, entries -----------------------------------------------------------------


class _Planned(NamedTuple):
    """Row as read, and its replacement."""

    key: bytes
    before: bytes
    after: Any


def _redact_namespaces(
    engine: Engine, owner: _Owner, redacts: Redacts, dry: _DryRun | None
) -> Iterator[Finding]:
    """Redact the caller's entries.

    Entries written by adapters are counted but left: they have indexes and parts that only the
    adapters know. So are those of a namespace whose name cannot be read. Keys and names stay, too.
    """
    app, user, scope = owner

    def look(txn: ReadTxn) -> tuple[dict[int, bool], int]:
        named, damaged = names.found_names(txn, Kind.KV_NAMESPACE, scope)
        foreign = memory_namespaces(txn, scope) | {
            number for number, name in named.items() if name.startswith(_OF_ADAPTERS)
        }
        numbers = _numbers(txn, Kind.KV, scope)
        return {each: each in foreign or each not in named for each in numbers}, damaged

    found, damaged = engine.store.read(look)
    yield Finding(app, user, None, "names", unreadable=damaged)
    for number, stays in found.items():
        told = Finding(app, user, None, "kv")
        write = None if stays else partial(_write_entries, engine, scope, told, dry)
        yield _redact_entries(engine, (scope, number), redacts, told, write)
        if stays:
            told.kept += sum(told.classes.values())


def _redact_memories(
    engine: Engine, owner: _Owner, redacts: Redacts, dry: _DryRun | None
) -> Finding:
    """Redact the long-term memories with all their versions; subjects and slots stay."""
    app, user, scope = owner
    told = Finding(app, user, None, "memories")

    def counted(value: Any) -> Any:
        made, classes = redacts.value(value)
        told.classes.update(classes)
        return made

    def look(txn: ReadTxn, number: int) -> tuple[list[Any], list[Any]]:
        texts = list(memory.texts_in(txn, scope, number))
        return texts, list(memory.names_in(txn, scope, number))

    def closure(txn: ReadTxn, number: int) -> bool | None:
        book = memory.Book(txn, scope, engine.seed)  # type: ignore[arg-type]
        return memory.redact_entry(
            book, number, lambda value: redacts.value(value)[0], write=dry is None
        )

    perform = engine.store.transact if dry is None else engine.store.read
    for number in engine.store.read(lambda txn: memory.entry_numbers(txn, scope)):
        try:
            texts, named = engine.store.read(partial(look, number=number))
            for text in texts:
                counted(text)
            told.kept += sum(counted(name) != name for name in named)
            done = perform(partial(closure, number=number))
        except CorruptValueError:
            told.unreadable += 1
            continue
        told.held += done is None
        told.rewritten += bool(done)
    _redact_reasons(engine, scope, redacts, told, dry)
    return told


def _redact_reasons(
    engine: Engine, scope: int, redacts: Redacts, told: Finding, dry: _DryRun | None
) -> None:
    """Redact the reasons and tools of outcomes, of which playbooks are made; scenarios stay."""

    def closure(txn: ReadTxn) -> int | None:
        if is_held(txn, scope):
            return None
        book = memory.Book(txn, scope, engine.seed)  # type: ignore[arg-type]
        return memory.redact_outcomes(
            book, lambda value: redacts.value(value)[0], write=dry is None
        )

    try:
        outcomes = engine.store.read(lambda txn: list(memory.texts_of_outcomes(txn, scope)))
        found = [redacts.counted(text)[1] for _, texts in outcomes for text in texts]
        names = [redacts.counted(name)[1] for name in sorted({name for name, _ in outcomes})]
        for classes in (*found, *names):
            told.classes.update(classes)
        told.kept += sum(map(bool, names))
        if any(found):
            done = (engine.store.transact if dry is None else engine.store.read)(closure)
            told.held += done is None
            told.rewritten += done or 0
    except CorruptValueError:
        told.unreadable += 1


def _redact_state(
    engine: Engine,
    place: tuple[int, int],
    redacts: Redacts,
    told: Finding,
    dry: _DryRun | None,
) -> Finding:
    """Redact all stored versions of each field, not only the current one."""
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
                made, classes = redacts.value({name: before})
                (after,) = made.values()
                if after is before:
                    continue
                told.classes.update(classes)
                planned.append(_Planned(key, value, seal_value(key, *encode_json(after))))
            except CorruptValueError:
                told.unreadable += 1
            except (ValueError, RecursionError):  # nested too deep, or too large when redacted
                told.kept += 1
        if planned and dry is not None:
            _foresee(engine, place, len(planned), told)
        elif planned:
            done = engine.store.transact(
                lambda txn, planned=planned: _replace(txn, place, planned)  # type: ignore[misc]
            )
            _tell(told, planned, done)
    return told


def _replace(txn: Txn, place: tuple[int, int], planned: list[_Planned]) -> int | None:
    """Replace values that have not changed since they were read; return the count.

    None: they are under a legal hold.
    """
    if is_held(txn, *place):
        return None
    done = 0
    for key, before, after in planned:
        if txn.get(key) == before:
            txn.put(key, after)
            done += 1
    if done:
        record_event(txn, place[0], "redact", {"state": done})
    return done


def _foresee(engine: Engine, place: tuple[int, int], count: int, told: Finding) -> bool:
    """Count what would become of changes in a session, or a scope (0); True: they would be made."""
    is_free = not engine.store.read(lambda txn: is_held(txn, *place))
    told.rewritten += count * is_free
    told.held += count * (not is_free)
    return is_free


def _tell(told: Finding, planned: Sequence[object], done: int | None) -> None:
    """Count the outcome of planned changes; None: they are under a legal hold."""
    if done is None:
        told.held += len(planned)
    else:
        told.rewritten += done
        told.kept += len(planned) - done  # changed concurrently: another call retries


def _redact_saved(
    engine: Engine,
    place: tuple[int, int, int],
    redacts: Redacts,
    told: Finding,
    dry: _DryRun | None,
) -> None:
    saved = None
    try:
        saved = engine.store.read(lambda txn: read_checkpoint(txn, *place))
        said = None if saved is None else [saved.checkpoint.name, saved.checkpoint.meta]
        made, classes = redacts.value(said)
    except CorruptValueError:
        told.unreadable += 1
        return
    except InvalidItemError:  # nested too deep to be searched
        told.kept += 1
        return
    if saved is None or made is said:
        return
    told.classes.update(classes)
    if dry is not None:
        _foresee(engine, place[:2], 1, told)
        return
    after = saved._replace(checkpoint=replace(saved.checkpoint, name=made[0], meta=made[1]))

    def closure(txn: Txn) -> int | None:
        if is_held(txn, *place[:2]):
            return None
        if read_checkpoint(txn, *place) != saved:
            return 0
        write_checkpoint(txn, place[0], place[1], after)
        record_event(txn, place[0], "redact", {"session": place[1], "checkpoints": 1})
        return 1

    _tell(told, (saved,), engine.store.transact(closure))


def _redact_entries(
    engine: Engine,
    place: tuple[int, int],
    redacts: Redacts,
    told: Finding,
    write: Callable[[list[_Planned]], None] | None,
) -> Finding:
    """Redact a namespace's entries, including expired ones that no sweep has removed yet.

    Without ``write``, they are only searched.
    """
    prefix = keys.kv_prefix(*place)
    start: bytes | None = prefix
    while start is not None:
        page, start = _read_page(engine, start, keys.after(prefix))
        planned: list[_Planned] = []
        size = 0
        for key, value in page:
            try:
                entry = entry_of(key, value)
                name = keys.unpack_text(key[len(prefix) :])
                with decoding(key, "entry"):
                    before = entry.value()
                made = _redacted_entry(redacts, (name, entry), before, told)
                content = _redacted_content(engine, place[0], redacts, (name, entry), told)
            except CorruptValueError:
                told.unreadable += 1
                continue
            except (ValueError, RecursionError):  # nested too deep, or too large when redacted
                told.kept += 1
                continue
            if write is None or (made is entry and content is None):
                continue
            planned.append(_Planned(key, value, (made, content)))
            size += len(value) + len(made.payload) + len(content or b"")
            if size >= _PAGE_BYTES:
                write(planned)
                planned, size = [], 0
        if planned and write is not None:
            write(planned)
    return told


def _redacted_entry(
    redacts: Redacts, named: tuple[str, KvEntry], before: Any, told: Finding
) -> KvEntry:
    name, entry = named
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
    """Return the redacted content of an entry; None: its content, if any, is unchanged."""
    ref = named[1].ref
    if ref is None:
        return None
    before = engine.store.read(lambda txn: read_content(txn, scope, ref))
    after, classes = redacts.counted_bytes(before, named[0])
    if after is before:
        return None
    told.classes.update(classes)
    return after


def _write_entries(
    engine: Engine, scope: int, told: Finding, dry: _DryRun | None, planned: list[_Planned]
) -> None:
    if dry is not None:
        _foresee(engine, (scope, 0), len(planned), told)
        return
    for key, before, (entry, content) in planned:
        if _is_large(content):
            _write_large(engine, _Planned(key, before, entry), content, told)
    planned = [each for each in planned if not _is_large(each.after[1])]
    seed, now_ms = _blob_seed(engine), engine.now_ms()

    def closure(txn: Txn) -> tuple[int | None, list[bytes]]:
        done = 0
        leaving: list[bytes] = []
        if is_held(txn, scope, 0):
            return None, leaving
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
    _tell(told, planned, done)


def _is_large(content: bytes | None) -> TypeGuard[bytes]:
    return content is not None and len(content) > BLOB_INLINE_COMMIT_BYTES_MAX


def _write_large(engine: Engine, planned: _Planned, content: bytes, told: Finding) -> None:
    """Replace an entry like ``_write_entries``, its content stored in earlier commits."""
    scope = keys.split_session_prefix(planned.key)[0]
    if engine.store.read(lambda txn: is_held(txn, scope, 0)):
        told.held += 1
        return

    def closure(txn: Txn, ref: blobs.BlobRef) -> tuple[int | None, list[bytes]]:
        leaving: list[bytes] = []
        if is_held(txn, scope, 0):
            return None, leaving
        if txn.get(planned.key) != planned.before:
            return 0, leaving
        blobs.acquire(txn, scope, ref)
        entry = replace(planned.after, ref=ref)
        write_entry(txn, planned.key, entry, engine.now_ms(), leaving)
        record_event(txn, scope, "redact", {"entries": 1})
        return 1, leaving

    done, leaving = blobs.refer(engine.store, scope, content, closure, seed=_blob_seed(engine))
    blobs.finish_leaving(engine.store, leaving)
    _tell(told, (planned,), done)


def _blob_seed(engine: Engine) -> int:
    return int.from_bytes(engine.seed[:8], "little")


def _read_page(
    engine: Engine, start: bytes, stop: bytes
) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
    """Read rows of a range for one commit; return them and the next start key, or None."""

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


def _items(engine: Engine, place: SessionPlace, told: Finding) -> Iterator[tuple[bytes, Item]]:
    """Yield row and item of everything a session owns; damaged ones are counted.

    They are found by their keys, since the count in the head may be wrong.
    """
    rows = keys.session_rows(*place[3:], Row.ITEM)
    start = rows
    while True:
        page = engine.store.read(
            lambda txn, start=start: [  # type: ignore[misc]
                key for key, _ in txn.scan(start, keys.after(rows), limit=_PAGE)
            ]
        )
        for key in page:
            try:
                found = engine.store.read(lambda txn, key=key: _item(txn, place.scope, key))  # type: ignore[misc]
            except CorruptValueError:
                told.unreadable += 1
                continue
            if found is not None:
                yield found
        if len(page) < _PAGE:
            return
        start = keys.behind(page[-1])


def _item(txn: ReadTxn, scope: int, key: bytes) -> tuple[bytes, Item] | None:
    value = txn.get(key)
    if value is None:
        return None
    if len(key) != _ITEM_KEY_BYTES:
        raise keys.malformed(key)
    return value, opened(txn, scope, (0, keys.number_of(key), *open_value(key, value)))[0]


def _commit(
    engine: Engine,
    place: SessionPlace,
    planned: list[Rewriting],
    views: tuple[Redacts, Finding],
    told: Finding,
) -> None:
    def closure(txn: Txn) -> Rewritten | None:
        family = family_of(txn, *place[3:])
        if any(is_held(txn, place.scope, each) for each in family):
            return None
        shown = partial(_shown, engine, redacts=views[0], told=views[1])
        rewritten = rewrite_planned(txn, engine, *place[3:], planned, views=shown)
        if rewritten.seqs:
            done = {"session": place.number, "items": len(rewritten.seqs)}
            record_event(txn, place.scope, "redact", done)
        return rewritten

    done = engine.store.transact(closure)
    if done is not None:
        blobs.finish_leaving(engine.store, done.leaving)
        told.forgotten += done.forgotten
    _tell(told, planned, None if done is None else len(done.seqs))


def _foresee_items(
    engine: Engine, place: SessionPlace, planned: list[Rewriting], told: Finding, dry: _DryRun
) -> None:
    """Count what ``_commit`` would do, memories that rest on items of several sessions included."""
    gone = dry.gone[place.number].union(keys.number_of(each.key) for each in planned)

    def look(txn: ReadTxn) -> tuple[list[int], list[int]] | None:
        family = family_of(txn, *place[3:])
        if any(is_held(txn, place.scope, each) for each in family):
            return None
        return family, would_forget(txn, engine, *place[3:], gone, also=dry.gone)

    found = engine.store.read(look)
    if found is not None:
        family, forgotten = found
        told.forgotten += len(set(forgotten) - dry.forgotten)
        dry.forgotten.update(forgotten)
        dry.gone[place.number] = gone
        dry.renewed.update(family)
    _tell(told, planned, None if found is None else len(planned))


def _marked(envelope: dict[str, Any], meta: Any) -> dict[str, Any]:
    told = {**(envelope.get("envelope") or {}), "redacted": True}
    return {"request_id": envelope.get("request_id"), "envelope": told, "meta": meta}


def recount_rewritten(
    engine: Engine, place: SessionPlace, dry: _DryRun | None = None
) -> Iterator[Finding]:
    """Recount the tokens of a rewritten session: placeholders may count more.

    The head permanently records that something was rewritten, so an interrupted redaction is
    noticed; tokens that were already recounted are not written again.

    Raises:
        StorageError: another call resumes.
    """
    app, user, name, scope, number = place
    if name is None:
        return  # no context is built from it
    key = head_key(scope, number)
    told = Finding(app, user, name, "tokens")
    try:
        value = engine.store.read(lambda txn: txn.get(key))
        head = None if value is None else Head.unpack(key, value)
        is_due = dry is not None and number in dry.renewed
        if head is not None and (is_due or head.flags & FLAG_REWRITTEN):
            address = SessionRef(engine, app, user, name, SessionOptions(None, None, "raise"))
            counter = engine.counter_named(head.counter)
            recount(address, counter, None, anew=True, dry_run=dry is not None)
    except NotFoundError:
        return  # deleted concurrently
    except CorruptValueError:
        told.unreadable += 1
        yield told
    except (CounterUnavailableError, PolicyMismatchError):
        told.kept += 1
        yield told
