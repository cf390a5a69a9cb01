"""Bounds, and the constants of the on-disk format that several modules share."""

from __future__ import annotations

from typing import Final

# --- format -----------------------------------------------------------------------------------
FORMAT_MAGIC: Final = b"memcore\x00"
FORMAT_VERSION: Final = 1
"""Frozen: every later memcore reads it (docs/format.md)."""
FORMAT_OLDEST: Final = 1
"""The oldest version that is opened; ``migrate`` reads those before."""
VALUE_FORMAT: Final = 1
"""First byte of every value that the codec seals."""
ENCRYPTED_FORMAT: Final = 2
"""First byte of every value that is encrypted."""

# --- store ------------------------------------------------------------------------------------
KEY_BYTES_MAX: Final = 511
"""LMDB 0.9 compiles this bound in; a longer key is refused before it reaches LMDB."""
PAGE_BYTES: Final = 4096
"""The page size of every file that memcore creates (redo slots are aligned to it)."""
REDO_SLOT_BYTES: Final = 256 * 1024
"""One redo slot; 64 KiB overflows at batches of 32 appends, 256 KiB holds 64 callers."""
REDO_MAGIC: Final = b"memcore-redo-v1\x00"
RUN_SCAN_PAGES: Final = 32
"""The reserved run begins within so many pages of every file."""
MAP_BYTES_DEFAULT: Final = 64 * 1024**3
"""Virtual address space only; halved until the system grants it."""
MAP_BYTES_MIN: Final = 1024**2
MAP_BYTES_MAX: Final = 16 * 1024**4
READERS_MAX: Final = 1024
BATCH_CLOSURES_MAX: Final = 256
"""Closures of one group commit; a longer queue makes the next batch."""
STEADY_INTERVAL_MS_DEFAULT: Final = 50
STEADY_INTERVAL_MS_MAX: Final = 60_000
STEADY_COMMITS_HURRY: Final = 64
"""Commits without a steady point after which one is made before its time."""
STEADY_COMMITS_MAX: Final = 512
"""Commits without a steady point at which writers wait for one: until then the file grows."""
ROOM_BYTES: Final = 1024**2
"""Bytes in the file reserved for deletions on a full device."""
ROOM_STEP_BYTES: Final = 512 * 1024
"""Bytes by which the file grows ahead of need."""
PIECE_ROWS: Final = 1024
"""Rows that one transaction of a large deletion removes at most."""
PIECE_PAGES: Final = 400
"""Pages that it frees at most, about: LMDB lists 510 of them in one page."""
REMOVAL_PIECES_OPENING: Final = 16
"""Pieces of a deletion that was cut short which opening the file goes on with."""

# --- items ------------------------------------------------------------------------------------
ITEM_BYTES_MAX: Final = 64 * 1024**2
ITEM_INLINE_BYTES_MAX: Final = 32 * 1024
"""Larger encoded items go to a blob; LMDB keeps bigger values in contiguous page runs."""
CALLS_PER_ITEM_MAX: Final = 65_535
ITEM_TOKENS_MAX: Final = 2**32 - 1
META_BYTES_MAX: Final = 64 * 1024
ENVELOPE_TEXT_CHARS_MAX: Final = 1024
NAME_CHARS_MAX: Final = 65_536
IDEMPOTENCY_KEY_CHARS_MAX: Final = 65_536
IDEMPOTENCY_TTL_SECONDS: Final = 7 * 24 * 3600

# --- leases -----------------------------------------------------------------------------------
LEASE_OWNER_CHARS_MAX: Final = 1024
LEASE_SECONDS_MAX: Final = 366 * 24 * 3600

# --- usage ------------------------------------------------------------------------------------
USAGE_TOKENS_MAX: Final = 2**48
"""A report of more is a mistake: no context window comes near."""
USAGE_MODELS_MAX: Final = 8
"""Models of one session whose calibration is kept; the one reported longest ago goes first."""
MODEL_CHARS_MAX: Final = 200

