"""Hostile files under every verb of the command line and every adapter.

Each image is given, in a process of its own, to the verbs that read, to those that write (each on
the image as it was), and to the adapters whose frameworks are installed. A process that dies of a
signal, takes more than ``CPU_SECONDS`` for one of them or waits for as long, takes memory or file
space without end, or runs what the file names is a finding, and so is a verb that calls it a bug,
an adapter that raises anything untyped, and an export or an adapter that has what nobody stored.

What LMDB takes on trust is the residual, as in ``hostile``: an image that a verifying opening
refuses may end the process of an adapter, which opens it without one. No verb may be ended: they
verify, or judge the file themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import functools
import gc
import io
import json
import os
import platform
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import memcore
from memcore.cli import main as command
from memcore.errors import InternalError, MemcoreError
from memcore.store import steady

from .hostile import (
    CPU_SECONDS,
    FILE_BYTES,
    MEMORY_BYTES,
    RESIDENT_BYTES,
    Laboratory,
    resident_bytes,
)
from .hostile_anatomy import anatomy
from .hostile_mutators import mutate
from .hostile_reading import Atlas, Observed
from .hostile_specimens import BOOT, Specimen, frozen, turn
from .outcome import Outcome, Part, Plan, Say

IMAGES_SHORT, IMAGES_LONG = 40, 10_000
IMAGES_A_PART = 250
PATIENCE_SECONDS = 300.0
"""Of the whole image, by the clock: it is never reached but by who waits for ever."""
SPACE_BYTES = 65 * 1024**3
"""Of addresses: the command line maps 64 GiB of them, as everybody does by default."""
SESSIONS_READ = 8
"""Of many that are alike."""
CODES = frozenset((0, 1, 3, 4, 5, 6, 7))
"""Exit codes: neither a bug (70) nor a mistake in this list (2)."""
ALL = 99
"""Verbs and adapters that an image is given beside those in ``ALWAYS``, if there are as many."""
ADAPTERS = ("langgraph", "deepagents", "agents", "google.adk")

RUNS = frozenset(
    ("os.system", "os.exec", "subprocess.Popen", "os.posix_spawn", "os.fork", "pickle.find_class")
)
"""Audited events by which a process runs what somebody names."""
ALWAYS = ("check", "salvage", "doctor")
READING = (
    ["check", "--store", "{store}"],
    ["doctor", "--store", "{store}"],
    ["salvage", "{store}", "--to", "{beside}-saved"],
    ["stats", "--store", "{store}"],
    ["ls", "--store", "{store}"],
    ["tree", "--store", "{store}"],
    ["show", "{session}", "--store", "{store}"],
    ["diff", "--store", "{store}", "{session}", "{session}"],
    ["context", "{session}", "--store", "{store}"],
    ["state", "{session}", "--store", "{store}"],
    ["kv", "notes", "--user", "u2", "--store", "{store}"],
    ["rewind", "{session}@1", "--dry-run", "--store", "{store}"],
    ["uncompact", "{session}", "--dry-run", "--store", "{store}"],
    ["delete", "{session}", "--dry-run", "--store", "{store}"],
    ["retention", "show", "--store", "{store}"],
    ["hold", "--store", "{store}"],
    ["prune", "--dry-run", "--store", "{store}"],
    ["sweep", "--dry-run", "--store", "{store}"],
    ["redact", "--dry-run", "--store", "{store}"],
    ["compact", "{session}", "--force", "--dry-run", "--store", "{store}"],
    ["repair", "{session}", "--dry-run", "--store", "{store}"],
    ["recover", "--store", "{store}", "{session}", "--dry-run"],
    ["export", "--all", "--to", "{beside}-lines", "--store", "{store}"],
    ["backup", "{beside}-copy", "--store", "{store}"],
)
WRITING = (
    ["compact", "{session}", "--force", "--yes", "--store", "{store}"],
    ["repair", "{session}", "--yes", "--store", "{store}"],
    ["recover", "--store", "{store}", "{session}", "--yes"],
    ["checkpoint", "{session}", "here", "--store", "{store}"],
    ["fork", "{session}", "forked", "--store", "{store}"],
    ["state", "{session}", "f", "--set", "1", "--yes", "--store", "{store}"],
    ["rewind", "{session}@1", "--yes", "--store", "{store}"],
    ["uncompact", "{session}", "--yes", "--store", "{store}"],
    ["recount", "--all", "--counter", "bytes/3", "--store", "{store}"],
    ["prune", "--yes", "--store", "{store}"],
    ["sweep", "--yes", "--store", "{store}"],
    ["redact", "--yes", "--store", "{store}"],
    ["copy-compact", "--store", "{store}"],
    ["delete", "{session}", "--yes", "--store", "{store}"],
    ["erase", "u2", "--yes", "--store", "{store}"],
    ["restore", "{store}", "--store", "{beside}-restored"],
)


@dataclass(slots=True)
class Verdict:
    """What became of one image."""

    findings: list[str] = field(default_factory=list)
    codes: dict[str, int] = field(default_factory=dict)


def parts(plan: Plan) -> list[Part]:
    """All verbs and adapters on ``IMAGES_SHORT`` or ``IMAGES_LONG`` images."""
    images = range(plan.cases(IMAGES_SHORT, IMAGES_LONG))
    found = []
    for start in images[::IMAGES_A_PART]:
        numbers = images[start : start + IMAGES_A_PART]
        named = f"hostile verbs: {numbers.start} to {numbers.stop} of {plan.seed}"
        work = functools.partial(examine, numbers, plan.seed, jobs=plan.jobs)
        found.append(Part(named, work))
    return found


def examine(numbers: range, seed: int, say: Say, *, others: int = ALL, jobs: int = 2) -> Outcome:
    """The images of these numbers, a few at a time, each with so many drawn verbs and adapters."""
    findings: list[str] = []
    codes: Counter[str] = Counter()
    done = 0
    warm()
    with Laboratory(seed) as lab:
        add_runtimes(lab)
        truth = read_sound(lab)
        gc.freeze()  # else each child's collections copy the pages of all that is imported
        todo, running = iter(numbers), {}
        while True:
            while len(running) < jobs and (number := next(todo, None)) is not None:
                child = _Child(lab, number, truth, others)
                running[child.pid] = child
            if not running:
                break
            pid, status, used = os.wait4(-1, 0)
            child = running.pop(pid)
            verdict = child.verdict(status, used.ru_maxrss * 1024)
            done += 1
            codes.update(verdict.codes)
            for text in verdict.findings:
                what = f"image {child.number} of seed {seed} ({child.names}): {text}"
                say(what)
                findings.append(what)
    gc.unfreeze()
    return Outcome("hostile verbs", done, findings, dict(sorted(codes.items())))


def warm() -> None:
    """Import before the first fork what every child needs: the verbs."""
    from memcore.cli.app import VERBS, command_of

    for name in VERBS:
        command_of(name)
    platform.processor()  # asks the system once


Truth = dict[tuple[str, str], set[str]]
"""By adapter and specimen: all that it reads in the sound file, now and at earlier times."""


def read_sound(lab: Laboratory) -> Truth:
    """What the adapters read in the specimens; their frameworks are imported for it."""
    truth: Truth = {}
    path = lab.folder / "sound"
    for name in adapters():
        for specimen in lab.specimens:
            seen = truth[name, specimen.name] = set()
            for content in (*specimen.older, specimen.content):
                path.write_bytes(content)
                with contextlib.suppress(MemcoreError), _opened(path) as db:
                    READERS[name](db, seen)
            for leftover in lab.folder.glob("sound*"):
                leftover.unlink()
    return truth


def adapters() -> list[str]:
    """The adapters whose frameworks are installed."""
    return [name for name in ADAPTERS if _is_there(name)]


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


class _Child:
    """One image in one forked process; what it says goes to a file."""

    def __init__(self, lab: Laboratory, number: int, truth: Truth, others: int) -> None:
        self.number = number
        self.folder = lab.folder / f"v{number}"
        self.folder.mkdir()
        self.names = "+".join(lab.image(number)[1])
        self.told = self.folder / "told"
        self.before = resident_bytes()
        self.pid = os.fork()
        if not self.pid:
            try:
                with self.told.open("w", buffering=1) as told:
                    _Examination(lab, number, self.folder, told, truth).run(others)
            except BaseException as error:  # noqa: BLE001 - told to the parent
                with self.told.open("a") as told:
                    told.write(f"! the examination failed: {type(error).__name__}: {error}\n")
            finally:
                os._exit(0)

    def verdict(self, status: int, resident_bytes: int) -> Verdict:
        verdict = Verdict()
        lines = self.told.read_text(errors="replace").splitlines() if self.told.exists() else []
        last, residual = "the start", False
        for line in lines:
            sign, _, text = line.partition(" ")
            if sign == ">":
                last = text
            elif sign == "=":
                verdict.codes[text] = verdict.codes.get(text, 0) + 1
            elif sign == "~":
                residual = True
            elif sign == "!":
                verdict.findings.append(f"{last}: {text}")
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            if residual and last in ADAPTERS:
                verdict.codes[f"residual: {name}"] = 1
            else:
                verdict.findings.append(f"dies of {name} in {last}")
        elif resident_bytes - self.before > RESIDENT_BYTES:
            grown = (resident_bytes - self.before) >> 20
            verdict.findings.append(f"{grown} MiB more were resident")
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()
        return verdict


def _waited_seconds() -> float:
    """How long this thread neither ran nor was ready to, but for a constant."""
    running, ready, _ = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
    return time.monotonic() - (int(running) + int(ready)) / 1e9


class _Examination:
    """All that is done with one image, in the child."""

    def __init__(self, lab: Laboratory, number: int, folder: Path, told: Any, truth: Truth) -> None:
        self.truth = truth
        self.specimen, _, self.victim = lab.image(number)
        self.image = bytes(self.victim.image)
        self.folder, self.told = folder, told
        self.path = folder / "image"
        self.boot = BOOT if number % 2 else bytes(16)
        self.ran: list[str] = []
        names = [place[2] for place in self.specimen.atlas.sessions] or ["chat"]
        self.dice = random.Random(number)
        self.session = self.dice.choice(names)

    def run(self, others: int) -> None:
        limit = SPACE_BYTES + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a refused write is an error, as on a device
        signal.alarm(int(PATIENCE_SECONDS))
        faulthandler.disable()  # how it ends is told by its status
        sys.addaudithook(self._hook)
        with mock.patch.object(steady, "boot_id", return_value=self.boot):
            sound = self._is_sound()
            if not sound:
                self.told.write("~ a verifying opening refuses it\n")
            for words in READING:
                if words[0] in ALWAYS:
                    self._verb(words)
            rest = [words for words in (*READING, *WRITING) if words[0] not in ALWAYS]
            todo = [*rest, *adapters()]
            for each in self.dice.sample(todo, min(others, len(todo))):
                if isinstance(each, str):
                    self._adapter(each)
                else:
                    self._verb(each)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in RUNS:
            self.ran.append(f"{event} {arguments!r:.100}")

    def _is_sound(self) -> bool:
        self._fresh()
        try:
            memcore.open(self.path, read_only=True, verify=True).close()
        except MemcoreError:
            return False
        return True

    def _fresh(self) -> None:
        """The image as it was, and nothing beside it."""
        for path in self.folder.iterdir():
            if path.name.startswith("image"):
                path.unlink()
        self.path.write_bytes(self.image)

    def _limited(self, what: str, fn: Callable[[], None]) -> None:
        """Do it within its time, which a signal ends; what it runs of the file is a finding."""
        self.told.write(f"> {what}\n")
        self.ran.clear()
        waited = _waited_seconds()
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        try:
            fn()
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        waited = _waited_seconds() - waited
        if waited > CPU_SECONDS:
            self.told.write(f"! it waited for {waited:.1f} s\n")
        if self.ran:
            self.told.write(f"! it ran {self.ran[:3]}\n")
        size = max(path.stat().st_size for path in self.folder.iterdir())
        if size >= FILE_BYTES // 2:
            self.told.write(f"! a file grew to {size} bytes\n")

    def _verb(self, words: list[str]) -> None:
        self._fresh()
        beside = f"{self.folder}/image"
        places = {"store": str(self.path), "beside": beside, "session": self.session}
        arguments = [word.format(**places) for word in words]
        output = io.StringIO()

        def call() -> None:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                code = command(arguments)
            self.told.write(f"= exit {code}\n")
            # Damaged names may make two sessions of one name: then the verb asks which is meant.
            if code not in CODES and "sessions are named" not in output.getvalue():
                self.told.write(f"! exit code {code}: {output.getvalue()[-600:]!r}\n")

        self._limited(words[0], call)
        if words[0] == "export":
            self._compare(Path(f"{beside}-lines"))

    def _compare(self, lines: Path) -> None:
        """Every exported message was stored at some time."""
        if self.victim.sealed or not lines.exists() or not self.specimen.atlas.sessions:
            return
        states = (self.specimen.truth, *self.specimen.past, *self.specimen.previous)
        known = {
            answer
            for state in states
            for question, answer in state.answers.items()
            if question[0] == "item"
        }
        for line in lines.read_text(errors="replace").splitlines():
            message = json.loads(line).get("message")
            if message is not None and not any(repr(message) in answer for answer in known):
                self.told.write(f"! an export has what nobody stored: {message!r:.300}\n")
                return

    def _adapter(self, name: str) -> None:
        self._fresh()

        seen: set[str] = set()

        def call() -> None:
            try:
                with _opened(self.path) as db:
                    READERS[name](db, seen)
            except InternalError as error:
                self.told.write(f"! InternalError: {error}\n")
            except (MemcoreError, MemoryError) as error:
                self.told.write(f"= {name}: {type(error).__name__}\n")
            except Exception as error:  # noqa: BLE001 - finding these is what this is for
                self.told.write(f"! {type(error).__name__}: {error!s:.300}\n")
            else:
                self.told.write(f"= {name}: read\n")

        self._limited(name, call)
        strange = seen - self.truth[name, self.specimen.name]
        if strange and not self.victim.sealed:
            self.told.write(f"! {name} reads what nobody stored: {min(strange):.300}\n")


# --- adapters -------------------------------------------------------------------------------------

Reader = Callable[[memcore.Database, set[str]], None]
"""Reads all that an adapter finds in a database, and notes it under its name."""
READERS: dict[str, Reader] = {}
FILES = ("/notes.md", "/src/a.py", "/src/b.py")
USER = "u"
THREAD = "t1"


def _reader(name: str) -> Callable[[Reader], Reader]:
    def register(read: Reader) -> Reader:
        READERS[name] = read
        return read

    return register


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[memcore.Database]:
    with memcore.open(path, create=False, read_only=True) as db:
        yield db


def _each(*reads: Callable[[], object]) -> None:
    """All of them, whatever the first ones raise; then the first typed error of all."""
    errors = []
    for read in reads:
        try:
            read()
        except InternalError:
            raise
        except MemcoreError as error:
            errors.append(error)
    if errors:
        raise errors[0]


@_reader("langgraph")
def read_langgraph(db: memcore.Database, seen: set[str]) -> None:
    """All threads, checkpoints and items, through the saver and the store."""
    from memcore.adapters.langgraph import MemcoreSaver, MemcoreStore

    for scope in (db.scope(), db.scope(user=USER)):
        saver, store = MemcoreSaver(scope), MemcoreStore(scope)
        reads: list[Callable[[], object]] = [functools.partial(_list, saver, None, seen)]
        for thread in ("graph", "twin", THREAD):
            config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
            reads += [functools.partial(read, saver, config, seen) for read in (_newest, _list)]
        _each(*reads, store.list_namespaces, functools.partial(_items, store, seen))


def _list(saver: Any, config: Any, seen: set[str]) -> None:
    for found in saver.list(config):
        _note(found, seen)


def _newest(saver: Any, config: Any, seen: set[str]) -> None:
    found = saver.get_tuple(config)
    if found is not None:
        _note(found, seen)


def _note(found: Any, seen: set[str]) -> None:
    ids = found.config["configurable"]
    for channel, value in found.checkpoint["channel_values"].items():
        seen.add(f"{ids['thread_id']} {ids['checkpoint_id']} {channel}: {value!r}")


def _items(store: Any, seen: set[str]) -> None:
    for item in (store.get(("facts",), "k1"), *store.search(("facts",), query="tea", limit=99)):
        if item is not None:
            seen.add(f"{item.namespace} {item.key}: {item.value!r}")


@_reader("deepagents")
def read_deepagents(db: memcore.Database, seen: set[str]) -> None:
    """All files, by every operation that reads."""
    from memcore.adapters.deepagents import MemcoreBackend

    backend = MemcoreBackend(db.scope(user=USER))

    def read(name: str) -> None:
        found = backend.read(name)
        if found.file_data is not None:
            seen.add(f"{name}: {found.file_data['content']}")

    def grep() -> None:
        for match in backend.grep("a line 1").matches or ():
            seen.add(f"{match['path']} {match['line']}: {match['text']}")

    def names() -> None:
        for listed in (backend.ls("/").entries, backend.glob("**/*").matches):
            seen.update(entry["path"] for entry in listed or ())

    _each(names, grep, *(functools.partial(read, name) for name in FILES))


@_reader("agents")
def read_agents(db: memcore.Database, seen: set[str]) -> None:
    """The first sessions, as the OpenAI Agents SDK reads them."""
    from memcore.adapters.openai_agents import MemcoreSession

    async def read(entry: memcore.SessionEntry) -> None:
        session = MemcoreSession(entry.session_id, db.scope(user=entry.user))
        for item in (*await session.get_items(), *await session.get_items(limit=5)):
            seen.add(f"{entry.user} {entry.session_id}: {item!r}")

    _each(
        *(
            lambda entry=entry: asyncio.run(read(entry))
            for entry in _each_session(db)
            if entry.app == "default"
        )
    )


def _each_session(db: memcore.Database) -> list[memcore.SessionEntry]:
    found: list[memcore.SessionEntry] = []
    for entry in db.sessions():
        found.append(entry)
        if len(found) == SESSIONS_READ:
            break
    return found


@_reader("google.adk")
def read_adk(db: memcore.Database, seen: set[str]) -> None:
    """Sessions, artifacts and memories, as ADK reads them."""
    from memcore.adapters.adk import (
        MemcoreArtifactService,
        MemcoreMemoryService,
        MemcoreSessionService,
    )

    user: Any = {"app_name": "app", "user_id": USER}

    async def sessions() -> None:
        service = MemcoreSessionService(db)
        listed = await service.list_sessions(**user)
        for session in listed.sessions[:4]:
            found = await service.get_session(**user, session_id=session.id)
            if found is not None:
                seen.update(f"state {item!r}" for item in found.state.items())
                seen.update(f"event {event.id}: {event.content!r}" for event in found.events)

    async def artifacts() -> None:
        service = MemcoreArtifactService(db)
        for name in await service.list_artifact_keys(**user, session_id="s1"):
            part = await service.load_artifact(filename=name, **user, session_id="s1")
            seen.add(f"artifact {name}: {part!r}")

    async def memories() -> None:
        found = await MemcoreMemoryService(db).search_memory(**user, query="tea")
        seen.update(f"memory {memory.content!r}" for memory in found.memories)

    _each(*(lambda read=read: asyncio.run(read()) for read in (sessions, artifacts, memories)))


# --- a file of the runtimes -----------------------------------------------------------------------


def add_runtimes(lab: Laboratory) -> None:
    """Give a laboratory a fifth specimen, that the adapters wrote, and draw it as often as any."""
    path = lab.folder / "runtimes"
    with frozen(lab.seed):
        _write_runtimes(path, random.Random(lab.seed))
    content = path.read_bytes()
    foreign = lab.specimens[2].content
    made = Specimen("runtimes", content, Atlas(), Observed(), [], [], [], foreign)
    lab.specimens.append(made)
    found, usual = anatomy(content), lab.image

    def image(number: int) -> tuple[Specimen, list[str], Any]:
        if number % 2:
            return usual(number)
        dice = random.Random(f"{lab.seed}:{number}:runtimes")
        return made, *mutate(dice, made, found)

    lab.image = image  # type: ignore[method-assign]


def _write_runtimes(path: Path, dice: random.Random) -> None:
    """A saver's thread, a store's items, files, an SDK session, ADK's sessions and artifacts."""
    with memcore.open(path) as db:
        scope, there = db.scope(user=USER), adapters()
        if "langgraph" in there:
            _write_langgraph(scope)
        if "deepagents" in there:
            from memcore.adapters.deepagents import MemcoreBackend

            backend = MemcoreBackend(scope)
            for name in FILES:
                backend.write(name, "\n".join(f"a line {n}" for n in range(60)))
        if "agents" in there:
            from memcore.adapters.openai_agents import MemcoreSession

            session = MemcoreSession("sdk", scope)
            items: list[Any] = [{"role": "user", "content": f"question {n}"} for n in range(30)]
            asyncio.run(session.add_items(items))
        if "google.adk" in there:
            asyncio.run(_write_adk(db))
        db.session("chat", user=USER).extend([m for n in range(9) for m in turn(dice, n)])


