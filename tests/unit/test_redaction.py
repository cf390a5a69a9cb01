"""Redaction: policies, placeholders, values, texts that are JSON, bytes."""

# ruff: noqa: RUF001 - full-width digits are what is looked for
from __future__ import annotations

import json
import re
import sys
from collections import Counter
from random import Random
from types import SimpleNamespace

import pytest

import planted
from memcore import RedactionPolicy
from memcore.errors import InvalidItemError, InvalidOptionError
from memcore.privacy import Redaction, Span, redaction_policy
from memcore.privacy import redact as redacting
from memcore.privacy.policy import PLACEHOLDER
from memcore.privacy.presidio import PresidioRedactor

SECRET = b"0123456789abcdef0123456789abcdef"
PER_CLASS = 25


def placed(policy=None, *, session="s", secret=SECRET, user="u", app="a", **fields):
    chosen = redaction_policy(policy) if policy is not None else RedactionPolicy(**fields)
    return Redaction(chosen, secret=secret).for_place(app, user, session)


# --- the planted corpus ---------------------------------------------------------------------------


def test_everything_planted_is_found_and_no_id_changed():
    random, redactor = Random(8), placed()
    count: Counter[str] = Counter()
    for _ in range(PER_CLASS):
        for make in planted.MAKERS.values():
            one = make(random)
            for form, item in planted.places(random, one):
                before = json.dumps(item)
                made, found = redactor.value(item)
                text = json.dumps(made, ensure_ascii=False).replace("\\\\n", "\n")
                assert one.value not in text.replace("\\n", "\n"), (form, item)
                assert found[one.kind] >= 1, (form, item, found)
                assert planted.ids_of(made) == planted.ids_of(item)
                assert json.dumps(item) == before
                again, more = redactor.value(made)
                assert again is made
                assert not more
                count[one.kind] += 1
    assert sum(count.values()) >= 2_000
    assert set(count) == set(RedactionPolicy().classes)


def test_full_width_values_are_found():
    random, redactor = Random(9), placed()
    for _ in range(20):
        for kind in ("email", "cn_mobile", "cn_id", "card", "student_id", "phone"):
            one = planted.MAKERS[kind](random)
            wide = one.value.translate(planted.FULL_WIDTH)
            text, found = redactor.counted(f"看{one.before}{wide}。")
            assert wide not in text
            assert found[kind] == 1


# --- placeholders ---------------------------------------------------------------------------------


def test_a_value_has_one_placeholder_in_a_session_and_another_elsewhere():
    text = "a@b.com, A@B.COM, 13800138000, +86 138-0013-8000, １３８００１３８０００"
    first, second, *mobiles = placed().text(text).split(", ")
    assert first == second
    assert len(set(mobiles)) == 1
    assert PLACEHOLDER.fullmatch(first)
    assert placed().text("a@b.com") == first
    for other in (
        placed(session="t"), placed(session=None), placed(user="v"), placed(app="b"),
        placed(secret=SECRET[::-1]), placed(app="au", user=""), placed(session=""),
    ):  # fmt: skip
        assert other.text("a@b.com") not in {first, "a@b.com"}


def test_placeholders_stay_whatever_is_looked_for():
    redactor = placed(names=("EMAIL",), patterns={"all_of_it": ".+", "digit": "[0-9A-Z]+"})
    text = "[EMAIL_7K2M9Q] and [CARD_123456]"
    made = redactor.text(text)
    assert made.startswith("[EMAIL_7K2M9Q][")
    assert made.endswith("][CARD_123456]")
    assert redactor.text(made) is made


def test_nothing_hides_in_what_looks_like_a_placeholder():
    assert "13800138000" not in placed().text("[A13800138000_ABCDEF] [13800138000]")


def test_the_secret_is_needed():
    for secret in (b"", b"short", "text"):
        with pytest.raises(InvalidOptionError, match="secret"):
            Redaction(RedactionPolicy(), secret=secret)


# --- values ---------------------------------------------------------------------------------------


def test_the_same_object_when_nothing_is_found():
    redactor = placed()
    for value in (
        {"role": "user", "content": ["a", {"b": (1, 2.5, None, True)}]}, "text", 5, None, [], {},
        '{"a": 1.10, "b": [1, 2]}', '{"a": ', "[1, 2", 10**40, {1: "a"},
    ):  # fmt: skip
        made, found = redactor.value(value)
        assert made is value
        assert not found
    assert redactor.bytes(content := b"\x00binary a@b.com") is content
    assert redactor.bytes(content := b"clean") is content


