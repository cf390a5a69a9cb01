"""The documentation is run: every Python block, and every output that it shows."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest

from examples.scripted.server import ScriptedServer

ROOT = Path(__file__).parents[2]
OPTIONAL = {
    "docs/encryption.md": "cryptography",
    "docs/a2a.md": "a2a",
    "docs/adk.md": "google.adk",
    "docs/agent-framework.md": "agent_framework",
    "docs/anthropic.md": "anthropic",
    "docs/claude-agent.md": "claude_agent_sdk",
    "docs/deepagents.md": "deepagents",
    "docs/langchain.md": "langchain",
    "docs/langgraph.md": "langgraph",
    "docs/llama-index.md": "llama_index",
    "docs/mcp.md": "mcp",
    "docs/openai-agents.md": "agents",
    "docs/pydantic-ai.md": "pydantic_ai",
    "docs/strands.md": "strands",
    "docs/telemetry.md": "opentelemetry",
    "docs/ui.md": "starlette",
    "docs/testing.md": "hypothesis",
}
"""Pages whose examples need a package that is no dependency."""
RUN = [
    "README.md",
    *(
        f"docs/{page}.md"
        for page in [
            "guide",
            "concepts",
            "compaction",
            "envelope",
            "erasure",
            "extraction",
            "format",
            "howto-async",
            "howto-backups",
            "howto-containers",
            "howto-upgrading",
            "howto-users",
            "howto-web",
            "importing",
            "state",
            "retention",
            "redaction",
            "audit",
            "isolation",
            "leases",
            "memory",
            "memory-tools",
            "search",
            "bench",
            "comparison",
            "faq",
            "errors",
            "limits",
        ]
    ),
    *OPTIONAL,
]
LINKED = [
    *RUN, "CHANGELOG.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/benchmarks.md",
    "docs/cli.md", "docs/durability.md",
]  # fmt: skip

README_CHARS_MAX = 8_000

FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS = re.compile(r"<!-- needs: (\w+) -->\n\Z")
"""Stands before a block that needs a package of an extra."""
SHOWN = re.compile(r"# -> (.*)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
CRASH = re.compile(r"`python -m tests\.crash ([a-z]+)`")
TEST_FILE = re.compile(r"`(?:pytest )?(tests/[\w/]+\.\w+)`")


def blocks(name: str) -> list[tuple[int, str]]:
    """Line number and source of the Python blocks of a file whose packages are here."""
    text = (ROOT / name).read_text(encoding="utf-8")
    known = []
    for found in FENCE.finditer(text):
        needs = NEEDS.search(text, 0, found.start())
        if needs is None or find_spec(needs[1]) is not None:
            known.append((text.count("\n", 0, found.start(1)) + 1, found[1]))
    return known


def run_block(name: str, line: int, source: str, namespace: dict[str, Any]) -> list[str]:
    """Run a block; what it printed. Tracebacks point into the document."""
    code = compile("\n" * (line - 1) + source, name, "exec", dont_inherit=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    return printed.getvalue().splitlines()


FUNCTION = {"name": "weather", "arguments": '{"city": "Paris"}'}
REPLIES = (
    {"tool_calls": [{"id": "c1", "type": "function", "function": FUNCTION}], "content": None},
    {"content": "It is 18 °C in Paris."},
)
"""Messages of the model in the README's first example."""


@pytest.fixture
def model(monkeypatch) -> Iterator[None]:
    """A model behind the OpenAI SDK that is scripted."""
    answers = [
        {
            "id": "r", "object": "chat.completion", "created": 0, "model": "m",
            "choices": [
                {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **reply}}
            ],
        }
        for reply in REPLIES
    ]  # fmt: skip
    with ScriptedServer(answers) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        yield


@pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]:UserWarning")  # so ADK calls its compaction
@pytest.mark.parametrize("name", RUN)
@pytest.mark.usefixtures("model")
def test_the_examples_print_what_they_show(name, tmp_path, monkeypatch) -> None:
    if name in OPTIONAL:
        pytest.importorskip(OPTIONAL[name])
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    found = blocks(name)
    assert found
    try:
        for line, source in found:
            printed = run_block(name, line, source, namespace)
            assert printed == SHOWN.findall(source), f"{name}, block at line {line}"
    finally:
        for value in namespace.values():
            if hasattr(value, "backup") or type(value).__name__ == "OpenAI":
                value.close()


