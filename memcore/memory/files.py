"""Files of a model in a user's memory: a tree of small texts that a model edits by itself.

A file is a note whose slot is its path, and a directory one whose slot ends with a slash. Each
change is a version, and what is deleted is archived with its versions. They are the model's word:
never active, so no search of what is known and no context shows them; only the tool that wrote them
does. The replies are those of the local file system of Anthropic's SDK for Python (MIT licence),
whose models know them; ``tests/conformance`` compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from memcore.errors import CallerError, OutpacedError
from memcore.memory.rows import (
    FILES_BY,
    FILES_SUBJECT,
    Book,
    MemoryVersion,
    read_entry,
    read_head,
    with_slot,
    write_entry,
    write_head,
)
from memcore.memory.tools import Answer, ToolHandle, reason_of
from memcore.memory.trust import NAME_CHARS_MAX, TEXT_BYTES_MAX, checked_contents
from memcore.rows.lifecycle import need_wanted

__all__ = [
    "FILES_MAX",
    "ROOT",
    "MemoryFiles",
    "has_place",
    "is_well_formed",
]


ROOT: Final = "/memories"
FILES_MAX: Final = 1000
"""Most files and directories of a user: a listing reads them all."""
_LINES_MAX: Final = 999_999
_LINE_WIDTH: Final = 6
_ARGUMENT_CHARS: Final = 4 * TEXT_BYTES_MAX
_FULL: Final = "There are {} files and directories already; delete some."
_DIRECTORY_SIZE: Final = "4K"
"""Size of a directory as most file systems have it."""
_LEVELS: Final = 2
_TRIES: Final = 16


# --- Paths and sizes ------------------------------------------------------------------------------


def _resolved(path: str) -> tuple[str, ...] | str:
    """Return the parts of a path below the root, or why it is refused.

    As in a file system, ``..`` may leave the root and come back.
    """
    if not path.startswith(ROOT):
        return f"Path must start with /memories, got: {path}"
    found: list[str] = ["memories"]
    for part in path[len(ROOT) :].split("/"):
        if part == "..":
            if not found:
                return f"Path {path} would escape /memories directory"
            found.pop()
        elif part not in ("", "."):
            found.append(part)
    if found[:1] != ["memories"]:
        return f"Path {path} would escape /memories directory"
    return tuple(found[1:])


def _slot(parts: tuple[str, ...], *, is_directory: bool = False) -> str:
    return "/".join((ROOT, *parts)) + ("/" if is_directory else "")


def _size(count: int) -> str:
    """Return a number of bytes in powers of 1024, at most one digit behind the point."""
    if count == 0:
        return "0B"
    at = min((count.bit_length() - 1) // 10, 3)
    size = count / 1024**at
    return f"{int(size)}{'BKMG'[at]}" if size == int(size) else f"{size:.1f}{'BKMG'[at]}"


# --- The tree, as one transaction has it, and changes of it ---------------------------------------


class _Change(NamedTuple):
    """Entry to write: a new one, or another version of one."""

    before: MemoryVersion | None
    after: MemoryVersion

    @property
    def is_named_anew(self) -> bool:
        """True if it gives the entry another path."""
        return self.before is None or self.after.slot != self.before.slot

    @property
    def is_told_anew(self) -> bool:
        """True if it gives the entry another text."""
        return self.before is None or self.after.text != self.before.text


_Tree = Book | None
"""Memory in which one transaction has the files; None: nothing is stored yet."""


def _entries(tree: _Tree, slot: str) -> Iterator[MemoryVersion]:
    """Yield the entries with a slot, files or directories: one, unless the file is damaged."""
    for number in () if tree is None else with_slot(tree, FILES_SUBJECT, slot):
        assert tree is not None  # noqa: S101 - or there is no number
        record = read_entry(tree.txn, tree.scope, number)
        if record is not None and record.is_file and record.slot == slot:
            yield record


def _entry(tree: _Tree, slot: str) -> MemoryVersion | None:
    """Return the entry with a slot: a file, or a directory. The newest counts."""
    return next(_entries(tree, slot), None)


def _file(tree: _Tree, parts: tuple[str, ...]) -> MemoryVersion | None:
    """Return a file; None if there is none."""
    return _entry(tree, _slot(parts)) if parts else None


def _is_directory(tree: _Tree, parts: tuple[str, ...]) -> bool:
    """Return True if there is a directory; the root always is one."""
    return not parts or _entry(tree, _slot(parts, is_directory=True)) is not None


def _exists(tree: _Tree, parts: tuple[str, ...]) -> bool:
    """Return True if there is a file or a directory."""
    return _is_directory(tree, parts) or _file(tree, parts) is not None


def _below(tree: _Tree, parts: tuple[str, ...]) -> list[MemoryVersion]:
    """Return all entries below a directory, by slot, the newest of each first."""
    prefix = _slot(parts, is_directory=True)
    found: list[MemoryVersion] = []
    for number in () if tree is None else with_slot(tree, FILES_SUBJECT, ""):
        assert tree is not None  # noqa: S101 - or there is no number
        record = read_entry(tree.txn, tree.scope, number)
        slot = "" if record is None else record.slot or ""
        if record is not None and slot.startswith(prefix) and slot != prefix:
            found.append(record)
    return sorted(found, key=lambda each: (each.slot or "", -each.id))


def _whole(tree: _Tree, parts: tuple[str, ...]) -> list[MemoryVersion]:
    """Return all entries of a file, or those of a directory with all that is in it."""
    own = list(_entries(tree, _slot(parts)))
    return own or [*_entries(tree, _slot(parts, is_directory=True)), *_below(tree, parts)]


def _count(tree: _Tree) -> int:
    """Return the number of files and directories."""
    return 0 if tree is None else sum(1 for _ in with_slot(tree, FILES_SUBJECT, ""))


def _new_directories(tree: _Tree, parts: tuple[str, ...]) -> list[_Change]:
    """Return the changes that make a directory and those above it."""
    made: list[_Change] = []
    for stop in range(1, len(parts) + 1):
        if not _is_directory(tree, parts[:stop]):
            slot = _slot(parts[:stop], is_directory=True)
            made.append(_Change(None, _new(slot, slot)))
    return made


def _blocked_by(tree: _Tree, parts: tuple[str, ...]) -> str:
    """Return why nothing can be made at a path: a part above it is a file; empty if not."""
    for stop in range(1, len(parts)):
        if _file(tree, parts[:stop]) is not None:
            return f"{_slot(parts[:stop])} is a file, not a directory"
    return ""


def has_place(book: Book, record: MemoryVersion) -> bool:
    """Return True if a file or directory may arrive: nothing is at its path, and there is room."""
    slot = record.slot or ""
    parts = tuple(slot.rstrip("/").split("/")[2:])
    at = (_slot(parts), _slot(parts, is_directory=True))
    others = [each for path in at for each in _entries(book, path) if each.id != record.id]
    is_known = read_entry(book.txn, book.scope, record.id) is not None
    is_full = not is_known and _count(book) >= FILES_MAX
    return not (others or is_full or _blocked_by(book, parts))


def is_well_formed(record: MemoryVersion) -> bool:
    """Return True if a version of a file is as this module writes it."""
    slot = record.slot or ""
    parts = _resolved(slot)
    return (
        (record.kind, record.subject, record.sources) == ("note", FILES_SUBJECT, ())
        and record.status in {"quarantined", "archived"}
        and isinstance(parts, tuple)
        and bool(parts)
        and slot == _slot(parts, is_directory=slot.endswith("/"))
        and len(_slot(parts, is_directory=True)) <= NAME_CHARS_MAX
    )


def _new(slot: str, text: str) -> MemoryVersion:
    return MemoryVersion(
        id=0, version=0, kind="note", by="assistant", status="quarantined", recorded_ms=0,
        text=text, subject=FILES_SUBJECT, slot=slot, extractor=FILES_BY,
    )  # fmt: skip


def _archived(record: MemoryVersion) -> _Change:
    return _Change(record, record._replace(status="archived"))


class _Plan(NamedTuple):
    """Reply of a command, and what it changes."""

    reply: str
    changes: tuple[_Change, ...] = ()
    failed: bool = False
    """True if the reply is an error, though something changes."""


_Planned = _Plan | Answer
"""Plan of a command, or the answer that refuses it."""
_Planner = Callable[[_Tree], _Planned]


class _Judged(NamedTuple):
    """Contents of a plan that guards and redaction let pass."""

    slots: frozenset[str]
    texts: Mapping[str, str]
    """By text: the text to be stored instead."""


def _refused(text: str) -> Answer:
    return Answer(text, failed=True)


# --- Commands -------------------------------------------------------------------------------------


class MemoryFiles:
    """Commands of Anthropic's memory tool over a user's memory; each is one commit.

    Each returns its reply; what cannot be done is a failed answer with the words of the SDK.

    Args:
        handle: the handle whose memory it is.
        name: names the tree: what is refused is told with it.
    """

    def __init__(self, handle: ToolHandle, *, name: str = ROOT) -> None:
        self._handle = handle
        self._name = name

    def run(self, command: str, **given: Any) -> Answer:
        """Execute a command; wrong arguments and refusals are failed answers.

        Args:
            command: ``view``, ``create``, ``str_replace``, ``insert``, ``delete``, ``rename`` or
                ``clear``.
            given: the arguments of the command.

        Raises:
            StorageError, ClosedError
        """
        plan = _PLANS[command]
        wrong = _wrong_with(given)
        if wrong:
            return _refused(wrong)
        try:
            return self._committed(lambda tree: plan(tree, given), is_read=command == "view")
        except CallerError as error:
            reason, told = reason_of(error)
            if not reason:
                raise
            return _refused(f"Error ({reason}): {told}")

    def _committed(self, plan: _Planner, *, is_read: bool) -> Answer:
        """Plan on a snapshot, and commit what the same plan is then; again if it is another.

        Guards and redaction may take long and may call anything, so they judge outside the
        transaction; what is written is built inside, from what is stored there.
        """
        for _ in range(_TRIES):
            # Without a scope nothing is stored of this user yet, or the user opted out.
            planned = self._handle.read(partial(_planned, plan, self._handle.seed), None)
            planned = plan(None) if planned is None else planned
            if isinstance(planned, Answer):
                return planned
            if is_read or not planned.changes:
                return Answer(planned.reply, failed=planned.failed)
            judged = self._judged(planned.changes)
            try:
                self._handle.change(
                    partial(_apply, plan, planned, judged, self._handle.now_ms()), ensure=True
                )
            except OutpacedError:
                continue
            return Answer(planned.reply, failed=planned.failed)
        return _refused(f"The files in {self._name} kept changing; try again.")

    def _judged(self, changes: Iterable[_Change]) -> _Judged:
        """Return what of some changes may be stored: judged by guards, redacted, within bounds."""
        slots: set[str] = set()
        texts: dict[str, str] = {}
        for change in changes:
            slot, text = change.after.slot or "", change.after.text
            if change.is_named_anew:
                self._handle.named("slot", slot)
                slots.add(slot)
            if change.is_told_anew and text not in texts:
                made = str(self._handle.admitted({"text": text})["text"]) if text else ""
                texts[text] = checked_contents(made)
        return _Judged(frozenset(slots), texts)


def _planned(plan: _Planner, seed: bytes, txn: Any, scope: int) -> _Planned:
    return plan(Book(txn, scope, seed))


def _apply(
    plan: _Planner, planned: _Plan, judged: _Judged, now_ms: int, book: Book
) -> MemoryVersion:
    """Plan on what is stored now and write it; return the last entry.

    Raises:
        OutpacedError: the files changed meanwhile so that the reply would be another, or that
            something would be written which was not judged.
        OptedOutError
    """
    need_wanted(book.txn, book.scope)
    again = plan(book)
    if (
        not isinstance(again, _Plan)
        or not again.changes
        or again._replace(changes=()) != planned._replace(changes=())
    ):
        raise OutpacedError(_CHANGED)
    changes = [_as_judged(change, judged) for change in again.changes]
    head = read_head(book.txn, book.scope)
    number, now_ms = head.next_id, max(now_ms, head.last_ms)
    new = sum(change.before is None for change in changes)
    write_head(book.txn, book.scope, head._replace(next_id=number + new, last_ms=now_ms))
    for before, after in changes:
        made = after._replace(
            version=1 if before is None else before.version + 1,
            recorded_ms=now_ms if before is None else max(now_ms, before.recorded_ms),
        )
        if before is None:
            made = made._replace(id=number)
            number += 1
        made = write_entry(book, made, before)
    return made


_CHANGED: Final = "the files changed meanwhile"


def _as_judged(change: _Change, judged: _Judged) -> _Change:
    """Return a change with the text that may be stored.

    Raises:
        OutpacedError: its path or its text was not judged.
    """
    after = change.after
    if change.is_named_anew and after.slot not in judged.slots:
        raise OutpacedError(_CHANGED)
    if not change.is_told_anew:
        return change
    if after.text not in judged.texts:
        raise OutpacedError(_CHANGED)
    return change._replace(after=after._replace(text=judged.texts[after.text]))


def _wrong_with(given: dict[str, Any]) -> str:
    """Return what is wrong with the arguments of a command; empty if nothing is."""
    for name, value in given.items():
        if name == "insert_line":
            if type(value) is not int:
                return f"{name}: expected a whole number"
        elif name == "view_range":
            if value is not None and not (
                isinstance(value, list | tuple) and all(type(each) is int for each in value)
            ):
                return f"{name}: expected two line numbers"
        elif not isinstance(value, str) or len(value) > _ARGUMENT_CHARS:
            return f"{name}: expected a text of at most {_ARGUMENT_CHARS} characters"
    return ""


def _placed(given: dict[str, Any], name: str = "path") -> tuple[str, ...] | Answer:
    """Return the parts of a path in the arguments, or the answer that refuses it."""
    found = _resolved(given[name])
    if isinstance(found, str):
        return _refused(found)
    if len(_slot(found, is_directory=True)) > NAME_CHARS_MAX:
        return _refused(f"Path {given[name]} has more than {NAME_CHARS_MAX} characters")
    return found


def _view(tree: _Tree, given: dict[str, Any]) -> _Planned:
    parts, path = _placed(given), given["path"]
    if isinstance(parts, Answer):
        return parts
    file = _file(tree, parts)
    if file is None and (_is_directory(tree, parts) or _below(tree, parts)):
        return _Plan(_listing(tree, parts, path))
    if file is None:
        return _refused(f"The path {path} does not exist. Please provide a valid path.")
    lines = file.text.split("\n")
    if len(lines) > _LINES_MAX:
        return _refused(f"File {path} exceeds maximum line limit of 999,999 lines.")
    first, asked = 0, given.get("view_range")
    if asked and len(asked) == 2:  # noqa: PLR2004 - the first and the last line
        first = max(1, asked[0]) - 1
        lines = lines[first : len(lines) if asked[1] == -1 else asked[1]]
    numbered = _numbered(lines, first + 1)
    return _Plan(f"Here's the content of {path} with line numbers:\n" + "\n".join(numbered))


def _numbered(lines: list[str], first: int) -> list[str]:
    return [f"{at:>{_LINE_WIDTH}}\t{line}" for at, line in enumerate(lines, first)]


def _listing(tree: _Tree, parts: tuple[str, ...], path: str) -> str:
    head = (
        f"Here're the files and directories up to 2 levels deep in {path}, excluding hidden items:"
    )
    prefix = _slot(parts, is_directory=True)
    files = {each.slot or "": each.text for each in reversed(_below(tree, parts))}
    for slot in list(files):  # an import may bring a file without the entry of its directory
        steps = slot[len(prefix) :].rstrip("/").split("/")[:-1]
        files |= {f"{prefix}{'/'.join(steps[:at])}/": "" for at in range(1, len(steps) + 1)}
    told = [f"{_DIRECTORY_SIZE}\t{path}"]
    found: list[tuple[list[str], str]] = []
    for slot, text in files.items():
        steps = slot[len(prefix) :].rstrip("/").split("/")
        if len(steps) > _LEVELS or any(step.startswith(".") for step in steps):
            continue
        is_directory = slot.endswith("/")
        size = _DIRECTORY_SIZE if is_directory else _size(len(text.encode()))
        found.append((steps, f"{size}\t{path}/{'/'.join(steps)}{'/' if is_directory else ''}"))
    told += [line for _, line in sorted(found)]
    return f"{head}\n" + "\n".join(told)


def _create(tree: _Tree, given: dict[str, Any]) -> _Planned:
    parts, path = _placed(given), given["path"]
    if isinstance(parts, Answer):
        return parts
    if _exists(tree, parts):
        return _refused(f"File {path} already exists")
    blocked = _blocked_by(tree, parts)
    if blocked:
        return _refused(blocked)
    made = _new_directories(tree, parts[:-1])
    if _count(tree) + len(made) >= FILES_MAX:
        return _refused(_FULL.format(FILES_MAX))
    made.append(_Change(None, _new(_slot(parts), given["file_text"])))
    return _Plan(f"File created successfully at: {path}", tuple(made))


def _edited(
    tree: _Tree,
    given: dict[str, Any],
    edit: Callable[[str, dict[str, Any]], tuple[str, str] | Answer],
) -> _Planned:
    """Plan a new text of a file: ``edit`` returns it with the reply."""
    parts, path = _placed(given), given["path"]
    if isinstance(parts, Answer):
        return parts
    file = _file(tree, parts)
    if file is None and not _is_directory(tree, parts):
        return _refused(f"The path {path} does not exist. Please provide a valid path.")
    if file is None:
        return _refused(f"The path {path} is not a file.")
    made = edit(file.text, given)
    if isinstance(made, Answer):
        return made
    text, reply = made
    changes = () if text == file.text else (_Change(file, file._replace(text=text)),)
    return _Plan(reply, changes)


def _str_replace(tree: _Tree, given: dict[str, Any]) -> _Planned:
    return _edited(tree, given, _replaced)


def _replaced(text: str, given: dict[str, Any]) -> tuple[str, str] | Answer:
    old, path = given["old_str"], given["path"]
    count = text.count(old)
    if count == 0:
        return _refused(
            f"No replacement was performed, old_str `{old}` did not appear verbatim in {path}."
        )
    if count > 1:
        lines = ", ".join(map(str, _lines_with(text, old)))
        return _refused(
            f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines: "
            f"{lines}. Please ensure it is unique"
        )
    at = text[: text.find(old)].count("\n")
    made = text.replace(old, given["new_str"])
    lines_now = made.split("\n")
    start = max(0, at - 2)
    shown = _numbered(lines_now[start : at + 3], start + 1)
    head = "The memory file has been edited. Here is the snippet showing the change "
    return made, head + "(with line numbers):\n" + "\n".join(shown)


def _lines_with(text: str, old: str) -> Iterator[int]:
    """Yield the line of each occurrence, overlapping ones too. Takes linear time."""
    line, counted, at = 1, 0, text.find(old)
    while at >= 0:
        line += text.count("\n", counted, at)
        counted = at
        yield line
        at = text.find(old, at + 1)


def _insert(tree: _Tree, given: dict[str, Any]) -> _Planned:
    return _edited(tree, given, _inserted)


def _inserted(text: str, given: dict[str, Any]) -> tuple[str, str] | Answer:
    lines, at = text.split("\n"), given["insert_line"]
    if lines[-1] == "":
        lines.pop()
    if not 0 <= at <= len(lines):
        return _refused(
            f"Invalid `insert_line` parameter: {at}. "
            f"It should be within the range [0, {len(lines)}]."
        )
    lines.insert(at, given["insert_text"].rstrip("\n"))
    made = "\n".join(lines)
    return made if made.endswith(
        "\n"
    ) else f"{made}\n", f"The file {given['path']} has been edited."


def _delete(tree: _Tree, given: dict[str, Any]) -> _Planned:
    parts, path = _placed(given), given["path"]
    if isinstance(parts, Answer):
        return parts
    if not parts:
        return _refused("Cannot delete the /memories directory itself")
    gone = _whole(tree, parts)
    if not gone:
        return _refused(f"The path {path} does not exist")
    return _Plan(f"Successfully deleted {path}", tuple(map(_archived, gone)))


def _rename(tree: _Tree, given: dict[str, Any]) -> _Planned:
    old, new = _placed(given, "old_path"), _placed(given, "new_path")
    if isinstance(old, Answer) or isinstance(new, Answer):
        return old if isinstance(old, Answer) else new  # type: ignore[return-value] # one of both
    if not old:
        return _refused("Cannot rename the /memories directory itself")
    if _exists(tree, new):
        return _refused(f"The destination {given['new_path']} already exists")
    blocked = _blocked_by(tree, new)
    made = [] if blocked else _new_directories(tree, new[:-1])
    if made and _count(tree) + len(made) > FILES_MAX:
        made, blocked = [], _FULL.format(FILES_MAX)
    newest: dict[str, MemoryVersion] = {}
    whole = _whole(tree, old)
    for each in whole:
        newest.setdefault(each.slot or "", each)
    if not whole:  # as in a file system, the directories are there
        reply = f"The path {given['old_path']} does not exist"
        return _Plan(reply, tuple(made), failed=True)
    moved = [_moved(each, old, new) for each in newest.values()]
    hidden = [_archived(each) for each in whole if each is not newest[each.slot or ""]]
    blocked = blocked or ("the directory cannot hold itself" if new[: len(old)] == old else "")
    if max(len(change.after.slot or "") for change in moved) > NAME_CHARS_MAX:
        blocked = f"Path {given['new_path']} has more than {NAME_CHARS_MAX} characters"
    if blocked:
        return _refused(blocked)
    reply = f"Successfully renamed {given['old_path']} to {given['new_path']}"
    return _Plan(reply, (*made, *moved, *hidden))


def _moved(record: MemoryVersion, old: tuple[str, ...], new: tuple[str, ...]) -> _Change:
    slot = _slot(new) + (record.slot or "")[len(_slot(old)) :]
    text = slot if slot.endswith("/") else record.text
    return _Change(record, record._replace(slot=slot, text=text))


def _clear(tree: _Tree, _: dict[str, Any]) -> _Planned:
    return _Plan("All memory cleared", tuple(map(_archived, _below(tree, ()))))


_PLANS: Final[dict[str, Callable[[_Tree, dict[str, Any]], _Planned]]] = {
    "view": _view,
    "create": _create,
    "str_replace": _str_replace,
    "insert": _insert,
    "delete": _delete,
    "rename": _rename,
    "clear": _clear,
}
