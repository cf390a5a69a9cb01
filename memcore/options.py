"""Argument checks of the public API, with uniform messages."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from inspect import iscoroutinefunction
from os import PathLike
from reprlib import Repr
from typing import Any, Final, NoReturn

from memcore.errors import InvalidItemError, InvalidOptionError, NotFoundError
from memcore.limits import IDEMPOTENCY_KEY_CHARS_MAX

__all__ = [
    "checked_bool",
    "checked_callable",
    "checked_choice",
    "checked_choices",
    "checked_file",
    "checked_idempotency_key",
    "checked_int",
    "checked_optional_int",
    "checked_optional_seconds",
    "checked_optional_share",
    "checked_optional_text",
    "checked_path",
    "checked_several",
    "checked_share",
    "checked_texts",
    "closest",
    "counted",
    "need_instance",
    "need_known",
    "need_plain_function",
    "plain_message",
    "read_mapping",
    "refuse_copies",
    "shown",
]


_SHOWN_CHARS: Final = 80
_SHOWN: Final = Repr()
_SHOWN.maxlevel = 3
_SHOWN.maxstring = _SHOWN.maxother = _SHOWN.maxlong = _SHOWN_CHARS


def shown(value: object) -> str:
    """The beginning of a value's ``repr``, for messages; its type if it has none.

    Of a value that is nested deeply or very long only the beginning is looked at.
    """
    try:
        return f"{_SHOWN.repr(value):.80}"
    except Exception:  # noqa: BLE001 - a caller's ``__repr__`` raises anything
        return f"<{type(value).__name__}>"


def counted(count: int, noun: str, nouns: str = "") -> str:
    """A number and its noun: "1 item", "2,000 items"; ``nouns`` is a plural that ends not in -s."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def refuse_copies(handle: object) -> NoReturn:
    """Stand for ``__reduce__`` of what belongs to an open database.

    Raises:
        TypeError: always.
    """
    del handle
    msg = (
        "a handle of an open database can be neither copied nor pickled: hand over the path and "
        "names, and open the database there"
    )
    raise TypeError(msg)


def closest(name: str, known: Iterable[str]) -> list[str]:
    """The closest match for a name, for error messages; empty if none is close."""
    from difflib import get_close_matches  # noqa: PLC0415 - for error messages only

    return get_close_matches(name, list(known), 1)


def checked_int(name: str, value: Any, *, least: int = 0) -> int:
    """``value`` if it is an int of at least ``least``; bools are rejected.

    Raises:
        InvalidOptionError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        kind = {0: "a non-negative int", 1: "a positive int"}.get(least, f"an int >= {least}")
        msg = f"{name}: expected {kind}, got {shown(value)}"
        raise InvalidOptionError(msg)
    return int(value)  # of a subclass, such as an IntEnum, the number that is stored


def checked_optional_int(name: str, value: Any, *, least: int = 0) -> int | None:
    """``value`` if it passes ``checked_int``; None stays None."""
    return None if value is None else checked_int(name, value, least=least)


def checked_bool(name: str, value: Any) -> bool:
    """``value`` if it is True or False.

    Raises:
        InvalidOptionError: it is not.
    """
    if not isinstance(value, bool):
        msg = f"{name}: expected True or False, got {shown(value)}"
        raise InvalidOptionError(msg)
    return value


def checked_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """``value`` if it is one of several words.

    Raises:
        InvalidOptionError: it is not; the message suggests the closest one.
    """
    listed = tuple(choices)
    if not isinstance(value, str) or value not in listed:
        near = closest(value, listed) if isinstance(value, str) else []
        hint = f"; did you mean {near[0]!r}?" if near else ""
        msg = f"{name}: expected one of {', '.join(listed)}; got {shown(value)}{hint}"
        raise InvalidOptionError(msg)
    return value


def checked_several(name: str, value: Any, what: str = "several in a list") -> Iterable[Any]:
    """``value`` if it can be iterated and is not one thing that can: text, bytes or a mapping.

    Raises:
        InvalidOptionError: it is not; the message says ``what`` was expected.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        msg = f"{name}: expected {what}, got {shown(value)}"
        raise InvalidOptionError(msg)
    return value


def checked_choices(name: str, value: Any, choices: Iterable[str]) -> tuple[str, ...]:
    """Several words, each of which passes ``checked_choice``.

    Raises:
        InvalidOptionError: they are not, or are no collection but one str.
    """
    listed = tuple(choices)
    return tuple(checked_choice(name, each, listed) for each in checked_several(name, value))


