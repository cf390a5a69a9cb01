"""Every bound and every constant of the on-disk format."""

from __future__ import annotations

from typing import Final

# --- format -----------------------------------------------------------------------------------
FORMAT_MAGIC: Final = b"memcore\x00"
FORMAT_VERSION: Final = 0
"""Version 0 may change without notice until version 1 is frozen."""
VALUE_FORMAT: Final = 1
"""First byte of every value that the codec seals."""

# --- store ------------------------------------------------------------------------------------
KEY_BYTES_MAX: Final = 511
"""LMDB 0.9 compiles this bound in; a longer key is refused before it reaches LMDB."""
PAGE_BYTES: Final = 4096
"""The page size of every file that memcore creates (redo slots are aligned to it)."""
REDO_SLOT_BYTES: Final = 256 * 1024
"""One redo slot; 64 KiB overflows at batches of 32 appends, 256 KiB holds 64 callers."""
REDO_MAGIC: Final = b"memcore-redo-v1\x00"
MAP_BYTES_DEFAULT: Final = 64 * 1024**3
"""Virtual address space only; halved until the system grants it."""
MAP_BYTES_MIN: Final = 1024**2
MAP_BYTES_MAX: Final = 16 * 1024**4
READERS_MAX: Final = 1024
BATCH_CLOSURES_MAX: Final = 256
"""Closures of one group commit; a longer queue makes the next batch."""

# --- items ------------------------------------------------------------------------------------
ITEM_BYTES_MAX: Final = 64 * 1024**2
ITEM_INLINE_BYTES_MAX: Final = 32 * 1024
"""Larger encoded items go to a blob; LMDB keeps bigger values in contiguous page runs."""
CALLS_PER_ITEM_MAX: Final = 65_535
ITEM_TOKENS_MAX: Final = 2**32 - 1
META_BYTES_MAX: Final = 64 * 1024
NAME_CHARS_MAX: Final = 65_536
IDEMPOTENCY_KEY_CHARS_MAX: Final = 65_536
IDEMPOTENCY_TTL_SECONDS: Final = 7 * 24 * 3600

# --- index ------------------------------------------------------------------------------------
INDEX_TAIL_RECORDS: Final = 32
"""Records of a small index page: the tail page that an append rewrites stays under 1 KiB."""
INDEX_PAGE_RECORDS: Final = 1024
"""Records of a sealed index page."""
HEAD_SEGMENTS_MAX: Final = 16
"""Live segments kept in the head; older ones move to immutable blocks."""

# --- blobs ------------------------------------------------------------------------------------
BLOB_CHUNK_BYTES: Final = 128 * 1024
BLOB_BYTES_MAX: Final = 4 * 1024**3
BLOB_INLINE_COMMIT_BYTES_MAX: Final = 192 * 1024
"""A blob up to this size is written in its referrer's transaction; a larger one is staged."""

# --- key/value --------------------------------------------------------------------------------
KV_KEY_BYTES_MAX: Final = 480
KV_VALUE_BYTES_MAX: Final = 64 * 1024**2

# --- reading ----------------------------------------------------------------------------------
ITEMS_PAGE: Final = 256
"""Items that ``Session.items`` reads in one read transaction."""
