"""Pages of the inspector as plain data: what a file holds, and what a model saw of it.

Every page is a dict in JSON types, which the server shows as HTML or as JSON. Nothing here writes
to the file: contexts of the past are built in a copy of the session in memory, by the engine
itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import islice
from threading import Lock
from typing import Any, Final

from memcore.database import Database, open_database
from memcore.errors import InvalidOptionError, MemcoreError, NotFoundError
from memcore.graph import StoredCheckpoint, StoredCoder
from memcore.model import Context, Item, ItemKind, Memory, Repair, SessionEntry
from memcore.preview import preview
from memcore.privacy import Redaction, redaction_policy
from memcore.retention.erasure import Pending, all_pending
from memcore.session import Session, read
from memcore.session.session import ref_of
from memcore.wire import WireItem, bind, get_policy

__all__ = [
    "Inspector",
]


Page = dict[str, Any]
PAGE_ROWS: Final = 200
"""Rows on a page of a list."""
CONTENT_CHARS: Final = 64 * 1024
"""Characters of one content on a page; the JSON of an item has all."""
PREVIEW_CHARS: Final = 300
STEP_ROWS: Final = 50
"""Checkpoints of a graph on a page, each of which is decoded."""
PAST_ITEMS: Final = 20_000
"""Longer sessions are shown as they are now, not as they were: the copy would take too long."""
_COPIES: Final = 4


class Inspector:
    """Pages of one open database.

    Args:
        database: opened read-only; the caller closes it.
        redact: show placeholders for what this policy matches; None: show everything.
    """

    def __init__(self, database: Database, *, redact: Any = True) -> None:
        self.database = database
        policy = redaction_policy(redact)
        # A secret of its own: a read-only file may have none yet, and cannot get one.
        self._redaction = None if policy is None else Redaction(policy, secret=os.urandom(32))
        self._lock = Lock()
        self._copies: dict[tuple[str, str, int, int], _Copy] = {}

    def close(self) -> None:
        """Close the copies in memory."""
        with self._lock:
            copies = list(self._copies.values())
            self._copies.clear()
        for copy in copies:
            copy.retire()

    # --- the file ---------------------------------------------------------------------------------

    def sessions(
        self,
        *,
        app: str | None = None,
        user: str | None = None,
        filter: str = "",  # noqa: A002 - the word for it
        start: int = 0,
    ) -> Page:
        """Sessions in the order of their names; ``filter``: only names that contain it."""
        found: Iterable[SessionEntry] = self.database.sessions(user=user, app=app)
        if filter:
            wanted = filter.casefold()
            found = (each for each in found if wanted in each.session_id.casefold())
        rows, following = _page(found, start)
        return {
            "title": "Sessions",
            "rows": [asdict(each) for each in rows],
            "filter": filter,
            "app": app,
            "user": user,
            "start": start,
            "next": following,
            "scopes": [{"app": a, "user": u} for a, u in islice(self.database.scopes(), PAGE_ROWS)],
            "file": str(self.database.path),
        }

    def stats(self) -> Page:
        """Sizes and counters of the file."""
        return {
            "title": "File",
            "stats": self.database.stats(),
            "durability": self.database.durability,
            "demands": self.database.demands,
            "file": str(self.database.path),
        }

    def audit(self) -> Page:
        """Verification of the audit, all legal holds, and erasures that are not finished."""
        page: Page = {
            "title": "Audit and holds",
            "holds": [self._hold(each) for each in self.database.holds()],
            "erasures": self.database.engine.store.read(
                lambda txn: [_erasure(each) for each in all_pending(txn)]
            ),
            "report": None,
            "refused": None,
        }
        try:
            report = self.database.verify_audit()
        except MemcoreError as error:
            page["refused"] = str(error)
            return page
        page["report"] = asdict(report) | {"ok": report.ok}
        return page

    def search(
        self, query: str, *, app: str | None = None, user: str | None = None, k: int = 50
    ) -> Page:
        """Items of all sessions that match words."""
        page: Page = {"title": "Search", "query": query, "app": app, "user": user, "rows": [],
                      "refused": None}  # fmt: skip
        if query.strip():
            try:
                hits = self.database.search(query, k=k, app=app, user=user)
            except MemcoreError as error:
                page["refused"] = str(error)
                return page
            page["rows"] = [self._hit(hit) for hit in hits]
        return page

    def _hit(self, hit: Any) -> Page:
        session = self.database.session(hit.session_id, app=hit.app, user=hit.user, create=False)
        (shown,) = self._shown(session, [hit.item])
        return {
            "app": hit.app, "user": hit.user, "session_id": hit.session_id, "seq": hit.seq,
            "score": hit.score, "kind": shown.kind.name.lower(),
            "text": _clip(preview(shown.message), PREVIEW_CHARS),
        }  # fmt: skip

    # --- one session ------------------------------------------------------------------------------

    def session(self, app: str, user: str, session: str) -> Session:
        """Return a session of the file.

        Raises:
            NotFoundError: there is none.
        """
        return self.database.session(session, app=app, user=user, create=False, shape="keep")

    def timeline(self, app: str, user: str, session: str, *, start: int = 0) -> Page:
        """Items from a seq on, with the state of their calls and results."""
        opened = self.session(app, user, session)
        items = list(islice(opened.items(start, skip_corrupt=True), PAGE_ROWS + 1))
        following = items[PAGE_ROWS].seq if len(items) > PAGE_ROWS else None
        items = items[:PAGE_ROWS]
        pairs = _pairs(opened, items)
        redacts = self._redacts(app, user, session)
        shown = list(self._shown(opened, items))
        return self._head(opened) | {
            "title": "Timeline",
            "start": start,
            "next": following,
            "rows": [_row(item, redacts, pairs.get(item.seq, [])) for item in shown],
            "most_tokens": max((item.tokens for item in shown), default=1) or 1,
        }

    def item(self, app: str, user: str, session: str, seq: int) -> Page:
        """One item with all that is stored beside it."""
        opened = self.session(app, user, session)
        redacts = self._redacts(app, user, session)
        (item,) = self._shown(opened, [opened.get(seq)])
        return self._head(opened) | {
            "title": f"Item {seq}",
            "row": _row(item, redacts, _pairs(opened, [item]).get(seq, [])),
            "message": item.message,
            "meta": None if item.meta is None else dict(item.meta),
            "envelope": None if item.envelope is None else redacts(item.envelope.mapping()),
            "request_id": redacts(item.request_id),
        }

    def context(
        self,
        app: str,
        user: str,
        session: str,
        *,
        at: int | None = None,
        budget: int | None = None,
        policy: str | None = None,
        format: str | None = None,  # noqa: A002 - as Session.context says it
    ) -> Page:
        """Log beside what a model was sent: the fate of each item, after a seq and in a budget."""
        opened = self.session(app, user, session)
        page = self._head(opened) | {
            "title": "Context", "at": at, "budget": budget, "wanted_policy": policy,
            "format": format, "refused": None, "rows": [], "messages": [], "bar": [],
        }  # fmt: skip
        with self._past(opened, at, policy) as past:
            try:
                found = past.context(budget, format=format)
            except MemcoreError as error:
                page["refused"] = str(error)
                return page
            return page | self._sent(opened, past, found)

    def _sent(self, opened: Session, past: Session, found: Context) -> Page:
        """Return the log of a session as it was beside its context."""
        redacts = self._redacts(opened.app, opened.user, opened.id)
        count = len(past)
        is_long = count > PAST_ITEMS
        stored = (
            past.tail(PAGE_ROWS, skip_corrupt=True) if is_long else past.items(skip_corrupt=True)
        )
        items = list(self._shown(opened, stored))
        fates = _fates(past, items, found, is_long=is_long)
        rows = [_row(item, redacts) | {"fate": fates[item.seq]} for item in items]
        return {
            "rows": rows[-PAGE_ROWS:],
            "not_shown": max(count - PAGE_ROWS, 0),
            "messages": [
                {"role": str(each.get("role", each.get("type", ""))),
                 "text": _clip(preview(each), CONTENT_CHARS)}
                for each in redacts(found.messages)
            ],
            "sent": {
                "messages": len(found.messages), "tokens": found.tokens, "cut": found.cut,
                "omitted": found.omitted, "limited_by": found.limited_by,
                "summary": redacts(found.summary), "open_calls": found.open_calls,
                "repairs": [asdict(each) for each in found.repairs],
            },
            "bar": _two_parts(past.tokens, found.tokens) if is_long else _bar(rows),
            "whole": past.tokens,
        }  # fmt: skip

    def compactions(self, app: str, user: str, session: str) -> Page:
        """Views of a session: each summary beside the items that it stands for."""
        opened = self.session(app, user, session)
        rows = []
        redacts = self._redacts(app, user, session)
        for view in opened.views():
            covered: list[Item] = []
            with suppress(NotFoundError):  # the history was cut below it
                covered = list(islice(opened.covered(view), PAGE_ROWS))
            rows.append({
                **{name: getattr(view, name) for name in (
                    "number", "cut_seq", "covered", "status", "tokens_before", "tokens_after",
                    "created_at", "policy", "repair")},
                "reason": redacts(view.reason),
                "summary": redacts(view.summary),
                "masks": len(view.masks),
                "source": [_row(item, redacts) for item in self._shown(opened, covered)],
            })  # fmt: skip
        return self._head(opened) | {"title": "Compactions", "rows": rows}

    def forks(self, app: str, user: str, session: str | None = None) -> Page:
        """Tree of a user's sessions, and the comparison of a branch with its parent."""
        branches = self.database.branches(user=user, app=app)
        names = {each.number: each.session_id for each in branches}
        rows = [
            asdict(each)
            | {"checkpoints": len(each.checkpoints), "parent_name": names.get(each.parent)}
            for each in branches
        ]
        return {"title": "Forks", "app": app, "user": user, "session": session,
                "rows": _nested(rows)}  # fmt: skip

    def comparison(self, app: str, user: str, session: str, other: str) -> Page:
        """Items that only one of two sessions has."""
        a, b = self.session(app, user, session), self.session(app, user, other)
        found = self.database.compare(a, b)
        return self._head(a) | {
            "title": "Comparison",
            "other": other,
            "shared": found.shared,
            "alike": found.alike,
            "only_a": self._rows(a, found.only_a[:PAGE_ROWS]),
            "only_b": self._rows(b, found.only_b[:PAGE_ROWS]),
        }

    def state(self, app: str, user: str, session: str, *, at: int | None = None) -> Page:
        """Fields of a session, now and as they were when an item was appended."""
        opened = self.session(app, user, session)
        now = opened.state.all()
        then = now if at is None else opened.state.at_seq(at)
        redacts = self._redacts(app, user, session)
        rows = [
            {"field": redacts(name), "value": _json(redacts(then.get(name))),
             "now": _json(redacts(now.get(name))), "changed": then.get(name) != now.get(name)}
            for name in sorted(now.keys() | then.keys())
        ]  # fmt: skip
        saved = [
            asdict(each) | {"name": redacts(each.name), "meta": redacts(each.meta)}
            for each in islice(opened.checkpoints(), PAGE_ROWS)
        ]
        return self._head(opened) | {
            "title": "State", "at": at, "rows": rows, "counter": opened.state.counter,
            "checkpoints": saved,
        }  # fmt: skip

    # --- memory and graphs ------------------------------------------------------------------------

    def memories(self, app: str, user: str, *, status: str | None = None, start: int = 0) -> Page:
        """Memories of a user with where they come from."""
        memory = self.database.scope(app=app, user=user).memory
        found = memory.list(status=status, limit=PAGE_ROWS + 1, after=start)
        following = found[PAGE_ROWS - 1].id if len(found) > PAGE_ROWS else None
        return {
            "title": "Memories", "app": app, "user": user, "status": status, "start": start,
            "next": following,
            "rows": [self._memory(app, user, each) for each in found[:PAGE_ROWS]],
        }  # fmt: skip

    def memory(self, app: str, user: str, number: int) -> Page:
        """One memory: its versions, and the items that it rests on."""
        scope = self.database.scope(app=app, user=user)
        versions = scope.memory.history(number)
        sources = []
        for source in versions[-1].sources:
            for seq in source.seqs:
                row: Page = {"session": source.session, "seq": seq, "text": None}
                with suppress(NotFoundError):
                    opened = self.session(app, user, source.session)
                    (item,) = self._shown(opened, [opened.get(seq)])
                    row["text"] = _clip(preview(item.message), PREVIEW_CHARS)
                sources.append(row)
        return {
            "title": f"Memory {number}", "app": app, "user": user,
            "row": self._memory(app, user, versions[-1]), "sources": sources,
            "versions": [self._memory(app, user, each) for each in versions],
        }  # fmt: skip

    def threads(self, app: str, user: str, *, start: int = 0) -> Page:
        """Threads of graph runtimes."""
        rows, following = _page(self.database.scope(app=app, user=user).graph.threads(), start)
        return {"title": "Graph threads", "app": app, "user": user, "start": start,
                "next": following, "rows": [asdict(each) for each in rows]}  # fmt: skip

    def thread(self, app: str, user: str, thread: str, *, before: str | None = None) -> Page:
        """Checkpoints of a graph thread, of all its namespaces, the newest first."""
        redacts = self._redacts(app, user)
        found = list(islice(self._steps(app, user, thread, before=before), STEP_ROWS + 1))
        rows = [
            {
                "namespace": each.namespace, "checkpoint": each.checkpoint, "parent": each.parent,
                "step": _json(redacts(_plain(_of(each.metadata, "step")))),
                "source": _json(redacts(_plain(_of(each.metadata, "source")))),
                "channels": len(each.values), "writes": len(each.writes),
            }
            for each in found[:STEP_ROWS]
        ]  # fmt: skip
        following = found[STEP_ROWS - 1].checkpoint if len(found) > STEP_ROWS else None
        return {"title": "Graph thread", "app": app, "user": user, "thread": thread,
                "before": before, "following": following, "rows": rows}  # fmt: skip

    def step(
        self,
        app: str,
        user: str,
        thread: str,
        checkpoint: str,
        *,
        namespace: str = "",
        other: str | None = None,
    ) -> Page:
        """One checkpoint of a graph beside another one, its parent unless it is named.

        Raises:
            NotFoundError: there is no such checkpoint.
        """
        redacts = self._redacts(app, user)
        now = self._step(app, user, thread, namespace, checkpoint)
        beside = now.parent if other is None else other
        then = None if beside is None else self._step(app, user, thread, namespace, beside)
        before = {} if then is None else then.values
        rows = []
        for channel in sorted(now.values.keys() | before.keys()):
            was, is_now = _plain(before.get(channel)), _plain(now.values.get(channel))
            rows.append({
                "channel": redacts(channel), "was": _json(redacts(was)),
                "now": _json(redacts(is_now)), "changed": was != is_now,
            })  # fmt: skip
        writes = [
            {"task": task, "channel": redacts(channel), "value": _json(redacts(_plain(value)))}
            for task, channel, value in now.writes[:PAGE_ROWS]
        ]
        return {
            "title": "Checkpoint", "app": app, "user": user, "thread": thread,
            "namespace": namespace, "checkpoint": checkpoint, "other": beside, "rows": rows,
            "metadata": _json(redacts(_plain(now.metadata))), "writes": writes,
        }  # fmt: skip

    def _steps(self, app: str, user: str, thread: str, **asked: Any) -> Iterator[StoredCheckpoint]:
        """Yield the checkpoints of a thread as plain data: nothing that they name is called."""
        graph = self.database.scope(app=app, user=user).graph
        return graph.checkpoints(thread, None, StoredCoder(), **asked)

    def _step(
        self, app: str, user: str, thread: str, namespace: str, checkpoint: str
    ) -> StoredCheckpoint:
        graph = self.database.scope(app=app, user=user).graph
        found = graph.get(thread, namespace, checkpoint, StoredCoder())
        if found is None:
            msg = f"thread {thread[:80]!r} has no checkpoint {checkpoint[:80]!r} here"
            raise NotFoundError(msg)
        return found

    # --- parts ------------------------------------------------------------------------------------

    def _head(self, session: Session) -> Page:
        return {
            "app": session.app, "user": session.user, "session": session.id,
            "policy": session.policy, "tokens": session.tokens, "revision": session.revision,
            "open_calls": [asdict(call) for call in session.open_calls],
        }  # fmt: skip

    def _redacts(self, app: str, user: str, session: str | None = None) -> Callable[[Any], Any]:
        """Return a function that puts placeholders into a JSON value, as a place would get them."""
        if self._redaction is None:
            return _unchanged
        redacts = self._redaction.for_place(app, user, session)
        return lambda value: redacts.value(value)[0]

    def _shown(self, session: Session, items: Iterable[Item]) -> Iterator[Item]:
        redacts = self._redacts(session.app, session.user, session.id)
        for item in items:
            meta = None if item.meta is None else redacts(dict(item.meta))
            yield item._replace(message=redacts(item.message), meta=meta)

    def _memory(self, app: str, user: str, memory: Memory) -> Page:
        redacts = self._redacts(app, user)
        found = asdict(memory)
        for name in ("text", "subject", "slot", "extractor", "promoted_by"):
            found[name] = redacts(found[name])
        for name in ("attributes", "labels"):
            found[name] = redacts(dict(found[name]))
        found["sources"] = [
            {"session": each.session, "seqs": list(each.seqs)} for each in memory.sources
        ]
        return found

    def _rows(self, session: Session, items: Iterable[Item]) -> list[Page]:
        redacts = self._redacts(session.app, session.user, session.id)
        return [_row(item, redacts) for item in self._shown(session, items)]

    def _hold(self, hold: Any) -> Page:
        redacts = self._redacts(hold.app, hold.user, hold.session_id)
        return asdict(hold) | {"reason": redacts(hold.reason)}

    # --- a session as it was ----------------------------------------------------------------------

    @contextmanager
    def _past(self, session: Session, at: int | None, policy: str | None) -> Iterator[Session]:
        """Hold a session in memory that is as this one was after an item.

        Raises:
            InvalidOptionError: the session is too long to be copied.
        """
        if at is None and policy is None:
            yield session
            return
        entry = len(session)
        if entry > PAST_ITEMS:
            msg = (
                f"the session has {entry:,} items: up to {PAST_ITEMS:,} can be shown as they were,"
                " or with another policy"
            )
            raise InvalidOptionError(msg)
        copy = self._copy(session)
        try:
            with copy.at(at, policy) as past:
                yield past
        finally:
            copy.leave()

    def _copy(self, session: Session) -> _Copy:
        """Return the copy of a session as it is now, entered."""
        # Its number: of two sessions that had a name one after the other, each has its own.
        number, revision = read.read_log(
            ref_of(session),
            lambda log, _: (log.session, read.head_of(log).revision), (0, 0),
        )  # fmt: skip
        key = (session.app, session.user, number, revision)
        with self._lock:
            found = self._copies.get(key)
            if found is None:
                found = self._copies[key] = _Copy(self.database, session)
                if len(self._copies) > _COPIES:
                    self._copies.pop(next(iter(self._copies))).retire()
            found.enter()
        return found


