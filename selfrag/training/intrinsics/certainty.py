"""Rows of the uncertainty adapter: a model's own answers, and how often it is right by a calibrator out of fold.

After Thermometer (arXiv 2403.08819), which the paper's uncertainty adapter imitates: calibrate the base model's answers
afterwards, without changing them, then teach an adapter what the calibrator says. The answers are options of multiple
choice, or were written from passages and recorded.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from selfrag.common.errors import UserError, count_of, require
from selfrag.common.jsonl import JsonObject, read_identified, write_jsonl
from selfrag.common.kinds import Filled
from selfrag.common.progress import Progress
from selfrag.common.validation import validate
from selfrag.judges.rendering import Renderer
from selfrag.judges.wire import ChatPrompt
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.training.intrinsics.rows import (
    CERTAINTIES,
    ConversationRecord,
    IntrinsicRow,
    state_of,
)
from selfrag.training.rows import MASKED, TargetGroup, TrainingExample

if TYPE_CHECKING:
    from selfrag.training.model import Trainee


Floats: TypeAlias = NDArray[np.float64]
FOLDS = 10


def decile(certainty: float) -> int:
    """0 to 9; digit d means (5 + 10 d) percent."""
    return min(9, max(0, int(certainty * 10)))


@dataclass(frozen=True, slots=True)
class ChoiceQuestion:
    """A multiple choice, which the model is asked."""

    id: str  # unique in its file
    dataset: str  # where it is from
    question: str  # what is asked
    options: tuple[str, ...]  # possible answers, distinct
    right: int  # index of the right one

    @property
    def letters(self) -> str:
        """Return one letter for each option."""
        return ascii_uppercase[: len(self.options)]

    @property
    def prompt(self) -> str:
        """Return what the model reads: the question, its options by letters, and what to reply."""
        options = [
            f"{letter}. {option}"
            for letter, option in zip(self.letters, self.options, strict=True)
        ]
        return "\n".join(
            [self.question, *options, "Reply with the letter of the right answer."]
        )


@dataclass(frozen=True, slots=True)
class WrittenAnswer:
    """An answer that the model has written, and whether it was right."""

    id: str  # unique in its file
    dataset: str  # where it is from
    context: JudgeInput  # conversation and passages that it was written from
    text: str  # of the answer
    score: float  # what is calibrated, such as the path score of its trace; higher is more certain
    is_right: bool

    @property
    def question(self) -> str:
        """Return the last user turn."""
        return self.context.query or ""

    def state(self, *, after: bool) -> JudgeInput:
        """Conversation and passages, with the answer where the certainty is asked for afterwards."""
        answer = (Message("assistant", self.text),) if after else ()
        return replace(self.context, messages=(*self.context.messages, *answer))


class QuestionRecord(TypedDict):
    """A multiple choice in a row of a file; the label is the letter of the right option."""

    id: Filled
    dataset: Filled
    question: Filled
    options: list[Filled]
    label: Filled


class WrittenRecord(ConversationRecord):
    """A written answer in a row of a file."""

    dataset: Filled
    answer: Filled
    score: float
    right: bool


def read_questions(path: str | Path) -> list[ChoiceQuestion | WrittenAnswer]:
    """Read a JSONL file (`.gz` allowed) of rows as `parse_row` takes them.

    Raises:
        UserError: the file cannot be read, or a line is no such row, by `file:line`.
    """
    return list(read_identified(path, parse_row))


def parse_row(record: JsonObject) -> ChoiceQuestion | WrittenAnswer:
    """Check a multiple choice as `parse_question`, or an answer with its score.

    Raises:
        UserError: a field is missing or of the wrong type.
    """
    if "answer" not in record:
        return parse_question(record)
    row = validate(WrittenRecord, record, others="ignore", mended=True)
    return WrittenAnswer(
        row["id"],
        row["dataset"],
        state_of(row, "user"),
        row["answer"],
        row["score"],
        row["right"],
    )


def unseen(
    questions: list[ChoiceQuestion | WrittenAnswer], seen: Collection[str]
) -> list[ChoiceQuestion | WrittenAnswer]:
    """Questions none of `seen` contains; a model is too sure of what it was trained on."""
    joined = "\n".join(_words(text) for text in seen)
    return [
        question for question in questions if _words(question.question) not in joined
    ]


def _words(text: str) -> str:
    return " ".join(text.casefold().split())


def parse_question(record: Mapping[str, Any]) -> ChoiceQuestion:
    """Check one object. An option that is given twice is one option.

    Raises:
        UserError: a field is missing or of the wrong type, two options are not different, or the label names none.
    """
    row = validate(QuestionRecord, record, others="ignore", mended=True)
    stripped = [option.strip() for option in row["options"]]
    distinct = tuple(dict.fromkeys(stripped))
    if len(distinct) < 2:
        raise UserError("'options' must be at least two different texts")
    letters = ascii_uppercase[: len(stripped)]
    if row["label"] not in letters:
        raise UserError(
            f"label {row['label']!r} names none of the {count_of(len(stripped), 'options')}; write A, B, ..."
        )
    right = distinct.index(stripped[letters.index(row["label"])])
    return ChoiceQuestion(row["id"], row["dataset"], row["question"], distinct, right)


LOAD_TOKENS = 4096
"""Tokens of one forward."""


@dataclass(frozen=True, slots=True)
class ChoiceAnswer:
    """A question with the model's view of its options."""

    id: str  # of the question
    question: ChoiceQuestion  # as asked
    # mean natural log-probability of a token of each option's letter; the highest is the model's answer
    logprobs: tuple[float, ...]

    @property
    def chosen(self) -> int:
        """Index of the model's answer."""
        return self.logprobs.index(max(self.logprobs))

    @property
    def is_right(self) -> bool:
        """Return whether it is the right one."""
        return self.chosen == self.question.right

    @property
    def dataset(self) -> str:
        """Return where the question is from."""
        return self.question.dataset

    def state(self, *, after: bool) -> JudgeInput:
        """Return the question, and the model's answer to it where the certainty is asked for afterwards."""
        answer = (
            (Message("assistant", self.question.letters[self.chosen]),) if after else ()
        )
        return JudgeInput((Message("user", self.question.prompt), *answer))