def _write_langgraph(scope: memcore.Scope) -> None:
    from langchain_core.messages import AIMessage, HumanMessage
    from langgraph.checkpoint.base import empty_checkpoint

    from memcore.adapters.langgraph import MemcoreSaver, MemcoreStore

    saver, config = MemcoreSaver(scope), {"configurable": {"thread_id": THREAD}}
    messages: list[Any] = []
    for step in range(6):
        messages += [HumanMessage(f"q{step}", id=f"h{step}"), AIMessage(f"a{step}", id=f"a{step}")]
        checkpoint: Any = {
            **empty_checkpoint(),
            "id": f"0{step}",
            "ts": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(0)),
            "channel_values": {"messages": messages[:], "numbers": [0.5] * 40},
            "channel_versions": {"messages": step + 1, "numbers": 1},
        }
        new: Any = {"messages": step + 1} | ({"numbers": 1} if not step else {})
        at: Any = {"configurable": {**config["configurable"], "checkpoint_ns": ""}}
        if step:
            at["configurable"]["checkpoint_id"] = f"0{step - 1}"
        saver.put(at, checkpoint, {"step": step}, new)
    store = MemcoreStore(scope)
    for number in range(12):
        store.put(("facts",), f"k{number}", {"text": f"likes tea {number}"})


