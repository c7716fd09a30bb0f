"""Citations and rankings against gold passages, and citations by entailment as in ALCE (arXiv 2305.14627 and its code).

Against gold, a good passage that nobody annotated counts as wrong. An answer that abstains makes no claim, and its
citations do not count. What a judge of entailment leaves open is never guessed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from retrieval.passage import Passage
from retrieval.sentences import sentences
from selfrag.common.errors import UserError
from selfrag.decoding.refusals import abstains
from selfrag.evaluation.intervals import Estimate, FloatArray, bootstrap, effective_items, plain, share
from selfrag.evaluation.items import Item, Output
from selfrag.evaluation.metrics.registry import Part, harmonic, metric
from selfrag.evaluation.normalisation import contains_any, evaluated, first_line, lifted
from selfrag.judges.entailment import premise
from selfrag.judges.sentences import rules

EntailmentPair: TypeAlias = tuple[str, str]
"""Premise and hypothesis."""
CITATIONS = ("citation_precision", "citation_precision_alce", "citation_recall")


@metric("citation_precision", of_failure=None, source="ours")
def citation_precision(item: Item, output: Output) -> Part | None:
    """Of all citations over all items, the share that is gold; None if the file names no gold passages."""
    if item.gold is None:
        return None
    cited = _cited(output, item)
    return float(len(cited & item.gold)), float(len(cited))


@metric("citation_precision_alce", source="ALCE (arXiv 2305.14627)")
def citation_precision_alce(item: Item, output: Output) -> float | None:
    """Precision of one item, 0 where nothing is cited (as ALCE counts); None without gold passages."""
    if not item.gold:
        return None
    cited = _cited(output, item)
    return len(cited & item.gold) / len(cited) if cited else 0.0


@metric("citation_recall", source="ours")
def citation_recall(item: Item, output: Output) -> float | None:
    """Share of an item's gold passages that is cited; None if there are none."""
    return len(_cited(output, item) & item.gold) / len(item.gold) if item.gold else None


@metric("citation_f1", source="ours")
def citation_f1(item: Item, output: Output) -> float | None:
    """Harmonic mean of precision and recall of one item, so that its figure is the mean over questions."""
    precision, recall = citation_precision_alce(item, output), citation_recall(item, output)
    return None if precision is None or recall is None else harmonic(precision, recall)


@metric("citation_bears_answer", of_failure=None, source="ours")
def citation_bears_answer(item: Item, output: Output) -> Part | None:
    """Of all citations, the share whose passage contains a gold answer; None without short answers or passages."""
    if item.answers is None or not item.passages:
        return None
    cited = _cited(output, item)
    bearing = [p for p in item.passages if p.id in cited and contains_any(f"{p.title} {p.text}", item.answers)]
    return float(len(bearing)), float(len(cited))


def _cited(output: Output, item: Item) -> frozenset[str]:
    # For multiple choice the text is an option, whatever it says.
    return frozenset() if not item.options and abstains(output.text) else frozenset(output.cited)


class Cited(NamedTuple):
    """Sentence number `sentence` of a response cites sentence number `evidence` of the passage with id `passage`."""

    sentence: int
    passage: str
    evidence: int


@dataclass(frozen=True, slots=True)
class PairFigures:
    """Precision, recall and F1 over the pairs of all responses together; whole responses are resampled.

    `exact` is the share of the responses whose pairs are exactly the gold ones.
    """

    precision: Estimate
    recall: Estimate
    f1: Estimate
    exact: Estimate

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return plain(self)


def by_sentence(citations: Collection[Cited]) -> frozenset[Hashable]:
    """Pairs of response sentence and passage sentence."""
    return frozenset(citations)


def by_passage(citations: Collection[Cited]) -> frozenset[Hashable]:
    """Pairs of response sentence and passage."""
    return frozenset((one.sentence, one.passage) for one in citations)


def pair_figures(
    gold: Sequence[Collection[Hashable]], given: Sequence[Collection[Hashable]], *, seed: int = 0
) -> PairFigures:
    """Micro-averaged figures of one set of pairs a response; duplicates count once.

    Raises:
        ValueError: not as many responses on both sides.
    """
    sets = [(frozenset(right), frozenset(said)) for right, said in zip(gold, given, strict=True)]
    counts = [(len(right & said), len(right), len(said), right == said, 1) for right, said in sets]
    hit, are, said, same, one = np.array(counts, dtype=np.float64).reshape(-1, 5).T

    def estimate(part: FloatArray, whole: FloatArray) -> Estimate:
        effective = effective_items(whole)
        return bootstrap(len(sets), lambda drawn: share(drawn @ part, drawn @ whole), seed, effective=effective)

    return PairFigures(estimate(hit, said), estimate(hit, are), estimate(2 * hit, are + said), estimate(same, one))