OwnAnswer: TypeAlias = ChoiceAnswer | WrittenAnswer
"""A model's own answer."""


@dataclass(frozen=True, slots=True)
class Calibrator:
    """A fitted calibrator."""

    temperature: float  # the options' log-probabilities are divided by it
    confidence: tuple[float, ...]  # borders of the isotonic steps, rising [n]
    accuracy: tuple[float, ...]  # the share of right answers there [n]

    def __call__(self, answers: Sequence[OwnAnswer]) -> Floats:
        """Certainty that each answer is right [n]."""
        values = confidences(answers, self.temperature)
        return np.interp(values, self.confidence, self.accuracy)


def fit(answers: Sequence[OwnAnswer]) -> Calibrator:
    """Fit one calibrator on answers of one kind of one model.

    A rising step function maps what the temperature leaves, or the scores of written answers.

    Raises:
        UserError: too few answers, or of both kinds; or scikit-learn or scipy is not installed.
    """
    if len(answers) < FOLDS:
        raise UserError(
            f"{count_of(len(answers), 'questions', 'are')} too few to calibrate on; give at least {FOLDS}"
        )
    choices = [answer for answer in answers if isinstance(answer, ChoiceAnswer)]
    if choices and len(choices) < len(answers):
        raise UserError(
            "a data set holds options and written answers; give each kind a name of its own"
        )
    temperature = 1.0
    if choices:
        temperature = _temperature(choices)
    correct = [answer.is_right for answer in answers]
    require("sklearn", extra="eval")
    from sklearn.isotonic import IsotonicRegression

    steps = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    steps.fit(confidences(answers, temperature), correct)
    borders, shares = steps.X_thresholds_.tolist(), steps.y_thresholds_.tolist()
    return Calibrator(temperature, tuple(borders), tuple(shares))


