"""Encrypted items: AES-256-GCM under a key of the session's own.

What is stored of an item is its labels in clear (its type, role and call ids, by which memcore
pairs calls with results) and a sealed text: key id 4 | nonce 12 | ciphertext and tag, in base64.
The labels are authenticated with it. The session's key is derived from the caller's by HKDF with
application, user and session id, so no item opens in another session.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from memcore.adapters.openai_agents.items import SEALED, Unreadable, labels_of
from memcore.errors import UnreadableItemsError
from memcore.privacy.cipher import uncopied

__all__ = ["EncryptionKey", "Sealer", "checked_keys", "unreadable_error"]

EncryptionKey = str | bytes | Sequence[str | bytes]
"""A secret of high entropy, or several: the first one encrypts, all decrypt."""

_ID_BYTES: Final = 4
_NONCE_BYTES: Final = 12
_NAME: Final = b"memcore.openai_agents.v1"


def checked_keys(given: EncryptionKey) -> list[bytes]:
    """The bytes of the keys.

    Raises:
        ValueError: there is none, or one is empty.
        TypeError: one is neither text nor bytes.
    """
    keys = [given] if isinstance(given, str | bytes) else list(given)
    for key in keys:
        if not isinstance(key, str | bytes):
            msg = f"encryption_key: expected str or bytes, got {type(key).__name__}"
            raise TypeError(msg)
    if not keys or not all(keys):
        msg = "encryption_key is empty: pass a random secret, as Fernet.generate_key() makes one"
        raise ValueError(msg)
    return [key.encode() if isinstance(key, str) else key for key in keys]


class Sealer:
    """The coder of an encrypted session.

    Raises:
        ImportError: the package ``cryptography`` is missing.
    """

    __reduce_ex__ = uncopied

    def __init__(self, keys: Sequence[bytes], *place: str) -> None:
        try:
            from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
        except ImportError as exc:
            msg = f'encryption_key= needs: pip install "memcore[encryption]" ({exc})'
            raise ImportError(msg, name=exc.name) from exc
        self._invalid = InvalidTag
        salt = json.dumps(place).encode()
        derived = [_derived(key, salt) for key in keys]
        self._ciphers = {_id_of(key): AESGCM(key) for key in reversed(derived)}
        self._id = _id_of(derived[0])
        self._nonce_key = hmac.digest(derived[0], b"nonce", "sha256")

    def quick(self, items: Sequence[Any]) -> list[dict[str, Any]] | None:  # noqa: ARG002
        """As ``Coder.quick``: never."""
        return None

    def encode(self, items: Sequence[Any], request: str | None) -> list[dict[str, Any]]:
        """As ``Coder.encode``."""
        texts = [json.dumps(item) for item in items]
        return [self._sealed(text, at, request) for at, text in enumerate(texts)]

    def _sealed(self, text: str, at: int, request: str | None) -> dict[str, Any]:
        labels, content = labels_of(json.loads(text)), text.encode()
        bound = _bytes_of(labels)
        if request is None:
            nonce = os.urandom(_NONCE_BYTES)
        else:  # a retry must be the same: a nonce that comes again does so with the same content
            said = json.dumps([request, at]).encode()
            digest = hashlib.sha256(content + bound).digest()
            nonce = hmac.digest(self._nonce_key, said + digest, "sha256")[:_NONCE_BYTES]
        body = self._ciphers[self._id].encrypt(nonce, content, bound)
        return {**labels, SEALED: base64.b64encode(self._id + nonce + body).decode()}

    def decode_all(self, messages: list[dict[str, Any]]) -> list[Any]:
        """As ``Coder.decode_all``."""
        return [self.decode(message) for message in messages]

    def decode(self, message: dict[str, Any]) -> Any:
        """As ``Coder.decode``."""
        if SEALED not in message:
            raise Unreadable("in clear")
        labels = {key: value for key, value in message.items() if key != SEALED}
        try:
            whole = base64.b64decode(message[SEALED], validate=True)
        except (binascii.Error, TypeError, ValueError) as exc:
            raise Unreadable("changed") from exc
        cipher = self._ciphers.get(whole[:_ID_BYTES])
        if cipher is None:
            raise Unreadable("another key")
        rest = whole[_ID_BYTES:]
        try:
            text = cipher.decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], _bytes_of(labels))
        except (self._invalid, ValueError) as exc:
            raise Unreadable("changed") from exc
        return json.loads(text)


def _bytes_of(labels: dict[str, Any]) -> bytes:
    return json.dumps(labels, sort_keys=True).encode()


def _derived(key: bytes, salt: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869): 32 bytes."""
    extracted = hmac.digest(hashlib.sha256(salt).digest(), key, "sha256")
    return hmac.digest(extracted, _NAME + b"\x01", "sha256")


def _id_of(key: bytes) -> bytes:
    """Which key it is, for who holds it."""
    return hmac.digest(key, b"id", "sha256")[:_ID_BYTES]


def unreadable_error(session_id: str, reasons: Mapping[str, int]) -> UnreadableItemsError:
    """The error of items that a coder cannot read."""
    said = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    msg = (
        f"{sum(reasons.values())} items of session {session_id!r} cannot be read ({said}): open it "
        "with the encryption_key= that they were written with, or with unreadable='skip' to leave "
        "them out"
    )
    return UnreadableItemsError(msg, reasons=reasons)
