"""Order-preserving binary keys: the only place that knows key bytes.

Every key starts with a kind byte. Integers are big-endian u64, so byte order is number order.
Strings are UTF-8 (lone surrogates kept) with ``00`` written as ``00 FF`` and closed by ``00``, so
byte order is code point order, also in front of a next part that does not start with ``FF`` (the
tuple encoding of FoundationDB). The key of a string is still a byte prefix of the key of the same
string with a NUL behind it: ``after(key)`` is not the next key, ``behind(key)`` is.
``docs/architecture.md`` draws the whole table.
"""

from memcore.keys.care import audit_care, audit_mark, audit_rows, care_rows
from memcore.keys.graphs import chunk_prefix, graph_rows, thread_prefix, thread_rows
from memcore.keys.kinds import Care, Counter, Kind, Row, ThreadRow
from memcore.keys.numbers import number_of, numbered, u64
from memcore.keys.scopes import (
    blob_chunk,
    counter,
    expiry_row,
    kv_prefix,
    removal_row,
    scoped,
    split_expiry_row,
    split_removal_row,
    split_scoped,
)
from memcore.keys.sessions import (
    request_row,
    row_of,
    session_prefix,
    session_row,
    session_rows,
    split_session_prefix,
    split_session_row,
    split_token_page,
    token_page,
    token_pages,
)
from memcore.keys.states import split_state_row, state_field, state_place, state_rows
from memcore.keys.texts import (
    LONG_NAME,
    after,
    behind,
    name_key,
    pack_text,
    text_fits,
    text_prefix,
    unpack_text,
    unpack_texts,
)

__all__ = [
    "LONG_NAME",
    "Care",
    "Counter",
    "Kind",
    "Row",
    "ThreadRow",
    "after",
    "audit_care",
    "audit_mark",
    "audit_rows",
    "behind",
    "blob_chunk",
    "care_rows",
    "chunk_prefix",
    "counter",
    "expiry_row",
    "graph_rows",
    "kv_prefix",
    "name_key",
    "number_of",
    "numbered",
    "pack_text",
    "removal_row",
    "request_row",
    "row_of",
    "scoped",
    "session_prefix",
    "session_row",
    "session_rows",
    "split_expiry_row",
    "split_removal_row",
    "split_scoped",
    "split_session_prefix",
    "split_session_row",
    "split_state_row",
    "split_token_page",
    "state_field",
    "state_place",
    "state_rows",
    "text_fits",
    "text_prefix",
    "thread_prefix",
    "thread_rows",
    "token_page",
    "token_pages",
    "u64",
    "unpack_text",
    "unpack_texts",
]