def checked_optional_text(name: str, value: Any) -> str | None:
    """``value`` if it is a str, as which a name is looked up; None stays None.

    Raises:
        InvalidOptionError: it is not.
    """
    if value is not None and not isinstance(value, str):
        msg = f"{name}: expected a str or None, got {shown(value)}"
        raise InvalidOptionError(msg)
    return value


def checked_texts(name: str, value: Any) -> tuple[str, ...]:
    """Several strings that are not empty.

    Raises:
        InvalidOptionError: they are not, or are no collection but one str.
    """
    found = tuple(checked_several(name, value, "several strings in a list"))
    for each in found:
        if not isinstance(each, str) or not each:
            msg = f"{name}: expected non-empty strings, got {shown(each)}"
            raise InvalidOptionError(msg)
    return found


def need_instance(name: str, value: object, expected: type, *, what: str) -> None:
    """Require an object of a class; ``what`` says what that is.

    Raises:
        InvalidOptionError: it is of another one.
    """
    if not isinstance(value, expected):
        msg = f"{name}: expected {what}, got {shown(value)}"
        raise InvalidOptionError(msg)


def need_plain_function(name: str, value: Any, *, instead: str) -> Any:
    """``value`` if it is a callable that is no coroutine function; ``instead`` takes those.

    Raises:
        InvalidOptionError: it is not: nobody would await what it returns.
    """
    if not callable(value):
        msg = f"{name}: expected a callable, got {shown(value)}"
        raise InvalidOptionError(msg)
    called = None if isinstance(value, type) else getattr(type(value), "__call__", None)  # noqa: B004
    if iscoroutinefunction(value) or iscoroutinefunction(called):
        msg = f"{name}: is a coroutine function, and would not be awaited; {instead}"
        raise InvalidOptionError(msg)
    return value


def need_known(name: str, given: Any, known: Iterable[str]) -> None:
    """Reject a mapping of options that holds a name other than these.

    Raises:
        InvalidOptionError: it is not a mapping, or a name is unknown.
    """
    listed = tuple(known)
    if not isinstance(given, Mapping):
        msg = f"{name}: expected a mapping of {', '.join(listed)}, got {type(given).__name__}"
        raise InvalidOptionError(msg)
    for each in given:
        checked_choice(name, each, listed)


def checked_callable(name: str, value: Any) -> Any:
    """``value`` if it is callable; None stays None.

    Raises:
        InvalidOptionError: it is not.
    """
    if value is not None and not callable(value):
        msg = f"{name}: expected a callable or None, got {type(value).__name__}"
        raise InvalidOptionError(msg)
    return value


def checked_method(client: Any, path: str, expected: str) -> Callable[..., Any]:
    """The method of a model's client at a dotted path.

    Raises:
        InvalidOptionError: the client has no such method.
    """
    found = client
    for step in path.split("."):
        found = getattr(found, step, None)
    if not callable(found):
        msg = f"client: expected {expected}, with a method {path}; got {type(client).__name__}"
        raise InvalidOptionError(msg)
    method: Callable[..., Any] = found
    return method


def checked_idempotency_key(value: Any) -> str:
    """``value`` if it is a str that can name a request.

    Raises:
        InvalidOptionError: it is not a str, is empty or is too long.
    """
    if not isinstance(value, str):
        msg = f"idempotency_key: expected a str or None, got {type(value).__name__}"
        raise InvalidOptionError(msg)
    if not 0 < len(value) <= IDEMPOTENCY_KEY_CHARS_MAX:
        msg = (
            f"idempotency_key: expected 1 to {IDEMPOTENCY_KEY_CHARS_MAX} characters, "
            f"got {len(value)}"
        )
        raise InvalidOptionError(msg)
    return value


def checked_path(name: str, value: Any) -> str:
    """``value`` as a file path, with a leading ``~`` expanded to the home directory.

    Raises:
        InvalidOptionError: it is not a str, bytes or PathLike, is empty, holds a NUL, or is a URL.
    """
    if isinstance(value, str | bytes | PathLike):
        try:
            found = os.fsdecode(os.fspath(value))
        except TypeError:  # of a path-like that returns something else
            found = ""
        if found.startswith("file:"):
            msg = f"{name}: expected a path, got the URL {found!r:.80}; leave 'file:' out"
            raise InvalidOptionError(msg)
        if found and "\0" not in found and _is_encodable(found):
            return os.path.expanduser(found)
    msg = f"{name}: expected a file's path, got {shown(value)}"
    raise InvalidOptionError(msg)