# Retrieval against relevance judgments, as trec_eval computes it: gains are linear, the discount is log2(rank + 1), and
# a passage that a ranking names twice counts at its first place only.


def recall_at(ranking: Sequence[str], relevant: Collection[str], k: int) -> float | None:
    """Share of the relevant passages among the first `k` ids of a ranking; None without relevant passages."""
    wanted = set(relevant)
    return len(wanted & set(_top(ranking, k))) / len(wanted) if wanted else None


def ndcg_at(ranking: Sequence[str], gains: Mapping[str, float], k: int) -> float | None:
    """Normalised discounted cumulative gain of the first `k`; None where no passage has a gain above 0.

    Args:
        ranking: ids, best first.
        gains: id -> how relevant it is; 1 for binary judgments. Passages that are not in it have none.
        k: depth, at least 1.
    """
    ideal = _discounted(sorted((gain for gain in gains.values() if gain > 0), reverse=True)[:k])
    found = _discounted([max(0.0, gains.get(one, 0.0)) for one in _top(ranking, k)])
    return found / ideal if ideal else None


@metric("retrieval_recall@K", source="trec_eval")
def retrieval_recall(item: Item, output: Output, k: int) -> float | None:
    """Recall@K of the gold passages among those the model was shown, in order."""
    return recall_at(output.read, item.gold, k) if item.gold else None


@metric("retrieval_ndcg@K", source="trec_eval")
def retrieval_ndcg(item: Item, output: Output, k: int) -> float | None:
    """nDCG@K of the gold passages among those the model was shown, in order."""
    return ndcg_at(output.read, dict.fromkeys(item.gold, 1.0), k) if item.gold else None


def _top(ranking: Sequence[str], k: int) -> list[str]:
    if k < 1:
        raise ValueError(f"k={k}; it must be at least 1")
    return list(dict.fromkeys(ranking))[:k]


def _discounted(gains: Sequence[float]) -> float:
    return math.fsum(gain / math.log2(rank + 2) for rank, gain in enumerate(gains))


MOST = 3
"""Citations of a sentence that ALCE reads; further ones are left out."""

Entails: TypeAlias = Callable[[Sequence[EntailmentPair]], Sequence[bool | None]]
"""Whether each (premise, claim) pair is an entailment, None where nobody could say; asked for many at a time."""
Claims: TypeAlias = Callable[[str], Sequence[str]]
"""Cuts a text into what it claims."""


@dataclass(frozen=True, slots=True)
class CitedClaim:
    """A sentence of a response, and the texts of the passages it cites, in order of citation."""

    text: str
    passages: tuple[str, ...] = ()


# By entailment: answers as ALCE reads them


def as_sentences(text: str) -> list[str]:
    """A long answer claims what each of its sentences says."""
    return [text[start:end] for start, end in sentences(text, rules)]


def as_answer_to(question: str) -> Claims:
    """A short answer claims something together with its question only."""
    return lambda text: [f"{question} {text.strip()}"] if text.strip() else []


def as_list_for(question: str) -> Claims:
    """Each piece of a list written with commas, together with the question, as ALCE has it for QAMPARI."""

    def pieces(text: str) -> list[str]:
        line = text.strip().rstrip(".").rstrip(",")
        return [f"{question} {piece.strip()}" for piece in line.split(",") if piece.strip()]

    return pieces


def cited_sentences(
    output: Output, passages: Mapping[str, Passage], *, claims: Claims = as_sentences, marked: bool = False
) -> tuple[CitedClaim, ...]:
    """Claims of an answer with what they cite; an answer that abstains cites nothing.

    A segment is the unit of citation, so each of its claims cites the segment's passage. Where no segment cites, every
    claim cites all passages of `output.cited`; or, if `marked`, the first line cites by numbers in brackets, `[1]`
    being the first passage read. Passages are by id.
    """
    by_segment = any(cited for _, cited in output.segments)
    if marked and not by_segment:
        return marked_sentences(first_line(output.text), _known(output.read, passages))
    if abstains(output.text):
        return tuple(CitedClaim(text) for text in claims(output.text))
    if not by_segment:
        shared = tuple(map(premise, _known(output.cited, passages)))
        return tuple(CitedClaim(text, shared) for text in claims(output.text))
    found = []
    for text, cited in output.segments:
        own = tuple(map(premise, _known([cited] if cited else [], passages)))
        found += [CitedClaim(claim, own) for claim in claims(text)]
    return tuple(found)


def marked_sentences(text: str, passages: Sequence[Passage]) -> tuple[CitedClaim, ...]:
    """Sentences of a text whose citations are numbers in brackets, `[1]` being the first passage.

    A citation behind a full stop belongs to the sentence before. As in ALCE, a sentence with a number that no passage
    has counts as one without citations.
    """
    bare, numbers = lifted(text)
    spans = sentences(bare, rules)
    cited: list[list[int]] = [[] for _ in spans]
    for offset, number in numbers:
        before = [at for at, (start, _) in enumerate(spans) if start < offset]
        if spans:
            cited[before[-1] if before else 0].append(number)
    found = []
    for (start, end), own in zip(spans, cited, strict=True):
        good = all(1 <= number <= len(passages) for number in own)
        texts = tuple(premise(passages[number - 1]) for number in own) if good else ()
        found.append(CitedClaim(bare[start:end], texts))
    return tuple(found)


