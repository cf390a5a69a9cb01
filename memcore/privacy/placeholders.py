"""What stands in the place of a value: ``[EMAIL_7K2M9Q]``, the same for it in a whole session.

The six characters are a keyed hash of the value under the secret of the database, the app, the user
and the session. So a model can still tell two persons apart, nobody without the secret can try
values, and nothing has to be remembered: a retry writes the same bytes. Of a thousand different
values of one class two share a placeholder with a probability of 0.0005.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

__all__ = ["LABEL", "PLACEHOLDER", "key_of_place", "placeholder", "recognised"]

LABEL: Final = re.compile(r"[A-Z](?:[A-Z_]{0,30}[A-Z])?")
"""What may stand before the hash. Without digits: nothing can hide in what looks like one."""
PLACEHOLDER: Final = re.compile(r"\[[A-Z](?:[A-Z_]{0,30}[A-Z])?_[0-9A-HJKMNP-TV-Z]{6}\]")
_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Crockford's base 32: no letters that look like digits."""
_HASH_CHARS: Final = 6


def key_of_place(secret: bytes, app: str, user: str, session: str | None) -> bytes:
    """The key of all placeholders of a session; None for what sessions of a user share."""
    made = blake2b(key=blake2b(secret, digest_size=32).digest(), person=b"memcore-redact")
    for part in (app, user, session):
        encoded = b"" if part is None else part.encode("utf-8", "surrogatepass")
        made.update(b"%d:" % (-1 if part is None else len(encoded)))
        made.update(encoded)
    return made.digest()


def recognised(templates: Mapping[str, str]) -> re.Pattern[str]:
    """What finds placeholders: memcore's own, and those that templates make."""
    own = []
    for template in templates.values():
        text = re.escape(template).replace(r"\{id\}", "[0-9A-HJKMNP-TV-Z]{6}")
        own.append(text.replace(r"\{class\}", "[A-Z](?:[A-Z_]{0,30}[A-Z])?"))
    return re.compile("|".join([PLACEHOLDER.pattern, *own])) if own else PLACEHOLDER


def placeholder(label: str, value: str, key: bytes, template: str | None = None) -> str:
    """What stands for ``value`` of the class ``label`` (upper case)."""
    said = f"{label}:{value}".encode("utf-8", "surrogatepass")
    number = int.from_bytes(blake2b(said, key=key, digest_size=4).digest(), "big")
    chars = "".join(_ALPHABET[number >> 5 * at & 31] for at in range(_HASH_CHARS))
    if template is None:
        return f"[{label}_{chars}]"
    return template.replace("{id}", chars).replace("{class}", label)