@pytest.mark.parametrize("name", LINKED)
def test_links_lead_somewhere(name) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    links = [link for link in LINK.findall(text) if "://" not in link]
    missing = [link for link in links if not ((ROOT / name).parent / link).exists()]
    assert missing == []


def test_each_line_of_the_threat_model_names_a_test_that_is_there() -> None:
    text = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 30
    for file, function in named:
        source = (ROOT / file).read_text(encoding="utf-8")
        wanted = f"def {function}(" if function else r"def test_|\.TestCase"
        assert re.search(wanted if not function else re.escape(wanted), source), (file, function)


def test_every_verb_and_exit_code_is_documented() -> None:
    from memcore.cli.app import VERBS
    from memcore.cli.options import ExitCode

    text = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    assert [verb for verb in VERBS if f"\nmemcore {verb}" not in text] == []
    rows = re.findall(r"^\| ([\d, ]+) \|", text, re.MULTILINE)
    listed = {int(code) for row in rows for code in row.split(",")}
    assert listed == set(ExitCode)


def _commands_named() -> list[tuple[str, str, str]]:
    """File, verb and rest of each command that a message or a document names."""
    named = []
    for path in sorted((ROOT / "memcore").rglob("*.py")):
        # A message of several lines is one text.
        text = re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))
        found = re.findall(r"(?:'|``)memcore ([a-z][a-z-]*)([^'`]*)", text)
        named += [(str(path), *each) for each in found]
    for path in [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]:
        text = path.read_text(encoding="utf-8")
        found = re.findall(r"`memcore ([a-z][a-z-]*)([^`\n]*)`", text)
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
            found += re.findall(r"^memcore ([a-z][a-z-]*)([^#\n]*)", block, re.MULTILINE)
        named += [(str(path), *each) for each in found]
    return named


def _takes(command: Any, rest: str) -> list[str]:
    """What of the words behind a verb it does not know."""
    below = getattr(command, "commands", {})
    params = [*command.params, *(param for each in below.values() for param in each.params)]
    known = {text for param in params for text in (*param.opts, *param.secondary_opts)}
    wrong = sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest)) - known - {"--help"})
    choices = set(below)
    for param in command.params:
        if isinstance(param, click.Argument) and isinstance(param.type, click.Choice):
            choices.update(param.type.choices)
    word = re.match(r" ([a-z]+)(?= |$)", rest)  # what a user puts in stands in capitals
    return wrong if word is None or word[1] in choices else [*wrong, word[1]]


def test_every_command_that_a_message_or_document_names_is_there() -> None:
    from memcore.cli.app import VERBS, command_of

    commands = {name: command_of(name) for name in VERBS}
    named = _commands_named()
    assert len(named) > 150
    assert [each for each in named if each[1] not in commands] == []
    wrong = [(each, _takes(commands[each[1]], each[2])) for each in named]
    assert [each for each in wrong if each[1]] == []


def _rows(page: str) -> Iterator[tuple[str, list[str]]]:
    """Heading and cells of each row of the tables of a page."""
    heading = ""
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line[3:]
        elif line.startswith("| `"):
            yield heading, [cell.strip() for cell in line.strip("|").split(" | ")]


def test_every_error_is_documented_by_its_kind_with_its_exit_code() -> None:
    from memcore import errors
    from memcore.cli.entry import ExitCode
    from memcore.cli.options import _CODES

    def kind_and_code(name: str) -> tuple[str, int]:
        of = getattr(errors, name)
        kinds = (
            each for each in ("CallerError", "StorageError") if issubclass(of, vars(errors)[each])
        )
        codes = (code for base, code in _CODES if issubclass(of, base))
        return next(kinds, "InternalError"), next(codes, ExitCode.BUG)

    public = [
        name
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, BaseException) and not name.startswith("_")
    ]
    rows = [(heading, cells) for heading, cells in _rows("docs/errors.md")]
    told = {cells[0].strip("`"): (heading, int(cells[-1])) for heading, cells in rows}
    assert len(rows) == len(told)
    assert told == {name: kind_and_code(name) for name in public}


UNITS = {
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "days": 24 * 3600,
    "bytes": 1, "characters": 1, "items": 1, "levels": 1, "ms": 1, "s": 1, "tokens": 1, "": 1,
}  # fmt: skip


