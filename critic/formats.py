"""Formats of public data sets by name: how a row of each source of the paper's training mix becomes a pair.

Sources and task instructions are those of arXiv 2310.11511, appendix A.3 and Tables 3 to 5.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, TypeAlias

from critic.pairs import Dropped, Pair, PairOutcome, make_pair
from selfrag.common.public_fields import (
    PublicRow,
    UnusableError,
    identifier,
    objects,
    text,
    value,
)
from selfrag.common.public_rows import RawRow
from selfrag.interface import Passage, UserError
from selfrag.prompting import SELFRAG

AMBIGUOUS_QUESTION = (
    "Answer the following question. The question may be ambiguous and have multiple correct answers, and in that"
    " case, you have to provide a long-form answer including all correct answers."
)
CHAT_HISTORY = (
    "Given a chat history separated by new lines, generates an informative,"
    " knowledgeable and engaging response."
)
FACT_CHECK = "Is the following statement correct or not? Say true if it's correct; otherwise say false."

PairLoader: TypeAlias = Callable[
    [Iterable[RawRow], str, str | None], Iterator[PairOutcome]
]
"""Rows, the name to give the data set, and the wanted language (for sources that know it; None is any)."""


def rowwise(parse: Callable[[RawRow, str], Pair]) -> PairLoader:
    """Make a loader of sources whose rows stand for themselves; an UnusableError of `parse` drops the row."""

    def read(
        rows: Iterable[RawRow], dataset: str, language: str | None
    ) -> Iterator[PairOutcome]:
        for raw in rows:
            with raw.blamed():
                try:
                    outcome: PairOutcome = parse(raw, dataset)
                except UnusableError as error:
                    outcome = Dropped(raw.place, str(error))
            yield outcome

    return read


def _asked(instruction: str, question: str) -> str:
    """Return a task instruction and its question, joined as everywhere in this project."""
    if not question.strip():
        raise UnusableError("no instruction")
    return SELFRAG.task(instruction, question.strip())


# Instructions and conversations


@rowwise
def _alpaca(raw: RawRow, dataset: str) -> Pair:
    """Alpaca: {"instruction": "Identify the odd one out.", "input": "Twitter, Telegram", "output": "Telegram"}."""
    row = PublicRow.of("alpaca", raw.record)
    instruction, more = row["instruction"], row["input"]
    if instruction.strip() and more.strip().casefold() not in (
        "",
        "<noinput>",
        "noinput",
        "no input",
    ):
        instruction = _asked(instruction.strip(), more)
    return make_pair(
        f"{dataset}-{raw.key}", dataset, "instruction", instruction, row["output"]
    )


@rowwise
def _flan(raw: RawRow, dataset: str) -> Pair:
    """FLAN v2 as sampled for Open-Instruct: {"inputs": "Premise: ..", "targets": "yes", "task": "snli:1.1.0"}."""
    row = PublicRow.of("flan", raw.record)
    return make_pair(
        f"{dataset}-{raw.key}",
        dataset,
        "instruction",
        row["instruction"],
        row["output"],
    )


def _exchange(turns: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Instruction and output of a conversation of one exchange, the only ones the paper's mix takes from chat data."""
    roles = [role for role, _ in turns]
    if not roles:
        raise UnusableError("a conversation without turns")
    if odd_role := next(
        (role for role in roles if role not in ("user", "assistant")), None
    ):
        raise UnusableError(f"a conversation with a turn of {odd_role}")
    if roles[0] != "user":
        raise UnusableError("a conversation whose beginning is cut off")
    if roles == ["user"]:
        raise UnusableError("no output")
    if roles != ["user", "assistant"]:
        raise UnusableError("a conversation of more than one exchange")
    return turns[0][1], turns[1][1]


_SPEAKERS = {"human": "user", "user": "user"} | dict.fromkeys(
    ("gpt", "chatgpt", "assistant"), "assistant"
)
_OTHER_SPEAKERS = ("system", "bing", "bard")
# names of conversations have at least 7 characters
_LATER_PIECE = re.compile(r".{7,}_0*[1-9]\d*")


