"""Whether a text refuses and explains why: what the passages hold instead, what would be needed, what was looked for.

Two forms count. The text opens with a refusal about its evidence, and no later sentence turns to an answer. Or it ends
with a conclusion, such as `Therefore, the league cannot be determined.`, after which no answer comes. A remark that one
detail is not mentioned, behind an answer, is neither.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_GIVEN = r"(?:provided|given|retrieved|available|supplied|relevant|cited|above|search|knowledge|graph)"
_EVIDENCE = rf"""(?:
    (?:{_GIVEN}\s+)*(?:(?:pieces|parts|sections)\s+of\s+)?
        (?:context|passages?|sources?|documents?|documentation|text|excerpts?|evidence|articles?|graph|information|
        filings?|materials?|snippets?)
  | (?:{_GIVEN}\s+)+(?:data(?:set)?|reports?|chunks?|content|results?|paragraphs?|pages?|records?|tables?|details?|
        triples|facts)
)"""
_ADVERBS = r"(?:\w+ly\s+|also\s+|even\s+)*"
_TELL = r"""(?:contain|mention|provide|specify|include|state|indicate|identify|discuss|describe|address|explain|list|
    cover|have|answer|reveal|show|give|offer|say|note|disclose|report|detail|reference|clarify|tell|name|present|define|
    elaborate|support)"""
_TOLD = r"""(?:provided|specified|mentioned|available|stated|given|included|disclosed|found|listed|described|discussed|
    identified|indicated|detailed|addressed|present|covered|explained|defined)"""
_DO = r"""(?:answer|determine|provide|calculate|identify|find|tell|say|give|compute|estimate|establish|respond|
    generate|assess|specify|locate|ascertain|derive)"""
_DONE = r"""(?:answered|determined|calculated|identified|described|found|provided|established|computed|inferred|
    ascertained|derived|estimated)"""
_THING = r"(?:information|mention|data|details?|evidence|reference|indication)"


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.VERBOSE)


# All match at the beginning of a sentence, or of what follows its lead.

# what stands before a main clause
_LEAD = _pattern(
    rf"""(?:(?:unfortunately|however|but|sorry|i\s+am\s+(?:very\s+)?sorry|i\s+apologi[sz]e)\b[,.]?\s*(?:but\s+)?
    | (?:based|relying)\s+(?:solely\s+|only\s+)?(?:on|upon)\s[^,]{{0,90}},\s*
    | according\s+to\s[^,]{{0,60}},\s*
    | (?:from|in)\s+(?:the\s+)?{_EVIDENCE}[^,]{{0,40}},\s*
    | neither\s*,\s* | (?:answer|note|response)\s*:\s*
    | \W+)+"""
)
# the evidence lacks it, or the speaker has not found it
_REFUSAL = _pattern(
    rf"""(?:
      (?:(?:the|this|these|any|your|both|all)\s+(?:[\w'-]+\s+){{0,2}})?{_EVIDENCE}\b[^.;]{{0,60}}?
        \b(?:(?:do|does|did)\s+not\s+{_ADVERBS}{_TELL}\b|(?:contains?|provides?|includes?|has|have|offers?|gives?)\s+no\b
        |(?:is|are)\s+(?:insufficient|incomplete|not\s+(?:enough|sufficient)))
    | (?:the|this|that)\s+[^.;,]{{3,60}}?\s(?:does|did)\s+not\s+{_ADVERBS}(?:mention|specify|state|provide)\b
    | there\s+(?:is|are|was|were)\s+(?:no|not\s+(?:any|enough|sufficient)|insufficient)\s(?:[^.;,]{{0,60}}\s)?{_THING}\b
    | there\s+(?:is|are)\s+no\s[^.;,]{{0,80}}\s{_TOLD}\b
    | there\s+(?:is|are|was|were)\s+no\s+(?:(?:direct|clear|relevant|specific)\s+)?
        (?:answer|(?:search\s+)?results?|passages?)\b
    | neither\s[^.;,]{{1,80}}\s(?:is|are|was|were)\s+{_TOLD}\b
    | (?:i|we)\s+(?:am|are)\s+not\s+(?:sure|certain|aware)\b
    | (?:no|insufficient|not\s+enough)\s+(?:\w+\s+){{0,3}}{_THING}\b[^.;]{{0,80}}?
        \b(?:is|are|was|were)\s+{_ADVERBS}(?:{_TOLD}|given)
    | (?:it|they)\s+(?:do|does|did)\s+not\s+{_ADVERBS}{_TELL}\b
    | (?:i|we)\s+(?:cannot|could\s+not|am\s+unable\s+to|are\s+unable\s+to|was\s+unable\s+to|am\s+not\s+able\s+to
        |(?:did|have)\s+not)\s+{_ADVERBS}(?:{_DO}|found|see|identified)\b
    | (?:i|we)\s+do\s+not\s+(?:know|see|find|have)\b
    | it\s+is\s+(?:not\s+possible|impossible)\s+to\s+{_DO}\b
    )"""
)
# `the fee is not mentioned`; a refusal where the sentence names the evidence
_NOT_TOLD = _pattern(
    rf"[^.;,]{{0,160}}?\b(?:is|are|was|were)\s+not\s+{_ADVERBS}{_TOLD}\b"
)
# what introduces a result
_CONCLUSION = _pattern(
    r"(?:and\s+)?(?:therefore|thus|so|hence|as\s+such|as\s+a\s+result|consequently|accordingly|in\s+conclusion"
    r"|without\s[^,]{0,80}|since\s[^,]{0,120}|given\s+(?:this|that|the)\b[^,]{0,80})\s*,?\s*"
)
# the result: it cannot be said
_NO_RESULT = _pattern(
    rf"""(?:.*?\bcannot\s+be\s+{_ADVERBS}{_DONE}\b
    | .*?\b(?:is|are)\s+not\s+(?:available|known|possible|provided|given)\b
    | .*?\b(?:i|we)\s+(?:cannot|am\s+unable\s+to|are\s+unable\s+to|am\s+not\s+able\s+to)\s+{_ADVERBS}{_DO}\b
    | .*?\b(?:i|we)\s+do\s+not\s+(?:know|have\s+(?:enough|sufficient|the|any|that|this|access|specific))\b
    | .*?\b(?:is|be|:)\s*["']?not\s+(?:specified|mentioned|stated)\b
    | .*?\b(?:insufficient|not\s+(?:enough|sufficient))\b
    | .*?\b(?:not\s+possible|impossible)\s+to\s+{_DO}\b)"""
)
# such a result is of the speaker or the question, and not about the world
_SPEAKS = _pattern(
    rf"(?:(?:but|however|and)\s*,?\s*)?(?:i|we)\b|.*?\b(?:but|so|and)\s+(?:i|we)\b|(?:the|this|your)\s+question\b"
    rf"|(?:the|this)\s+{_EVIDENCE}\s+is\b"
)
# a sentence that turns against the one before
_TURN = _pattern(
    r"(?:however|but|nevertheless|nonetheless|that\s+said|still|yet|although|though|instead|in\s+general|generally"
    r"|typically|in\s+reality|from\s+general|based\s+on\s+(?:general|common|public\w*))\b"
)
# a turn to what the passages hold instead
_INSTEAD = _pattern(r"(?:however|but)\s*,?\s*(?:it|the|they)\b[^.]{0,60}\bmention")
# an answer that the evidence does not state
_GUESS = _pattern(
    r""".*?\b(?:infer(?:red)?|assumed?|suggest(?:s|ing|ed)?|impl(?:y|ies|ied)|other\s+sources|in\s+reality|
    likely|probably|(?:appears?|seems?)\s+(?:to|that)|i\s+found
    | but\s+i\s+can\s+(?:explain|tell|give|describe)
    | but\s+(?:it|he|she|they)\s+(?:was|were|is|are|had)(?!\s+not))\b"""
)
# the sentence names its evidence
_GIVES = _pattern(
    r".*\b(?:context|passages?|sources?|documents?|documentation|text|excerpts?|article|provided|given|retrieved|relevant)\b"
)
# about the evidence, or what would be needed
_ABOUT = _pattern(
    rf""".*?\b(?:{_EVIDENCE}|provided|given|question|needs?|needed|necessary|required|additional|if\s+you|please|
    let\s+me\s+know|could\s+you|would\s+you|sorry|mention(?:s|ed)|discuss(?:es|ed)?|focus(?:es|ed)?|only|confidence|
    to\s+(?:answer|calculate|determine|compute|identify))\b"""
)
# a label that a prompt may ask for
_LABEL = _pattern(
    r"(?:abstain|not\s+found|unanswerable|no\s+answer|insufficient\s+(?:information|evidence))\s*(?::|$)"
)
_YES_OR_NO = _pattern(r"\W*(?:yes|no|correct|true|false)\s*[,.:;\u2014-]")


@dataclass(frozen=True, slots=True)
class _Sentence:
    """What one sentence does."""

    refuses: bool  # it says that the evidence, or the speaker, gives no answer
    concludes: bool  # it says so as the result: `Therefore, it cannot be determined.`
    declines: bool  # the speaker, or the question, is without an answer
    answers: bool  # it turns to an answer, or guesses one
    explains: bool  # it is about the evidence, or about what would be needed

    @property
    def is_aside(self) -> bool:
        """Return whether it answers nothing itself."""
        return self.refuses or self.declines or self.explains


def explains_refusal(sentences: list[str]) -> bool:
    """Return whether the sentences of a text, lower case and without contractions, are a refusal with reasons."""
    if not sentences or _YES_OR_NO.match(sentences[0]):
        return False
    if _LABEL.match(sentences[0]) is not None:
        return True
    # `I do not know him.` may be an answer
    if len(sentences) == 1 and _GIVES.match(sentences[0]) is None:
        return False
    kinds = [_kind(sentence) for sentence in sentences]
    answers = [kind.answers for kind in kinds]
    concluding = [number for number, kind in enumerate(kinds) if kind.concludes]
    if concluding:
        return not any(answers[concluding[-1] :])
    if not (kinds[0].is_aside and kinds[-1].is_aside):
        return False
    declining = [number for number, kind in enumerate(kinds) if kind.declines]
    if declining:
        return not any(answers[declining[-1] :])
    return kinds[0].refuses and not any(answers)


def _kind(sentence: str) -> _Sentence:
    clause = _without_lead(sentence)
    mark = _CONCLUSION.match(clause)
    if mark is not None:
        clause = _without_lead(clause[mark.end() :])
    refuses = _REFUSAL.match(clause) is not None or (
        _NOT_TOLD.match(clause) is not None and _GIVES.match(sentence) is not None
    )
    without_result = _NO_RESULT.match(clause) is not None
    concludes = mark is not None and (without_result or refuses)
    declines = without_result and _SPEAKS.match(clause) is not None
    guesses = _GUESS.match(clause) is not None
    turns = _TURN.match(sentence) is not None and _INSTEAD.match(sentence) is None
    return _Sentence(
        refuses=refuses,
        concludes=concludes,
        declines=declines,
        answers=not (concludes or declines) and (guesses or (turns and not refuses)),
        explains=_ABOUT.match(clause) is not None,
    )


def _without_lead(sentence: str) -> str:
    lead = _LEAD.match(sentence)
    return sentence if lead is None else sentence[lead.end() :]
