"""States in an export: versions of a session's fields, and the fields that sessions share.

The first line holds the values at the oldest known counter, each later one what was written and
deleted between the previous known counter and its own:

```
{"state":{"counter":1,"values":{...},"floor":1,"moments":[[1,1],[4,2]]}}
{"state":{"counter":2,"set":{...},"deleted":["name"]}}
```

``floor`` is the counter from which on all are known; ``moments`` record which counter was in force
while a seq was the next one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field
from itertools import chain, pairwise
from typing import Any, Final

from memcore.codec.values import check_json, encode_json
from memcore.errors import InvalidItemError, InvalidOptionError, NotFoundError
from memcore.exchange.lines import VERSION, checked_fields, checked_numbers, portable_json, refuse
from memcore.log.checkpoint import known_counters
from memcore.maintenance.check import label_of
from memcore.records import record
from memcore.rows import names
from memcore.session import Engine
from memcore.session.content_filter import admitted_fields
from memcore.state import (
    APP,
    USER,
    FieldVersion,
    StateChange,
    StateHeader,
    StateStep,
    moments_of,
    packed_field,
    prefix_of,
    read_header,
    value_at,
    values_at,
    versions_of,
    write_past,
)
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "ArrivedState",
    "Owner",
    "StateLines",
    "export_shared",
    "import_shared",
    "is_shared",
]


# --- State of a session in an export: its whole known history, one line per counter ---------------

Place = tuple[int, int]
_PAIR: Final = 2


@record(slots=True)
class StateLines:
    """Lines of a session's state; their values are read as they are written."""

    place: Place
    counters: list[int]
    floor: int
    moments: list[tuple[int, int]]
    written: dict[int, list[str]]
    deleted: dict[int, list[str]]

    @classmethod
    def of(cls, txn: ReadTxn, place: Place) -> StateLines:
        """Collect the lines from a snapshot; none if nothing was ever written.

        Raises:
            CorruptValueError: a row is damaged.
        """
        header = read_header(txn, *place)
        if not header.counter:
            return cls(place, [], 0, [], {}, {})
        written, deleted = defaultdict[int, list[str]](list), defaultdict[int, list[str]](list)
        for name, seen, version in _seen(txn, place, header):
            if version is None:
                deleted[seen].append(name)
            else:
                written[seen].append(name)
        known = {*written, *deleted, *header.kept, header.floor, header.counter}
        counters = sorted({*known, *known_counters(txn, *place)})
        moments = [*moments_of(txn, *place)]
        return cls(place, counters, header.floor, moments, dict(written), dict(deleted))

    def line(self, txn: ReadTxn, counter: int) -> bytes:
        """Return one line, with its newline.

        Raises:
            NotFoundError: the session was deleted, or the state trimmed, in the meantime.
        """
        if counter == self.counters[0]:
            found = values_at(txn, *self.place, counter)
            values = {key: version.value() for key, version in found.items()}
            body: dict[str, Any] = {"counter": counter, "values": values, "floor": self.floor}
            body["moments"] = [list(moment) for moment in self.moments]
            return portable_json({"state": body}) + b"\n"
        if not read_header(txn, *self.place).holds(counter):
            msg = f"the state at counter {counter} is not known any more"
            raise NotFoundError(msg)
        written: dict[str, Any] = {}
        for name in self.written.get(counter, ()):
            version = value_at(txn, *self.place, name, counter)
            if version is not None:
                written[name] = version.value()
        body = {"counter": counter, "set": written, "deleted": self.deleted.get(counter, [])}
        return portable_json({"state": body}) + b"\n"