def test_the_limits_page_has_the_limits_of_the_program() -> None:
    checked = set()
    for _, cells in _rows("docs/limits.md"):
        found = re.match(r"`([a-z_.]*)([A-Z_]+)`", cells[0])
        if found is None:
            continue
        module = import_module(f"memcore.{found[1].rstrip('.') or 'limits'}")
        number, _, unit = cells[1].replace(",", "").partition(" ")
        base, _, exponent = number.partition("^")
        told = float(base) ** int(exponent or 1) * UNITS[unit]
        assert told == getattr(module, found[2]), cells[0]
        checked.add((found[1], found[2]))
    assert len(checked) > 50


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8")) <= README_CHARS_MAX


def test_every_policy_and_repair_is_documented() -> None:
    from memcore.wire import POLICIES

    text = (ROOT / "docs/guide.md").read_text(encoding="utf-8")
    assert [policy for policy in POLICIES if f"| `{policy}`" not in text] == []


def test_the_tree_of_the_architecture_page_is_up_to_date() -> None:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "scripts/make_tree"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_the_documented_rows_are_those_of_the_table() -> None:
    from memcore.codec.keys import Care, Kind, Row, ThreadRow
    from memcore.codec.table import ROWS

    known = {(each.kind, each.row) for each in ROWS}
    for kind, numbers in ((Kind.SESSION, Row), (Kind.THREAD, ThreadRow), (Kind.CARE, Care)):
        named = {number for name, number in vars(numbers).items() if name.isupper()}
        assert {row for of, row in known if of == kind} == named
    assert {kind for kind, _ in known} == {n for name, n in vars(Kind).items() if name.isupper()}
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition("\n## Keys\n")[2]
    kinds, _, rest = text.partition("\n| row | number |")
    rows, _, rest = rest.partition("\n**Encrypted value**")
    told = set(re.findall(r"^\| `([0-9A-F]{2})` \|", kinds, re.MULTILINE)) - {"00"}
    assert told == {f"{kind:02X}" for kind, _ in known}
    found = set(re.findall(r"^\| `([0-9A-F]{2})` (\w+) \|", rows, re.MULTILINE))
    assert found == {(f"{e.row:02X}", e.name) for e in ROWS if e.kind == Kind.SESSION}
    care = set(
        re.findall(r"^\| `12` \| (?:scope|0) u64[^|,]*, `([0-9A-F]{2})`", kinds, re.MULTILINE)
    )
    assert care == {f"{e.row:02X}" for e in ROWS if e.kind == Kind.CARE}
    closed = rest.partition("): format")[0]
    parts = re.split(r" of a session |, kinds |, and of `12` holds ", closed)[1:]
    of_session, of_kind, of_care = (set(re.findall(r"`([0-9A-F]{2})`", part)) for part in parts)
    secret = [each for each in ROWS if each.secret]
    assert of_session == {f"{e.row:02X}" for e in secret if e.kind == Kind.SESSION}
    assert of_care == {f"{e.row:02X}" for e in secret if e.kind == Kind.CARE}
    assert of_kind == {f"{e.kind:02X}" for e in secret} - {"05", "12"}


def test_every_kind_of_rows_has_a_damage_and_a_shape() -> None:
    from memcore.codec.keys import Kind
    from memcore.codec.table import ROWS
    from memcore.maintenance import salvage_rows
    from memcore.maintenance.check import Damage

    free = {"expiry", "blob chunk", "segments", "child", "request", "audit", "state"}
    """Rows of which any content is right, or that a shape of the whole kind covers."""
    for each in ROWS:
        assert each.damage in Damage.__members__
        of_session = each.kind == Kind.SESSION
        shapes = salvage_rows._ROWS if of_session else salvage_rows._SHAPES
        assert ((each.row if of_session else each.kind) in shapes) is (each.name not in free), each


def test_what_the_durability_page_names_is_there() -> None:
    from crash.controls import CONTROLS

    text = (ROOT / "docs/durability.md").read_text(encoding="utf-8")
    checks = CRASH.findall(text)
    assert [name for name in checks if not (ROOT / f"tests/crash/{name}.py").exists()] == []
    assert [name for name in TEST_FILE.findall(text) if not (ROOT / name).exists()] == []
    assert [name for name in CONTROLS if f"`{name}`" not in text] == []
