"""What a file demands of who writes to it: recorded, inherited, refused, changed."""

from __future__ import annotations

import json
import logging

import pytest

import memcore
from memcore import RedactingFilter, RedactionPolicy
from memcore.errors import BlockedError, CorruptValueError, DemandError, InvalidOptionError
from memcore.privacy import keyring as secrets_of
from memcore.session import content_filter as admission
from memcore.store.datafile import DEMANDING, FORMAT_KEY, Format
from messages import user as said

MAIL = "bob@example.com"
PLACEHOLDER = r"\[EMAIL_[0-9A-Z]{6}\]"
pytestmark = pytest.mark.as_stored


class Own:
    """A guard that no file can hold."""

    def judge(self, value, write):
        return "block" if "forbidden" in str(value) else "allow"


class Upper:
    """A redactor that no file can hold."""

    def redact(self, text, context):
        return text, [
            memcore.privacy.Span(at, at + 3, "word") for at in [text.find("XYZ")] if at >= 0
        ]


def stored(db, text=f"write to {MAIL}"):
    session = db.session("s")
    session.append(said(text))
    return session.tail(1)[0].message["content"]


def features(db):
    store = db.engine.store
    return Format.unpack(store.read(lambda txn: txn.get(FORMAT_KEY)), store.path).features


def test_a_policy_holds_for_all_who_open_the_file(open_db):
    with open_db(
        redact={"preset": "secrets", "classes": ["email"], "placeholders": "<{class} {id}>"}
    ) as db:
        first = stored(db)
        assert MAIL not in first
        assert features(db) & DEMANDING
    for again in (
        {},
        {"redact": None},
        {"redact": False},
        {"redact": {"classes": ["email"], "placeholders": "<{class} {id}>"}},
    ):
        with open_db(**again) as db:
            assert stored(db) == first
            assert db.check() == []
            assert db.demands["redact"]["classes"] == ["email"]
    with open_db(read_only=True) as db:
        assert db.demands["redact"]["placeholders"] == {"*": "<{class} {id}>"}


def test_another_policy_is_refused_and_says_what_differs(open_db):
    open_db(redact="default").close()
    for other in ("secrets", {"names": ["Bob"]}, {"verdicts": {"card": "block"}}):
        with pytest.raises(DemandError, match=r"differ in (classes|names|verdicts).*db\.demand"):
            open_db(redact=other)


def test_an_older_reader_refuses_the_file(open_db, monkeypatch, path):
    open_db(redact="default").close()
    monkeypatch.setattr("memcore.store.datafile._FEATURES_KNOWN", DEMANDING - 1)
    with pytest.raises(memcore.StoreFormatError, match="upgrade memcore"):
        memcore.open(path, read_only=True)


def test_names_are_inherited_and_stand_nowhere_in_the_file(open_db, path):
    names = ["Zaphod Beeblebrox", "张三"]
    with open_db(redact={"names": names}) as db:
        first = stored(db, "Zaphod Beeblebrox met 张三")
        assert "Zaphod" not in first
    with open_db() as db:
        assert stored(db, "Zaphod Beeblebrox met 张三") == first
        assert db.demands["redact"]["names"] is True
    for file in path.parent.iterdir():
        content = file.read_bytes()
        assert b"Zaphod" not in content
        assert "张三".encode() not in content
        assert json.dumps("张三").encode() not in content


def test_names_need_the_secret_that_they_stand_under(open_db, path):
    open_db(redact={"names": ["Zaphod"]}).close()
    path.with_name(path.name + secrets_of.SUFFIX).unlink()
    with pytest.raises(DemandError, match=r"put the file .*\.secret back"):
        open_db()
    with pytest.raises(DemandError, match="differ in names"):
        open_db(redact="default")
    open_db(redact={"names": ["Zaphod"]}).close()
    with open_db() as db:
        assert "Zaphod" not in stored(db, "it is Zaphod")


def test_a_redactor_of_ones_own_is_demanded(open_db):
    policy = RedactionPolicy(redactors=(Upper(),))
    open_db(redact=policy).close()
    with pytest.raises(DemandError, match=r"test_demand\.Upper.*redact="):
        open_db()
    with pytest.raises(DemandError, match="differ in redactors"):
        open_db(redact="default")
    with open_db(redact=RedactionPolicy(redactors=(Upper(),))) as db:
        assert "XYZ" not in stored(db, "an XYZ")


def test_a_guard_of_ones_own_is_demanded(open_db):
    open_db(guard=Own()).close()
    with pytest.raises(DemandError, match=r"test_demand\.Own.*guard="):
        open_db()
    with pytest.raises(DemandError, match="other guards"):
        open_db(guard=memcore.SecretGuard())
    with open_db(guard=Own()) as db:
        with pytest.raises(BlockedError):
            stored(db, "forbidden")
        assert stored(db, "fine") == "fine"