class _Copy:
    """A copy of a session in memory, in which any past of it can be built.

    It is closed once it is retired and nobody uses it any more.
    """

    def __init__(self, database: Database, session: Session) -> None:
        self.database = open_database(":memory:", allow_unsafe=True)
        try:
            lines = database.export(session.id, user=session.user, app=session.app)
            self.database.import_(lines)
            self._session = self.database.session(
                session.id, app=session.app, user=session.user, create=False
            )
        except BaseException:
            self.database.close()
            raise
        self._lock = Lock()
        self._made = 0
        self._users = 0
        self._is_retired = False

    def enter(self) -> None:
        """Keep it open until ``leave``."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """End what ``enter`` began."""
        with self._lock:
            self._users -= 1
            is_unused = self._is_retired and not self._users
        if is_unused:
            self.database.close()

    def retire(self) -> None:
        """Close it as soon as nobody uses it."""
        with self._lock:
            self._is_retired = True
            is_unused = not self._users
        if is_unused:
            self.database.close()

    @contextmanager
    def at(self, seq: int | None, policy: str | None) -> Iterator[Session]:
        """Hold a fork after an item, with a policy."""
        with self._lock:
            self._made += 1 + (self._session.id == f"past-{self._made + 1}")
            name = f"past-{self._made}"
        fork = self._session.fork(name, at=seq)
        try:
            if policy is not None:
                fork.set_policy(policy)
            yield fork
        finally:
            self.database.delete_session(name, app=fork.app, user=fork.user)


# --- Rows -----------------------------------------------------------------------------------------


def _erasure(pending: Pending) -> Page:
    """An erasure as its row tells it: it names nobody."""
    return {
        "id": pending.id,
        "stage": pending.stage,
        "asked_at": pending.asked_ms / 1000,
        "scopes": len(pending.scopes),
        "overrode_hold": pending.overrode_hold,
    }


def _page(found: Iterable[Any], start: int) -> tuple[list[Any], int | None]:
    rows = list(islice(found, start, start + PAGE_ROWS + 1))
    return rows[:PAGE_ROWS], start + PAGE_ROWS if len(rows) > PAGE_ROWS else None


def _clip(text: str, chars: int) -> str:
    return (
        text if len(text) <= chars else f"{text[:chars]}… ({len(text) - chars:,} more characters)"
    )


def _json(value: Any) -> str | None:
    if value is None:
        return None
    return _clip(json.dumps(value, ensure_ascii=False, indent=1), CONTENT_CHARS)


def _of(metadata: Any, name: str) -> Any:
    return metadata.get(name) if isinstance(metadata, dict) else None


def _plain(value: Any) -> Any:
    """Return a decoded value as JSON has it; of what is neither, a text about it."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value):,} bytes>"
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _unchanged(value: Any) -> Any:
    return value


