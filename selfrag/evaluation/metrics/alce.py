"""Citations by entailment, as in ALCE (arXiv 2305.14627 and its code): no gold passages are needed.

An answer that abstains makes no claim. What a judge of entailment leaves open is never guessed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from retrieval.passage import Passage
from retrieval.sentences import sentences
from selfrag.common.errors import UserError
from selfrag.evaluation.items import Output
from selfrag.evaluation.metrics.registry import harmonic
from selfrag.evaluation.normalisation import evaluated, first_line, lifted
from selfrag.judges.entailment import premise
from selfrag.judges.sentences import rules

EntailmentPair: TypeAlias = tuple[str, str]
"""Premise and hypothesis."""
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
    if output.declined:
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