def out_of_fold(answers: Sequence[OwnAnswer], *, seed: int = 0) -> Floats:
    """Certainty of each answer [n] by a calibrator of its data set that has not seen it.

    `seed` draws the `FOLDS` parts. Each data set has its own calibrator, because models err differently on each; one
    that is too small is refused.
    """
    result = np.zeros(len(answers))
    for name, members in _by_data_set(answers).items():
        if len(members) < FOLDS**2:
            raise UserError(
                f"{name}: {count_of(len(members), 'questions', 'are')} too few for {FOLDS} folds; give {FOLDS**2}"
            )
        order = np.random.default_rng(seed).permutation(members)
        for part in np.array_split(order, FOLDS):
            fitted = fit([answers[place] for place in members if place not in part])
            result[part] = fitted([answers[place] for place in part])
    return result


def of_other_data_sets(answers: Sequence[OwnAnswer]) -> list[float | None]:
    """Certainty of each answer by a calibrator of all other data sets: what is known of a task that nobody calibrated.

    None where fewer than `FOLDS` answers of the same kind are in other data sets.
    """
    result: list[float | None] = [None] * len(answers)
    for name, members in _by_data_set(answers).items():
        kind = type(answers[members[0]])
        elsewhere = [
            answer
            for answer in answers
            if answer.dataset != name and type(answer) is kind
        ]
        if len(elsewhere) >= FOLDS:
            values = fit(elsewhere)([answers[place] for place in members])
            for place, value in zip(members, values.tolist(), strict=True):
                result[place] = value
    return result


def _by_data_set(answers: Sequence[OwnAnswer]) -> dict[str, list[int]]:
    """Places of the answers to each data set, by name."""
    places: dict[str, list[int]] = {}
    for place, answer in enumerate(answers):
        places.setdefault(answer.dataset, []).append(place)
    return dict(sorted(places.items()))


def confidences(answers: Sequence[OwnAnswer], temperature: float = 1.0) -> Floats:
    """Return what is calibrated [n]: the best option's probability at `temperature`, or a written answer's score."""
    return np.array(
        [
            _softmax(a.logprobs, temperature).max()
            if isinstance(a, ChoiceAnswer)
            else a.score
            for a in answers
        ]
    )


def _temperature(answers: Sequence[ChoiceAnswer]) -> float:
    """Return the temperature under which the right options are most probable (Guo et al., arXiv 1706.04599)."""
    require("scipy", extra="eval")
    from scipy.optimize import minimize_scalar

    def loss(log_temperature: float) -> float:
        temperature = np.exp(log_temperature)
        chances = [
            _softmax(answer.logprobs, temperature)[answer.question.right]
            for answer in answers
        ]
        return -float(np.mean(np.log(np.maximum(chances, 1e-12))))

    return float(np.exp(minimize_scalar(loss, bounds=(-4.0, 4.0), method="bounded").x))


def _softmax(row: Sequence[float], temperature: float) -> Floats:
    scaled = np.asarray(row, dtype=np.float64) / temperature
    shares: Floats = np.exp(scaled - scaled.max())
    return np.asarray(shares / shares.sum())


