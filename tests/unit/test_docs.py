"""The documentation is run: every Python block, and every output that it shows."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
OPTIONAL = {
    "docs/encryption.md": "cryptography",
    "docs/adk.md": "google.adk",
    "docs/deepagents.md": "deepagents",
    "docs/langgraph.md": "langgraph",
    "docs/openai-agents.md": "agents",
    "docs/telemetry.md": "opentelemetry",
}
"""Pages whose examples need a package that is no dependency."""
RUN = [
    "README.md",
    *(
        f"docs/{page}.md"
        for page in [
            "concepts",
            "compaction",
            "envelope",
            "erasure",
            "format",
            "state",
            "retention",
            "redaction",
            "audit",
            "isolation",
            "leases",
        ]
    ),
    *OPTIONAL,
]
LINKED = [
    *RUN, "CHANGELOG.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/durability.md",
]  # fmt: skip

FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"# -> (.*)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
CRASH = re.compile(r"`python -m tests\.crash ([a-z]+)`")
TEST_FILE = re.compile(r"`(?:pytest )?(tests/[\w/]+\.\w+)`")


def blocks(name: str) -> list[tuple[int, str]]:
    """Line number and source of the Python blocks of a file."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return [(text.count("\n", 0, found.start(1)) + 1, found[1]) for found in FENCE.finditer(text)]


def run_block(name: str, line: int, source: str, namespace: dict[str, Any]) -> list[str]:
    """Run a block; what it printed. Tracebacks point into the document."""
    code = compile("\n" * (line - 1) + source, name, "exec", dont_inherit=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    return printed.getvalue().splitlines()


@pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]:UserWarning")  # so ADK calls its compaction
@pytest.mark.parametrize("name", RUN)
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
            if hasattr(value, "backup"):
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
    from memcore.cli.app import app
    from memcore.cli.exits import ExitCode

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    verbs = [command.name for command in app.registered_commands]
    assert [verb for verb in verbs if f"\nmemcore {verb}" not in text] == []
    rows = re.findall(r"^\| ([\d, ]+) \|", text, re.MULTILINE)
    listed = {int(code) for row in rows for code in row.split(",")}
    assert listed == set(ExitCode)


def test_every_policy_and_repair_is_documented() -> None:
    from memcore.formats import POLICIES

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [policy for policy in POLICIES if f"| `{policy}`" not in text] == []


def test_the_house_map_names_every_module() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    house = set(re.findall(r"\w+", text.partition("\nmemcore/\n")[2].partition("```")[0]))
    modules = [path for path in (ROOT / "memcore").rglob("*.py") if not path.stem.startswith("__")]
    assert [str(path) for path in modules if path.stem not in house] == []


def test_every_kind_of_key_and_row_is_documented() -> None:
    from memcore.keys import Kind, Row

    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    kinds, rows = (
        {number for name, number in vars(table).items() if name.isupper()} for table in (Kind, Row)
    )
    assert [kind for kind in kinds if f"\n| `{kind:02X}` | " not in text] == []
    assert [row for row in rows if f"\n| `{row:02X}` " not in text.partition("| row |")[2]] == []


def test_what_the_durability_page_names_is_there() -> None:
    from crash.controls import CONTROLS

    text = (ROOT / "docs/durability.md").read_text(encoding="utf-8")
    checks = CRASH.findall(text)
    assert [name for name in checks if not (ROOT / f"tests/crash/{name}.py").exists()] == []
    assert [name for name in TEST_FILE.findall(text) if not (ROOT / name).exists()] == []
    assert [name for name in CONTROLS if f"`{name}`" not in text] == []
