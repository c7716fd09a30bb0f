"""Citations and rankings against gold passages, and citations by entailment as in ALCE (arXiv 2305.14627 and its code).

Against gold, a good passage that nobody annotated counts as wrong. An answer that abstains makes no claim, and its
citations do not count. What a judge of entailment leaves open is never guessed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from retrieval.passage import Passage
from retrieval.sentences import sentences
from selfrag.common.errors import UserError
from selfrag.decoding.refusals import abstains
from selfrag.evaluation.intervals import (
    Estimate,
    FloatArray,
    bootstrap,
    effective_items,
    share,
)
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
    """Count gold citations of all citations over all items; None if the file names no gold passages."""
    if item.gold is None:
        return None
    cited = _cited(output, item)
    return float(len(cited & item.gold)), float(len(cited))


@metric("citation_precision_alce", source="ALCE (arXiv 2305.14627)")
def citation_precision_alce(item: Item, output: Output) -> float | None:
    """Return the precision of one item, 0 where nothing is cited (as ALCE counts); None without gold passages."""
    if not item.gold:
        return None
    cited = _cited(output, item)
    return len(cited & item.gold) / max(1, len(cited))


@metric("citation_recall", source="ours")
def citation_recall(item: Item, output: Output) -> float | None:
    """Return the share of an item's gold passages that is cited; None if there are none."""
    if not item.gold:
        return None
    return len(_cited(output, item) & item.gold) / len(item.gold)


@metric("citation_f1", source="ours")
def citation_f1(item: Item, output: Output) -> float | None:
    """Return the harmonic mean of precision and recall of one item, so that its figure is the mean over questions."""
    precision, recall = (
        citation_precision_alce(item, output),
        citation_recall(item, output),
    )
    if precision is None or recall is None:
        return None
    return harmonic(precision, recall)


@metric("citation_bears_answer", of_failure=None, source="ours")
def citation_bears_answer(item: Item, output: Output) -> Part | None:
    """Count citations whose passage contains a gold answer; None without short answers or passages."""
    if item.answers is None or not item.passages:
        return None
    cited = _cited(output, item)
    bearing = 0
    for passage in item.passages:
        bearing += passage.id in cited and contains_any(
            f"{passage.title} {passage.text}", item.answers
        )
    return float(bearing), float(len(cited))


def _cited(output: Output, item: Item) -> frozenset[str]:
    # For multiple choice the text is an option, whatever it says.
    if not item.options and abstains(output.text):
        return frozenset()
    return frozenset(output.cited)


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


def by_sentence(citations: Collection[Cited]) -> frozenset[Hashable]:
    """Return pairs of response sentence and passage sentence."""
    return frozenset(citations)


def by_passage(citations: Collection[Cited]) -> frozenset[Hashable]:
    """Return pairs of response sentence and passage."""
    return frozenset((citation.sentence, citation.passage) for citation in citations)


def pair_figures(
    gold: Sequence[Collection[Hashable]],
    predicted: Sequence[Collection[Hashable]],
    *,
    seed: int = 0,
) -> PairFigures:
    """Return micro-averaged figures of one set of pairs a response; duplicates count once.

    Raises:
        ValueError: not as many responses on both sides.
    """
    rows = []
    for right, said in zip(
        map(frozenset, gold), map(frozenset, predicted), strict=True
    ):
        rows.append((len(right & said), len(right), len(said), right == said, 1))
    hit, are, flagged, same, each = np.array(rows, dtype=np.float64).reshape(-1, 5).T

    def estimate(part: FloatArray, total: FloatArray) -> Estimate:
        effective = effective_items(total)
        return bootstrap(
            len(rows),
            lambda drawn: share(drawn @ part, drawn @ total),
            seed,
            effective=effective,
        )

    return PairFigures(
        precision=estimate(hit, flagged),
        recall=estimate(hit, are),
        f1=estimate(2 * hit, are + flagged),
        exact=estimate(same, each),
    )


# Retrieval against relevance judgments, as trec_eval computes it: gains are linear, the discount is log2(rank + 1), and
# a passage that a ranking names twice counts at its first place only.


def recall_at(
    ranking: Sequence[str], relevant: Collection[str], k: int
) -> float | None:
    """Return the share of the relevant passages among the first `k` ids; None without relevant passages."""
    top, ids = set(_top(ranking, k)), set(relevant)
    if not ids:
        return None
    return len(ids & top) / len(ids)


