"""_fast.find_sensitive, key_context and Literals: what is found, where, and in how many steps."""

# ruff: noqa: RUF001 - full-width digits are what is looked for
from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

import planted
from memcore._fast import Literals, find_sensitive, key_context, sensitive_work
from memcore.privacy.policy import CLASS_NAMES, CLASSES

EVERY = (1 << len(CLASSES)) - 1
DEFAULT = EVERY & ~(1 << CLASSES["ipv4"] | 1 << CLASSES["ipv6"])
STEPS_MAX = 60
"""A character, whatever the text: 26 is the most that any of these takes in one pass, and a text
with escapes or invisible characters takes two."""


def found(text: str, classes: int = DEFAULT, context: int = 0) -> list[tuple[str, str]]:
    return [
        (text[start:stop], CLASS_NAMES[number])
        for start, stop, number in find_sensitive(text, classes, context)
    ]


JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
PEM = "-----BEGIN RSA PRIVATE KEY-----\\nMIIEowIBAAKCAQEA\\n-----END RSA PRIVATE KEY-----"

FOUND = [
    # e-mail
    ("write to bob.smith+x@mail.example.co.uk.", "bob.smith+x@mail.example.co.uk", "email"),
    ("邮箱user_1@163.com的", "user_1@163.com", "email"),
    (r"line\nuser@example.com", "user@example.com", "email"),
    ("ｕｓｅｒ＠ｅｘａｍｐｌｅ．ｃｏｍ", "ｕｓｅｒ＠ｅｘａｍｐｌｅ．ｃｏｍ", "email"),
    ("13800138000@qq.com", "13800138000@qq.com", "email"),
    ("邮箱bob@example。com。谢谢", "bob@example。com", "email"),
    ("bob@example｡com", "bob@example｡com", "email"),
    ("write to BOB@FIRMA。DE now", "BOB@FIRMA。DE", "email"),
    ("bob@firma。Com", "bob@firma。Com", "email"),
    ("bob@firma.de。Danke", "bob@firma.de", "email"),
    ("写给 bob@example.com。thanks", "bob@example.com", "email"),
    ("?to=user%40example.com&x", "user%40example.com", "email"),
    # Chinese mobile numbers
    ("手机13800138000号", "13800138000", "cn_mobile"),
    ("１３８００１３８０００", "１３８００１３８０００", "cn_mobile"),
    ("138-0013-8000", "138-0013-8000", "cn_mobile"),
    ("138 0013 8000", "138 0013 8000", "cn_mobile"),
    ("+86 138 0013 8000", "+86 138 0013 8000", "cn_mobile"),
    ("+8613800138000", "+8613800138000", "cn_mobile"),
    ("86-13800138000", "86-13800138000", "cn_mobile"),
    ("(+86)13800138000", "(+86)13800138000", "cn_mobile"),
    ("1380013\u200b8000", "1380013\u200b8000", "cn_mobile"),
    ("电话 1380 0138 000", "1380 0138 000", "cn_mobile"),
    # other telephones
    ("+1 (212) 555-0123", "+1 (212) 555-0123", "phone"),
    ("+1-564-555-3353", "+1-564-555-3353", "phone"),
    ("+44 20 7946 0958", "+44 20 7946 0958", "phone"),
    ("Phone: 212-555-0123", "212-555-0123", "phone"),
    ("call me at (212) 555-0123.", "(212) 555-0123", "phone"),
    ("联系电话是 0755-12345678", "0755-12345678", "phone"),
    # resident ids
    ("身份证11010519491231002X。", "11010519491231002X", "cn_id"),
    ("１１０１０５１９４９１２３１００２Ｘ", "１１０１０５１９４９１２３１００２Ｘ", "cn_id"),
    ("110105 19491231 002x", "110105 19491231 002x", "cn_id"),
    ("card 11010519491231002X", "11010519491231002X", "cn_id"),
    # student ids
    ("学号：20230001", "20230001", "student_id"),
    ("student id: 202300012345", "202300012345", "student_id"),
    ("学号13800138000", "13800138000", "student_id"),
    ("學號 S20230001", "20230001", "student_id"),
    # cards
    ("卡号6222021234567890128", "6222021234567890128", "card"),
    ("card 4111 1111 1111 1111 123", "4111 1111 1111 1111", "card"),
    ("4111-1111-1111-1111", "4111-1111-1111-1111", "card"),
    ("amex 3782-822463-10005", "3782-822463-10005", "card"),
    ('{"cardNumber":"4111111111111111"}', "4111111111111111", "card"),
    ("4111111111111111 (visa)", "4111111111111111", "card"),
    # keys and tokens
    ("key AKIAIOSFODNN7EXAMPLE.", "AKIAIOSFODNN7EXAMPLE", "api_key"),
    ("OPENAI_API_KEY=sk-proj-a1" + "b" * 30, "sk-proj-a1" + "b" * 30, "api_key"),
    (r"x\nghp_" + "a1" * 18, "ghp_" + "a1" * 18, "api_key"),
    (f"token: {JWT}", JWT, "jwt"),
    (PEM, PEM, "private_key"),
    ("-----BEGIN PRIVATE KEY-----\n" + "aB3/" * 16 + "\nhm", None, "private_key"),
    ("Authorization: Bearer abcdef1234567890", "abcdef1234567890", "token"),
    ("Authorization: Basic dXNlcjpwYXNzMTIz", "dXNlcjpwYXNzMTIz", "token"),
    ('api_key = "abcd1234efgh"', "abcd1234efgh", "token"),
    # passwords
    ("postgres://user:s3cr3t@db/x", "s3cr3t", "password"),
    ("https://u:p%40ss@h.example.com", "p%40ss", "password"),
    ("password=hunter2&x=1", "hunter2", "password"),
    ('"password": "hunter"', "hunter", "password"),
    (r"{\"password\": \"hunter\"}", "hunter", "password"),
    ("PGPASSWORD=correcthorse psql", "correcthorse", "password"),
    ("密码：abc123，请", "abc123", "password"),
    # invisible characters
    ("to bo\u00adb@exa\u200bmple.c\ufeffom.", "bo\u00adb@exa\u200bmple.c\ufeffom", "email"),
    ("bob\u2060@\u200dexample\ufe0f.com", "bob\u2060@\u200dexample\ufe0f.com", "email"),
    ("AKIAIOSF\u200bODNN7EXAMPLE", "AKIAIOSF\u200bODNN7EXAMPLE", "api_key"),
    ("sk-proj-a1\U000e0041" + "b" * 30, "sk-proj-a1\U000e0041" + "b" * 30, "api_key"),
    ("pass\u200bword=hun\u200bter2", "hun\u200bter2", "password"),
    ("密\u200b码：abc123", "abc123", "password"),
    ("4111\u200b1111\u200b11111111 card", "4111\u200b1111\u200b11111111", "card"),
    # escapes
    (r"mail bob\u0040example.com now", r"bob\u0040example.com", "email"),
    (r"mail bob\\u0040example\\u002ecom now", r"bob\\u0040example\\u002ecom", "email"),
    (r"mail bob\x40example.com", r"bob\x40example.com", "email"),
    (r"mail bob\u{40}example.com", r"bob\u{40}example.com", "email"),
    ("to=bob%2540example.com", "bob%2540example.com", "email"),
    ("to=bob%u0040example.com", "bob%u0040example.com", "email"),
    ("mail bob&#64;example.com", "bob&#64;example.com", "email"),
    ("mail bob&#x40;example&period;com", "bob&#x40;example&period;com", "email"),
    ("mail bob&amp;commat;example.com", "bob&amp;commat;example.com", "email"),
    (r"mail bob\_smith@example.com", r"bob\_smith@example.com", "email"),
    (r"https:\/\/u:s3cr3t@db\/x", "s3cr3t", "password"),
    ("%22password%22%3A%22hunter2%22", "hunter2", "password"),
    ("%E5%AF%86%E7%A0%81%EF%BC%9Ahunter2 x", "hunter2", "password"),
    (r"\u5bc6\u7801: hunter2", "hunter2", "password"),
    ("{&quot;password&quot;:&quot;hunter2&quot;}", "hunter2", "password"),
    ("𝐛𝐨𝐛@𝐞𝐱𝐚𝐦𝐩𝐥𝐞.com", "𝐛𝐨𝐛@𝐞𝐱𝐚𝐦𝐩𝐥𝐞.com", "email"),
    # keys that go on in the next line
    ("AKIAIOSF\nODNN7EXAMPLE", "AKIAIOSF\nODNN7EXAMPLE", "api_key"),
    ("sk-a1b2c3d4e5f6g7\n  h8i9j0k1l2m3", "sk-a1b2c3d4e5f6g7\n  h8i9j0k1l2m3", "api_key"),
    (r"sk-a1b2c3d4e5f6g7\nh8i9j0k1l2m3", r"sk-a1b2c3d4e5f6g7\nh8i9j0k1l2m3", "api_key"),
    (
        "sk-a1b2c3d4e5f6g7h8i9j0k1\r\nh8i9j0K1l2m3",
        "sk-a1b2c3d4e5f6g7h8i9j0k1\r\nh8i9j0K1l2m3",
        "api_key",
    ),
    # names that mean nothing else
    ("client_secret: 8f3b2c1d9e", "8f3b2c1d9e", "token"),
    ("clientSecret: correcthorsebattery", "correcthorsebattery", "token"),
    ("client-secret=correcthorse&x", "correcthorse", "token"),
    ("CLIENT_SECRET=correcthorse", "correcthorse", "token"),
    ('"client_secret": "correcthorse"', "correcthorse", "token"),
    (
        "AccountKey=Eby8vdM02xNOcqFlq/K1SZFPTOtr+Kw==;End",
        "Eby8vdM02xNOcqFlq/K1SZFPTOtr+Kw==",
        "token",
    ),
    ("?sv=2022&sig=abcDEF%2B123456ghiJKL%3D", "abcDEF%2B123456ghiJKL%3D", "token"),
    ("Ocp-Apim-Subscription-Key: 0123456789abcdef", "0123456789abcdef", "token"),
    ("authorization: token abcdef1234567890", "abcdef1234567890", "token"),
    ("{'Authorization': 'Basic dXNlcjpwYXNzMTIz'}", "dXNlcjpwYXNzMTIz", "token"),
    ("curl -u admin:hunter2 https://x.example", "hunter2", "password"),
    ("hvs.CAESIa1" + "b" * 24, "hvs.CAESIa1" + "b" * 24, "api_key"),
    ("lsv2_pt_a1" + "b" * 30, "lsv2_pt_a1" + "b" * 30, "api_key"),
    # said in a sentence
    ("我的密码是 hunter2，别忘了", "hunter2", "password"),
    ("密码改成了abc12345。", "abc12345", "password"),
    ("密码hunter2", "hunter2", "password"),
    ("口令 hunter2", "hunter2", "password"),
    ("密码是：“hunter2”", "hunter2", "password"),
    ("银行卡密码是123456", "123456", "password"),
    ("验证码是 482913，五分钟内有效", "482913", "password"),
    ("【银行】验证码：482913", "482913", "password"),
    ("パスワードは hunter2", "hunter2", "password"),
    ("my password is hunter2.", "hunter2", "password"),
    ("My password is Hunter2!", "Hunter2!", "password"),
    ("the passcode's 4711", "4711", "password"),
    ("the passcode’s 4711", "4711", "password"),
    ("pwd: 1234", "1234", "password"),
    ("password is **hunter2**", "hunter2", "password"),
    ("my password is p@ssword", "p@ssword", "password"),
    ("username bob and password 'hunter22'", "hunter22", "password"),
    ("I changed the password to Tr0ub4dor", "Tr0ub4dor", "password"),
    ("password for the admin account is hunter2", "hunter2", "password"),
    ("Your verification code is 482 913.", "482 913", "password"),
    ("OTP: 482913", "482913", "password"),
    ("the api key is abcdefgh12345678", "abcdefgh12345678", "token"),
]