def _is_encodable(path: str) -> bool:
    """Return True if the system can be given a path: not if it holds a lone surrogate."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def checked_file(name: str, value: Any) -> str:
    """``value`` as a file path, as by ``checked_path``, and not the address of a server.

    Raises:
        InvalidOptionError: it is not; an address is not repeated, as it may hold a password.
    """
    found = checked_path(name, value)
    scheme, separator, _ = found.partition("://")
    if separator and scheme.isalpha():
        msg = f"{name}: expected a file's path, got an address; this works on files only"
        raise InvalidOptionError(msg)
    return found


def checked_optional_seconds(name: str, value: Any, *, may_be_0: bool = False) -> float | None:
    """``value`` if it is a number above 0, or 0 if that is allowed; None stays None.

    Raises:
        InvalidOptionError: it is not (neither NaN nor a bool is accepted).
    """
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_large = value > 0 or (may_be_0 and value == 0) if is_number else False
    if not is_large or (isinstance(value, int) and value > _SECONDS_MAX):
        least = "of at least 0" if may_be_0 else "above 0"
        msg = f"{name}: expected a number of seconds {least} or None, got {shown(value)}"
        raise InvalidOptionError(msg)
    return float(value) if isinstance(value, float) else int(value)


_SECONDS_MAX: Final = 2**53
"""Of an int: a larger one may not fit a float."""


def checked_share(name: str, value: Any) -> float:
    """``value`` as a float if it is a number between 0 and 1, inclusive.

    Raises:
        InvalidOptionError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        msg = f"{name}: expected a share between 0 and 1, got {shown(value)}"
        raise InvalidOptionError(msg)
    return float(value)


def checked_optional_share(name: str, value: Any) -> float | None:
    """``value`` if it passes ``checked_share`` and is above 0; None stays None."""
    if value is not None and not checked_share(name, value):
        msg = f"{name}: expected a share above 0, got {shown(value)}"
        raise InvalidOptionError(msg)
    return None if value is None else float(value)


def read_mapping(what: str, path: str | PathLike[str]) -> Any:
    """Read a mapping from a TOML file, or from JSON if the name ends in ``.json``.

    Raises:
        NotFoundError: there is no such file.
        InvalidOptionError: it is not valid TOML or JSON, or cannot be read.
    """
    name = checked_path(what, path)
    try:
        with open(name, encoding="utf-8") as file:
            text = file.read()
        if name.endswith(".json"):
            return json.loads(text)
        import tomllib  # noqa: PLC0415 - only for options read from files

        return tomllib.loads(text)
    except FileNotFoundError as exc:
        msg = f"{what}: there is no file {name!r}"
        raise NotFoundError(msg) from exc
    except (OSError, ValueError, RecursionError) as exc:
        msg = f"{what}: cannot read {name!r}: {exc}"
        raise InvalidOptionError(msg) from exc


def plain_message(item: Any) -> Any:
    """Return a message with objects of SDKs, at any depth, as the JSON that they stand for.

    Those are pydantic models, without the fields that are None, and dataclasses. Anything else is
    returned as it is, and so is a message without such objects.

    Raises:
        InvalidItemError: an object cannot be written as JSON.
    """
    try:
        return _plain(item)
    except RecursionError:
        return item  # whether JSON may be nested like this is judged where it is encoded
    except (TypeError, ValueError) as exc:
        msg = f"item: {type(item).__name__} cannot be written as JSON: {exc}"
        raise InvalidItemError(msg) from exc


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind is str or value is None or isinstance(value, type):
        return value
    if isinstance(value, Mapping):
        made = {key: _plain(entry) for key, entry in value.items()}
        is_same = all(made[key] is entry for key, entry in value.items())
        return value if is_same else made
    if isinstance(value, list | tuple):
        entries = [_plain(entry) for entry in value]
        is_same = all(new is entry for new, entry in zip(entries, value, strict=True))
        return value if is_same else entries
    if is_dataclass(value):
        held = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {name: _plain(entry) for name, entry in held if entry is not None}
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", exclude_none=True) if callable(dump) else value