def _row(item: Item, redacts: Callable[[Any], Any], pairs: Sequence[Page] = ()) -> Page:
    envelope = {} if item.envelope is None else redacts(item.envelope.mapping())
    return {
        "seq": item.seq,
        "kind": item.kind.name.lower(),
        "tokens": item.tokens,
        "created_at": item.created_at,
        "author": envelope.get("author"),
        "agent": envelope.get("agent"),
        "text": _clip(preview(item.message), CONTENT_CHARS),
        "pairs": [*pairs],
    }


def _pairs(session: Session, items: list[Item]) -> dict[int, list[Page]]:
    """Return what each item calls or answers, by its seq; calls outside of the page are looked up.

    Each is ``what`` (calls, answers), ``call_id``, ``seqs`` of the other side, and ``mark``: open,
    late, orphan or empty.
    """
    binding = bind(
        WireItem(item.seq, item.message, event=item.kind == ItemKind.EVENT) for item in items
    )
    found: dict[int, list[Page]] = {}
    for at, item in enumerate(items):
        for slot in binding.calls[at]:
            found.setdefault(item.seq, []).append(_pair(session, "calls", slot.key[1], item.seq))
        if item.kind == ItemKind.RESULT:
            for key, _ in binding.answers[at]:
                found.setdefault(item.seq, []).append(_pair(session, "answers", key[1], item.seq))
    return found