CLEAN = [
    "a@b @app.route x@1.2.3 git@github.com:o/r user@host",
    "113800138000 138001380001 0.13800138000 12800138000",
    "3f1380013800045ab3f139123456789ab3f139123456789ab",  # a hash
    "11010519491231002X1 110105194912310021 110105194902310026 100105194912310021",
    "20230001 学号在下面列出：20230001",
    "4111111111111111 discard 4111111111111111",
    "card 4111111111111112 card 9111111111111111 card 411111111111",
    "sk-learn-is-a-library-of-python sk-xxxxxxxxxxxxxxxxxxxxxxxx AKIA1234 task-sk-a1",
    "password=password password = get_password() password: str = None password: ${PW} pwd=/home/x",
    "max_tokens=4096 next_page_token: abc123abc123abc123 the password: must have 8 characters",
    "hotel 12345678 tel 2024-05-13 10:30 room 212-555-0123",
    "http://localhost:8080/@x https://example.com/a:b@c",
    "[EMAIL_7K2M9Q] password=[PASSWORD_7K2M9Q] 学号 [STUDENT_ID_123456]",
    "1.2.3.4 fe80::1 12:34:56 std::vector",
    "+12345678 +++++ 1+1380013800 C++11",
    "the password is 8 characters, password is 2048 bits, a password is 10-12 characters",
    "密码长度是 1024 位，密码 sha256 加密，密码学 101，密码是必填的，密码错误 3 次",
    "the password is required. password reset in 2024 password step2, password is sha256",
    "passwords since 2019, status code is 404, code: 482913, pin 13, the token is short1",
    "send the password to jsmith2000, the token count is 128000tokens, key is f5",
    r"100%25 a\u0020b \d+\.\d+ C:\users\x &amp;c=1 %zz \uzzzz &#; \\\\ %",
    "client_secret: your_client_secret client_secret = settings.oauth.value clientSecret=None",
    "sk-learn\nis-a-library-of-python AKIA\nIOSFODNN7EXAMPLE sk-learning\nrate=1234567890abc",
    "a\u200bb \u200b \ufeff ❤️ 1\ufe0f\u20e3",
    "time 12:30 -u a:b ratio -u :x",
]


