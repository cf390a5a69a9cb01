"""An agent's files: MemcoreBackend, which keeps them on the device, against files in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness import Effort, NotInstalled, Row, Target, absent, at_least, compare, race, scratch
from rivals_deepagents import STORE_BACKEND, store_backend

SIZES = (100, 2_000)
DURABILITY = "relaxed"
CONTENT = b"a line of a file\nanother line, number %d\n" * 12
LOG_BYTES = 400_000
Act = Callable[[Any], Any]


def tree(count: int) -> list[tuple[str, bytes]]:
    """Files in 50 directories of 7 directories each."""
    return [(_path(at), CONTENT.replace(b"%d", b"%d" % at)) for at in range(count)]


def _path(at: int) -> str:
    return f"/d{at % 50}/s{at % 7}/file{at}.{'py' if at % 3 else 'md'}"


def _looking(count: int) -> list[tuple[str, Act, Target | None]]:
    many = at_least(30.0) if count == SIZES[-1] else None
    return [
        ("ls of one directory", lambda files: files.ls("/d1"), many),
        ("glob, two thirds match", lambda files: files.glob("*.py"), many),
        ("glob, none matches", lambda files: files.glob("*.none"), many),
        ("grep, one file matches", lambda files: files.grep("number 77"), None),
        ("read", lambda files: files.read(_path(1)), None),
    ]


def _changing(count: int) -> list[tuple[str, Act, Target | None]]:
    many = at_least(30.0) if count == SIZES[-1] else None
    numbers: dict[int, int] = {}

    def one_more(files: Any) -> int:
        numbers[id(files)] = numbers.get(id(files), -1) + 1
        return numbers[id(files)]

    return [
        ("delete one file", lambda files: files.delete(_path(one_more(files))), many),
        ("write", lambda files: files.write(_path(2), "another text"), None),
        ("edit", lambda files: files.edit(_path(2), "text", "text"), None),
        ("write, then glob", _write_and_glob, None),
    ]


def _write_and_glob(files: Any) -> None:
    files.write("/d1/new.py", "text")
    files.glob("*.py")


def rows(effort: Effort) -> Iterator[Row]:
    """Looking and changing among 100 and 2,000 files; a history that grows at its end."""
    for size in SIZES:
        count = min(size, effort.items(size))
        questions = [*_looking(size), *_changing(size)]
        try:
            theirs = store_backend()
        except NotInstalled as error:
            for question, _, target in questions:
                yield absent(_named(question, count), STORE_BACKEND, error, target=target)
            continue
        with scratch() as place, _opened(place) as ours:
            for files in (ours, theirs):
                files.upload_files(tree(count))
            _same(ours, theirs)
            for question, act, target in questions:
                found = race(
                    lambda act=act, ours=ours: act(ours),
                    lambda act=act, theirs=theirs: act(theirs),
                    rounds=effort.rounds(40 if size == SIZES[0] else 20),
                )
                yield compare(
                    _named(question, count),
                    found,
                    STORE_BACKEND,
                    durability=DURABILITY,
                    faster=True,
                    target=target,
                )
    yield from _history(effort)


def _history(effort: Effort) -> Iterator[Row]:
    """What the summarization middleware does: download the history, write it with a new end."""
    question = f"offload to a history of {LOG_BYTES // 1000} kB"
    try:
        theirs = store_backend()
    except NotInstalled as error:
        yield absent(question, STORE_BACKEND, error)
        return
    path, end = "/conversation_history/s.md", "## Summarized\n\n" + "word " * 400

    def offload(files: Any) -> None:
        text = files.download_files([path])[0].content.decode()
        files.edit(path, text, text + end)

    with scratch() as place, _opened(place) as ours:
        for files in (ours, theirs):
            files.write(path, "a line\n" * (LOG_BYTES // 7))
        found = race(lambda: offload(ours), lambda: offload(theirs), rounds=effort.rounds(20))
        yield compare(question, found, STORE_BACKEND, durability=DURABILITY, faster=True)


def _opened(place: Path) -> Any:
    from memcore.adapters.deepagents import MemcoreBackend

    return MemcoreBackend.from_path(place / "memcore", durability=DURABILITY)


def _named(question: str, count: int) -> str:
    return f"{question}, {count:,} files"


def _same(ours: Any, theirs: Any) -> None:
    for pattern in ("*.py", "d1/**"):
        found = [{one["path"] for one in files.glob(pattern).matches} for files in (ours, theirs)]
        if found[0] != found[1] or not found[0]:
            raise AssertionError("the two do not find the same files")