GUARDS = [
    memcore.LimitGuard(most_bytes=100, most_writes=5, window_seconds=9),
    memcore.SecretGuard(verdict="quarantine", policy={"classes": ["email"]}),
    memcore.InjectionGuard(verdict="block", sources=["user"], phrases=["open sesame"]),
    memcore.ProtectedKeys(fields=["user:tier"], namespaces=["p*"]),
]


def test_guards_that_come_with_memcore_are_inherited(open_db):
    open_db(guard=GUARDS).close()
    with open_db() as db:
        with pytest.raises(BlockedError, match="phrase"):
            stored(db, "Open  sesame")
        with pytest.raises(BlockedError, match="bytes"):
            stored(db, "x" * 101)
        assert stored(db) == "[QUARANTINED]"
        with pytest.raises(BlockedError, match="protected"):
            db.scope().kv("prompts").put("k", 1)
        assert [guard["guard"] for guard in db.demands["guards"]] == [
            type(guard).__name__ for guard in GUARDS
        ]
    open_db(guard=list(reversed(GUARDS))).close()
    with pytest.raises(DemandError):
        open_db(guard=GUARDS[:3])


def test_without_a_guard_the_file_can_be_cared_for(open_db):
    with open_db(guard=Own(), redact="default") as db:
        stored(db)
    with open_db(guard=memcore.NoWrites()) as db:
        with pytest.raises(BlockedError, match="opened without"):
            stored(db)
        assert db.delete_session("s")
        assert db.check() == []
        assert [guard["guard"] for guard in db.demands["guards"]] == [f"{__name__}.Own"]
        with pytest.raises(InvalidOptionError, match="NoWrites"):
            db.demand(guard=memcore.NoWrites())
        db.demand(guard=False)
    with open_db() as db:
        assert MAIL not in stored(db)


def test_a_demand_is_changed_and_dropped_on_purpose_and_audited(open_db):
    audit = memcore.Audit(key=b"k" * 32)
    with open_db(audit=audit, redact="default") as db:
        db.demand(redact="secrets")
        assert MAIL not in stored(db)  # a handle goes on as it was opened
    with open_db(audit=audit) as db:
        assert MAIL in stored(db)
        db.demand(redact=False)
        assert db.demands == {"redact": None, "guards": []}
        assert not features(db) & DEMANDING
        assert db.check() == []
        told = [entry for entry in db.audit_entries() if entry.row.startswith("demand")]
        assert len(told) == 3
        assert db.verify_audit().ok
    with open_db(audit=audit, read_only=True) as db, pytest.raises(memcore.ReadOnlyError):
        db.demand(redact="default")


def test_a_demand_that_was_taken_out_is_noticed(open_db):
    with open_db(redact="default") as db:
        db.engine.store.transact(lambda txn: txn.delete(admission.DEMAND_KEY))
        assert any("row that says which is missing" in what for what in db.check())
    with pytest.raises(DemandError, match="is gone"):
        open_db()
    with open_db(redact="default") as db:
        assert db.check() == []
    with open_db() as db:
        store = db.engine.store
        record = Format.unpack(store.read(lambda txn: txn.get(FORMAT_KEY)), "f")
        bare = record._replace(features=record.features & ~DEMANDING)
        store.transact(lambda txn: txn.put_own(FORMAT_KEY, bare.pack()))
        assert any("its format record does not" in what for what in db.check())
    with open_db() as db:  # who opens it mends that
        assert MAIL not in stored(db)
        assert features(db) & DEMANDING


def test_a_demand_that_is_damaged_lets_nobody_write_in_clear(open_db):
    from memcore.codec.values import encode_json, seal_value

    key = admission.DEMAND_KEY
    with open_db(redact="default") as db:
        row = seal_value(key, *encode_json({"policy": 7}))
        db.engine.store.transact(lambda txn: txn.put(key, row))
    with pytest.raises(CorruptValueError, match="malformed"):
        open_db()
    with open_db(redact="default") as db:
        assert MAIL not in stored(db)
        assert db.check() == []


def test_backups_compact_copies_and_salvages_demand_the_same(open_db, path, tmp_path):
    with open_db(redact="default") as db:
        stored(db)
        db.backup(tmp_path / "backup")
        db.copy_compact()
    memcore.salvage(path, tmp_path / "salvaged")
    for name in (path, tmp_path / "backup", tmp_path / "salvaged"):
        with memcore.open(name) as db:
            assert MAIL not in stored(db)
            assert db.check() == []


# --- what an envelope says ------------------------------------------------------------------------


def test_an_envelope_tells_clean_from_unchecked_and_redacted(open_db):
    with open_db() as db:
        db.session("s").append(said("hello"))
        assert db.session("s").tail(1)[0].envelope is None
    with open_db(redact="default") as db:
        session = db.session("s")
        session.append(said("hello"))
        session.append(said(MAIL))
        session.append(said("told before"), envelope={"redacted": True})
        session.record("note", {"text": "fine"})
        told = [item.envelope and item.envelope.redacted for item in session]
        assert told == [None, False, True, True, False]
        assert db.check() == []


