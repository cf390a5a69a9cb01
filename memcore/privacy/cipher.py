"""AES-256-GCM, of the package ``cryptography``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

from memcore.errors import KeyCopyError

__all__ = ["KEY_BYTES", "NONCE_BYTES", "TAG_BYTES", "Cipher", "uncopied"]

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
"""96 random bits: at most 2**32 values under one key (NIST SP 800-38D, section 8.3)."""
TAG_BYTES: Final = 16


def uncopied(holder: object, *_: Any) -> NoReturn:
    """Stand as ``__reduce_ex__`` in a class that holds a key: where bytes go, the key would go.

    Raises:
        KeyCopyError
    """
    msg = (
        f"{type(holder).__name__} holds a key, and is neither pickled nor copied: hand on where "
        "the key comes from, and make it anew there"
    )
    raise KeyCopyError(msg)


class Cipher:
    """One key. ``encrypt(nonce, text, bound)`` is the library's own: no frame lies between.

    Raises:
        ImportError: the package is missing.
    """

    __slots__ = ("_decrypt", "_invalid", "encrypt")
    __reduce_ex__ = uncopied

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
        except ImportError as exc:
            msg = f'encryption needs: pip install "memcore[encryption]" ({exc})'
            raise ImportError(msg, name=exc.name) from exc
        cipher: Any = AESGCM(key)
        self.encrypt: Callable[[bytes, bytes, bytes], bytes] = cipher.encrypt
        self._decrypt: Callable[[bytes, bytes, bytes], bytes] = cipher.decrypt
        self._invalid: tuple[type[Exception], ...] = (InvalidTag, ValueError)

    def decrypt(self, nonce: bytes, text: bytes, bound: bytes) -> bytes | None:
        """What was encrypted; None if it was not, with this key, this nonce and these bytes."""
        try:
            return self._decrypt(nonce, text, bound)
        except self._invalid:
            return None