@rowwise
def _sharegpt(raw: RawRow, dataset: str) -> Pair:
    """Conversations of the cleaned public files.

    {"id": "QWJhYvA_0", "conversations": [{"from": "human", "value": ".."}, {"from": "gpt", "value": ".."}]}

    Long conversations were cut; a piece is named after its conversation and the turn it starts at, so `.._2` and later
    ones lack what was said before.
    """
    row = PublicRow.of("sharegpt", raw.record)
    key = row["id"] or raw.key
    turns = []
    for turn in row["turns"]:
        speaker = turn["speaker"]
        if speaker not in _SPEAKERS and speaker not in _OTHER_SPEAKERS:
            raise UserError(
                f"unknown speaker {speaker!r:.60}; known: {', '.join((*_SPEAKERS, *_OTHER_SPEAKERS))}"
            )
        turns.append((_SPEAKERS.get(speaker, speaker), turn["text"]))
    instruction, output = _exchange(turns)
    if _LATER_PIECE.fullmatch(key):
        raise UnusableError("a later piece of a conversation")
    return make_pair(f"{dataset}-{key}", dataset, "instruction", instruction, output)


@rowwise
def _open_instruct(raw: RawRow, dataset: str) -> Pair:
    """Read processed files of Open-Instruct (Tulu mixtures): all of its sets in one schema.

    {"dataset": "flan_v2", "id": "flan_v2_12", "messages": [{"role": "user", "content": ".."}, ..]}

    The pair is filed under the row's own data set. Alpaca rows end in `Output:`, which the prompt layout says already.
    """
    row = PublicRow.of("open_instruct", raw.record)
    key, name = row["id"], row["dataset"] or dataset
    turns = [(turn["speaker"], turn["text"]) for turn in row["turns"]]
    instruction, output = _exchange(turns)
    instruction = instruction.rstrip().removesuffix("\nOutput:")
    return make_pair(
        key if key.startswith(name) else f"{name}-{key}",
        name,
        "instruction",
        instruction,
        output,
    )


# Open Assistant 1: each accepted first reply of an initial prompt is a pair


def _oasst_trees(
    rows: Iterable[RawRow], dataset: str, language: str | None
) -> Iterator[PairOutcome]:
    """Read a tree a row.

    {"prompt": {"role": "prompter", "lang": "en", "text": "..", "replies": [{"message_id": "..", "text": "..", ..}]}}
    """
    for raw in rows:
        with raw.blamed():
            outcomes = list(_oasst_tree(raw, dataset, language))
        yield from outcomes


def _oasst_tree(
    raw: RawRow, dataset: str, language: str | None
) -> Iterator[PairOutcome]:
    prompt = value(raw.record, "prompt")
    if not isinstance(prompt, Mapping):
        raise UserError(f"'prompt' must be an object, not {prompt!r:.60}")
    refused = _oasst_refusal(prompt, language) or (
        "" if prompt.get("replies") else "no output"
    )
    if refused:
        yield Dropped(raw.place, refused)
        return
    for reply in objects(prompt, "replies"):
        yield _oasst_pair(raw.place, dataset, prompt, reply)


def _oasst_refusal(prompt: Mapping[str, Any], language: str | None) -> str:
    """Return why the message that a tree begins with is not taken, if it is not."""
    if text(prompt, "role") != "prompter":
        raise UserError(
            f"a tree begins with a prompter, not with {prompt['role']!r:.60}"
        )
    if prompt.get("deleted"):
        return "a deleted prompt"
    if language is not None and text(prompt, "lang") != language:
        return f"not in {language!r}"
    return ""