def _seen(
    txn: ReadTxn, place: Place, header: StateHeader
) -> Iterator[tuple[str, int, FieldVersion | None]]:
    """Yield field, counter and version (None: deleted) wherever a visible value changes."""
    shown: tuple[str, int, bytes] | None = None
    end = ("", 0, None)  # no field has this name
    for (name, counter, version), after in pairwise(chain(versions_of(txn, *place), (end,))):
        stop = after[1] if after[0] == name else header.counter + 1
        seen = counter
        if counter < header.floor:
            older = bisect_left(header.kept, counter)
            seen = header.kept[older] if older < len(header.kept) else header.floor
        if seen >= stop:
            continue  # no known counter shows it
        if version is not None and not version.is_deletion:
            now = (name, version.flags, version.body)
        else:
            now = None
        if now is None and shown is not None and shown[0] == name:
            yield name, seen, None
        elif now is not None and now != shown:
            yield name, seen, version
        shown = now


@record(slots=True)
class ArrivedState:
    """State of a session being imported."""

    steps: list[StateStep] = field(default_factory=list)
    floor: int | None = None
    """None: apart from the counters of the lines, only the last one is known."""
    moments: list[tuple[int, int]] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    """Fields that have a value after the lines read so far."""

    def take(self, found: Any) -> None:
        """Read one line.

        Raises:
            InvalidItemError: it is invalid, or not the line expected next.
        """
        said = checked_fields("state", found)
        counter = said["counter"]
        if self.steps and counter <= self.steps[-1].counter:
            refuse(f"state.counter: expected more than {self.steps[-1].counter}, got {counter}")
        if said["values"] is not None or not self.steps:
            written = _values(said["values"])
            gone = sorted(self._names - written.keys())
        else:
            written, gone = _values(said["set"]), self._fields(said["deleted"])
        if written and not counter:
            refuse("state: at counter 0 there are no values")
        if not self.steps:
            self._begin(said, counter)
        self._names = (self._names - {*gone}) | written.keys()
        self.steps.append(StateStep(counter, written, gone))

    def _begin(self, said: Mapping[str, Any], counter: int) -> None:
        self.floor = said["floor"]
        if self.floor is not None and self.floor < counter:
            refuse(f"state.floor: expected at least {counter}, got {self.floor}")
        last = (0, 0)
        for pair in said["moments"]:
            numbers = checked_numbers("state.moments", pair)
            if len(numbers) != _PAIR or not (last[0] < numbers[0] and last[1] <= numbers[1]):
                refuse(f"state.moments: expected seqs and counters that ascend, got {pair!r:.40}")
            last = (numbers[0], numbers[1])
            self.moments.append(last)

    def _fields(self, found: Any) -> list[str]:
        if not isinstance(found, list) or not all(
            isinstance(name, str) and name in self._names for name in found
        ):
            refuse(f"state.deleted: expected names of fields, got {found!r:.40}")
        return found

    def finish(self, next_seq: int) -> None:
        """Validate the whole after the last line.

        Raises:
            InvalidItemError: the lines do not fit each other, or the session.
        """
        last = self.steps[-1].counter if self.steps else 0
        if self.floor is not None and self.floor > last:
            refuse(f"state.floor: expected at most {last}, got {self.floor}")
        if self.moments and (self.moments[-1][0] > next_seq or self.moments[-1][1] > last):
            refuse(f"state.moments: {list(self.moments[-1])} is beyond seq {next_seq} or {last}")

    @property
    def counters(self) -> Collection[int | None]:
        """Counters whose values were read."""
        return {step.counter for step in self.steps} or {0}

    def write(self, txn: Txn, place: Place) -> None:
        """Write the rows of a session that has no state."""
        if self.steps:
            write_past(txn, place, self.steps, floor=self.floor, moments=self.moments)


