"""Show what every row of the table asks, without a model: the first prompt of the first item of each task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from scripts.reproduction.table2 import Row
from selfrag.evaluation.presets import Given
from selfrag.evaluation.systems import decoding_settings, system_of_task
from selfrag.evaluation.task_files import TaskFile
from selfrag.reflection.labels import TOKENS
from selfrag.reflection.requests import Failed, Generate
from selfrag.runtime import drive


class AskedEngine:
    """Keeps what it is asked, and answers nothing."""

    def __init__(self) -> None:
        self.requests: list[Generate] = []
        self._waiting: list[int] = []

    def submit(self, request: Generate) -> int:
        """Keep a request."""
        self._waiting.append(len(self.requests))
        self.requests.append(request)
        return self._waiting[-1]

    def step(self) -> list[tuple[int, Failed]]:
        """Fail what waits."""
        tickets, self._waiting = self._waiting, []
        return [(ticket, Failed("only asked")) for ticket in tickets]

    def abort(self, tickets: Iterable[int]) -> None:
        """Do nothing: all has failed already."""


def byte_tokenizer() -> Any:
    """Return a tokenizer of one token a byte, with the reflection tokens: it shows prompts as they are."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    core = Tokenizer(
        models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[])
    )
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=names[0], clean_up_tokenization_spaces=False
    )
    tokenizer.add_tokens(list(TOKENS), special_tokens=True)
    return tokenizer


def prompt(row: Row, file: TaskFile) -> str:
    """Return what the model of a row reads for the first item of a file; of Self-RAG, after it decided to retrieve.

    A model of a vendor is asked in one message, whose words these are.
    """
    tokenizer = byte_tokenizer()
    if row.is_endpoint:
        tokenizer.chat_template = "{{ messages[0]['content'] }}"
    name = "selfrag-always" if row.system == "selfrag" else row.system or "base"
    system = system_of_task(
        name, tokenizer, file.task, decoding_settings(list(row.settings))
    )
    engine = AskedEngine()
    list(drive([system.decoder(file.items[0], file.task)], engine, None))
    return str(tokenizer.decode(engine.requests[0].prompt_ids))


def describe_row(row: Row, files: Sequence[TaskFile]) -> list[str]:
    """Return lines on a row: for each task its protocol, budget, documents, settings, metrics with figures, and prompt.

    Of a row behind an endpoint, only the tasks that the paper has figures of.
    """
    lines = []
    for file in files:
        task = Given.marked(file.path, file.task.preset)
        assert task.preset is not None  # noqa: S101 - files of published tasks
        protocol = task.preset.protocol(task.protocol)
        figures = []
        columns = row.columns(letter="official" not in task.protocol)
        for (name, metric), value in zip(columns, row.figures, strict=True):
            if name == file.name and value:
                figures.append(f"{metric} {value}")
        if (row.is_endpoint or not row.system) and not figures:
            continue
        if row.system == "selfrag":
            settings = [
                f"{key}={value}"
                for key, value in task.preset.settings(task.protocol).items()
            ]
            decoding = ", ".join(settings) or "the defaults"
            reads = (
                f"documents: {protocol.passages}, one a candidate; decoding: {decoding}"
            )
        else:
            documents = protocol.documents if row.system.endswith("rag") else 0
            reads = (
                f"documents: {documents}; {', '.join(row.settings) or 'no settings'}"
            )
        budget = f"new tokens: {protocol.new_tokens}; segments: {protocol.segments}"
        lines += [
            f"{file.task.preset}: {budget}; {reads}",
            f"  published: {', '.join(figures) or 'nothing'}",
            f"  prompt: {prompt(row, file)!r}",
        ]
    return lines