def _oasst_pair(
    place: str, dataset: str, prompt: Mapping[str, Any], reply: Mapping[str, Any]
) -> PairOutcome:
    if text(reply, "role") != "assistant":
        raise UserError(
            f"a prompter is answered by an assistant, not by {reply['role']!r:.60}"
        )
    if reply.get("deleted") or reply.get("review_result") is False:
        return Dropped(place, "a reply that was deleted or did not pass review")
    key = f"{dataset}-{identifier(reply, 'message_id')}"
    try:
        return make_pair(
            key, dataset, "instruction", text(prompt, "text"), text(reply, "text")
        )
    except UnusableError as error:
        return Dropped(place, str(error))


# Questions and claims


def _kilt(raw: RawRow) -> tuple[str, str, str, tuple[Passage, ...]]:
    """Id, question, first answer with text, and passages of a row of KILT or of the DPR training files made from it.

    {"id": "..", "input": "..", "output": [{"answer": "..", "provenance": [{"wikipedia_id": "..", "title": ".."}]}]}
    {"question": "..", "answers": [".."], "positive_ctxs": [{"title": "..", "text": "..", "passage_id": ".."}], ..}

    KILT names its evidence by page and paragraph, so it brings no passages. Its test rows have no answers.
    """
    passages: list[Passage] = []
    if "question" in raw.record:
        row, key = PublicRow.of("dpr", raw.record), raw.key
        answers = row["answers"]
        for number, passage in enumerate(row["passages"], 1):
            if passage["text"].strip():
                name = passage["id"] or f"{key}/p{number}"
                passages.append(Passage(name, passage["text"], passage["title"]))
    else:
        row = PublicRow.of("kilt", raw.record)
        key, answers = row["id"], [answer["text"] for answer in row["answers"]]
    answer = next((answer for answer in answers if answer.strip()), None)
    if answer is None:
        raise UnusableError("no output")
    return key, row["question"], answer, tuple(passages)


@rowwise
def _natural_questions(raw: RawRow, dataset: str) -> Pair:
    """Return the question as it was typed, without a task instruction (Table 4), and its first answer."""
    key, question, answer, passages = _kilt(raw)
    return make_pair(
        f"{dataset}-{key}", dataset, "short_qa", question, answer, passages
    )


@rowwise
def _wizard(raw: RawRow, dataset: str) -> Pair:
    """Wizard of Wikipedia: the dialogue so far, a line a turn, and the wizard's next turn."""
    key, dialogue, answer, passages = _kilt(raw)
    return make_pair(
        f"{dataset}-{key}",
        dataset,
        "dialogue",
        _asked(CHAT_HISTORY, dialogue),
        answer,
        passages,
    )


@rowwise
def _fever(raw: RawRow, dataset: str) -> Pair:
    """Return a claim, and `true` or `false` for its verdict; KILT leaves NOT ENOUGH INFO out."""
    key, claim, verdict, passages = _kilt(raw)
    instruction = _asked(FACT_CHECK, claim)
    truth = PublicRow.of("claims", {"answer": verdict})["truth"]
    return make_pair(
        f"{dataset}-{key}", dataset, "fact_check", instruction, truth, passages
    )


@rowwise
def _asqa(raw: RawRow, dataset: str) -> Pair:
    """Return an ambiguous question and its first long answer, with the passages that its writer quoted.

    {"5742327904742262955": {"ambiguous_question": "..", "annotations": [{"long_answer": "..", "knowledge": [..]}], ..}}

    That is the published file, an object a split; Hugging Face rows are the same with `sample_id`.
    """
    row = PublicRow.of("asqa", raw.record)
    key = f"{dataset}-{row['id'] or raw.key}"
    question, annotations = row["ambiguous"], row["annotations"]
    if not annotations:
        raise UnusableError("no output")
    instruction = _asked(AMBIGUOUS_QUESTION, question)
    passages = []
    for number, item in enumerate(annotations[0]["knowledge"], 1):
        if item["text"].strip():
            passages.append(Passage(f"{key}/p{number}", item["text"], item["title"]))
    return make_pair(
        key,
        dataset,
        "long_form",
        instruction,
        annotations[0]["answer"],
        tuple(passages),
    )