def own_answers(
    rows: Sequence[ChoiceQuestion | WrittenAnswer],
    base_dir: Path,
    kept: Path,
    *,
    device: str = "cpu",
) -> list[OwnAnswer]:
    """Return the model's answers: from the file `kept` if they are of this model and these questions, else new ones.

    The rows have distinct ids. Written answers stay as they are.

    Raises:
        UserError: the model cannot be loaded, or has no chat template.
    """
    from selfrag.training.journal import fingerprint

    written = [row for row in rows if isinstance(row, WrittenAnswer)]
    questions = [row for row in rows if isinstance(row, ChoiceQuestion)]
    if not questions:
        return [*written]
    content = [asdict(question) | {"asked": question.prompt} for question in questions]
    model = fingerprint(*sorted(base_dir.glob("*.safetensors")))
    text = model + json.dumps(content, ensure_ascii=False, sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()
    if kept.exists():
        before = {answer.id: answer for answer in read_identified(kept, _parse_kept)}
        if {answer.key for answer in before.values()} == {key} and len(before) == len(
            questions
        ):
            return [
                *(ChoiceAnswer(q.id, q, before[q.id].logprobs) for q in questions),
                *written,
            ]
    answers = _ask(questions, base_dir, device)
    write_jsonl(
        kept,
        (
            {"id": answer.id, "key": key, "logprobs": answer.logprobs}
            for answer in answers
        ),
    )
    return [*answers, *written]


def option_examples(
    question: ChoiceQuestion, renderer: Renderer
) -> list[TrainingExample]:
    """Return one example an option: the question with all options is read, the letter is measured."""
    prompt = renderer.prompt(ChatPrompt((Message("user", question.prompt),)))
    examples = []
    for letter in question.letters:
        ids = tuple(renderer.text.encode(letter))
        labels = (*[MASKED] * len(prompt), *ids)
        examples.append(
            TrainingExample(
                (*prompt, *ids), labels, (int(TargetGroup.TEXT),) * len(labels)
            )
        )
    return examples


def _ask(
    questions: Sequence[ChoiceQuestion], base_dir: Path, device: str
) -> list[ChoiceAnswer]:
    from selfrag.training.model import load_trainee
    from selfrag.training.packing import filled
    from selfrag.training.settings import Lora, Reach, TrainingConfig

    # A new adapter adds nothing, so this is the base model.
    reach = Reach(token_rows=False, last_layers=1)
    config = TrainingConfig(
        lora=Lora(rank=1), reach=reach, device=device, precision="bf16"
    )
    trainee = load_trainee(base_dir, config)
    renderer = Renderer.of(trainee.tokenizer)
    examples: list[TrainingExample] = []
    for question in questions:
        examples += option_examples(question, renderer)
    lengths = [len(example) for example in examples]
    means: list[float] = []  # of each example
    with Progress("own answers", "option", len(examples)) as progress:
        for load in filled(range(len(examples)), lengths, LOAD_TOKENS):
            means += _means(trainee, [examples[at] for at in load])
            progress.advance(len(load))
    remaining = iter(means)
    answers = []
    for question in questions:
        logprobs = tuple(islice(remaining, len(question.options)))
        answers.append(ChoiceAnswer(question.id, question, logprobs))
    return answers


def _means(trainee: Trainee, examples: Sequence[TrainingExample]) -> list[float]:
    import torch

    from selfrag.training.packing import pack
    from selfrag.training.settings import Weighting

    counts = [sum(label != MASKED for label in example.labels) for example in examples]
    with torch.no_grad():
        losses, _ = trainee.losses(pack(examples, Weighting.uniform()))
    return [-float(part.mean()) for part in torch.split(losses.cpu(), counts)]


@dataclass(frozen=True, slots=True)
class _KeptAnswer:
    id: str
    key: str  # of the model and the questions
    logprobs: tuple[float, ...]


def _parse_kept(record: JsonObject) -> _KeptAnswer:
    try:
        return validate(_KeptAnswer, record)
    except UserError as error:
        raise UserError(
            f"no answer of a model: {error}; delete the file and start again"
        ) from error


def certainty_rows(
    answers: Sequence[OwnAnswer], *, seed: int = 0
) -> list[IntrinsicRow]:
    """Rows after and before the answer, with calibrated deciles; each is judged by a calibrator that has not seen it.

    The arguments and errors are those of `out_of_fold`.
    """
    certainties = out_of_fold(answers, seed=seed)
    rows = []
    for answer, certainty in zip(answers, certainties.tolist(), strict=True):
        label = CERTAINTIES[decile(certainty)]
        for moment in ("after", "before"):
            state = answer.state(after=moment == "after")
            group = answer.state(after=False).query or ""
            rows.append(
                IntrinsicRow(
                    f"{answer.id}/{moment}",
                    f"{moment}/{label}",
                    group,
                    state,
                    label=label,
                )
            )
    return rows


def facts(answers: Sequence[OwnAnswer], rows: Sequence[IntrinsicRow]) -> JsonObject:
    """Return how often the model was right and what calibrates it, by data set, and how often each decile was given."""
    record: dict[str, JsonObject] = {
        "own_accuracy": {},
        "questions": {},
        "calibrators": {},
    }
    for name, places in _by_data_set(answers).items():
        of_set = [answers[place] for place in places]
        record["own_accuracy"][name] = sum(answer.is_right for answer in of_set) / len(
            of_set
        )
        record["questions"][name] = len(of_set)
        record["calibrators"][name] = asdict(fit(of_set))
    deciles = Counter(row.label for row in rows)
    return record | {"deciles": {name: deciles[name] for name in CERTAINTIES}}