def test_ids_that_look_like_numbers_or_addresses():
    redactor, number = placed(), "13800138000"
    item = {
        "role": "assistant", "id": number, "response_id": number, "name": "a_tool", "content": [
            {"type": "tool_use", "id": number, "name": "f", "input": {"tool_call_id": number}},
            {"type": "thinking", "thinking": "...", "signature": "a@b.com"},
            {"type": "redacted_thinking", "data": "sk-" + "aB1" * 20},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                         "data": "AAAA13800138000" * 3}},
        ],
        "tool_calls": [{"id": "a@b.com", "type": "function",
                        "function": {"name": "f", "arguments": '{"id": "13800138000"}'}}],
    }  # fmt: skip
    assert redactor.value(item)[0] is item
    for item in (
        {"type": "item_reference", "id": number},
        {"type": "reasoning", "id": number, "encrypted_content": "sk-" + "aB1" * 20},
        {"type": "function_call_output", "call_id": number, "output": "ok"},
        {"role": "tool", "tool_call_id": number, "content": "ok"},
    ):
        assert redactor.value(item)[0] is item


def test_a_dict_of_the_callers_is_no_message():
    made, _ = placed().value(
        {"type": "contact", "name": "a@b.com", "id": "c@d.com", "x": [(1, "a@b.com")]}
    )
    assert "@" not in str(made)
    made, _ = placed().value({"role": "user", "name": "a@b.com", "content": "hi"})
    assert "@" not in str(made)


def test_json_in_json_is_walked_no_more_often_the_deeper_it_lies(monkeypatch):
    redactor, walks = placed(), []
    walk = redacting.ValueWalk.value

    def counted(self, value, *args, **options):
        walks.append(value)
        return walk(self, value, *args, **options)

    monkeypatch.setattr(redacting.ValueWalk, "value", counted)
    value = {"to": "john.doe@example.com"}
    for _ in range(8):
        value = {"inner": json.dumps(value)}
    made, found = redactor.value({"type": "text", "text": json.dumps(value)})
    assert found == {"email": 1}
    assert "john.doe" not in made["text"]
    assert len(walks) < 40


def test_keys_that_become_one_placeholder_are_numbered():
    spelled = {f"{'A' * at}{'a' * (300 - at)}@example.com"[-40:]: at for at in range(280, 300)}
    made, _ = placed().value({"meta": spelled})
    names = list(made["meta"])
    assert list(made["meta"].values()) == list(spelled.values())
    assert len(names) == len(spelled) > 2
    assert names[1:] == [f"{names[0]}_{at}" for at in range(2, len(names) + 1)]


def test_keys_that_are_values():
    made, found = placed().value({"13800138000": 1, "138-0013-8000": 2, "a@b.com": {"c": 3}})
    assert found == {"cn_mobile": 2, "email": 1}
    assert sorted(map(str, made.values())) == ["1", "2", "{'c': 3}"]
    assert "138" not in "".join(made)


