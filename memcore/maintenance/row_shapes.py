"""Validity of a row: its checksum, and the shape that its key's kind asks for.

A checksum is no signature. A row that was sealed but makes no sense is a damaged one: what reads a
wreck need not be ready for it anywhere else. A number that grows by one at a time makes no sense
above what a session can live to see: taken over, it would leave none to come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from memcore._fast import record_spans
from memcore.blobs import BlobRef
from memcore.blobs.rows import SLOT_BYTES, unpack_header
from memcore.codec import keys
from memcore.codec.keys import Care, Kind, Row
from memcore.codec.values import FLAG_BLOB, FLAG_EXPIRES, body_of, decode_json, is_proven
from memcore.errors import MemcoreError
from memcore.graph.gc import is_pool_row, is_thread_row
from memcore.kv import entry_of, reference_in
from memcore.limits import BLOB_BYTES_MAX, TOKEN_PAGE_COUNTS
from memcore.log import Head
from memcore.log.checkpoint import unpack_checkpoint, unpack_last
from memcore.privacy.keyring import OWNER_BYTES
from memcore.rows.index import COUNT_BYTES
from memcore.rows.item import split_body
from memcore.rows.lifecycle import is_hold_row, is_terms, terms_of, unpack_lease
from memcore.rows.names import unpack_name
from memcore.rows.quarantine import is_held_row
from memcore.rows.usage import unpack_usage
from memcore.session.content_filter import is_demand
from memcore.session.engine import is_uses_row
from memcore.state import header_key, is_moment, is_state_row
from memcore.state.rows import StateHeader, unpack_moment
from memcore.store.encryption import OWNER_KEY, SECRET_KEY, SECRET_ROW_BYTES

__all__ = [
    "is_row",
]


_NUMBER_BYTES: Final = 8
_SCOPED_BYTES: Final = 9
_PLACE_BYTES: Final = 17
_ROW_BYTES: Final = 26
_NUMBER_MAX: Final = 2**48
_VIEW_NUMBERS: Final = ("cut_seq", "chain", "parent", "parent_owner")
_KEY_BYTES: Final = {
    Kind.COUNTER: 2,
    Kind.SCOPE: _SCOPED_BYTES,
    Kind.BLOB: _SCOPED_BYTES + SLOT_BYTES,
    Kind.BLOB_CHUNK: _SCOPED_BYTES + SLOT_BYTES + 4,
    Kind.BLOB_REFS: _SCOPED_BYTES + SLOT_BYTES,
    Kind.BLOB_ADDRESS: _SCOPED_BYTES + 32,
}


def is_row(key: bytes, value: bytes) -> bool:
    """Return True if ``value`` was sealed under ``key`` and has the shape of its kind."""
    if not is_proven(key, value):
        return False
    kind = key[0]
    fits = _SHAPES.get(kind)
    try:
        return len(key) == _KEY_BYTES.get(kind, len(key)) and (
            fits is None or fits(key, value, body_of(value))
        )
    except (MemcoreError, ValueError):
        return False


def _is_number(_: bytes, __: bytes, body: bytes) -> bool:
    return len(body) == _NUMBER_BYTES


def _is_scope(_: bytes, __: bytes, body: bytes) -> bool:
    return len(keys.unpack_texts(body)) == 2  # noqa: PLR2004 - app and user


def _is_name(key: bytes, _: bytes, body: bytes) -> bool:
    found = unpack_name(body)[1]
    prefix, count = (key[:1], 2) if key[0] == Kind.SCOPE_NAME else (key[:_SCOPED_BYTES], 1)
    return len(found) == count and key == keys.name_key(prefix, *found)


def _is_header(key: bytes, _: bytes, body: bytes) -> bool:
    return unpack_header(key, body).size <= BLOB_BYTES_MAX


def _is_reference(_: bytes, __: bytes, body: bytes) -> bool:
    return BlobRef.unpack(body).size <= BLOB_BYTES_MAX


def _is_entry(key: bytes, value: bytes, body: bytes) -> bool:
    keys.unpack_text(key[_PLACE_BYTES:])
    if value[1] & FLAG_BLOB and reference_in(value[1], body).size > BLOB_BYTES_MAX:
        return False
    if value[1] & FLAG_EXPIRES and len(body) < _NUMBER_BYTES:
        return False
    entry_of(key, value).value()
    return True


def _is_removal(key: bytes, _: bytes, __: bytes) -> bool:
    return len(key) in (_PLACE_BYTES + 1, _SCOPED_BYTES + SLOT_BYTES + 1)


def _is_session_row(key: bytes, value: bytes, body: bytes) -> bool:
    if len(key) <= _PLACE_BYTES:
        return False
    row = keys.row_of(key)
    if row == Row.STATE:
        return _is_state(key, value, body)
    fits = _ROWS.get(row)
    size = _ROW_BYTES + _NUMBER_BYTES if row == Row.TOKENS else _ROW_BYTES
    if row == Row.REQUEST:
        return True
    if len(key) != size or keys.number_of(key[:_ROW_BYTES]) > _NUMBER_MAX:
        return False
    return fits is None or fits(key, value, body)


def _is_head(key: bytes, value: bytes, _: bytes) -> bool:
    head = Head.unpack(key, value)
    grows = head.revision, head.epoch, head.next_view, head.next_block, head.recount_number
    return keys.number_of(key) == 0 and max(grows) <= _NUMBER_MAX


def _is_index(_: bytes, __: bytes, body: bytes) -> bool:
    return record_spans(body) is not None


def _is_item(key: bytes, value: bytes, body: bytes) -> bool:
    rest = split_body(body)[3]
    return not value[1] & FLAG_BLOB or _is_reference(key, value, rest)


def _is_view(_: bytes, value: bytes, body: bytes) -> bool:
    view = decode_json(body, value[1])
    return isinstance(view, dict) and all(isinstance(view.get(n), int) for n in _VIEW_NUMBERS)


def _is_moment(key: bytes, value: bytes, _: bytes) -> bool:
    return is_moment(key, value) and unpack_moment(key, value) <= _NUMBER_MAX


def _is_token_page(key: bytes, _: bytes, body: bytes) -> bool:
    number, first = keys.split_token_page(key)
    whole = not first % TOKEN_PAGE_COUNTS and not len(body) % COUNT_BYTES
    return whole and number > 0 and 0 < len(body) <= COUNT_BYTES * TOKEN_PAGE_COUNTS


def _is_uses(key: bytes, _: bytes, body: bytes) -> bool:
    return is_uses_row(key, body)


def _is_usage(key: bytes, value: bytes, body: bytes) -> bool:
    return keys.number_of(key) == 0 and isinstance(unpack_usage(key, body, value[1]), list)


def _is_lease(key: bytes, value: bytes, _: bytes) -> bool:
    return keys.number_of(key) == 0 and unpack_lease(key, value).epoch <= _NUMBER_MAX


def _is_thread_row(key: bytes, value: bytes, _: bytes) -> bool:
    return is_thread_row(key, value)


def _is_state(key: bytes, value: bytes, _: bytes) -> bool:
    if key == header_key(*keys.state_place(key)):
        return StateHeader.unpack(key, value).counter <= _NUMBER_MAX
    return is_state_row(key, value) and keys.number_of(key) <= _NUMBER_MAX


def _is_pool_row(key: bytes, value: bytes, _: bytes) -> bool:
    return is_pool_row(key, value)


def _is_checkpoint(key: bytes, value: bytes, body: bytes) -> bool:
    if not keys.number_of(key):
        return 0 < unpack_last(key, body) <= _NUMBER_MAX
    return (unpack_checkpoint(key, body, value[1]).checkpoint.state or 0) <= _NUMBER_MAX


_BYTES_OF: Final = {OWNER_KEY: OWNER_BYTES, SECRET_KEY: SECRET_ROW_BYTES}


def _is_care(key: bytes, value: bytes, body: bytes) -> bool:
    which = key[_SCOPED_BYTES:][:1]
    if key in _BYTES_OF:
        return len(body) == _BYTES_OF[key]
    if which == bytes((Care.QUARANTINE,)):
        return is_held_row(key, value)
    if which == bytes((Care.HOLD,)) and keys.split_scoped(key)[0]:
        return is_hold_row(key, value)
    if which == bytes((Care.MEMORY,)):
        return len(key) == _SCOPED_BYTES + 1 + _NUMBER_BYTES and not body
    if which == bytes((Care.DEMAND,)):
        return is_demand(key, value)
    return _is_terms(key, value, body)


def _is_terms(key: bytes, value: bytes, _: bytes) -> bool:
    return not is_terms(key) or bool(terms_of(key, value))


_Shape = Callable[[bytes, bytes, bytes], bool]
_SHAPES: Final[dict[int, _Shape]] = {
    Kind.COUNTER: _is_number,
    Kind.SCOPE: _is_scope,
    Kind.SCOPE_NAME: _is_name,
    Kind.SESSION_NAME: _is_name,
    Kind.KV_NAMESPACE: _is_name,
    Kind.SESSION: _is_session_row,
    Kind.BLOB: _is_header,
    Kind.BLOB_REFS: _is_number,
    Kind.BLOB_ADDRESS: _is_reference,
    Kind.KV: _is_entry,
    Kind.REMOVAL: _is_removal,
    Kind.THREAD_NAME: _is_name,
    Kind.THREAD: _is_thread_row,
    Kind.CHUNK: _is_pool_row,
    Kind.STATE: _is_state,
    Kind.CARE: _is_care,
}
_ROWS: Final[dict[int, _Shape]] = {
    Row.HEAD: _is_head,
    Row.INDEX: _is_index,
    Row.ITEM: _is_item,
    Row.VIEW: _is_view,
    Row.TOKENS: _is_token_page,
    Row.USAGE: _is_usage,
    Row.CHECKPOINT: _is_checkpoint,
    Row.TERMS: _is_terms,
    Row.MOMENT: _is_moment,
    Row.LEASE: _is_lease,
    Row.USES: _is_uses,
}