def ndcg_at(ranking: Sequence[str], gains: Mapping[str, float], k: int) -> float | None:
    """Return the normalised discounted cumulative gain of the first `k`; None where no passage has a gain above 0.

    Args:
        ranking: ids, best first.
        gains: id -> how relevant it is; 1 for binary judgments. Passages that are not in it have none.
        k: depth, at least 1.
    """
    ideal = _discounted(
        sorted((gain for gain in gains.values() if gain > 0), reverse=True)[:k]
    )
    if not ideal:
        _top(ranking, k)
        return None
    return (
        _discounted([max(0.0, gains.get(name, 0.0)) for name in _top(ranking, k)])
        / ideal
    )


@metric("retrieval_recall@K", source="trec_eval")
def retrieval_recall(item: Item, output: Output, k: int) -> float | None:
    """Return recall@K of the gold passages among those the model was shown, in order."""
    if not item.gold:
        return None
    return recall_at(output.read, item.gold, k)


@metric("retrieval_ndcg@K", source="trec_eval")
def retrieval_ndcg(item: Item, output: Output, k: int) -> float | None:
    """Return nDCG@K of the gold passages among those the model was shown, in order."""
    if not item.gold:
        return None
    return ndcg_at(output.read, dict.fromkeys(item.gold, 1.0), k)


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
    """Return the claims of a long answer: what each of its sentences says."""
    return [text[start:end] for start, end in sentences(text, rules)]


def as_answer_to(question: str) -> Claims:
    """Return what cuts a short answer, which claims something together with its question only."""

    def claims(text: str) -> list[str]:
        answer = text.strip()
        if not answer:
            return []
        return [f"{question} {answer}"]

    return claims


def as_list_for(question: str) -> Claims:
    """Return what cuts a list with commas into pieces, each with the question, as ALCE has it for QAMPARI."""

    def pieces(text: str) -> list[str]:
        line = text.strip().rstrip(".").rstrip(",")
        return [
            f"{question} {piece}" for piece in map(str.strip, line.split(",")) if piece
        ]

    return pieces


def cited_sentences(
    output: Output,
    passages: Mapping[str, Passage],
    *,
    claims: Claims = as_sentences,
    marked: bool = False,
) -> tuple[CitedClaim, ...]:
    """Return the claims of an answer with what they cite; an answer that abstains cites nothing.

    A segment is the unit of citation, so each of its claims cites the segment's passage. Where no segment cites, every
    claim cites all passages of `output.cited`; or, if `marked`, the first line cites by numbers in brackets, `[1]`
    being the first passage read. Passages are by id.
    """
    by_segment = any(cited for _, cited in output.segments)
    if marked and not by_segment:
        return marked_sentences(first_line(output.text), _known(output.read, passages))
    pieces: list[tuple[str, Sequence[str]]]  # texts with the ids that they cite
    if abstains(output.text):
        pieces = [(output.text, ())]
    elif by_segment:
        pieces = [(text, [cited] if cited else ()) for text, cited in output.segments]
    else:
        pieces = [(output.text, output.cited)]
    cited_claims = []
    for text, ids in pieces:
        premises = tuple(map(premise, _known(ids, passages)))
        cited_claims += [CitedClaim(claim, premises) for claim in claims(text)]
    return tuple(cited_claims)


def marked_sentences(text: str, passages: Sequence[Passage]) -> tuple[CitedClaim, ...]:
    """Return the sentences of a text whose citations are numbers in brackets, `[1]` being the first passage.

    A citation behind a full stop belongs to the sentence before. As in ALCE, a sentence with a number that no passage
    has counts as one without citations.
    """
    bare, numbers = lifted(text)
    spans = sentences(bare, rules)
    starts = [start for start, _ in spans]
    cited: list[list[int]] = [[] for _ in spans]
    for offset, number in numbers if spans else ():
        cited[max(0, bisect_left(starts, offset) - 1)].append(number)
    claims = []
    for (start, end), places in zip(spans, cited, strict=True):
        texts: tuple[str, ...] = ()
        if all(1 <= number <= len(passages) for number in places):
            texts = tuple(premise(passages[number - 1]) for number in places)
        claims.append(CitedClaim(bare[start:end], texts))
    return tuple(claims)


def _known(ids: Sequence[str], passages: Mapping[str, Passage]) -> tuple[Passage, ...]:
    for name in ids:
        if name not in passages:
            raise UserError(
                f"the text of the cited passage {name!r} is not known; give the index of the run, or run with traces"
            )
    return tuple(passages[name] for name in ids)


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
        """Return the harmonic mean of the two."""
        return harmonic(self.recall, self.precision)