def test_what_only_guards_looked_at_is_unchecked(open_db):
    with open_db(guard=memcore.SecretGuard()) as db:
        db.session("s").append(said("hello"))
        assert db.session("s").tail(1)[0].envelope is None


# --- dropping -------------------------------------------------------------------------------------


def test_a_rule_drops_an_item_and_pairs_stay_whole(open_db, path):
    asked = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    call = {"role": "assistant", "content": None, "tool_calls": [asked]}
    with open_db(redact={"verdicts": {"email": "drop"}}) as db:
        session = db.session("s")
        session.append(said("hello"))
        session.append(call)
        session.append(
            {"role": "tool", "tool_call_id": "c1", "content": f"it is {MAIL} in Oslo"},
            meta={"from": "Oslo"},
        )
        session.record("note", {"text": f"{MAIL} in Oslo"})
        session.append(said(f"{MAIL} in Oslo"))
        assert [item.message.get("content") for item in session if item.seq in (3, 5)] == [
            "[DROPPED]"
        ] * 2
        assert (session.get(3).meta, session.get(3).envelope.redacted) == (None, True)
        assert session.get(3).message["tool_call_id"] == "c1"
        assert session.get(4).message["payload"] == "[DROPPED]"
        assert memcore.validate(session.context().messages, "openai_chat") == []
        assert list(db.scope().quarantine) == []
        with pytest.raises(BlockedError):
            db.scope().kv("n").put("k", MAIL)
        assert db.check() == []
    assert b"Oslo" not in path.read_bytes()


# --- placeholders of one's own --------------------------------------------------------------------


def test_placeholders_of_ones_own_are_the_same_for_the_same_value_and_stay(open_db):
    own = {"email": "<mail {id}>", "*": "«{class}»"}
    policy = RedactionPolicy(placeholders=own, names=("Bob",))
    redacts = memcore.privacy.Redaction(policy, secret=b"s" * 16).for_place("a", "u", "s")
    made = redacts.text(
        f"{MAIL} and {MAIL.upper()}, 手机13800138000, password=<mail 123456>x9z1, Bob"
    )
    first, second = made.split(" and ")[0], made.split(" and ")[1].split(",")[0]
    assert first == second != "<mail >"
    assert "«CN_MOBILE»" in made
    assert "«NAME»" in made
    assert redacts.text(made) == made
    assert redacts.value({"text": made})[0]["text"] == made


@pytest.mark.parametrize(
    "wrong", [7, {"email": ""}, {"E": "x"}, "{id}", "{who}", "x" * 65, {"*": 1}]
)
def test_a_placeholder_that_is_none_is_refused(wrong):
    with pytest.raises(InvalidOptionError, match="placeholders"):
        RedactionPolicy(placeholders=wrong)


# --- logs -----------------------------------------------------------------------------------------


def lines(filter_, log, caplog):
    caplog.handler.addFilter(filter_)
    try:
        with caplog.at_level("INFO"):
            log(logging.getLogger("a.b"))
    finally:
        caplog.handler.removeFilter(filter_)
    return caplog


def test_a_log_filter_redacts_messages_tracebacks_and_extras(caplog):
    def log(logger):
        logger.info(
            "sent to %s", MAIL, extra={"who": MAIL, "n": 3, "at": {"phone": "+4915112345678"}}
        )
        try:
            raise ValueError(MAIL)
        except ValueError:
            logger.exception("failed", stack_info=True)
        logger.info("plain %d", 7)

    told = lines(RedactingFilter(), log, caplog)
    assert MAIL not in told.text
    assert "ValueError: [EMAIL_" in told.text
    assert "plain 7" in told.text
    first = told.records[0]
    assert (first.n, first.args) == (3, None)
    assert MAIL not in first.who
    assert first.at["phone"].startswith("[PHONE_")


def test_a_log_filter_of_a_database_has_its_policy_and_secret(open_db, caplog):
    with open_db(redact={"names": ["Zaphod"]}) as db:
        one, two = (
            lines(db.log_filter(), lambda log: log.info("Zaphod"), caplog) for _ in range(2)
        )
        assert "Zaphod" not in one.text
        assert len({record.msg for record in two.records}) == 1


def test_a_record_that_cannot_be_redacted_passes_without_its_text(caplog):
    class Broken:
        def redact(self, text, context):
            raise RuntimeError(text)

    policy = RedactionPolicy(redactors=(Broken(),))
    told = lines(
        RedactingFilter(policy), lambda log: log.info("to %s", MAIL, extra={"x": MAIL}), caplog
    )
    assert told.records[0].msg == "[a log record could not be redacted: RuntimeError]"
    assert MAIL not in str(vars(told.records[0]))
