"""Citation recall and precision by entailment, as ALCE and LongBench-Cite define them. Asks no model by itself.

Sources: ALCE (arXiv 2305.14627) and its code, LongCite (arXiv 2409.02897). Who decides whether a passage entails a
sentence is a function of the caller: `Entailment.entails` of any judge. What a judge leaves open is never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from selfrag.evaluation.intervals import Estimate, mean
from selfrag.evaluation.metrics.entailment.protocol import Pair
from selfrag.evaluation.metrics.harmonic import harmonic

MOST = 3
"""Citations of a sentence that ALCE reads; further ones are left out."""

Entails: TypeAlias = Callable[[Sequence[Pair]], Sequence[bool | None]]
"""Whether each (premise, claim) pair is an entailment, None where nobody could say; asked for many at a time."""


@dataclass(frozen=True, slots=True)
class CitedSentence:
    """A sentence of a response with the passages it cites.

    Attributes:
        text: the claim.
        passages: texts of the cited passages in order of citation.
    """

    text: str
    passages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cites:
    """How one response cites.

    Attributes:
        recall: share of its sentences that their citations entail.
        precision: share of its citations that are needed or enough; 0 without citations.
    """

    recall: float
    precision: float

    @property
    def f1(self) -> float:
        """Harmonic mean of the two."""
        return harmonic(self.recall, self.precision)


@dataclass(frozen=True, slots=True)
class CitationQuality:
    """Recall, precision and F1 as means over responses.

    Attributes:
        recall: of the claims, the share that their citations support.
        precision: of the citations, the share that is needed or enough.
        f1: ALCE: of the two means; LongBench-Cite: mean over responses. None without responses.
        undecided: responses that are left out, because a verdict on them is missing.
    """

    recall: Estimate
    precision: Estimate
    f1: float | None
    undecided: int = 0


def alce(responses: Sequence[Sequence[CitedSentence]], entails: Entails, *, most: int = MOST) -> CitationQuality:
    """ALCE's figures over responses; arguments as for `cites`. Responses without sentences are left out."""
    found = cites(responses, entails, most=most)
    known = [one for one in found if one is not None]
    recall, precision = mean([one.recall for one in known]), mean([one.precision for one in known])
    undecided = sum(one is None for one, response in zip(found, responses, strict=True) if response)
    return CitationQuality(recall, precision, harmonic(recall.value, precision.value) if known else None, undecided)


def cites(responses: Sequence[Sequence[CitedSentence]], entails: Entails, *, most: int = MOST) -> list[Cites | None]:
    """ALCE's automatic citation evaluation, response by response.

    A sentence counts as recalled if its citations together entail it. A citation is precise if its sentence is
    recalled and it entails the sentence alone, or the others do not entail it without this one.

    Args:
        responses: sentences of each response.
        entails: the judge; called three times, each time with all distinct pairs that have to be known by then.
        most: citations of a sentence that are read.

    Returns:
        A value each; None for a response without sentences, or with a missing verdict.
    """
    kept = [[CitedSentence(s.text, s.passages[:most]) for s in response] for response in responses]
    cited = [sentence for response in kept for sentence in response if sentence.passages]
    ask = _Asked(entails)
    ask((_joined(s.passages), s.text) for s in cited)
    shared = [s for s in cited if len(s.passages) > 1 and ask.verdicts[_joined(s.passages), s.text]]
    ask((passage, s.text) for s in shared for passage in s.passages)
    ask(
        (_joined(_without(s.passages, passage)), s.text)
        for s in shared
        for passage in s.passages
        if ask.verdicts[passage, s.text] is False
    )
    return [_response(response, ask.verdicts) for response in kept]


def longbench(
    support: Sequence[Sequence[float]], relevant: Sequence[Sequence[Sequence[bool]]]
) -> tuple[CitationQuality, list[float]]:
    """LongBench-Cite's figures from verdicts that a judge has given.

    Args:
        support: for each response and statement, how far its citations support it: 1, 0.5 or 0.
        relevant: for each response and statement, whether each of its citations is relevant.

    Returns:
        The figures, and the F1 of each response.

    Raises:
        ValueError: the two do not name the same responses and statements.
    """
    recalls, precisions, f1s = [], [], []
    for degrees, verdicts in zip(support, relevant, strict=True):
        if len(degrees) != len(verdicts):
            raise ValueError(f"{len(degrees)} statements with support, {len(verdicts)} with citations")
        if not degrees:
            continue
        flat = [one for statement in verdicts for one in statement]
        recalls.append(sum(degrees) / len(degrees))
        precisions.append(sum(flat) / len(flat) if flat else 0.0)
        f1s.append(harmonic(recalls[-1], precisions[-1]))
    return CitationQuality(mean(recalls), mean(precisions), mean(f1s).value if f1s else None), f1s


class _Asked:
    """Verdicts so far; each pair is asked once."""

    def __init__(self, entails: Entails) -> None:
        self._entails = entails
        self.verdicts: dict[Pair, bool | None] = {}

    def __call__(self, pairs: Iterable[Pair]) -> None:
        fresh = [pair for pair in dict.fromkeys(pairs) if pair not in self.verdicts]
        if fresh:
            self.verdicts.update(zip(fresh, self._entails(fresh), strict=True))


def _response(response: Sequence[CitedSentence], verdicts: Mapping[Pair, bool | None]) -> Cites | None:
    found = [_judged(sentence, verdicts) for sentence in response]
    known = [one for one in found if one is not None]
    if not found or len(known) < len(found):
        return None
    citations = sum(len(sentence.passages) for sentence in response)
    recall = sum(recalled for recalled, _ in known) / len(response)
    return Cites(recall, sum(precise for _, precise in known) / citations if citations else 0.0)


def _judged(sentence: CitedSentence, verdicts: Mapping[Pair, bool | None]) -> tuple[bool, int] | None:
    """Whether a sentence is recalled, and how many of its citations are precise; None if nobody knows."""
    cited, claim = sentence.passages, sentence.text
    if not cited:
        return False, 0
    together = verdicts[_joined(cited), claim]
    if together is None:
        return None
    if len(cited) == 1 or not together:
        return together, int(together)
    precise = 0
    for one in cited:
        alone = verdicts[one, claim]
        others = verdicts[_joined(_without(cited, one)), claim] if alone is False else False
        if alone is None or others is None:
            return None
        precise += alone or not others
    return True, precise


def _without(passages: tuple[str, ...], one: str) -> tuple[str, ...]:
    """The others; of a passage that is cited twice, the first citation is taken out, as in ALCE's code."""
    at = passages.index(one)
    return passages[:at] + passages[at + 1 :]


def _joined(passages: Sequence[str]) -> str:
    return "\n".join(passages)
