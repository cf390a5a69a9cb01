"""What leaves, as lines of an export: written to an archive before it goes."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from memcore import blobs, keys, kv, names
from memcore.codec import FLAG_BLOB, FLAG_BYTES, decode_json
from memcore.database.exchange import Title, portable, portable_json
from memcore.database.exporting import export_sessions
from memcore.errors import CorruptValueError
from memcore.keys import Kind
from memcore.log import Head
from memcore.log.head import head_key
from memcore.log.history import StoredRow, read_rows
from memcore.log.item import split_body
from memcore.model import ItemKind
from memcore.session import Backing
from memcore.state import read_header, value_at
from memcore.store.base import ReadTxn

__all__ = ["Archiving"]

_KINDS = tuple(kind.name.lower() for kind in ItemKind)


class Archiving:
    """Reads what is about to leave; see ``memcore.retention.Exporter``."""

    def __init__(self, backing: Backing) -> None:
        self._backing = backing

    def session(self, scope: int, name: str) -> Iterator[bytes]:
        """Everything of a session, undone items too."""
        app, user = self._backing.store.read(lambda txn: names.scope_names(txn, scope))
        return export_sessions(
            self._backing, [(app, user, name)], form="jsonl", undone=True, left_out=None
        )

    def items(self, scope: int, session: int, seqs: Iterable[int]) -> Iterator[bytes]:
        """Items that a session owns, behind a title of their own, so that they can be imported."""
        wanted = sorted(seqs)
        yield self._backing.store.read(lambda txn: self._title(txn, scope, session, wanted))
        for seq in wanted:
            yield self._backing.store.read(lambda txn, seq=seq: _item(txn, scope, session, seq))  # type: ignore[misc]

    def _title(self, txn: ReadTxn, scope: int, session: int, seqs: list[int]) -> bytes:
        key = head_key(scope, session)
        value = txn.get(key)
        if value is None:
            msg = f"session {session}: its head is missing; run 'memcore check'"
            raise CorruptValueError(msg, key=key)
        head = Head.unpack(key, value)
        app, user = names.scope_names(txn, scope)
        name = next(
            (name for name, number in names.sessions(txn, scope) if number == session),
            f"deleted-{session}",
        )
        title = Title.begins((app, user, name), head, items=len(seqs), views=0)
        if seqs:  # an import stores a stand-in for every seq that has no line
            title = replace(title, next_seq=seqs[-1] + 1)
        return title.line() + b"\n"

    def fields(self, scope: int, session: int, fields: Iterable[str]) -> Iterator[bytes]:
        """Fields of a state with their values of now."""

        def look(txn: ReadTxn) -> list[bytes]:
            app, user = names.scope_names(txn, scope)
            counter = read_header(txn, scope, session).counter
            found = []
            for name in fields:
                version = value_at(txn, scope, session, name, counter)
                if version is not None:
                    told = {"app": app, "user": user, "field": name, "value": version.value()}
                    found.append(portable_json({"expired": told}) + b"\n")
            return found

        yield from self._backing.store.read(look)

    def entry(self, key: bytes, value: bytes) -> bytes:
        """A key/value entry; its content, if it has one, is not written."""
        scope, namespace = keys.split_session_prefix(key)

        def look(txn: ReadTxn) -> bytes:
            app, user = names.scope_names(txn, scope)
            found = kv.entry_of(key, value)
            told: dict[str, Any] = {
                "app": app,
                "user": user,
                "namespace": _namespace(txn, scope, namespace),
                "key": keys.unpack_text(key[17:]),
            }
            if found.flags & FLAG_BYTES:
                told["base64"] = b64encode(found.payload).decode()
            else:
                told["value"] = found.value()
            if found.ref is not None:
                told["content"] = b64encode(blobs.read(txn, scope, found.ref)).decode()
            return portable_json({"expired": told}) + b"\n"

        return self._backing.store.read(look)


def _namespace(txn: ReadTxn, scope: int, number: int) -> str:
    """The name of a namespace."""
    prefix = keys.scoped(Kind.KV_NAMESPACE, scope)
    for _, value in txn.scan(prefix, keys.after(prefix)):
        found, texts = names.unpack_name(value[10:])
        if found == number:
            return texts[0]
    return f"number-{number}"


def _item(txn: ReadTxn, scope: int, session: int, seq: int) -> bytes:
    row = next(read_rows(txn, scope, session, position=0, lo=seq, hi=seq))
    if isinstance(row, CorruptValueError):
        raise row
    return item_line(txn, scope, row)


def item_line(txn: ReadTxn, scope: int, row: StoredRow) -> bytes:
    """One item as a line of an export."""
    _, seq, flags, body = row
    kind, created_us, envelope, encoded = split_body(body)
    if flags & FLAG_BLOB:
        encoded = blobs.read(txn, scope, blobs.BlobRef.unpack(encoded))
    beside = decode_json(envelope[1:], envelope[0]) if envelope else {}
    kept = {name: value for name, value in beside.items() if value is not None}
    rest = b"," + portable_json(kept)[1:-1] if kept else b""
    return b'{"seq":%d,"kind":"%s","created_us":%d%s,"item":%s}\n' % (
        seq,
        _KINDS[kind].encode(),
        created_us,
        rest,
        portable(encoded, flags),
    )
