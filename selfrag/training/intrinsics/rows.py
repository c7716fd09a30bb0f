"""Labelled conversations: one JSON object a line, for each intrinsic in the form in which such data come.

Character offsets are the annotator's; which sentence of a codec they mean is decided in `gold_of`. Read strictly: a bad
row is named by file and line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypeAlias, TypeVar

from pydantic import Field
from typing_extensions import TypedDict

from retrieval.passage import Passage
from selfrag.common.errors import UserError, count_of
from selfrag.common.jsonl import JsonObject, read_identified
from selfrag.common.kinds import Filled
from selfrag.common.validation import validate
from selfrag.judges.conversation import read_input, same_question
from selfrag.judges.wire import Gold, ModelRequest
from selfrag.reflection.inputs import JudgeInput, Message, Site
from selfrag.reflection.intrinsic_labels import (
    FAITHFULNESS,
    FAITHFULNESS_BINS,
    in_set,
    range_of,
)

T = TypeVar("T")
TextSpan: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class IntrinsicRow:
    """What is right about one state."""

    id: str  # unique in its file
    source: str  # data set and label, such as `squad2/answerable`; training spreads by it, reports go by it
    group: str  # rows of one group belong together when rows are held out
    state: JudgeInput  # conversation and passages
    label: str | None = None  # name of the one label
    text: str | None = None  # what is to be written
    # labels of stretches of the last message
    spans: tuple[tuple[TextSpan, str], ...] | None = None
    # label of the whole last message, where nobody judged its sentences
    response: str | None = None
    # stretches of the last message, each with the passage's index and the stretch of it
    citations: tuple[tuple[TextSpan, int, TextSpan], ...] | None = None
    # ids of passages of a corpus that answer the question, where they are known
    relevant: frozenset[str] = frozenset()
    answers: tuple[str, ...] = ()  # right answers to the question, where they are known
    # how whoever wrote the last message split it; empty where its sentences are ours
    statements: tuple[TextSpan, ...] = ()


ParseIntrinsicRow: TypeAlias = Callable[[JsonObject], IntrinsicRow]


def read_labelled(path: str | Path, intrinsic: str) -> list[IntrinsicRow]:
    """Read a JSONL file (`.gz` allowed) of rows of one intrinsic.

    Raises:
        UserError: unknown intrinsic; the file cannot be read, or a line is no such row, by `file:line`.
    """
    return list(read_identified(path, parser(intrinsic)))


def evenly(rows: Sequence[T], count: int) -> list[T]:
    """Return `count` of the rows, all if there are no more, at equal distances."""
    count = min(count, len(rows))
    return [rows[at * len(rows) // count] for at in range(count)]


def parser(intrinsic: str) -> ParseIntrinsicRow:
    """Return what reads the rows of an intrinsic.

    Raises:
        UserError: no rows are known for it.
    """
    try:
        return PARSERS[intrinsic]
    except KeyError:
        raise UserError(
            f"no training rows are known for {intrinsic!r}; known: {', '.join(sorted(PARSERS))}"
        ) from None


class ConversationRecord(TypedDict):
    """A conversation and its documents in a row of a file."""

    id: Filled
    conversation: list[Any]
    documents: NotRequired[list[Any] | None]


class IntrinsicRecord(ConversationRecord):
    """What the rows of every intrinsic have in a file."""

    dataset: NotRequired[str | None]


class RewriteRecord(IntrinsicRecord):
    """A question and its rewrite."""

    rewrite: Filled
    changed: bool
    relevant: NotRequired[list[str] | None]
    answers: NotRequired[list[str] | None]


class AnswerabilityRecord(IntrinsicRecord):
    """A question, and whether the documents answer it."""

    label: Literal["answerable", "unanswerable"]


class SentenceRecord(TypedDict):
    """A stretch of the last message with its label, or with the score of one."""

    begin: int
    end: int
    label: NotRequired[str | None]
    score: NotRequired[Annotated[float, Field(ge=0, le=1)] | None]


class HallucinationRecord(IntrinsicRecord):
    """An answer whose sentences were judged."""

    label_level: Literal["sentence", "response"]
    sentences: list[SentenceRecord]


class CitationRecord(TypedDict):
    """A stretch of the last message and the stretch of a document that it rests on."""

    doc_id: Filled
    response_begin: int
    response_end: int
    doc_begin: int
    doc_end: int


class CitationsRecord(IntrinsicRecord):
    """An answer with its citations."""

    citations: list[CitationRecord]
    statements: NotRequired[list[tuple[int, int]]]


class CertaintyRecord(IntrinsicRecord):
    """A question, perhaps with an answer, and how certain a model is."""

    certainty: str


def _rewrite(record: JsonObject) -> IntrinsicRow:
    row = validate(RewriteRecord, record, others="ignore", mended=True)
    state = state_of(row, "user")
    group = state.messages[0].content
    return IntrinsicRow(
        row["id"],
        _source(row, "changed" if row["changed"] else "unchanged"),
        group,
        state,
        text=row["rewrite"],
        relevant=frozenset(row.get("relevant") or ()),
        answers=tuple(row.get("answers") or ()),
    )


def _answerability(record: JsonObject) -> IntrinsicRow:
    row = validate(AnswerabilityRecord, record, others="ignore", mended=True)
    state = state_of(row, "user")
    return IntrinsicRow(
        row["id"],
        _source(row, row["label"]),
        _passages(state),
        state,
        label=row["label"],
    )


def _hallucination(record: JsonObject) -> IntrinsicRow:
    row = validate(HallucinationRecord, record, others="ignore", mended=True)
    state = state_of(row, "assistant")
    level, length = row["label_level"], len(state.messages[-1].content)
    spans = [
        (_span(s["begin"], s["end"], length), _degree(s)) for s in row["sentences"]
    ]
    worst = max((label for _, label in spans), key=badness, default="NA")
    labels: JsonObject = (
        {"spans": tuple(spans)} if level == "sentence" else {"response": worst}
    )
    kind = f"{WORSE[badness(worst)]} {level}"
    return IntrinsicRow(
        row["id"], _source(row, kind), _passages(state), state, **labels
    )


def _degree(sentence: SentenceRecord) -> str:
    """Return the label of a sentence: by its name, or the range of its score."""
    score, label = sentence.get("score"), sentence.get("label")
    if score is not None:
        return range_of(score)
    if label not in DEGREES:
        raise UserError(
            f"unknown label {label!r}; known: {', '.join(DEGREES)}; or give a 'score' from 0 to 1"
        )
    return label


def badness(label: str) -> int:
    """Place of a label of `DEGREES` in `WORSE`."""
    return WORSE.index(str(in_set(FAITHFULNESS, label)))


def _citations(record: JsonObject) -> IntrinsicRow:
    row = validate(CitationsRecord, record, others="ignore", mended=True)
    state = state_of(row, "assistant")
    index = {passage.id: number for number, passage in enumerate(state.passages)}
    citations = []
    for citation in row["citations"]:
        passage = index.get(citation["doc_id"])
        if passage is None:
            raise UserError(
                f"a citation of {citation['doc_id']!r:.60}, which is no document of this row"
            )
        response = _span(
            citation["response_begin"],
            citation["response_end"],
            len(state.messages[-1].content),
        )
        evidence = _span(
            citation["doc_begin"],
            citation["doc_end"],
            len(state.passages[passage].text),
        )
        citations.append((response, passage, evidence))
    length = len(state.messages[-1].content)
    statements = [_span(*span, length) for span in row.get("statements", ())]
    return IntrinsicRow(
        row["id"],
        _source(row, "cited" if citations else "uncited"),
        _passages(state),
        state,
        citations=tuple(citations),
        statements=tuple(statements),
    )


def _certainty(record: JsonObject) -> IntrinsicRow:
    row = validate(CertaintyRecord, record, others="ignore", mended=True)
    state = state_of(row, "user", "assistant")
    moment = "before"
    if state.messages[-1].role == "assistant":
        moment = "after"
    label = row["certainty"]
    if label not in CERTAINTIES:
        raise UserError(
            f"unknown certainty {label!r:.60}; known: {', '.join(CERTAINTIES)}"
        )
    return IntrinsicRow(
        row["id"], f"{moment}/{label}", state.messages[0].content, state, label=label
    )


WORSE = ("NA", "faithful", "partial", "unfaithful")
"""Grades of sentences; a response is as bad as its worst one."""

DEGREES = tuple(dict.fromkeys((*WORSE, *FAITHFULNESS_BINS.names)))
"""Labels of sentences: grades, or the paper's ranges of 0.1, `unanswerable` and `NA`. A dialect learns its own."""

