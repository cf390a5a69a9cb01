"""Limits, and the constants of the on-disk format that several modules share."""

from __future__ import annotations

from typing import Final

# --- format -----------------------------------------------------------------------------------
FORMAT_MAGIC: Final = b"memcore\x00"
FORMAT_VERSION: Final = 1
"""Frozen: every later memcore reads it (docs/format.md)."""
FORMAT_OLDEST: Final = 1
"""The oldest version that can be opened; ``migrate`` reads older ones."""
VALUE_FORMAT: Final = 1
"""First byte of every value that the codec seals in clear."""
ENCRYPTED_FORMAT: Final = 2
"""First byte of every value that is encrypted."""

# --- store ------------------------------------------------------------------------------------
KEY_BYTES_MAX: Final = 511
"""LMDB 0.9 compiles this limit in; a longer key is rejected before it reaches LMDB."""
PAGE_BYTES: Final = 4096
"""The page size of every file that memcore creates (redo slots are aligned to it)."""
REDO_SLOT_BYTES: Final = 256 * 1024
"""Size of one redo slot; 64 KiB overflows at batches of 32 appends, 256 KiB holds 64 callers."""
REDO_MAGIC: Final = b"memcore-redo-v1\x00"
RUN_SCAN_PAGES: Final = 32
"""The reserved run begins within this many pages of the start of every file."""
MAP_BYTES_DEFAULT: Final = 64 * 1024**3
"""Virtual address space only; halved until the system grants it."""
MAP_BYTES_MIN: Final = 1024**2
MAP_BYTES_MAX: Final = 16 * 1024**4
READERS_MAX: Final = 1024
BATCH_CLOSURES_MAX: Final = 256
"""Closures in one group commit; a longer queue continues in the next batch."""
STEADY_INTERVAL_MS_DEFAULT: Final = 50
STEADY_INTERVAL_MS_MAX: Final = 60_000
STEADY_COMMITS_HURRY: Final = 64
"""Commits without a steady point after which one is made ahead of schedule."""
STEADY_COMMITS_MAX: Final = 512
"""Commits without a steady point at which writers wait for one; until then the file grows."""
ROOM_BYTES: Final = 1024**2
"""Bytes reserved in a file so that deletions succeed on a full device; fewer in a small file."""
ROOM_BYTES_MIN: Final = 256 * 1024
"""Bytes reserved in the smallest file."""
ROOM_STEP_BYTES: Final = 512 * 1024
"""Increment by which the file grows ahead of demand."""
ROOM_STEP_BYTES_MIN: Final = 256 * 1024
"""The increment as long as less than ``ROOM_BYTES`` is reserved."""
PIECE_ROWS: Final = 1024
"""Maximum rows that one transaction of a large deletion removes."""
PIECE_PAGES: Final = 400
"""Approximate maximum of pages that it frees: LMDB lists 510 of them in one page."""
REMOVAL_PIECES_OPENING: Final = 16
"""Maximum pieces of an interrupted deletion that opening the file removes."""

# --- items ------------------------------------------------------------------------------------
ITEM_BYTES_MAX: Final = 64 * 1024**2
ITEM_INLINE_BYTES_MAX: Final = 32 * 1024
"""Larger encoded items go to a blob; LMDB stores bigger values in contiguous page runs."""
CALLS_PER_ITEM_MAX: Final = 65_535
ITEM_TOKENS_MAX: Final = 2**32 - 1
JSON_DEPTH_MAX: Final = 512
"""Levels of arrays and objects in a stored value."""
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
"""A larger report is a mistake: no context window comes close."""
USAGE_MODELS_MAX: Final = 8
"""Models per session whose calibration is kept; the least recently reported is dropped first."""
MODEL_CHARS_MAX: Final = 200

