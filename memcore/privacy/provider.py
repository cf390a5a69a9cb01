"""Where a key-encryption key comes from: 32 bytes, the environment, a file, a keyring, a service.

It wraps one key only, that of the key file, so a service is asked once an opening.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from memcore.errors import InvalidOptionError, KeyNeededError, WrongKeyError
from memcore.privacy.cipher import KEY_BYTES, NONCE_BYTES, Cipher, uncopied

__all__ = ["Key", "KeyProvider", "key_provider"]


@runtime_checkable
class KeyProvider(Protocol):
    """Whatever can wrap a key: a key management service, a hardware token."""

    def wrap(self, key: bytes, context: bytes) -> bytes:
        """``key``, encrypted; ``context`` has to be given again to unwrap it."""

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """The key that was wrapped; raises if it was another one that did so."""


Key: TypeAlias = bytes | str | Callable[[], bytes] | KeyProvider
"""32 bytes; ``"env:NAME"``, ``"file:PATH"``, ``"keyring:SERVICE/NAME"`` (base64 or hex there);
a callable that gives the bytes; or a ``KeyProvider``."""

_FORMS: Final = (
    '32 bytes, "env:NAME", "file:PATH", "keyring:SERVICE/NAME", a callable that gives 32 bytes, or '
    "an object with wrap() and unwrap()"
)


class _Fixed:
    """A key-encryption key that is known here."""

    __reduce_ex__ = uncopied

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(key)

    def wrap(self, key: bytes, context: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, key, context)

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        found = self._cipher.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], context)
        if found is None:
            raise WrongKeyError("the key does not fit")
        return found


def key_provider(given: Any) -> KeyProvider:
    """The provider that a ``key`` option stands for.

    Raises:
        InvalidOptionError: it is none.
        KeyNeededError: it says where a key is, and there is none.
        ImportError: the package ``cryptography``, or ``keyring``, is missing.
    """
    if isinstance(given, KeyProvider):
        return given
    if isinstance(given, str):
        given = _found(given)
    elif callable(given):
        given = given()
    if not isinstance(given, bytes | bytearray):
        msg = f"key: expected {_FORMS}; got {type(given).__name__}"
        raise InvalidOptionError(msg)
    if len(given) != KEY_BYTES:
        msg = f"key: expected {KEY_BYTES} bytes, as os.urandom({KEY_BYTES}) makes; got {len(given)}"
        raise InvalidOptionError(msg)
    return _Fixed(bytes(given))


def _found(text: str) -> bytes:
    """The bytes of the key to which a text leads. No message shows a part of a key."""
    where, _, name = text.partition(":")
    if where == "env" and name:
        value = os.environ.get(name, "")
    elif where == "file" and name:
        value = _in_file(name)
    elif where == "keyring" and "/" in name:
        value = _in_keyring(*name.split("/", 1))
    else:
        msg = f"key: expected {_FORMS}; got a text of another form"
        raise InvalidOptionError(msg)
    if not value:
        raise KeyNeededError(f"key: there is no key at {text!r}")
    return _decoded(value.strip(), text)


def _in_file(name: str) -> str:
    try:
        return Path(name).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as exc:
        msg = f"key: cannot read a key from the file {name!r} ({type(exc).__name__})"
        raise KeyNeededError(msg) from exc


def _in_keyring(service: str, name: str) -> str:
    try:
        keyring = import_module("keyring")  # only who asks for it needs it
    except ImportError as exc:
        msg = f"key='keyring:...' needs: pip install keyring ({exc})"
        raise ImportError(msg, name=exc.name) from exc
    found: str | None = keyring.get_password(service, name)
    return found or ""


def _decoded(value: str, text: str) -> bytes:
    if len(value) == 2 * KEY_BYTES:
        try:
            return bytes.fromhex(value)
        except ValueError:
            pass
    try:
        return base64.b64decode(value.translate({45: 43, 95: 47}) + "==", validate=False)
    except (binascii.Error, ValueError) as exc:
        msg = f"key: what is at {text!r} is neither hex nor base64"
        raise InvalidOptionError(msg) from exc