# --- index ------------------------------------------------------------------------------------
INDEX_TAIL_RECORDS: Final = 32
"""Records of a small index page: the tail page that an append rewrites stays under 1 KiB."""
INDEX_PAGE_RECORDS: Final = 1024
"""Records of a sealed index page."""
TOKEN_PAGE_COUNTS: Final = 1000
"""Counts of one token page: with its headers it fills one page of the file."""
HEAD_SEGMENTS_MAX: Final = 16
"""Live segments kept in the head; older ones move to immutable blocks."""

# --- blobs ------------------------------------------------------------------------------------
BLOB_CHUNK_BYTES: Final = 128 * 1024
BLOB_BYTES_MAX: Final = 4 * 1024**3
BLOB_CHUNKS_PIECE: Final = 12
"""Chunks that one transaction of a deletion removes at most; each has 33 pages."""
BLOB_INLINE_COMMIT_BYTES_MAX: Final = 192 * 1024
"""A blob up to this size is written in its referrer's transaction; a larger one is staged."""

# --- key/value --------------------------------------------------------------------------------
KV_KEY_BYTES_MAX: Final = 480
KV_VALUE_BYTES_MAX: Final = 64 * 1024**2

# --- checkpoints of graphs ----------------------------------------------------------------------
CHECKPOINT_ID_BYTES_MAX: Final = 400
"""Ids are compared as strings, so they stand in the key as they are, escaped."""
CHUNK_BYTES_MAX: Final = 64 * 1024
"""A larger serialised part is stored in pieces of this size."""
PART_INLINE_BYTES_MAX: Final = 32
"""A smaller serialised part is no chunk: its reference would be as long."""
PAGE_PARTS_MIN: Final = 8
"""Parts of a list or dict on one page of its manifest; on average about 32 more than the least."""
PAGE_CONTENT_BYTES_MAX: Final = 1900
"""A row of more than half a page takes pages of the file for itself alone."""
ROOT_PARTS_MAX: Final = 48
"""So many parts or pages need no pages above them."""
STAGED_BYTES: Final = 192 * 1024
"""New chunks above this go in commits of their own, before the one that refers to them."""
VALUES_CACHED_BYTES: Final = 32 * 1024**2
"""Serialised size of the values that a database's handle remembers, about, in each of four sorts
(as put, as read, parts, pages) and of objects known by identity, which share their contents."""
KNOWN_CHUNKS: Final = 500_000
"""Chunks that a handle remembers to be stored."""

# --- state ------------------------------------------------------------------------------------
STATE_FIELD_BYTES_MAX: Final = 480
STATE_VALUE_BYTES_MAX: Final = 64 * 1024**2
STATE_DELETIONS_TOLD: Final = 256
"""Changes of what sessions share after which a watcher is not told any more what was deleted."""
STATE_LOOK_SECONDS: Final = 0.25
"""Interval at which a watcher of a state looks for changes of other processes."""
STATE_PAGE: Final = 4096
"""Versions of fields that one transaction of a trim looks at."""

# --- reading ----------------------------------------------------------------------------------
ITEMS_PAGE: Final = 256
"""Items that ``Session.items`` reads in one read transaction."""

# --- recounting -------------------------------------------------------------------------------
RECOUNT_PAGE_BYTES: Final = 4 * 1024**2
"""Bytes of items after which a page of a recount ends, though it holds fewer than ITEMS_PAGE."""
RECOUNT_FORKS_MAX: Final = 1000
"""Forks that a recount looks at to find out which token pages nobody refers to any more."""

# --- recovery and bundles ---------------------------------------------------------------------
RECOVERY_STEPS: Final = ("mend", "checkpoint", "log", "empty")
"""Steps of a recovery, the gentlest first."""
BUNDLE_BYTES: Final = 64 * 1024
"""Default limit of a bundle's size."""
SWEEP_LIMIT: Final = 100_000
"""Default limit of the things a sweep removes."""