# --- index ------------------------------------------------------------------------------------
INDEX_TAIL_RECORDS: Final = 32
"""Records of a small index page: keeps the tail page that each append rewrites under 1 KiB."""
INDEX_PAGE_RECORDS: Final = 1024
"""Records of a sealed index page."""
TOKEN_PAGE_COUNTS: Final = 1000
"""Counts per token page: with its headers it fills one page of the file."""
HEAD_SEGMENTS_MAX: Final = 16
"""Live segments kept in the head; older ones are moved to immutable blocks."""

# --- blobs ------------------------------------------------------------------------------------
BLOB_CHUNK_BYTES: Final = 128 * 1024
BLOB_BYTES_MAX: Final = 4 * 1024**3
BLOB_CHUNKS_PIECE: Final = 12
"""Maximum chunks that one transaction of a deletion removes; each takes 33 pages."""
BLOB_INLINE_COMMIT_BYTES_MAX: Final = 192 * 1024
"""A blob up to this size is written in its referrer's transaction; a larger one is staged."""

# --- key/value --------------------------------------------------------------------------------
KV_KEY_BYTES_MAX: Final = 480
KV_VALUE_BYTES_MAX: Final = 64 * 1024**2

# --- checkpoints of graphs ----------------------------------------------------------------------
CHECKPOINT_ID_BYTES_MAX: Final = 400
"""Ids are compared as strings, so the key holds them unchanged except for escaping."""
CHUNK_BYTES_MAX: Final = 64 * 1024
"""A larger serialised part is stored in chunks of this size."""
PART_INLINE_BYTES_MAX: Final = 32
"""A smaller serialised part is stored inline: a reference to a chunk would be as long."""
PAGE_PARTS_MIN: Final = 8
"""Minimum parts of a list or dict per page of its manifest; the average is about 32 more."""
PAGE_CONTENT_BYTES_MAX: Final = 1900
"""LMDB stores a row of more than half a page in overflow pages of its own."""
ROOT_PARTS_MAX: Final = 48
"""Up to this many parts or pages need no level of pages above them."""
STAGED_BYTES: Final = 1024 * 1024
"""New chunks beyond this size are committed separately, before the commit that refers to them."""
VALUES_CACHED_BYTES: Final = 32 * 1024**2
"""Approximate serialised size of the values that a database handle caches, for each of four kinds
(as put, as read, parts, pages) and for objects known by identity, which share their contents."""
KNOWN_CHUNKS: Final = 500_000
"""Chunks that a handle remembers as stored."""

# --- state ------------------------------------------------------------------------------------
STATE_FIELD_BYTES_MAX: Final = 480
STATE_VALUE_BYTES_MAX: Final = 64 * 1024**2
STATE_DELETIONS_TOLD: Final = 256
"""Changes of shared state after which a watcher no longer learns what was deleted."""
STATE_LOOK_SECONDS: Final = 0.25
"""Interval at which a state watcher polls for changes by other processes, in seconds."""
STATE_PAGE: Final = 4096
"""Field versions that one transaction of a trim examines."""

# --- reading ----------------------------------------------------------------------------------
ITEMS_PAGE: Final = 256
"""Items that ``Session.items`` reads per read transaction."""

# --- recounting -------------------------------------------------------------------------------
RECOUNT_PAGE_BYTES: Final = 4 * 1024**2
"""Bytes of items after which a page of a recount ends, even with fewer than ITEMS_PAGE items."""
RECOUNT_FORKS_MAX: Final = 1000
"""Forks that a recount examines to find token pages that are no longer referenced."""

# --- recovery and bundles ---------------------------------------------------------------------
RECOVERY_STEPS: Final = ("mend", "checkpoint", "log", "empty")
"""Steps of a recovery, least destructive first."""
BUNDLE_BYTES: Final = 64 * 1024
"""Default size limit of a bundle."""
SWEEP_LIMIT: Final = 100_000
"""Default limit on the number of objects that a sweep removes."""
CHILD: Final = "::"
"""Separates the name of a session from that of its child."""