CERTAINTIES = tuple(f"{5 + 10 * decile}%" for decile in range(10))

PARSERS: Mapping[str, ParseIntrinsicRow] = {
    "query_rewrite": _rewrite,
    "answerability": _answerability,
    "hallucination_detection": _hallucination,
    "citation_generation": _citations,
    "uncertainty": _certainty,
}
"""Rows of `uncertainty` are made from a model's own answers; see `own_answers`."""


def state_of(row: ConversationRecord, *last: str) -> JudgeInput:
    """Return conversation and documents of a row, whose last turn is of one of the roles `last`.

    Raises:
        UserError: they are not what a row has.
    """
    state = read_input(row["conversation"], row.get("documents") or [])
    if state.messages[-1].role not in last:
        raise UserError(
            f"the conversation ends with {state.messages[-1].role!r}, not with {' or '.join(last)}"
        )
    return state


def _source(row: IntrinsicRecord, kind: str) -> str:
    return f"{row.get('dataset') or 'rows'}/{kind}"


def _passages(state: JudgeInput) -> str:
    return "\n".join(passage.title or passage.text for passage in state.passages)


def _span(begin: int, end: int, length: int) -> TextSpan:
    if not 0 <= begin < end <= length:
        raise UserError(
            f"{begin} to {end} is no stretch of {count_of(length, 'characters')}"
        )
    return begin, end


