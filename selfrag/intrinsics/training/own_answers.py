"""What a model itself answers: the log-probability of each option of a question after its chat prompt.

The forward of training is used, on packed rows, so no engine is needed. Kept on disk, so that it is done once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfrag.errors import UserError
from selfrag.intrinsics.rendering import Renderer
from selfrag.intrinsics.state import Message
from selfrag.intrinsics.training.questions import Question
from selfrag.intrinsics.wire import ChatPrompt
from selfrag.jsonl import read_identified, write_jsonl
from selfrag.training.rows import MASKED, Example, Group

if TYPE_CHECKING:
    from selfrag.training.model import Trainee

LOAD_TOKENS = 4096
"""Tokens of one forward."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A question with the model's view of its options.

    Attributes:
        id: of the question.
        question: as asked.
        logprobs: mean natural log-probability of a token of each option; the highest is the model's answer.
    """

    id: str
    question: Question
    logprobs: tuple[float, ...]

    @property
    def chosen(self) -> int:
        """Index of the model's answer."""
        return self.logprobs.index(max(self.logprobs))

    @property
    def is_right(self) -> bool:
        """Whether it is the right one."""
        return self.chosen == self.question.right


def own_answers(questions: Sequence[Question], base_dir: Path, kept: Path, *, device: str = "cpu") -> list[Answered]:
    """The model's answers, from `kept` if it holds those of this model and these questions.

    Args:
        questions: distinct ids.
        base_dir: checkpoint of the model.
        kept: file to write, or to read.
        device: where to compute.

    Raises:
        UserError: the model cannot be loaded, or has no chat template.
    """
    from selfrag.training.journal import fingerprint

    content = json.dumps([asdict(one) for one in questions], ensure_ascii=False, sort_keys=True)
    key = hashlib.sha256((fingerprint(*sorted(base_dir.glob("*.safetensors"))) + content).encode()).hexdigest()
    if kept.exists():
        found = {one.id: one for one in read_identified(kept, _Kept.parse)}
        if all(one.key == key for one in found.values()) and len(found) == len(questions):
            return [Answered(one.id, one, found[one.id].logprobs) for one in questions]
    made = _ask(questions, base_dir, device)
    write_jsonl(kept, ({"id": one.id, "key": key, "logprobs": one.logprobs} for one in made))
    return made


def option_examples(question: Question, renderer: Renderer) -> list[Example]:
    """One example an option: the chat prompt is read, the option is measured."""
    prompt = renderer.prompt(ChatPrompt((Message("user", question.question),)))
    found = []
    for option in question.options:
        ids = tuple(renderer.text.encode(option))
        labels = (*[MASKED] * len(prompt), *ids)
        found.append(Example((*prompt, *ids), labels, (int(Group.TEXT),) * len(labels)))
    return found


def _ask(questions: Sequence[Question], base_dir: Path, device: str) -> list[Answered]:
    from tqdm import tqdm

    from selfrag.training.model import load_trainee
    from selfrag.training.settings import Lora, Reach

    # A new adapter adds nothing, so this is the base model.
    trainee = load_trainee(base_dir, lora=Lora(rank=1), reach=Reach(token_rows=False, last_layers=1), device=device)
    renderer = Renderer.of(trainee.tokenizer)
    examples = [(number, one) for number, q in enumerate(questions) for one in option_examples(q, renderer)]
    values: list[list[float]] = [[] for _ in questions]
    with tqdm(total=len(examples), desc="own answers", unit="option", disable=None) as bar:
        for load in _loads(examples):
            for (number, _), value in zip(load, _means(trainee, [one for _, one in load]), strict=True):
                values[number].append(value)
            bar.update(len(load))
    return [Answered(q.id, q, tuple(found)) for q, found in zip(questions, values, strict=True)]


def _means(trainee: Trainee, examples: Sequence[Example]) -> list[float]:
    import torch

    from selfrag.training.packing import pack
    from selfrag.training.settings import Weighting

    counts = [sum(label != MASKED for label in one.labels) for one in examples]
    with torch.no_grad():
        losses, _ = trainee.losses(pack(examples, Weighting.uniform()))
    return [-float(part.mean()) for part in torch.split(losses.cpu(), counts)]


def _loads(examples: Sequence[tuple[int, Example]]) -> Iterator[list[tuple[int, Example]]]:
    load: list[tuple[int, Example]] = []
    room = LOAD_TOKENS
    for one in examples:
        if load and len(one[1]) > room:
            yield load
            load, room = [], LOAD_TOKENS
        load.append(one)
        room -= len(one[1])
    if load:
        yield load


@dataclass(frozen=True, slots=True)
class _Kept:
    id: str
    key: str
    logprobs: tuple[float, ...]

    @classmethod
    def parse(cls, record: dict[str, Any]) -> _Kept:
        try:
            return cls(str(record["id"]), str(record["key"]), tuple(float(one) for one in record["logprobs"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"no answer of a model: {error!r}; delete the file and start again") from error