@pytest.mark.parametrize(("text", "value", "kind"), FOUND, ids=[row[0][:40] for row in FOUND])
def test_a_value_is_found_at_its_offsets(text, value, kind):
    if value is None:
        assert [name for _, name in found(text)] == [kind]
    else:
        assert found(text) == [(value, kind)]
        assert (value, kind) in found(f"汉字{text} 。")


@pytest.mark.parametrize("text", CLEAN)
def test_nothing_is_found_in_what_only_looks_like_it(text):
    assert found(text) == []


def test_digits_beside_letters_that_make_no_word():
    """ASCII digits are the boundary: neither 汉字 nor letters are, nor other digits."""
    for before in ("号", "x", "é", "_", "（", ""):
        assert found(f"{before}13800138000") == [("13800138000", "cn_mobile")]
    for before in ("1", "１", "٣"):
        assert found(f"{before}13800138000") == []


def test_addresses_of_machines_only_when_asked():
    text = "10.1.2.3 v1.2.3.4 1.2.3.4.5 fe80::1ff:fe23:4567:890a 2001:db8::1 00:1a:2b:3c:4d:5e"
    assert found(text) == []
    assert found(text, EVERY) == [
        ("10.1.2.3", "ipv4"), ("fe80::1ff:fe23:4567:890a", "ipv6"), ("2001:db8::1", "ipv6"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_found_only_when_it_is_asked_for(name):
    for text, _, kind in FOUND:
        without = EVERY & ~(1 << CLASSES[name])
        assert name not in [got for _, got in found(text, without)]
        if kind == name:
            assert {got for _, got in found(text, 1 << CLASSES[name])} == {name}


def test_every_valid_check_digit_and_no_other():
    random = Random(3)
    for _ in range(30):
        valid = planted.resident_id(random)
        for last in "0123456789X":
            assert bool(found(valid[:17] + last)) == (last == valid[17])
        number = planted.luhn("62" + planted.digits(random, 13))
        for last in "0123456789":
            assert bool(found(f"卡号 {number[:15]}{last}")) == (last == number[15])


def test_offsets_hold_behind_every_kind_of_character():
    for before in ("a", "é", "汉", "🎉", "\U0001d7d8", "\x00", "\ud800"):
        text = before * 3 + " user@example.com"
        assert find_sensitive(text, 1, 0) == [(4, len(text), 0)]


@pytest.mark.parametrize(
    ("key", "kinds"),
    [
        ("phone_number", {"cn_mobile", "phone"}), ("homePhone", {"cn_mobile", "phone"}),
        ("联系电话", {"cn_mobile", "phone"}), ("cardNumber", {"card"}), ("银行卡号", {"card"}),
        ("studentId", {"student_id"}), ("学号", {"student_id"}), ("db_password", {"password"}),
        ("密码", {"password"}), ("apiKey", {"token"}), ("access_token", {"token"}),
        ("client_secret", {"token"}), ("AccountKey", {"card", "token"}),
        ("otp", set()), ("pinCode", set()),
        ("discard", set()), ("hotel", set()), ("nextPageToken", set()), ("token_count", set()),
        ("password_hint", set()), ("tool_call", set()), ("", set()),
    ],
)  # fmt: skip
def test_what_a_key_says(key, kinds):
    assert {name for name, bit in CLASSES.items() if key_context(key) >> bit & 1} == kinds


def test_a_key_gives_the_context():
    assert found("2125550123") == []
    assert found("2125550123", context=key_context("phone")) == [("2125550123", "phone")]
    assert found("20230001", context=key_context("学号")) == [("20230001", "student_id")]
    assert found("hunter", context=key_context("password")) == [("hunter", "password")]
    assert found("[PASSWORD_7K2M9Q]", context=key_context("password")) == []
    assert found("correcthorse", context=key_context("clientSecret")) == [("correcthorse", "token")]
    assert found("correcthorse", context=key_context("token")) == []
    assert found("482913", context=key_context("验证码")) == [("482913", "password")]
    assert found("enabled", context=key_context("otp")) == []


EVIL = [
    "a", "1", "@", "a@", "@a.", "a@b.", "1 ", "1-", "12345678901", "1234567 ", "+1", "+86 ", "%40",
    "a%40", "sk-", "sk-a1", "_sk-", "eyJ", "eyJaaaaaaaa.", "SG.aaaaaaaa.", "-",
    "-----BEGIN PRIVATE KEY-----\n", "-----END", "://", "://a:b@", "password=", 'password="',
    'token=\\"', "x_password=" * 23 + " ", "密码：", "学号1", "卡4", "card 4111 1111 1111 1112 ",
    "phone 1", "phone 123-4567 ", "(1", "[", "[A_", "[EMAIL_ABCDEF]", "bearer ", "\\n", "A", "::",
    "\\", "\\u", "\\u0040", "a\\u0040b.", "%", "%25", "%2540", "&", "&amp;", "&#64", "a\u200b",
    "a1", "x@",
    "a.b@1", "is 1", " is a1", "密码是1", "码1", "password is a1 ", "password to 1", " -u a:",
    "a:1", "sk-a1b2c3\n",
    "sk-a1b2c3d4e5f6g7h8i9j0\n", "AKIA1234\n", "client_secret: ", "(1", "**1", "密",
    "\u200b" * 3 + "1",
    "1:", "1.1.1.1", "f1391234567", "xn--", "\u200b1", "１－", "110105 19491231 002", "62284800",
]  # fmt: skip


@pytest.mark.parametrize("fragment", EVIL)
def test_no_text_takes_more_than_linear_time(fragment):
    for size in (2_000, 100_000):
        text = (fragment * (size // len(fragment) + 1))[:size]
        assert sensitive_work(text, EVERY) <= STEPS_MAX * size


def test_two_fragments_at_a_time_take_linear_time_too():
    for one in EVIL[::2]:
        for other in EVIL:
            text = (one + other) * (3_000 // len(one + other) + 1)
            assert sensitive_work(text, EVERY) <= STEPS_MAX * len(text), (one, other)


# --- names ----------------------------------------------------------------------------------------


def test_names_are_found_whole():
    names = Literals(["Ann", "Ann Lee", "张三", "Renée"])
    text = "ann lee, Annual, 张三丰 ANN renée Joann"
    assert [text[start:stop] for start, stop in names.find(text)] == [
        "ann lee", "张三", "ANN", "renée",
    ]  # fmt: skip
    assert Literals(["Ann"], ignore_case=False).find("ann Ann") == [(4, 7)]


def test_names_against_looking_for_each():
    random = Random(5)
    for _ in range(300):
        names = ["".join(random.choices("张三🎉", k=random.randint(1, 4))) for _ in range(5)]
        text = "".join(random.choices("张三🎉 四", k=40))
        covered = {
            at + k
            for name in names
            for at in range(len(text))
            if text.startswith(name, at)
            for k in range(len(name))
        }
        spans = Literals(names).find(text)
        assert covered == {at for start, stop in spans for at in range(start, stop)}
        assert all(a[1] <= b[0] for a, b in pairwise(spans))


def test_bad_names():
    with pytest.raises(ValueError, match="empty"):
        Literals(["a", ""])
    with pytest.raises(TypeError):
        Literals([1])  # type: ignore[list-item]