async def _write_adk(db: memcore.Database) -> None:
    from google.adk.events import Event
    from google.genai import types

    from memcore.adapters.adk import (
        MemcoreArtifactService,
        MemcoreMemoryService,
        MemcoreSessionService,
    )

    service = MemcoreSessionService(db)
    session = await service.create_session(
        app_name="app", user_id=USER, session_id="s1", state={"app:a": 1, "user:b": 2, "c": 3}
    )
    for number in range(10):
        part = types.Part(text=f"I like tea {number}")
        content = types.Content(role="user" if number % 2 == 0 else "model", parts=[part])
        author = "user" if number % 2 == 0 else "agent"
        await service.append_event(
            session, Event(author=author, content=content, invocation_id="i")
        )
    await MemcoreMemoryService(db).add_session_to_memory(session)
    artifacts = MemcoreArtifactService(db)
    for name in ("a.txt", "user:b.txt"):
        await artifacts.save_artifact(
            app_name="app", user_id=USER, session_id="s1", filename=name,
            artifact=types.Part.from_bytes(data=b"x" * 3000, mime_type="text/plain"),
        )  # fmt: skip


def main() -> None:
    """Examine single images: ``python -m tests.crash.hostile_verbs SEED NUMBER...``."""
    seed, *numbers = map(int, sys.argv[1:])
    for number in numbers:
        outcome = examine(range(number, number + 1), seed, print)
        sys.stdout.write(f"{number}: {outcome.facts}\n")


if __name__ == "__main__":
    main()
