"""The secret of a database: of its key ring, or 32 random bytes in a file of their own.

It is never in the database: what is derived from it (placeholders, pseudonyms, the key of receipts)
says nothing to whoever has that alone.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from hashlib import blake2b
from hmac import compare_digest
from typing import Final

from memcore.errors import CorruptStoreError, NotFoundError, StoreAccessError
from memcore.files import put_private
from memcore.privacy.cipher import uncopied

__all__ = ["SUFFIX", "Secret", "secret_of", "unveiled", "veiled"]

SUFFIX: Final = ".secret"
"""Behind the path of the database."""
_BYTES: Final = 32
_PROOF_BYTES: Final = 16
_BLOCK_BYTES: Final = 64


class Secret:
    """The secret of one open database, read when it is needed first.

    Args:
        path: of the database.
        create: make the file if it is missing.
        ring: the secret of the key ring of an encrypted database, which needs no file.
    """

    __slots__ = ("_create", "_path", "_value")
    __reduce_ex__ = uncopied

    def __init__(self, path: str, *, create: bool, ring: bytes | None = None) -> None:
        self._path = path
        self._create = create
        self._value: bytes | None = None
        if ring is not None:
            self._value = blake2b(ring, person=b"memcore secret", digest_size=_BYTES).digest()

    def value(self) -> bytes:
        """The 32 bytes; raises what ``secret_of`` raises."""
        if self._value is None:
            self._value = secret_of(self._path, create=self._create)
        return self._value

    def found(self) -> bytes | None:
        """The secret, None where there is none yet and none may be made; raises as ``value``."""
        try:
            return self.value()
        except NotFoundError:
            return None


def secret_of(path: str, *, create: bool) -> bytes:
    """The secret of the database at a path; made on first use.

    Args:
        path: the database, ``":memory:"`` for one that has no file: it gets a random one each time.
        create: make the file if it is missing.

    Raises:
        NotFoundError: it is missing, and must not be made.
        CorruptStoreError: the file is no secret.
        StoreAccessError: the system refuses to read or write it.
    """
    if path == ":memory:":
        return secrets.token_bytes(_BYTES)
    file = os.path.realpath(path) + SUFFIX
    try:
        found = _read(file)
        if found is None and create:
            with suppress(FileExistsError):  # somebody else was faster: theirs stays
                # Root may be the first to need it, for a database of somebody else's.
                owner = None if os.geteuid() else os.stat(path)
                put_private(file, secrets.token_bytes(_BYTES), new=True, owner=owner)
            found = _read(file)
    except OSError as exc:
        msg = f"the secret file {file!r} cannot be used: {exc.strerror}; check its rights"
        raise StoreAccessError(msg) from exc
    if found is None:
        msg = (
            f"the secret file {file!r} is missing and the database is open read-only: restore it "
            "beside the database, or open that for writing once to make a new one"
        )
        raise NotFoundError(msg)
    if len(found) != _BYTES:
        msg = (
            f"the secret file {file!r} has {len(found)} bytes, expected {_BYTES}: restore it from "
            "a backup; without it, placeholders of earlier items come out differently"
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
            return opened.read(_BYTES + 1)
    except FileNotFoundError:
        return None
