"""Short answers against gold answers: containment in two readings, exact match and token F1. Pure text.

`official_match` is the published code's accuracy: a case-sensitive substring (case 28 of its faults: `Atoms` holds the
answer `A`). `contains_any` of `containment` is the normalised match on whole words. Exact match and F1 are SQuAD's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from selfrag.errors import UserError
from selfrag.evaluation.containment import contains_any, normalise
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.metric import Metric, mean_of
from selfrag.evaluation.metrics.output import Output
from selfrag.evaluation.multiple_choice import choices

_VERDICTS = {"SUPPORTS": "true", "REFUTES": "false"}


def official_match(text: str, answers: Sequence[str]) -> float:
    """1 if an answer is a substring of `text` as it stands, else 0.

    Before that, as in the published code, a first `#` or `:` is dropped, and a text with SUPPORTS (REFUTES) in it
    becomes `true` (`false`).
    """
    text = text[1:] if text[:1] in ("#", ":") else text
    text = next((said for verdict, said in _VERDICTS.items() if verdict in text), text)
    return float(any(answer in text for answer in _answers(answers)))


def contains(text: str, answers: Sequence[str]) -> float:
    """1 if an answer occurs in `text` as whole words, both normalised, else 0."""
    return float(contains_any(text, _answers(answers)))


def exact_match(text: str, answers: Sequence[str]) -> float:
    """1 if the normalised text is a normalised answer, else 0."""
    return float(normalise(text) in [normalise(answer) for answer in _answers(answers)])


def token_f1(text: str, answers: Sequence[str]) -> float:
    """Best F1 of the normalised words over the answers; two empty texts agree."""
    return max(_f1(normalise(text).split(), normalise(answer).split()) for answer in _answers(answers))


def _f1(words: list[str], gold: list[str]) -> float:
    if not words or not gold:
        return float(words == gold)
    common = (Counter(words) & Counter(gold)).total()
    return 2 * common / (len(words) + len(gold))


def _answers(answers: Sequence[str]) -> Sequence[str]:
    if isinstance(answers, str) or not answers:
        raise UserError(f"answers must be a list of at least one text, not {answers!r:.60}")
    return answers


def _on_answers(name: str, score: Callable[[str, Sequence[str]], float]) -> Metric:
    def value(item: Item, output: Output) -> float | None:
        return score(output.text, item.answers) if item.answers else None

    return Metric(name, mean_of(value))


def _official(item: Item, output: Output) -> float | None:
    """The published code also scores closed sets in this way, by their label."""
    gold = (choices(item).right,) if item.options else item.answers
    return official_match(output.text, gold) if gold else None


CONTAINS = _on_answers("contains", contains)
OFFICIAL_MATCH = Metric("official_match", mean_of(_official))
EXACT_MATCH = _on_answers("exact_match", exact_match)
TOKEN_F1 = _on_answers("f1", token_f1)