def _known(ids: Sequence[str], passages: Mapping[str, Passage]) -> tuple[Passage, ...]:
    missing = [one for one in ids if one not in passages]
    if missing:
        raise UserError(
            f"the text of the cited passage {missing[0]!r} is not known; give the index of the run, or run with traces"
        )
    return tuple(passages[one] for one in ids)


# Figures


@dataclass(frozen=True, slots=True)
class Cites:
    """How one response cites: the share of its sentences that their citations entail, and of its citations that count.

    A citation counts if it is needed or enough; a response without citations has precision 0.
    """

    recall: float
    precision: float

    @property
    def f1(self) -> float:
        """Harmonic mean of the two."""
        return harmonic(self.recall, self.precision)


def cites(responses: Sequence[Sequence[CitedClaim]], entails: Entails) -> list[Cites | None]:
    """ALCE's automatic citation evaluation, response by response.

    A sentence counts as recalled if its citations together entail it. A citation is precise if its sentence is
    recalled and it entails the sentence alone, or the others do not entail it without this one. The judge is called
    three times, each time with all distinct pairs that have to be known by then. None for a response without sentences,
    or with a missing verdict.
    """
    kept = [[CitedClaim(s.text, s.passages[:MOST]) for s in response] for response in responses]
    cited = [sentence for response in kept for sentence in response if sentence.passages]
    verdicts: dict[EntailmentPair, bool | None] = {}

    def ask(pairs: Iterable[EntailmentPair]) -> None:
        fresh = [pair for pair in dict.fromkeys(pairs) if pair not in verdicts]
        if fresh:
            verdicts.update(zip(fresh, entails(fresh), strict=True))

    ask((_together(s.passages), s.text) for s in cited)
    shared = [s for s in cited if len(s.passages) > 1 and verdicts[_together(s.passages), s.text]]
    ask((passage, s.text) for s in shared for passage in s.passages)
    ask(
        (_together(_without(s.passages, passage)), s.text)
        for s in shared
        for passage in s.passages
        if verdicts[passage, s.text] is False
    )
    return [_response(response, verdicts) for response in kept]


def _response(response: Sequence[CitedClaim], verdicts: Mapping[EntailmentPair, bool | None]) -> Cites | None:
    found = [_judged(sentence, verdicts) for sentence in response]
    known = [one for one in found if one is not None]
    if not found or len(known) < len(found):
        return None
    citations = sum(len(sentence.passages) for sentence in response)
    recall = sum(recalled for recalled, _ in known) / len(response)
    return Cites(recall, sum(precise for _, precise in known) / citations if citations else 0.0)


def _judged(sentence: CitedClaim, verdicts: Mapping[EntailmentPair, bool | None]) -> tuple[bool, int] | None:
    """Whether a sentence is recalled, and how many of its citations are precise; None if nobody knows."""
    cited, claim = sentence.passages, sentence.text
    if not cited:
        return False, 0
    together = verdicts[_together(cited), claim]
    if together is None:
        return None
    if len(cited) == 1 or not together:
        return together, int(together)
    precise = 0
    for one in cited:
        alone = verdicts[one, claim]
        others = verdicts[_together(_without(cited, one)), claim] if alone is False else False
        if alone is None or others is None:
            return None
        precise += alone or not others
    return True, precise


def _without(passages: tuple[str, ...], one: str) -> tuple[str, ...]:
    """The others; of a passage that is cited twice, the first citation is taken out, as in ALCE's code."""
    at = passages.index(one)
    return passages[:at] + passages[at + 1 :]


def _together(passages: Sequence[str]) -> str:
    return "\n".join(passages)


def claim_recall(texts: Sequence[str], claims: Sequence[Sequence[str]], entails: Entails) -> list[float | None]:
    """Share of the claims of a complete answer that each text entails (ALCE's measure for ELI5).

    Of each text the first line is read, without citations in brackets; an empty one entails nothing. Every distinct
    pair is asked once, all in one call. None without claims, or with a missing verdict.
    """
    wanted = list(zip(map(evaluated, texts), claims, strict=True))
    pairs = list(dict.fromkeys((text, claim) for text, own in wanted for claim in own if text))
    verdicts = dict(zip(pairs, entails(pairs) if pairs else (), strict=True))
    found: list[float | None] = []
    for text, own in wanted:
        known = [verdicts[text, claim] if text else False for claim in own]
        found.append(None if not own or None in known else sum(map(bool, known)) / len(own))
    return found