def test_numbers_whose_key_says_what_they_are():
    made, found = placed().value(
        {
            "phone": 13800138000, "phones": [2125550123, 7], "mobile": {"number": 13800138000.0},
            "card_number": 4111111111111111, "学号": 20230001, "who": 110105194912310038,
            "amount": 13800138000, "total": 4111111111111111, "phone_ok": True, "id": 13800138000,
            "password": 12345678,
        }
    )  # fmt: skip
    kept = {key: value for key, value in made.items() if isinstance(value, int)}
    assert kept == {
        "amount": 13800138000, "total": 4111111111111111, "phone_ok": True, "id": 13800138000,
    }  # fmt: skip
    assert made["phones"][1] == 7
    assert PLACEHOLDER.fullmatch(made["mobile"]["number"])
    assert found == {
        "cn_mobile": 2, "phone": 1, "card": 1, "student_id": 1, "cn_id": 1, "password": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ('{"a":"b@c.com","n":123456789012345678901234567890}', '":123456789012345678901234567890'),
        ('{"a": "\\u0062@c.com", "学": "\\u5b66"}', '"学": "学"'),
        ('[\n  "b@c.com",\n  1\n]', '",\n  1\n]'),
        (' {"a": "{\\"b\\": \\"b@c.com\\"}"} ', '"{\\"b\\": \\"['),
        ('{"a": "b@c.com"}\n{"phone": 13800138000}\n', '{"phone": "['),
        ('{"a": "b@c.com", "a": 1}', '"a": 1'),
        ('{"a": "b@c.com', '{"a": "['),
        ("[" * 600 + '"b@c.com"' + "]" * 600, '"['),
        ('{"\\u5b66\\u53f7":"20230001"}', '["'.strip('["')),
    ],
)  # fmt: skip
def test_texts_that_are_json_stay_json(text, clean):
    made, found = placed().counted(text)
    assert found
    assert clean in made
    assert not {"b@c.com", "13800138000", "20230001"} & set(made.replace('"', " ").split())
    assert placed().text(made) is made
    try:
        lines = [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return
    assert [type(json.loads(line)) for line in made.splitlines()] == [type(line) for line in lines]


def test_numbers_that_no_float_holds_stay_json():
    text = '{"a": 1e400, "b": [-2.5E+999, 1.5], "m": "alice@example.com"}'
    made = placed().text(text)
    assert "alice" not in made
    json.loads(made, parse_constant=pytest.fail)
    assert made.startswith('{"a": 1e400, "b": [-2.5E+999, 1.5], "m": "[EMAIL_')


@pytest.mark.parametrize("separator", "&;,)|")
def test_a_password_goes_on_behind_a_separator(separator):
    redactor = placed()
    for text in (
        f"password=Xq7pel{separator}ican42 next",
        f"password: Xq7pel{separator}i4{separator}c5",
    ):
        assert "ican42" not in redactor.text(text)
        assert "c5" not in redactor.text(text)
    for rest in ("user=b0b", "port: 80", " user2", "next", "[CARD_7K2M9Q]"):
        made = redactor.text(f"password=Xq7pel9{separator}{rest}")
        assert made.endswith(f"]{separator}{rest}")


def test_a_password_goes_on_behind_a_word_without_a_digit():
    redactor = placed()
    for tail in ("&ican&42more", "&ican42==", ";a,b|c9"):
        made = redactor.text(f"password=Xq7pel{tail} next")
        assert re.fullmatch(r"password=\[PASSWORD_\w{6}\] next", made), made
    for rest in ("&ican", "&debug&page=2", "&a=ican42", "&ican42=&user=b0b", "&ican&x9: 1"):
        assert redactor.text(f"password=Xq7pel9{rest}").endswith(f"]{rest}")


@pytest.mark.parametrize(
    "tail", ["", "&ican42", "&ican&42more", "&ican42=", "&i\\can42", ";a,b|c9=="]
)
@pytest.mark.parametrize(
    "end",
    [
        "",
        "\n",
        "\r\nnext",
        '"}',
        "' x",
        r"\nline2",
        r"\\nline2",
        r"\tx",
        r"\"}\"",
        r"\\\", \\\"a\\\": 1}",
        '"),',
    ],
)
def test_a_password_ends_before_an_escape_as_before_what_it_stands_for(tail, end):
    made = placed().text(f"dsn: password=Xq7pel{tail}{end}")
    assert re.fullmatch(r"dsn: password=\[PASSWORD_\w{6}\](.*)", made, re.DOTALL)[1] == end, made


@pytest.mark.parametrize(
    "value", ["Xq7pelman", 'Xq7"pel42', "Xq7pel\\", '"Xq7\\"pel', "Xq7\\\\pel9"]
)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_quoted_password_is_found_in_json_in_json(value, depth):
    text = {"password": value, "b": "c"}
    for _ in range(depth + 1):
        text = json.dumps(text)
    made = placed().text(f"log: {text} end")
    found = made.removeprefix("log: ").removesuffix(" end")
    for _ in range(depth + 1):
        found = json.loads(found)
    assert re.fullmatch(r"\[PASSWORD_\w{6}\]", found["password"])
    assert found["b"] == "c"


def test_json_in_json_stays_json_behind_a_password():
    text = "password=Xq7pel&ican42"
    for _ in range(4):
        text = json.dumps({"dsn": text})
    made = placed().text(f"log: {text} end")
    found = made.removeprefix("log: ").removesuffix(" end")
    for _ in range(4):
        found = json.loads(found)["dsn"]
    assert re.fullmatch(r"password=\[PASSWORD_\w{6}\]", found)


@pytest.mark.parametrize(
    "rest",
    [
        ',port2="5432")', ';path2="C:/x"', "&user1= bob", ",host2='db'", ',port2="")', ",port2=\t5",
        r',port2=\"5432\")', r",host2=\'db\'", r',port2=\"\")', ";port2 = 5432", ",tok3==bob",
        ",verbose,port2=`5`", ',port2 ="5432"', r",lang\u003dde2",
    ],
)  # fmt: skip
def test_a_name_and_an_equals_sign_behind_a_password_are_another_field(rest):
    made = placed().text(f"connect(password=hunter22{rest}")
    assert made.endswith(f"]{rest}"), made


@pytest.mark.parametrize("sign", ["&#0000064;", "&#x0000040;", "&#" + "0" * 4000 + "64;", "&#X40;"])
def test_entities_with_zeros_before_them_are_read(sign):
    assert "example" not in placed().text(f"write to alice{sign}example.com now")


def test_too_deep_and_circular_values_are_refused():
    deep: list[object] = []
    deep.append(deep)
    with pytest.raises(InvalidItemError, match="520"):
        placed().value({"a": deep})


def test_bytes_of_every_encoding():
    redactor = placed()
    for encoding in ("utf-8", "gb18030", "utf-16"):
        content = "学号20230001，写信给 a@b.com 吧".encode(encoding)
        made, found = redactor.counted_bytes(content)
        assert found == {"student_id": 1, "email": 1}
        assert made.decode(encoding).startswith("学号[STUDENT_ID_")
    assert redactor.bytes(b"\xff\xf1 a@b.com \xe9").startswith(b"\xff\xf1 [EMAIL_")
    assert json.loads(redactor.bytes(b'{"phone": 13800138000}'))["phone"].startswith("[CN_MOBILE_")


# --- policies -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"classes": ["emial"]}, "did you mean 'email'"), ({"classes": ["x"]}, "known are email"),
        ({"classes": "email"}, "expected a list"), ("defualt", "did you mean 'default'"),
        ({"preset": "no"}, "expected one of"), ({"fields": 1}, "unknown 'fields'"), (5, "int"),
        ({"names": [""]}, "names"), ({"names": "Bob"}, "names"), ({"patterns": []}, "mapping"),
        ({"patterns": {"Bad": "a"}}, "lower-case"), ({"patterns": {"email": "a"}}, "built-in"),
        ({"patterns": {"a": ""}}, "non-empty"), ({"patterns": {"a": "(b"}}, "re2 refuses"),
        ({"patterns": {"a": r"(b)\1"}}, "re2 refuses"), ({"redactors": [1]}, "redactors"),
        ({"verdicts": {"email": "burn"}}, "expects one of"),
        ({"verdicts": {"emial": "block"}}, "unknown class"),
        ({"verdicts": {"name": "allow"}}, "your own"), ({"names_ignore_case": 1}, "True or False"),
    ],
)  # fmt: skip
def test_bad_policies_are_refused(given, said):
    if "re2" in said:
        pytest.importorskip("re2")
    with pytest.raises(InvalidOptionError, match=said):
        redaction_policy(given)