def gold_of(row: IntrinsicRow, request: ModelRequest) -> Gold:
    """Return what is right for a request that was made from the row's state.

    A sentence that no annotated stretch touches has no label (None), which is not a label that says nothing.
    """
    if row.label is not None:
        return Gold(labels=(row.label,))
    if row.text is not None:
        return Gold(text=row.text)
    if row.citations is not None:
        return Gold(
            sources=tuple(
                _sources(site, row, request.sources) for site in request.sites
            )
        )
    if row.response is not None:
        # Of several sentences nobody knows which one is meant; a single one is the response.
        return Gold(
            labels=(row.response,)
            if len(request.sites) == 1
            else (None,) * len(request.sites)
        )
    return Gold(labels=tuple(_label(site, row.spans or ()) for site in request.sites))


def _label(site: Site, spans: Sequence[tuple[TextSpan, str]]) -> str | None:
    """Return the label of the stretch that shares most characters with the sentence."""
    shared = [(_overlap((site.begin, site.end), span), label) for span, label in spans]
    most, label = max(shared, key=itemgetter(0), default=(0, ""))
    if most:
        return label
    return None


def _sources(site: Site, row: IntrinsicRow, sources: Sequence[Site]) -> tuple[int, ...]:
    """Numbers of the sources that a citation of this sentence touches."""
    touched: set[int] = set()
    for response, passage, evidence in row.citations or ():
        if not _overlap((site.begin, site.end), response):
            continue
        for number, source in enumerate(sources):
            if source.passage == passage and _overlap(
                (source.begin, source.end), evidence
            ):
                touched.add(number)
    return tuple(sorted(touched))


def _overlap(left: TextSpan, right: TextSpan) -> int:
    return max(0, min(left[1], right[1]) - max(left[0], right[0]))


STEMS: Mapping[str, str] = {
    "query_rewrite": "query_rewrite",
    "answerability": "answerability",
    "hallucination_detection": "hallucination",
    "citation_generation": "citations",
    "uncertainty": "uncertainty",
}
"""Intrinsic -> beginning of its files, `<stem>_train.jsonl` and `<stem>_dev.jsonl`, plain or gzipped."""


def training_file(intrinsic: str, data: Path) -> Path:
    """File of an intrinsic's training rows.

    `data` is the file, or a folder with the files or with a folder `intrinsics` that has them.

    Raises:
        UserError: nothing is known about such rows, or there is no training file.
    """
    parser(intrinsic)  # refuses one without rows
    file = data if data.is_file() else find_file(intrinsic, data, "train")
    if file is None:
        raise UserError(
            f"{data} has no {STEMS[intrinsic]}_train.jsonl; give the folder that has it, or a file"
        )
    return file


def find_file(intrinsic: str, data: Path, part: str) -> Path | None:
    """Return the file of one part, or None."""
    names = [f"{STEMS[intrinsic]}_{part}.jsonl{ending}" for ending in ("", ".gz")]
    places = [folder / name for folder in (data, data / "intrinsics") for name in names]
    return next((place for place in places if place.is_file()), None)


def with_derived(
    rows: Sequence[IntrinsicRow],
    derive: Callable[[IntrinsicRow], IntrinsicRow | None],
    share: float,
) -> list[IntrinsicRow]:
    """Return the rows, and after them `share` (0 to 1) of those that can be derived, taken evenly over the rows."""
    made = [derived for derived in map(derive, rows) if derived is not None]
    return [*rows, *evenly(made, round(share * len(made)))]


def asked_alone(row: IntrinsicRow) -> IntrinsicRow | None:
    """Return the row with its rewrite as the last question, or None without a rewrite of another wording.

    Data of rewrites hold follow-ups; an adapter of such rows alone rewrites always. What people rewrote a question to
    stands on its own in the same conversation.
    """
    if row.text is None or same_question(row.state.query or "", row.text):
        return None
    messages = (*row.state.messages[:-1], Message("user", row.text))
    return _derived(row, "/standalone", state=replace(row.state, messages=messages))


def without_evidence(row: IntrinsicRow) -> IntrinsicRow | None:
    """Return the row without the sentences it cites, or None where it cites nothing or nothing else is left.

    Data of citations hold sentences that were cited; an adapter of such rows alone cites always. With its evidence
    gone, a sentence rests on nothing that is left, as far as the annotators saw.
    """
    if not row.citations:
        return None
    cited: dict[int, list[TextSpan]] = defaultdict(list)
    for _, index, evidence in row.citations:
        cited[index].append(evidence)
    passages = tuple(
        _cut(passage, cited[index]) for index, passage in enumerate(row.state.passages)
    )
    if not any(passage.text.strip() for passage in passages):
        return None
    return _derived(
        row, "/uncited", state=replace(row.state, passages=passages), citations=()
    )


def _derived(row: IntrinsicRow, ending: str, **changes: Any) -> IntrinsicRow:
    return replace(
        row, id=row.id + ending, source=row.source.rsplit("/", 1)[0] + ending, **changes
    )


def _cut(passage: Passage, spans: Sequence[TextSpan]) -> Passage:
    text = passage.text
    for begin, end in sorted(set(spans), reverse=True):
        # as long as before: spans may overlap
        text = text[:begin] + " " * (end - begin) + text[end:]
    if spans:
        return replace(passage, text=" ".join(text.split()))
    return passage
