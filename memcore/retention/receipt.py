"""Receipt of an erasure: request, result, and a signature over both."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, field, replace
from typing import Any, Final, Self

from memcore.errors import InvalidOptionError
from memcore.records import record
from memcore.store import Store

__all__ = [
    "ErasureReceipt",
    "digest_of",
    "receipt_key",
    "verify_receipt",
]


# --- Receipt of an erasure: the request, the result, and a signature over both --------------------

_VERSION: Final = 1
_KEY_BYTES_MIN: Final = 16
_TEXTS: Final = ("id", "user_digest", "signature")


@record(frozen=True, slots=True)
class ErasureReceipt:
    """Signed result of ``erase``. Names nobody unless requested; verify with ``verify_receipt``.

    Times are seconds since 1970.
    """

    id: str
    user_digest: str
    """HMAC-SHA256 of the user's name under the signing key."""
    user: str | None
    """The name, if the caller requested it."""
    app_digest: str | None
    """Like ``user_digest``, for the requested application; None: all applications."""
    scopes: int
    """Number of applications in which the user owned anything."""
    counts: Mapping[str, int]
    """Removed rows by kind; ``rows`` is the total."""
    method: tuple[str, ...]
    """Any of ``removed`` (rows), ``shredded`` (data keys) and ``compacted`` (bytes)."""
    bytes_gone: bool
    """True if no byte of the user's data is left in the database file."""
    bytes_before: int
    bytes_after: int
    verification: Mapping[str, int]
    """``rows_left`` in the scopes; and for the raw scan ``bytes_scanned``, ``probes`` (number
    searched), ``found`` (outside other users' rows: a finding) and ``mentions`` (inside them)."""
    overrode_hold: bool
    asked_at: float
    finished_at: float | None
    """Time at which the bytes were gone; None: they are not gone."""
    pending: tuple[str, ...]
    """Steps that remain, with the reason."""
    out_of_reach: tuple[str, ...]
    """Copies that an erasure of this database cannot reach."""
    version: int = _VERSION
    signature: str = field(default="")
    """HMAC-SHA256 over ``canonical()``."""

    def fields(self) -> dict[str, Any]:
        """Return all fields in JSON types."""
        return asdict(self) | {
            "counts": dict(self.counts),
            "verification": dict(self.verification),
            "method": list(self.method),
            "pending": list(self.pending),
            "out_of_reach": list(self.out_of_reach),
        }

    def canonical(self) -> bytes:
        """Return the signed bytes: ASCII JSON, sorted keys, no spaces, without the signature."""
        fields = self.fields()
        del fields["signature"]
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")

    def to_json(self) -> str:
        """Return the receipt as JSON, for storage."""
        return json.dumps(self.fields(), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes | Mapping[str, Any]) -> Self:
        """Parse a result of ``to_json``.

        Raises:
            InvalidOptionError: it is not a receipt.
        """
        try:
            found: Any = text if isinstance(text, Mapping) else json.loads(text)
            fields = dict(found)
            for name in ("method", "pending", "out_of_reach"):
                fields[name] = tuple(fields[name])
            receipt = cls(**fields)
            if not all(isinstance(getattr(receipt, name), str) for name in _TEXTS):
                raise TypeError
        except (TypeError, ValueError, KeyError, RecursionError) as exc:
            msg = "this is no receipt of an erasure: expected what ErasureReceipt.to_json() gave"
            raise InvalidOptionError(msg) from exc
        return receipt

    def signed(self, key: bytes) -> Self:
        """Return a copy with its signature."""
        return replace(self, signature=_sign(key, self.canonical()))

    def is_about(self, user: str, *, key: bytes) -> bool:
        """Return True if this is the receipt of this user, given the key that signed it."""
        return hmac.compare_digest(self.user_digest, digest_of(checked_key(key), "user", user))


def verify_receipt(
    receipt: ErasureReceipt | Mapping[str, Any] | str | bytes, *, key: bytes
) -> bool:
    """Return True if no field of a receipt has changed since it was signed with ``key``.

    Args:
        receipt: the receipt, or its ``to_json``.
        key: the key that signed it: the caller's ``key``, or ``Database.receipt_key``.

    Raises:
        InvalidOptionError: it is not a receipt, or ``key`` is not a key.
    """
    checked_key(key)
    found = receipt if isinstance(receipt, ErasureReceipt) else ErasureReceipt.from_json(receipt)
    try:
        expected = _sign(key, found.canonical())
    except (TypeError, ValueError):
        return False  # a field has a value that no receipt has
    given = found.signature.encode("utf-8", "surrogatepass")
    return hmac.compare_digest(expected.encode(), given)


def checked_key(key: object) -> bytes:
    """Validate a signing key.

    Raises:
        InvalidOptionError: it is not bytes, or too short.
    """
    if isinstance(key, bytes) and len(key) >= _KEY_BYTES_MIN:
        return key
    got = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
    msg = f"key: expected at least {_KEY_BYTES_MIN} bytes, got {got}"
    raise InvalidOptionError(msg)


def digest_of(key: bytes, what: str, name: str) -> str:
    """Return HMAC-SHA256 of a name, which only a holder of the key can match."""
    text = f"memcore {what}\0".encode() + name.encode("utf-8", "surrogatepass")
    return hmac.digest(key, text, hashlib.sha256).hex()


def _sign(key: bytes, content: bytes) -> str:
    return hmac.digest(key, b"memcore receipt\0" + content, hashlib.sha256).hex()


# --- Default key for signing receipts -------------------------------------------------------------


def receipt_key(store: Store) -> bytes:
    """Derive 32 bytes from the database's secret, which is not in its file.

    Raises:
        NotFoundError: there is no secret yet, and the database is open read-only.
        StorageError: the secret's file cannot be used.
    """
    return hmac.digest(store.secret.value(), b"memcore receipts", hashlib.sha256)