def _pair(session: Session, what: str, call_id: str, seq: int) -> Page:
    mark, seqs = "orphan" if what == "answers" else "", list[int]()
    try:
        call = session.find_call(call_id)
    except NotFoundError:
        return {"what": what, "call_id": call_id, "seqs": seqs, "mark": mark}
    if what == "answers":
        mark = "late" if _is_late(session, call.seq, seq) else ""
        return {"what": what, "call_id": call_id, "seqs": [call.seq], "mark": mark}
    seqs = list(call.result_seqs)
    return {"what": what, "call_id": call_id, "seqs": seqs, "mark": "open" if call.open else ""}


def _is_late(session: Session, call: int, result: int) -> bool:
    """Return True if more than results, or calls beside them, came between a call and a result."""
    passing = {ItemKind.RESULT, ItemKind.EVENT}
    if get_policy(session.policy).adjacency == "any_later":
        passing |= {ItemKind.CALL, ItemKind.REASONING}
    between = session.items(call + 1, result, skip_corrupt=True)
    return any(item.kind not in passing for item in between)


def _fates(session: Session, items: list[Item], found: Context, *, is_long: bool) -> dict[int, str]:
    """Return what became of each item in a context, by its seq.

    ``sent``, ``pinned``, ``folded`` (a summary stands for it), ``masked``, ``cut``, ``event``, or
    the action of a repair.
    """
    folded = set[int]()
    if found.summary and not is_long:
        folded = {item.seq for item in session.covered()}
    masked = {mask.seq for mask in session.masks()}
    repairs: Mapping[int, Repair] = {
        each.seq: each for each in found.repairs if each.seq is not None
    }
    fates = {}
    is_start = not is_long
    for item in items:
        is_start = is_start and item.kind == ItemKind.SYSTEM
        if item.kind == ItemKind.EVENT:
            fate = "event"
        elif item.seq in repairs:
            fate = repairs[item.seq].action
        elif item.seq in folded:
            fate = "folded"
        elif item.seq < found.cut:
            fate = "pinned" if is_start else "cut"
        else:
            fate = "masked" if item.seq in masked else "sent"
        fates[item.seq] = fate
    return fates