def test_patterns_need_re2(monkeypatch):
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(InvalidOptionError, match=r"memcore-db\[pii\]"):
        RedactionPolicy(patterns={"ticket": "T-[0-9]+"})
    assert placed().text("a@b.com") != "a@b.com"


def test_what_gives_a_policy():
    policy = RedactionPolicy(classes=("card", "email"))
    assert redaction_policy(policy) is policy
    assert policy.classes == ("email", "card")
    assert redaction_policy(None) is None
    assert redaction_policy(False) is None
    assert redaction_policy(True).policy_id == RedactionPolicy().policy_id
    assert "ipv4" in redaction_policy("strict").classes
    named = redaction_policy({"preset": "secrets", "names": ["Bob"]})
    assert named.names == ("Bob",)
    assert "email" not in named.classes


def test_the_id_of_a_policy():
    assert RedactionPolicy().policy_id == "be8b0744e4cee218"
    ids = {
        redaction_policy(given).policy_id
        for given in (
            "default", "strict", "secrets", {"names": ["a"]}, {"names": ["a", "b"]},
            {"names": ["a"], "names_ignore_case": False}, {"verdicts": {"card": "block"}},
            {"redactors": [Upper()]},
        )
    }  # fmt: skip
    assert len(ids) == 8
    assert placed().policy_id == "be8b0744e4cee218"


def test_verdicts():
    policy = RedactionPolicy(verdicts={"card": "block", "email": "quarantine", "phone": "allow"})
    assert policy.verdict([]) == "allow"
    assert policy.verdict(["cn_id"]) == "redact"
    assert policy.verdict(["cn_id", "email"]) == "quarantine"
    assert policy.verdict(["email", "card"]) == "block"
    assert "phone" not in policy.sought
    redactor = Redaction(policy, secret=SECRET).for_place("a", "u", "s")
    assert redactor.text("phone 212-555-0123") == "phone 212-555-0123"