def _values(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        refuse(f"state: expected an object with a counter and values, got {found!r:.40}")
    for key in found:
        packed_field(key)
        if prefix_of(key):
            refuse(f"state.values: {key!r:.80} has a prefix; expected fields of the session's own")
    try:
        check_json(found)
    except ValueError as exc:
        refuse(f"state.values{exc}")
    return found


# --- Shared states in an export: a line for each user, and for each application -------------------
#   | {"memcore":1,"shared":{"app":"a","user":"u","values":{...}}}
#   | {"memcore":1,"shared":{"app":"a","user":null,"values":{...}}}

Owner = tuple[str, str]
"""Application and user; without a user, the application itself."""
_FIELD = "shared"


def is_shared(found: object) -> bool:
    """Return True if a parsed line holds a state that sessions share."""
    return isinstance(found, dict) and _FIELD in found


def export_shared(
    engine: Engine,
    *,
    user: str | None,
    app: str | None,
    form: str,
    left_out: Callable[[str], None] | None,
) -> Iterator[bytes]:
    """Yield the lines of one user's state, or of all users' and applications'.

    Raises:
        InvalidOptionError: the format has no place for them, and ``left_out`` is None.
        CorruptValueError: a row is damaged.
    """

    def owners(txn: ReadTxn) -> list[Owner]:
        users = [(found, its) for _, found, its in names.scopes(txn) if user in (None, its)]
        apps = [] if user is not None else [(found, "") for _, found in names.app_scopes(txn)]
        return [owner for owner in (*users, *apps) if app in (None, owner[0])]

    for owner in engine.store.read(owners):
        values = engine.store.read(lambda txn, owner=owner: _values_sharing(txn, owner))  # type: ignore[misc]
        if not values:
            continue
        if form == "jsonl":
            body = {"app": owner[0], "user": owner[1] or None, "values": values}
            yield portable_json({"memcore": VERSION, _FIELD: body}) + b"\n"
        elif left_out is None:
            msg = f"left out {label_of(*owner)}; export it as jsonl, or say where to list what is "
            raise InvalidOptionError(msg + "left out (left_out=)")
        else:
            left_out(f"left out {label_of(*owner)}")


def _values_sharing(txn: ReadTxn, owner: Owner) -> dict[str, Any]:
    scope = _scope_of(txn, owner)
    found = {} if scope is None else values_at(txn, scope, 0)
    return {key: version.value() for key, version in found.items()}


def _scope_of(txn: ReadTxn, owner: Owner) -> int | None:
    app, user = owner
    return names.scope_of(txn, app, user) if user else names.app_scope_of(txn, app)


def import_shared(
    engine: Engine, found: Mapping[str, Any], rename: Callable[[Owner], Owner]
) -> None:
    """Store the fields of a line that the state lacks; existing ones are unchanged.

    Raises:
        InvalidItemError: it is not such a line, or the state has other values.
        InvalidUpdateError, InvalidOptionError: a name or a value is invalid.
    """
    if found.get("memcore") != VERSION:
        refuse(f"memcore: expected version {VERSION} of the export format")
    line = checked_fields(_FIELD, found[_FIELD])
    app, user, values = line["app"], line["user"], line["values"]
    names.check_name(app, "app")
    if user is not None:
        names.check_name(user, "user")
    owner = rename((app, user or ""))
    if user is not None:
        names.check_name(owner[1], "user")  # an empty one would make it readable by all
    if engine.write_filter is not None:
        scope_filter = engine.write_filter.at(*owner)
        values = admitted_fields(scope_filter, values, USER if owner[1] else APP)

    def closure(txn: Txn) -> list[str]:
        scope = _scope_of(txn, owner) or 0
        there = values_at(txn, scope, 0)
        others = [
            key
            for key in values.keys() & there.keys()
            if (there[key].body, there[key].flags) != encode_json(values[key])
        ]
        change = StateChange(None)
        change.update({key: value for key, value in values.items() if key not in there})
        writer = change.prepare(txn, scope, 0)
        if not writer.is_idle:
            ensure = names.ensure_scope(txn, *owner) if owner[1] else None
            writer.write(names.ensure_app_scope(txn, owner[0]) if ensure is None else ensure)
        return sorted(others)

    StateChange(None).update(values)  # refuses invalid values before anything is stored
    others = engine.store.transact(closure)
    if others:
        shown = ", ".join(f"{key!r:.40}" for key in others[:5])
        msg = f"{label_of(*owner)} has other values of {shown}: they stay"
        raise InvalidItemError(msg)
