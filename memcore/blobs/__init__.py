"""Content-addressed values above the inline limit, and the user's blob handle.

All rows are under one scope (equal content is never shared between scopes: a faster second write
would reveal to one user what another one stored). A *slot* is ``digest 16 | disambiguator u8``:

- ``BLOB | slot``: header ``state u8 | size u64 | token 8``, written first and removed last, so no
  chunk exists without its header;
- ``BLOB_CHUNK | slot | number u32``: ``BLOB_CHUNK_BYTES`` of the content, fewer in the last one;
- ``BLOB_REFS | slot``: the reference count of the blob; absent means 0. Kept apart from the
  header and changed only in the referrer's own transaction;
- ``BLOB_ADDRESS | sha256``: the exported address of ``BlobStore.put``; it is one referrer.

The digest is xxh3_128 under the store's random seed: fast, but not collision-resistant. A hit is
therefore compared byte by byte, and different content with the same digest takes the next
disambiguator.

A large blob is *staged*: its chunks are committed in separate transactions while the header is in
state ``STAGING`` and carries the stager's token. ``collect`` removes such rows together with their
token, and the stager finds it missing in its next transaction. A staged blob without a reference
may vanish at any time; ``acquire`` checks again inside the referrer's transaction.

A large blob is removed in pieces, with its header reset to ``STAGING`` meanwhile (``discard``).
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "rows": (
            "STAGING BlobRef StagedBlobLost acquire discard exists finish_leaving header_of "
            "let_go pages_of read references release removal_of slot_of stream write"
        ),
        "store": "BlobStore check collect refer stage unstage",
    },
)