# --- names, patterns, redactors -------------------------------------------------------------------


class Upper:
    """Finds words in capitals."""

    def redact(self, text, context):
        words = [(at, word) for at, word in enumerate(text.split(" ")) if word.isupper()]
        places = [text.index(word) for _, word in words if "[" not in word]
        return text, [Span(at, at + len(word), "shout") for at, (_, word) in zip(places, words)]  # noqa: B905


def test_names_and_patterns():
    pytest.importorskip("re2")
    redactor = placed(names=("张三", "Bob Lee"), patterns={"ticket": r"TKT-\d+"})
    text = "张三 wrote to bob lee and Bob Lee of TKT-7, not to Bob Leeds"
    made, found = redactor.counted(text)
    assert found == {"name": 3, "ticket": 1}
    names = [match[0] for match in PLACEHOLDER.finditer(made)]
    assert names[1] == names[2]
    assert made.endswith("not to Bob Leeds")
    assert redactor.value({"张三": 1})[1] == {"name": 1}


def test_a_catastrophic_pattern_harms_nobody():
    pytest.importorskip("re2")
    assert placed(patterns={"evil": "(a+)+$"}).text("a" * 100_000 + "b") == "a" * 100_000 + "b"


def test_what_overlaps_becomes_one():
    pytest.importorskip("re2")
    redactor = placed(names=("Bob",), patterns={"mine": r"x\S+"})
    made, found = redactor.counted("see xa@b.com and x-Bob!")
    assert found == {"email": 1, "name": 1}
    assert PLACEHOLDER.sub("*", made) == "see * and *"


def test_redactors_of_the_callers():
    seen = []

    class Odd(Upper):
        def redact(self, text, context):
            seen.append(context)
            return text.replace("odd", "***"), []

    redactor = placed(redactors=(Upper(), Odd()))
    made, found = redactor.value({"say": "LOUD and odd"})
    assert found == {"shout": 1, "text": 1}
    assert PLACEHOLDER.sub("*", made["say"]) == "* and *"
    assert (seen[-1].app, seen[-1].user, seen[-1].session) == ("a", "u", "s")
    assert "say" in {context.key for context in seen}


@pytest.mark.parametrize("span", [(0, 99, "x"), (-1, 2, "x"), (3, 1, "x"), (0, 1, "A-1")])
def test_a_redactor_that_errs_stops_the_write(span):
    bad = SimpleNamespace(redact=lambda text, context: (text, [span]))
    with pytest.raises(InvalidOptionError, match="redact"):
        placed(redactors=(bad,)).text("some text")


# --- Presidio -------------------------------------------------------------------------------------


class Analyzer:
    def analyze(self, *, text, language, entities, score_threshold):
        at = text.find("Bob")
        hit = SimpleNamespace(start=at, end=at + 3, entity_type="US_PERSON_1")
        return [hit] if at >= 0 else []


def test_presidio_finds_what_its_analyzer_does():
    redactor = placed(redactors=(PresidioRedactor(analyzer=Analyzer(), entities=["PERSON"]),))
    made, found = redactor.counted("write Bob at a@b.com")
    assert found == {"us_person": 1, "email": 1}
    assert PLACEHOLDER.sub("*", made) == "write * at *"


def test_presidio_downloads_nothing(monkeypatch, tmp_path):
    made = []
    provider = SimpleNamespace(create_engine=lambda: "engine")
    fake = SimpleNamespace(AnalyzerEngine=lambda **options: made.append(options) or Analyzer())
    engines = SimpleNamespace(NlpEngineProvider=lambda nlp_configuration: provider)
    monkeypatch.setitem(sys.modules, "presidio_analyzer", fake)
    monkeypatch.setitem(sys.modules, "presidio_analyzer.nlp_engine", engines)
    for models in (None, {"en": "no_such_model_anywhere"}):
        with pytest.raises(InvalidOptionError, match="nothing is downloaded"):
            PresidioRedactor(models=models)
    PresidioRedactor(models={"en": str(tmp_path)})
    assert made == [{"nlp_engine": "engine", "supported_languages": ["en"]}]
    monkeypatch.setitem(sys.modules, "presidio_analyzer", None)
    with pytest.raises(InvalidOptionError, match="not installed"):
        PresidioRedactor(models={"en": str(tmp_path)})
    with pytest.raises(InvalidOptionError, match="AnalyzerEngine"):
        PresidioRedactor(analyzer=5)