@rowwise
def _multiple_choice(raw: RawRow, dataset: str) -> Pair:
    """Return a question with lettered options and the letter of the right one, in the schemas of AI2.

    {"id": "..", "question": "..", "choices": {"text": [..], "label": ["A", ..]}, "answerKey": "C"}          ARC
    {"id": "..", "question_stem": "..", "choices": {"text": [..], "label": ["A", ..]}, "answerKey": "C"}     OpenBookQA
    {"id": "..", "question": {"stem": "..", "choices": [{"text": "..", "label": "A"}, ..]}, "answerKey": "C"}  both

    Options are lettered by position whatever they were called: some ARC questions call them 1 to 4.
    """
    nested = raw.record.get("question")
    posed = PublicRow.of(
        "choices", nested if isinstance(nested, Mapping) else raw.record
    )
    row = PublicRow.of("choices", raw.record)
    stem, options = posed["stem"], posed["options"]
    labels, key = [option["label"] for option in options], row["key"]
    if not 2 <= len(labels) <= len(ascii_uppercase) or len(set(labels)) < len(labels):
        raise UserError(
            f"the options are labelled {', '.join(labels)[:60] or 'not at all'}; 2 to 26 different ones"
        )
    if key not in labels:
        raise UserError(
            f"'answerKey' {key!r:.60} is none of the labels {', '.join(labels)}"
        )
    if not stem.strip():
        raise UnusableError("no instruction")
    letters = ascii_uppercase[: len(labels)]
    lines = [
        f"{letter}: {option['text']}"
        for letter, option in zip(letters, options, strict=True)
    ]
    instruction = _asked(choice_instruction(letters), "\n".join([stem.strip(), *lines]))
    name = f"{dataset}-{row['id']}"
    return make_pair(
        name, dataset, "multiple_choice", instruction, letters[labels.index(key)]
    )


def choice_instruction(letters: str) -> str:
    """Return the instruction for a choice among `letters`; for `ABCD` it is the paper's text."""
    count = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}.get(
        len(letters), str(len(letters))
    )
    listed = f"{', '.join(letters[:-1])} and {letters[-1]}"
    return f"Given {count} answer candidates, {listed}, choose the best answer choice."


@dataclass(frozen=True, slots=True)
class PairFormat:
    """One kind of source."""

    name: str  # what a command line calls it
    dataset: str  # name of the data set in the pairs, unless told otherwise or said by the row
    read: PairLoader  # the loader
    paper_rows: int = 0  # instances of it in the paper's mix (Table 3); 0 for a format the paper's counts do not name
    says_language: bool = False  # whether its rows say which language they are in


FORMATS: tuple[PairFormat, ...] = (
    PairFormat("gpt4_alpaca", "gpt4_alpaca", _alpaca, 26_168),
    PairFormat("stanford_alpaca", "stanford_alpaca", _alpaca, 25_153),
    PairFormat("flan_v2", "flan_v2", _flan, 17_817),
    PairFormat("sharegpt", "sharegpt", _sharegpt, 13_406),
    PairFormat("oasst1", "oasst1", _oasst_trees, 9_464, says_language=True),
    PairFormat("open_instruct", "open_instruct", _open_instruct),
    PairFormat("kilt_wow", "wow", _wizard, 17_367),
    PairFormat("kilt_nq", "nq", _natural_questions, 15_535),
    PairFormat("kilt_fever", "fever", _fever, 9_966),
    PairFormat("openbookqa", "openbookqa", _multiple_choice, 4_699),
    PairFormat("asqa", "asqa", _asqa, 3_897),
    PairFormat("arc_easy", "arc_easy", _multiple_choice, 2_147),
)


def format_of(name: str) -> PairFormat:
    """Return the format of this name."""
    for form in FORMATS:
        if form.name == name.strip():
            return form
    raise UserError(
        f"unknown format {name!r}; known: {', '.join(form.name for form in FORMATS)}"
    )
