"""Extractor without a model: sentences of the user that weighted rules find worth remembering.

What is found is the user's own sentence, word for word, so nothing is invented, and nothing that
somebody else said is learned. English, and Chinese in its main forms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from memcore.memory.judge import CANDIDATES_MAX, TEXT_CHARS_MAX, Candidate, Extraction
from memcore.memory.trust import split_pasted
from memcore.options import checked_int

__all__ = [
    "RuleExtractor",
    "scored_sentences",
]


_WORDS_MIN, _WORDS_MAX = 4, 80
_CJK_MIN: Final = 5
"""Characters that count as a sentence in Chinese, whose words are not separated."""
_SHORT_WORDS: Final = 9
"""Words below which a greeting or a thanks is all that a sentence says."""
_SCORE_MAX: Final = 10
SUBJECT: Final = "user"
"""Subject of the slots that are found."""

_SENTENCES: Final = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])|\n+")
_WORD: Final = re.compile(r"\w+")
_CJK: Final = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]")


class _Rule(NamedTuple):
    """Pattern that tells something about a sentence."""

    kind: str
    """Kind of the memory, if this is the first rule with a kind that applies; empty: none."""
    weight: int
    pattern: re.Pattern[str]


def _rule(kind: str, weight: int, *alternatives: str) -> _Rule:
    return _Rule(kind, weight, re.compile("|".join(alternatives), re.IGNORECASE))


_DAYS: Final = "mon|tues|wednes|thurs|fri|satur|sun"
_RULES: Final = (
    # Likes and dislikes.
    _rule(
        "preference", 3,
        r"\b(?:prefer\w*|favou?rites?|rather than|instead of|sick of|tired of|keen on|fond of)\b",
        r"\bi(?:'m| am)? (?:\w+ ){0,2}(?:love|like|enjoy|adore|hate|dislike|detest|avoid|miss)\b",
        r"\b(?:can'?t stand|big fan|fan of|passionate|obsessed|interested in|into \w+ing|"
        r"looking forward to|excited (?:about|for|to)|proud of|worried about|afraid of)\b",
        r"\b(?:allerg\w+|intoleran\w+|vegan|vegetarian|kosher|halal|gluten|diabetic)\b",
        "(?:我(?:更|最|很|特别|非常|比较)?(?:喜欢|爱|讨厌|不喜欢|偏好|习惯))",
        "过敏|吃素|素食|宁愿|感兴趣",
    ),
    # What the user wants to hold from now on.
    _rule(
        "procedure", 3,
        r"\b(?:from now on|going forward|in (?:the )?future|by default|whenever (?:i|you|we))\b",
        r"\b(?:always|never)\b(?! (?:mind|been|seen|thought|heard))",
        r"\bplease (?:don'?t|do not|always|never|use|avoid|keep|include|write|answer|reply|call)\b",
        r"\b(?:make sure|be sure|remember|don'?t forget|keep in mind)(?: that| to| you)?\b",
        r"\bi (?:want|need|expect|ask|would like) you to\b|\bcall me\b",
        "(?:以后|今后|从现在起|从今以后|请记住|记住|不要忘|别忘了|务必|一定要|每次都|永远不要)",
    ),
    # Who the user is.
    _rule(
        "fact", 3,
        r"\bmy (?:\w+ ){0,2}(?:name|age|birthday|job|work|boss|company|team|title|role|phone|"
        r"number|e-?mail|address|hobby|hobbies|goal|dream|degree|major|school|background|"
        r"house|apartment|flat|car|business|shop|store|studio)\b",
        r"\bi(?:'m| am) (?:currently |now |originally )?(?:an?|the|from|based|born|\d+|studying|"
        r"working|living|married|single|divorced|retired|pregnant|self-employed)\b",
        r"\bi (?:work|live|study|teach|own|run|grew up|was born|moved|come from|speak|play|have)\b",
        "(?:我(?:叫|是|住|来自|今年|在.{1,20}(?:工作|上班|上学|读书)|毕业|出生)|我的(?:名字|生日|电话|邮箱|地址|工作))",
    ),
    # People and animals of the user.
    _rule(
        "fact", 2,
        r"\b(?:my|our) (?:\w+ ){0,2}(?:wife|husband|partner|spouse|girlfriend|boyfriend|fianc\w+|"
        r"sons?|daughters?|kids?|child(?:ren)?|baby|mom|mum|mother|dad|father|parents?|brothers?|"
        r"sisters?|siblings?|grand\w+|aunt|uncle|cousins?|nieces?|nephews?|friends?|"
        r"roommates?|dogs?|cats?|pupp\w+|pup|kittens?|pets?|neighbou?rs?|colleagues?|"
        r"co-?workers?|manager|teacher|coach|doctor|therapist|mentor|family|community|group)\b",
        "我(?:的)?(?:妻子|老婆|丈夫|老公|女儿|儿子|孩子|妈妈|母亲|爸爸|父亲|父母|哥哥|弟弟|姐姐|妹妹|"
        "朋友|同事|老板|老师|医生|狗|猫|家人)",
    ),
    # What is going to happen, and what the user has undertaken to do.
    _rule(
        "event", 2,
        r"\b(?:i|we)(?:'m| am|'re| are|'ve| have|'d)? (?:going to|gonna|about to|planning|plan|"
        r"planned|decided|scheduled|booked|signed up|hoping|hope|aiming|trying|"
        r"thinking (?:of|about)|considering|working on|promised?|intend|agreed)\b",
        r"\b(?:i|we)(?:'ll| will|'d like| would like| want| need| have to| must)\b",
        r"\b(?:deadlines?|appointments?|meetings?|due (?:by|on|date)|tomorrow|tonight|upcoming|"
        r"soon|later this)\b",
        rf"\bnext (?:week|month|year|weekend|spring|summer|fall|autumn|winter|(?:{_DAYS})day)\b",
        "我(?:打算|计划|准备|决定|会|要|想要|答应|需要)|明天|后天|明年|截止|预约",
        "下(?:周|个月|个星期|星期|次)",
    ),
    # What has happened.
    _rule(
        "event", 2,
        r"\b(?:yesterday|recently|lately|earlier|ago|the other day|once|back in|since)\b",
        rf"\b(?:last|this|past) (?:few )?(?:night|morning|week|month|year|weekend|spring|summer|"
        rf"fall|autumn|winter|days|weeks|months|years|(?:{_DAYS})day)\b",
        r"\b(?:i|we)(?:'ve| have|'d| had)? (?:\w+ )?(?:\w{2,}ed|went|got|bought|made|met|took|did|"
        r"had|saw|been|found|won|lost|wrote|built|read|ran|gave|began|chose|came|felt|left|"
        r"said|told|sold|set|started|taught|thought|done|gone|seen|drew|sang|swam|rode|drove)\b",
        r"\bjust (?:got|had|came|made|won|lost|\w+ed)\b",
        "(?:昨天|前天|上(?:周|个月|个星期|星期|次)|去年|最近|刚刚?|以前)|我.{0,12}(?:了|过)",
    ),
    _rule(
        "", 1, r"\b(?:i|i'm|im|i've|i'd|i'll|my|me|mine|myself|we|we're|we've|our|us)\b", "我|咱"
    ),
    _rule(
        "", 1, r"\d",
        r"\b(?:january|february|march|april|june|july|august|september|october|november|december)\b",
        rf"\b(?:{_DAYS})days?\b",
        r"\b(?:two|three|four|five|six|seven|eight|nine|ten|twenty|hundred|thousand|million)\b",
        "[零一二三四五六七八九十百千万两]+(?:个|年|月|日|天|岁|元|块|次)",
    ),
    _rule("", -2, r"[?:]\s*\Z", "[\uff1f?]\\Z|(?:吗|呢)[\u3002\uff1f?]?\\Z"),
    _rule(
        "", -2,
        r"\b(?:what if|imagine|suppose|hypothetical\w*|pretend|let'?s say|for example|if i were)\b",
        "(?:假设|假如|要是|如果我)",
    ),
)  # fmt: skip
_NAMES: Final = re.compile(r"(?<=[\w,;:)] )(?!I\b)[A-Z][a-z]+|\"[^\"]{3,40}\"")
_PHATIC: Final = re.compile(
    r"(?:hi|hey|hello|thanks?|thank you|wow|great|cool|awesome|nice|amazing|sure|yes|yeah|yep|no|"
    r"nope|ok(?:ay)?|bye|goodbye|good (?:morning|night|luck|idea|point)|take care|congrat\w*|"
    r"glad|so (?:good|glad|happy|cool)|that'?s|sounds|absolutely|definitely|of course|you'?re|"
    r"what an?|how)\b|(?:你好|谢谢|好的|再见|没问题|嗯|哈哈)",
    re.IGNORECASE,
)


class _Slot(NamedTuple):
    """Property that a sentence states as such."""

    name: str
    kind: str
    pattern: re.Pattern[str]


_LEAD: Final = (
    r"\A(?:(?:hi|hello|hey|well|so|and|oh|ok|okay|actually|by the way|btw|now|please)\W+)*"
)
_PROPER: Final = r"(?-i:[A-Z])[\w.'-]*(?: (?-i:[A-Z])[\w.'-]*){0,3}"


def _slot(name: str, kind: str, *alternatives: str) -> _Slot:
    return _Slot(name, kind, re.compile("|".join(alternatives), re.IGNORECASE))


_SLOTS: Final = (
    _slot(
        "name", "fact",
        rf"{_LEAD}my (?:full |first )?name(?: is|'s) {_PROPER}",
        rf"{_LEAD}(?:just )?call me (?!(?-i:[A-Z])\w*day\b){_PROPER}\W*\Z",
        r"\A(?:你好[，,]?)?(?:我叫|我的名字(?:是|叫))\w{1,8}",
    ),
    _slot(
        "home", "fact",
        rf"{_LEAD}i(?:'m| am)? (?:now |currently )?liv(?:e|ing) in {_PROPER}",
        rf"{_LEAD}i(?:'ve| have)? (?:just |recently )?moved to {_PROPER}",
        r"\A我(?:现在|目前)?住在\w+",
    ),
    _slot(
        "employer", "fact",
        rf"{_LEAD}i (?:now |currently )?work (?:at|for) {_PROPER}",
        r"\A我(?:现在|目前)?在\w{2,20}(?:工作|上班)",
    ),
    _slot(
        "birthday", "fact",
        rf"{_LEAD}my birthday(?: is|'s) (?:on )?[\w ,]{{3,30}}",
        r"\A我的生日是\w+",
    ),
    _slot(
        "email", "fact",
        rf"{_LEAD}my e-?mail(?: address)? is \S+@\S+",
        r"\A我的邮箱是\S+@\S+",
    ),
    _slot(
        "phone", "fact",
        rf"{_LEAD}my (?:phone|cell|mobile)(?: number)? is [+\d(]",
        r"\A我的电话(?:号码)?是\d+",
    ),
    _slot(
        "diet", "preference",
        rf"{_LEAD}i(?:'m| am) (?:now )?(?:a )?(?:strict )?(?:vegan|vegetarian)\b",
    ),
)  # fmt: skip
_FAVOURITE: Final = re.compile(
    rf"{_LEAD}my favou?rite ((?:[a-z]+ ){{0,2}}[a-z]+)(?: is|'s) \w", re.IGNORECASE
)


class Sentence(NamedTuple):
    """Sentence that may be worth remembering."""

    score: int
    kind: str
    text: str
    slot: str | None


def scored_sentences(text: str) -> Iterator[Sentence]:
    """Yield the sentences of a text with their scores."""
    for piece in _SENTENCES.split(text):
        sentence = " ".join(piece.split())
        if not sentence or len(sentence) > TEXT_CHARS_MAX:
            continue
        words, cjk = len(_WORD.findall(sentence)), len(_CJK.findall(sentence))
        if cjk < _CJK_MIN and not _WORDS_MIN <= words <= _WORDS_MAX:
            continue
        applied = [rule for rule in _RULES if rule.pattern.search(sentence)]
        score = sum(rule.weight for rule in applied)
        score += _NAMES.search(sentence) is not None
        if _PHATIC.match(sentence) and words < _SHORT_WORDS:
            score -= 2
        kind = next((rule.kind for rule in applied if rule.kind), "fact")
        is_plain = all(rule.weight > 0 for rule in applied)  # no question, nothing supposed
        yield Sentence(score, *(_placed(sentence, kind) if is_plain else (kind, sentence, None)))


def _placed(sentence: str, kind: str) -> tuple[str, str, str | None]:
    """Return kind and slot of a sentence, if it states a property in so many words."""
    for slot in _SLOTS:
        if slot.pattern.search(sentence):
            return slot.kind, sentence, slot.name
    found = _FAVOURITE.search(sentence)
    if found is not None:
        return "preference", sentence, f"favorite {found[1].casefold()}"
    return kind, sentence, None


class RuleExtractor:
    """Extractor without a model: the user's sentences that score enough by weighted rules.

    First person, preferences, standing wishes, relations, plans, past events, numbers, dates and
    names count for a sentence; questions, suppositions and mere politeness against it. Properties
    such as name, home and employer get a slot, so that a later one supersedes them.

    Args:
        least: score from which on a sentence is taken; 1 keeps more, 4 less.

    Raises:
        InvalidOptionError: ``least`` is not an int of at least 1.
    """

    name: Final = "rules"

    def __init__(self, *, least: int = 2) -> None:
        self.least = checked_int("least", least, least=1)

    @property
    def version(self) -> str:
        """Version of the rules; another threshold reads sessions anew."""
        return f"1.{self.least}"

    def __call__(self, extraction: Extraction, /) -> list[Candidate]:
        """Return the sentences worth remembering, the best ones if there are many."""
        found: list[tuple[int, Candidate]] = []
        for item in extraction.items:
            if item.role != "user":
                continue
            own, _ = split_pasted([item.text])
            for score, kind, text, slot in scored_sentences(own):
                if score >= self.least:
                    made = Candidate(
                        text, (item.number,), kind, None if slot is None else SUBJECT, slot,
                        importance=min(score, _SCORE_MAX) / _SCORE_MAX,
                    )  # fmt: skip
                    found.append((score, made))
        best = sorted(found, key=lambda each: -each[0])[:CANDIDATES_MAX]
        kept = {id(made) for _, made in best}
        return [made for _, made in found if id(made) in kept]