def _bar(rows: list[Page]) -> list[Page]:
    """Return the tokens of a session by what became of them, in the order of the first of each."""
    found: dict[str, int] = {}
    for row in rows:
        found[row["fate"]] = found.get(row["fate"], 0) + row["tokens"]
    whole = sum(found.values()) or 1
    return [
        {"fate": fate, "tokens": tokens, "share": tokens / whole}
        for fate, tokens in found.items()
        if tokens
    ]


def _two_parts(whole: int, sent: int) -> list[Page]:
    """Return the bar of a session that is too long to be read for it."""
    cut = max(whole - sent, 0)
    both = (whole if cut else sent) or 1
    parts = (("cut", cut), ("sent", min(sent, both)))
    return [{"fate": fate, "tokens": n, "share": n / both} for fate, n in parts if n]


def _nested(rows: list[Page]) -> list[Page]:
    """Return branches in the order of their tree, each with its depth."""
    children: dict[int, list[Page]] = {}
    known = {row["number"] for row in rows}
    for row in rows:
        children.setdefault(row["parent"] if row["parent"] in known else 0, []).append(row)
    found: list[Page] = []
    waiting = [(row, 0) for row in reversed(children.get(0, []))]
    while waiting:
        row, depth = waiting.pop()
        found.append(row | {"depth": depth})
        waiting += [(each, depth + 1) for each in reversed(children.get(row["number"], []))]
    return found
