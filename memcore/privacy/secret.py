"""The secret of a database: of its key ring, or 32 random bytes in a file of their own.

It is never in the database, but for a while on a device that has no room for its file (erasing must
not need room): what is derived from it (placeholders, pseudonyms, the key of receipts)
says nothing to whoever has that alone.
"""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from hashlib import blake2b
from hmac import compare_digest
from typing import Final, Protocol

from memcore.errors import CorruptStoreError, NotFoundError, StoreAccessError, StoreFullError
from memcore.files import put_private
from memcore.privacy.cipher import uncopied

__all__ = ["SECRET_BYTES", "SUFFIX", "Secret", "secret_of", "unveiled", "veiled"]

SUFFIX: Final = ".secret"
"""Behind the path of the database."""
SECRET_BYTES: Final = 32
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PROOF_BYTES: Final = 16
_BLOCK_BYTES: Final = 64


class Substitute(Protocol):
    """Where a secret is kept that has no file yet: in the database, which has room of its own."""

    def kept(self) -> bytes | None:
        """The secret, if it is kept there."""

    def keep(self, secret: bytes) -> bytes:
        """Keep it there, unless one is kept there already; the one that is."""

    def drop(self) -> None:
        """It has its file now."""


class Secret:
    """The secret of one open database, read when it is needed first.

    Args:
        path: of the database.
        create: make the file if it is missing.
        ring: the secret of the key ring of an encrypted database, which needs no file.
        place: where it stands in for the file as long as no space is left for that.
    """

    __slots__ = ("_create", "_path", "_place", "_value")
    __reduce_ex__ = uncopied

    def __init__(
        self,
        path: str,
        *,
        create: bool,
        ring: bytes | None = None,
        place: Substitute | None = None,
    ) -> None:
        self._path = path
        self._create = create
        self._place = place
        self._value: bytes | None = None
        if ring is not None:
            self._value = blake2b(ring, person=b"memcore secret", digest_size=SECRET_BYTES).digest()

    def value(self) -> bytes:
        """The 32 bytes; raises what ``secret_of`` raises."""
        if self._value is None:
            self._value = self._found()
        return self._value

    def _found(self) -> bytes:
        place = self._place
        try:
            return secret_of(self._path, create=self._create and place is None)
        except NotFoundError:
            kept = None if place is None else place.kept()
            if kept is not None:
                return kept
            if not self._create:
                raise
        try:
            return secret_of(self._path, create=True)
        except StoreFullError:
            if place is None:
                raise
            return place.keep(secrets.token_bytes(SECRET_BYTES))

    def settle(self) -> bool:
        """Make the file that there was no room for; whether there is nothing left to be done."""
        kept = None if self._place is None else self._place.kept()
        if kept is None or self._place is None:
            return True
        try:
            secret_of(self._path, create=True, made=kept)
        except (StoreFullError, StoreAccessError):
            return False
        self._place.drop()
        return True

    def found(self) -> bytes | None:
        """The secret, None where there is none yet and none may be made; raises as ``value``."""
        try:
            return self.value()
        except NotFoundError:
            return None


def secret_of(path: str, *, create: bool, made: bytes | None = None) -> bytes:
    """The secret of the database at a path; made on first use.

    Args:
        path: the database, ``":memory:"`` for one that has no file: it gets a random one each time.
        create: make the file if it is missing.
        made: what it is to hold then; None: random bytes.

    Raises:
        NotFoundError: it is missing, and must not be made.
        StoreFullError: no space is left for it.
        CorruptStoreError: the file is no secret.
        StoreAccessError: the system refuses to read or write it.
    """
    if path == ":memory:":
        return secrets.token_bytes(SECRET_BYTES)
    file = os.path.realpath(path) + SUFFIX
    try:
        found = _read(file)
        if found is None and create:
            with suppress(FileExistsError):  # somebody else was faster: theirs stays
                # Root may be the first to need it, for a database of somebody else's.
                owner = None if os.geteuid() else os.stat(path)
                put_private(file, made or secrets.token_bytes(SECRET_BYTES), new=True, owner=owner)
            found = _read(file)
    except OSError as exc:
        if exc.errno in _FULL:
            msg = f"no space is left for the secret file {file!r} ({exc.strerror}): free some"
            raise StoreFullError(msg) from exc
        msg = f"the secret file {file!r} cannot be used: {exc.strerror}; check its rights"
        raise StoreAccessError(msg) from exc
    if found is None:
        msg = (
            f"the secret file {file!r} is missing and the database is open read-only: restore it "
            "beside the database, or open that for writing once to make a new one"
        )
        raise NotFoundError(msg)
    if len(found) != SECRET_BYTES:
        msg = (
            f"the secret file {file!r} has {len(found)} bytes, expected {SECRET_BYTES}: restore it "
            "from a backup; without it, placeholders of earlier items come out differently"
        )
        raise CorruptStoreError(msg)
    return found


def veiled(secret: bytes, text: str) -> str:
    """A text that only who has the secret reads again: hexadecimal digits, equal for equal texts.

    A keyed digest of the text is both its proof and the nonce of the key stream (as in AES-SIV), so
    that nothing has to be drawn, and nothing repeats.
    """
    packed = text.encode("utf-8", "surrogatepass")
    proof = blake2b(packed, key=secret, person=b"memcore proof", digest_size=_PROOF_BYTES).digest()
    return (proof + _streamed(secret, proof, packed)).hex()


def unveiled(secret: bytes, sealed: str) -> str | None:
    """The text that ``veiled`` was given; None: with another secret, or it was changed."""
    try:
        packed = bytes.fromhex(sealed)
        proof, packed = packed[:_PROOF_BYTES], packed[_PROOF_BYTES:]
        text = _streamed(secret, proof, packed).decode("utf-8", "surrogatepass")
    except ValueError:
        return None
    return text if compare_digest(veiled(secret, text), sealed) else None


def _streamed(secret: bytes, proof: bytes, packed: bytes) -> bytes:
    """The bytes with a key stream laid over them; twice gives them back."""
    stream = bytearray()
    for count in range(0, len(packed), _BLOCK_BYTES):
        block = proof + count.to_bytes(8, "big")
        stream += blake2b(block, key=secret, person=b"memcore stream").digest()
    return bytes(a ^ b for a, b in zip(packed, stream, strict=False))


def _read(file: str) -> bytes | None:
    try:
        with open(file, "rb") as opened:
            return opened.read(SECRET_BYTES + 1)
    except FileNotFoundError:
        return None
