"""An answer as ALCE judges it: what it claims, piece by piece, with the texts of the passages cited. Asks no model.

A segment is the unit of citation, so each of its claims cites the segment's passage. Systems that make no citations of
their own but rest on all they were shown cite all of it with every claim. Numbers in brackets are citations only where
a caller knows that the model was told to write them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from retrieval.passage import Passage
from retrieval.splitting import SentenceFinder, sentences
from selfrag.errors import UserError
from selfrag.evaluation.containment import abstains
from selfrag.evaluation.metrics.alce import CitedSentence
from selfrag.evaluation.metrics.alce_text import first_line, lifted
from selfrag.evaluation.metrics.output import Output
from selfrag.intrinsics.sentences import rules

Claims: TypeAlias = Callable[[str], Sequence[str]]
"""Cuts a text into what it claims."""


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
) -> tuple[CitedSentence, ...]:
    """Claims of an answer with what they cite; an answer that abstains cites nothing.

    Args:
        output: of any system.
        passages: by id, at least those that are cited.
        claims: cuts the answer, or a segment of it.
        marked: where no segment cites, the first line cites by numbers in brackets, `[1]` being the first passage read.

    Raises:
        UserError: a cited passage is not among `passages`.
    """
    if marked and not any(cited for _, cited in output.segments):
        return marked_sentences(first_line(output.text), _known(output.read, passages))
    known = not abstains(output.text)
    if not known or not any(cited for _, cited in output.segments):
        shared = _texts(output.cited, passages) if known else ()
        return tuple(CitedSentence(text, shared) for text in claims(output.text))
    found = []
    for text, cited in output.segments:
        own = _texts([cited], passages) if cited else ()
        found += [CitedSentence(claim, own) for claim in claims(text)]
    return tuple(found)


def marked_sentences(
    text: str, passages: Sequence[Passage], *, find: SentenceFinder = rules
) -> tuple[CitedSentence, ...]:
    """Sentences of a text whose citations are numbers in brackets, `[1]` being the first passage.

    A citation behind a full stop belongs to the sentence before. As in ALCE, a sentence with a number that no passage
    has counts as one without citations.
    """
    bare, numbers = lifted(text)
    spans = sentences(bare, find)
    cited: list[list[int]] = [[] for _ in spans]
    for offset, number in numbers:
        before = [at for at, (start, _) in enumerate(spans) if start < offset]
        if spans:
            cited[before[-1] if before else 0].append(number)
    return tuple(
        CitedSentence(bare[start:end], _numbered(own, passages)) for (start, end), own in zip(spans, cited, strict=True)
    )


def premise(passage: Passage) -> str:
    """A passage as a judge reads it: ALCE's `Title: .. ` line and the text; the text alone without a title."""
    return f"Title: {passage.title}\n{passage.text}" if passage.title.strip() else passage.text


def _numbered(numbers: Sequence[int], passages: Sequence[Passage]) -> tuple[str, ...]:
    good = all(1 <= number <= len(passages) for number in numbers)
    return tuple(premise(passages[number - 1]) for number in numbers) if good else ()


def _texts(ids: Sequence[str], passages: Mapping[str, Passage]) -> tuple[str, ...]:
    return tuple(map(premise, _known(ids, passages)))


def _known(ids: Sequence[str], passages: Mapping[str, Passage]) -> tuple[Passage, ...]:
    missing = [one for one in ids if one not in passages]
    if missing:
        raise UserError(
            f"the text of the cited passage {missing[0]!r} is not known; give the index of the run, or run with traces"
        )
    return tuple(passages[one] for one in ids)
