"""MemcoreConversationStore: the conversations of Pydantic AI in a memcore file.

The entries of a tree, that is of a conversation with its branches and forks, are items of one
session, named after its first entry. Rows of a namespace say what is where; they are written in the
commit of the items:

- ``c:CONVERSATION``: its record, and the trees that it has entries in
- ``e:ENTRY``: ``[tree, seq, parent]``
- ``t:TREE/CONVERSATION``: a conversation with entries in a tree
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Unpack

from pydantic import TypeAdapter
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.messages import ModelMessagesTypeAdapter

from memcore.adapters.lines import Lines, LineSessions, Rows, first_legal, key_of, name_of, whole
from memcore.adapters.pydantic_ai.messages import from_pydantic_ai
from memcore.adapters.source import Scoped, Source, Where, in_thread
from memcore.context import fit
from memcore.database.scope import engine_of
from memcore.errors import NotFoundError
from memcore.kv.namespace import KeyValueTxn, KeyValueView
from memcore.model import Context, Message
from memcore.rows.item import Prepared, stored_meta
from memcore.rows.lifecycle import need_free
from memcore.session import Session, resume_removals, start_removal
from memcore.session.session import ref_of
from memcore.session.tail import Renewal, encode_again, renew
from memcore.store.interface import Txn
from memcore.telemetry import adapts

__all__ = [
    "MemcoreConversationStore",
]


_FIELD: Final = "pydantic_ai"
_REST: Final = f"{_FIELD}.rest"
_RECORDS: Final = TypeAdapter(ConversationRecord)


@adapts(
    read_record="kv.get",
    read_records="kv.scan . count",
    write_record="append",
    delete_record="delete",
    read_history="items . count",
)
class MemcoreConversationStore(Scoped, ConversationStore):
    """Pydantic AI's ``ConversationStore``; a save is one commit, all or nothing.

    Deleting a conversation removes the entries that no other one reaches from the file.

    Args:
        source: a database, a scope, or the path of a file.
        legal: let ``load(limit=)`` begin at no result whose call it leaves out, so that it may
            return fewer messages than the limit.
        **where: ``app`` and ``user``, whose erasure removes all conversations; ``durability`` and
            ``allow_unsafe`` of a file that is created here, as in ``memcore.open``.

    Raises:
        InvalidOptionError: an option is invalid.
    """

    framework = "pydantic_ai"

    def __init__(self, source: Source, *, legal: bool = True, **where: Unpack[Where]) -> None:
        super().__init__(source, **where)
        self._sessions = LineSessions(self.scope, _FIELD, _view)
        self._rows = Rows(self.scope, _FIELD)
        self._legal = legal

    async def load(
        self, conversation_id: str, *, limit: int | None = None, scope: str | None = None
    ) -> Conversation | None:
        """As the base class; a window begins where it is legal, unless ``legal`` is off."""
        if limit and self._legal:
            entries = await self.load_entries(conversation_id, limit=limit, scope=scope)
            items = (from_pydantic_ai(_dumped(entry)) for entry in entries or ())
            limit -= first_legal([item or {"type": _FIELD} for item in items])
        return await super().load(conversation_id, limit=limit, scope=scope)

    async def context(self, conversation_id: str, budget_tokens: int | None = None) -> Context:
        """Build a model's input from a conversation's current branch, in Anthropic's format.

        Raises:
            NotFoundError: there is no such conversation.
            ContextOverflowError: even the smallest legal context is larger.
        """
        entries = await self.load_entries(conversation_id)
        if entries is None:
            msg = f"there is no conversation {conversation_id[:80]!r}"
            raise NotFoundError(msg)
        items = (from_pydantic_ai(_dumped(entry)) for entry in entries)
        return fit([item for item in items if item], budget_tokens, policy="anthropic")

    def session(self, tree: str) -> Session:
        """Return the session of a tree, by the id of its first entry: to search it, to audit it."""
        return self._lines(tree).session

    # --- the primitives of a store ----------------------------------------------------------------

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return a conversation's record; None if there is none."""
        found = await in_thread(
            self._rows.read, lambda rows: rows.get(key_of("c", conversation_id))
        )
        return None if found is None else _RECORDS.validate_python(found["record"])

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        """Return the records, of one scope or of all, the one that was updated last first."""

        def read(rows: KeyValueView) -> list[Any]:
            return [row["record"] for _, row in rows.scan(prefix="c:")]

        rows = await in_thread(self._rows.read, read)
        found = [_RECORDS.validate_python(row) for row in rows]
        found = [record for record in found if scope is None or record.scope == scope]
        found.sort(key=lambda record: record.updated_at, reverse=True)
        return found[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and its new entries in one commit.

        Raises:
            ConversationConflict: the record is at another revision, or its head is not stored.
            BlockedError: a redaction rule finds something in an id or the scope.
            StorageError; nothing is stored.
        """
        lines = [_line(entry) for entry in new_entries]
        row = _RECORDS.dump_python(record, mode="json")
        await in_thread(self._write, row, lines, expected_revision)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a record, and the entries that no remaining record reaches.

        Raises:
            ConversationConflict: no record is at this revision.
            HeldError: a legal hold covers its entries.
            StorageError; nothing is deleted.
        """

        def change(txn: Txn, rows: KeyValueTxn) -> list[bytes]:
            stored = _expect(rows, conversation_id, expected_revision)
            assert stored is not None  # noqa: S101 - its revision is no None
            rows.delete(key_of("c", conversation_id))
            rest: list[bytes] = []
            for tree in stored["trees"]:
                rows.delete(_member(tree, conversation_id))
                rest += self._collect(txn, rows, tree, stored["record"])
            return rest

        def remove() -> None:
            if self._rows.commit(change, makes_room=True):
                resume_removals(engine_of(self.scope).store)

        await in_thread(remove)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry.

        Raises:
            LookupError: there is none of this id.
        """
        (found,) = await self.read_history(entry_id, limit=1)
        return found

    async def read_history(
        self, head_id: str | None, *, limit: int | None = None
    ) -> list[ConversationEntry]:
        """Return the last entries up to one, oldest first; all of them without a limit.

        Raises:
            LookupError: an entry is not stored.
        """
        return await in_thread(self._history, head_id, limit)

    # --- in a thread ------------------------------------------------------------------------------

    def _lines(self, tree: str) -> Lines:
        return self._sessions.at(name_of("pydantic-ai", tree))

    def _history(self, head_id: str | None, limit: int | None) -> list[ConversationEntry]:
        def walk(rows: KeyValueView) -> dict[str, tuple[str, int]]:
            path, at = dict[str, tuple[str, int]](), head_id
            while at is not None and (limit is None or len(path) < limit):
                tree, seq, parent = _place(rows, at)
                path[at] = tree, seq
                at = parent
            return path

        path = self._rows.read(walk)
        if not path:
            return []
        seqs = [seq for _, seq in path.values()]
        lines = self._lines(next(iter(path.values()))[0])
        items = lines.session.items(max(min(seqs) - 1, 0), max(seqs) + 1)
        found = [line.value for line in lines.read(items) if line.value.get("id") in path]
        if len(found) != len(path):  # removed meanwhile
            raise LookupError(head_id)
        return [_entry(line) for line in found]

    def _write(self, record: dict[str, Any], lines: list[Any], revision: str | None) -> None:
        name = record["conversation_id"]
        for each in (name, record["scope"], record["forked_from"]):
            self._rows.named(each, "id or scope of a conversation")
        for line in lines:
            self._rows.named(line["id"], "id of an entry")
        waiting = self._rows.admitted(key_of("c", name), record["deferred_tool_requests"])
        record = {**record, "deferred_tool_requests": waiting}
        lines = list({line["id"]: line for line in lines}.values())
        lines = self._rows.read(lambda rows: _fresh(rows, lines))
        homes = self._rows.read(lambda rows: _homes(rows, record, lines))
        writings = {
            tree: self._lines(tree).writing(
                line for line, home in zip(lines, homes, strict=True) if home == tree
            )
            for tree in dict.fromkeys(homes)
        }

        def change(txn: Txn, rows: KeyValueTxn) -> None:
            stored = _expect(rows, name, revision)
            if len(_fresh(rows, lines)) < len(lines) or _homes(rows, record, lines) != homes:
                raise ConversationConflict(name)
            for tree, writing in writings.items():
                for line, seq in writing.run(txn):
                    rows.put(key_of("e", line["id"]), [tree, seq, line["parent_id"]])
            trees = dict.fromkeys(() if stored is None else stored["trees"])
            for tip in _tips(record):
                home = rows.get(key_of("e", tip))
                if home is not None and home[0] not in trees:
                    trees[home[0]] = None
                    rows.put(_member(home[0], name), name)
            rows.put(key_of("c", name), {"record": record, "trees": [*trees]})

        self._rows.commit(change, writings=writings.values())

    def _collect(self, txn: Txn, rows: KeyValueTxn, tree: str, record: Any) -> list[bytes]:
        """Remove what a deleted record reached in a tree and no other does; return work left."""
        ref = ref_of(self.session(tree))
        draft = ref.draft(txn, create=False)
        others = [name for _, name in rows.scan(prefix=_member(tree, ""))]
        reached: dict[str, int] = {}
        for name in others:
            other = rows.get(key_of("c", name))
            _walk(rows, tree, _tips(other["record"]), reached)
        mine: dict[str, int] = {}
        _walk(rows, tree, _tips(record), mine)
        gone = {each: seq for each, seq in mine.items() if each not in reached}
        for each in gone:
            rows.delete(key_of("e", each))
        if draft is None or (others and not gone):
            return []
        if not others:
            return start_removal(txn, ref.engine, draft.log.scope, ref.name)[1]
        need_free(txn, *draft.log.place, what=f"session {ref.name[:80]!r}")
        # By the transaction's own rows: a handle would read what was there before it.
        again = encode_again(draft, 0, draft.count, seed=ref.engine.seed)
        kept, lost = _parted(again, set(reached.values()))
        for each in lost:  # of this record, or of none any more
            rows.delete(key_of("e", each))

        def renewed(txn: Txn, renewal: Renewal) -> None:
            del txn
            moved = {item.was: seq for seq, item in enumerate(renewal.kept, 1)}
            for each, seq in reached.items():
                _, _, parent = _place(rows, each)
                rows.put(key_of("e", each), [tree, moved[seq], parent])

        return renew(txn, ref, draft, kept, renewed)


# --- Rows -----------------------------------------------------------------------------------------


def _member(tree: str, conversation_id: str) -> str:
    return key_of("t", tree, conversation_id)


def _tips(record: Any) -> list[str]:
    """Return the last entries of a record's branches, the current one among them."""
    return [each for each in (record["head_id"], *record["branches"]) if each is not None]


def _place(rows: KeyValueView, entry_id: str) -> tuple[str, int, str | None]:
    """Return the tree, the seq and the parent of an entry.

    Raises:
        LookupError: there is no such entry.
    """
    found = rows.get(key_of("e", entry_id))
    if found is None:
        raise LookupError(entry_id)
    tree, seq, parent = found
    return tree, seq, parent


def _walk(rows: KeyValueView, tree: str, tips: Iterable[str], found: dict[str, int]) -> None:
    """Add the entries of a tree that end in tips, with their seqs."""
    for tip in tips:
        at: str | None = tip
        while at is not None and at not in found:
            place = rows.get(key_of("e", at))
            if place is None or place[0] != tree:
                break
            found[at] = place[1]
            at = place[2]


def _fresh(rows: KeyValueView, lines: Sequence[Any]) -> list[Any]:
    """Return the new entries that are not stored yet: conversations may share them."""
    return [line for line in lines if rows.get(key_of("e", line["id"])) is None]


def _homes(rows: KeyValueView, record: Any, lines: Sequence[Any]) -> list[str]:
    """Return the tree of each new entry.

    Raises:
        ConversationConflict: the head, or the parent of an entry, is not stored.
    """
    homes: dict[str, str] = {}
    for line in lines:
        parent = line["parent_id"]
        if parent is None:
            homes[line["id"]] = line["id"]
        elif parent in homes:
            homes[line["id"]] = homes[parent]
        else:
            found = rows.get(key_of("e", parent))
            if found is None:
                raise ConversationConflict(record["conversation_id"])
            homes[line["id"]] = found[0]
    head = record["head_id"]
    if head is not None and head not in homes and rows.get(key_of("e", head)) is None:
        raise ConversationConflict(record["conversation_id"])
    return list(homes.values())


def _expect(rows: KeyValueView, conversation_id: str, revision: str | None) -> Any:
    """Return the row of a conversation's record; None if there is none.

    Raises:
        ConversationConflict: it is at another revision.
    """
    found = rows.get(key_of("c", conversation_id))
    if (None if found is None else found["record"]["revision"]) != revision:
        raise ConversationConflict(conversation_id)
    return found


# --- Entries as lines -----------------------------------------------------------------------------


def _parted(items: Iterable[Prepared], stays: set[int]) -> tuple[list[Prepared], list[str]]:
    """Return the items that stay, other writers' among them, and the ids of the entries that go."""
    kept: list[Prepared] = []
    lost: list[str] = []
    rest: Prepared | None = None
    for item in items:
        if item.message.get("type") == _REST:
            rest = item  # of a large entry, which is the item right behind it
            continue
        entry = _entry_in(item, rest)
        if entry is None or item.was in stays:
            kept += [item] if rest is None or entry is None else [rest, item]
        else:
            lost.append(entry["id"])
        rest = None
    return kept, lost


def _entry_in(item: Prepared, rest: Prepared | None) -> dict[str, Any] | None:
    """Return the line of an item with the rest before it; None: it is another writer's."""
    value: Any = item.message.get("payload") if item.message.get("type") == _FIELD else None
    meta = stored_meta(item.body)
    if value is None and meta.text:
        value = meta.value().get(_FIELD)
        if rest is not None and not isinstance(value, dict):
            value = rest.message["payload"]
    found = whole(value, item.message)
    return found if isinstance(found, dict) else None


def _dumped(entry: ConversationEntry) -> Any:
    return ModelMessagesTypeAdapter.dump_python([entry.message], mode="json")[0]


def _line(entry: ConversationEntry) -> dict[str, Any]:
    told = {"id": entry.id, "parent_id": entry.parent_id, "kind": entry.kind}
    return {**told, "message": _dumped(entry)}


def _entry(line: dict[str, Any]) -> ConversationEntry:
    (message,) = ModelMessagesTypeAdapter.validate_python([line["message"]])
    return ConversationEntry(
        id=line["id"], parent_id=line["parent_id"], message=message, kind=line["kind"]
    )


def _view(line: dict[str, Any]) -> Message | None:
    return from_pydantic_ai(line["message"])