def cites(
    responses: Sequence[Sequence[CitedClaim]], entails: Entails
) -> list[Cites | None]:
    """Evaluate citations automatically as ALCE does, response by response.

    A sentence counts as recalled if its citations together entail it. A citation is precise if its sentence is
    recalled and it entails the sentence alone, or the others do not entail it without this one. The judge is called
    three times, each time with all distinct pairs that have to be known by then. None for a response without sentences,
    or with a missing verdict.
    """
    kept, cited = [], []
    for response in responses:
        claims = [CitedClaim(s.text, s.passages[:MOST]) for s in response]
        kept.append(claims)
        cited += [claim for claim in claims if claim.passages]
    verdicts: dict[EntailmentPair, bool | None] = {}

    def ask(pairs: Iterable[EntailmentPair]) -> None:
        fresh = [pair for pair in dict.fromkeys(pairs) if pair not in verdicts]
        if fresh:
            verdicts.update(zip(fresh, entails(fresh), strict=True))

    # 1. all that a sentence cites
    ask((_together(s.passages), s.text) for s in cited)
    shared = [
        s
        for s in cited
        if len(s.passages) > 1 and verdicts[_together(s.passages), s.text]
    ]
    # 2. each of several citations alone
    ask((passage, s.text) for s in shared for passage in s.passages)
    # 3. the others without one that is not enough
    unsure = []
    for s in shared:
        for passage in s.passages:
            verdict = verdicts[passage, s.text]
            if verdict is False:
                unsure.append((_without(s.passages, passage), s.text))
    ask(unsure)
    return [_response_figures(response, verdicts) for response in kept]


def _response_figures(
    response: Sequence[CitedClaim], verdicts: Mapping[EntailmentPair, bool | None]
) -> Cites | None:
    """Return the figures of one response; None without sentences or with a missing verdict."""
    if not response:
        return None
    recalled, precise, citations = 0, 0, 0
    for sentence in response:
        counts = _count_sentence(sentence, verdicts)
        if counts is None:
            return None
        recalled += counts[0]
        precise += counts[1]
        citations += len(sentence.passages)
    return Cites(recalled / len(response), precise / max(1, citations))


def _count_sentence(
    sentence: CitedClaim, verdicts: Mapping[EntailmentPair, bool | None]
) -> tuple[bool, int] | None:
    """Return whether a sentence is recalled, and how many citations are precise; None if nobody knows."""
    cited, claim = sentence.passages, sentence.text
    if not cited:
        return False, 0
    together = verdicts[_together(cited), claim]
    if together is None:
        return None
    if len(cited) == 1 or not together:
        return together, int(together)
    precise = 0
    for passage in cited:
        alone = verdicts[passage, claim]
        others: bool | None = False
        if alone is False:
            others = verdicts[_without(cited, passage), claim]
        if alone is None or others is None:
            return None
        precise += alone or not others
    return True, precise


def _without(passages: tuple[str, ...], passage: str) -> str:
    """Join the others; of a passage that is cited twice, the first citation is taken out, as in ALCE's code."""
    at = passages.index(passage)
    return _together(passages[:at] + passages[at + 1 :])


def _together(passages: Sequence[str]) -> str:
    return "\n".join(passages)


def claim_recall(
    texts: Sequence[str], claims: Sequence[Sequence[str]], entails: Entails
) -> list[float | None]:
    """Return the share of the claims of a complete answer that each text entails (ALCE's measure for ELI5).

    Of each text the first line is read, without citations in brackets; an empty one entails nothing. Every distinct
    pair is asked once, all in one call. None without claims, or with a missing verdict.
    """
    statements_of_texts = list(zip(map(evaluated, texts), claims, strict=True))
    pairs = list(
        dict.fromkeys(
            (text, claim)
            for text, statements in statements_of_texts
            for claim in statements
            if text
        )
    )
    verdicts: dict[EntailmentPair, bool | None] = {}
    if pairs:
        verdicts.update(zip(pairs, entails(pairs), strict=True))
    shares: list[float | None] = []
    for text, statements in statements_of_texts:
        known = [verdicts.get((text, claim), False) for claim in statements]
        share_entailed = None
        if known and None not in known:
            share_entailed = known.count(True) / len(known)
        shares.append(share_entailed)
    return shares
