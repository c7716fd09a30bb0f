"""What is measured: the adapters, the model without them or with examples in its prompt, and published figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from selfrag.intrinsics.capability import reflections
from selfrag.intrinsics.chat import DIALECT
from selfrag.intrinsics.contract import (
    ChatPrompt,
    Codec,
    Completion,
    Executor,
    Message,
    Reflection,
    Request,
    State,
    Teachable,
)
from selfrag.intrinsics.library import codec_of, find
from selfrag.training.intrinsics.job import chosen
from selfrag.training.intrinsics.rows import Labelled, gold_of

ADAPTED, UNTRAINED, PROMPTED = "adapter", "untrained", "prompted"
"""Names of the systems: our adapter; the base, asked in the same way; the base with worked examples before it."""


@dataclass(frozen=True)
class Subject:
    """One way to ask one model."""

    name: str  # in reports
    executor: Executor  # runs the requests
    # intrinsic -> adapter of the executor; empty for the base model
    adapters: Mapping[str, str] = field(default_factory=dict)
    # intrinsic -> worked examples, put before each request
    shots: Mapping[str, tuple[Message, ...]] = field(default_factory=dict)
    dialect: str = DIALECT  # whose prompts
    chunk: int = 64  # states that go to the executor at once

    def codec(self, intrinsic: str) -> Codec:
        """What asks for an intrinsic."""
        plain = codec_of(find(intrinsic), self.dialect)
        return FewShot(plain, self.shots[intrinsic]) if self.shots.get(intrinsic) else plain

    def ask(self, intrinsic: str, states: Sequence[State]) -> list[Reflection]:
        """One reflection a state, in order; a request that failed is a reflection without findings."""
        from tqdm import tqdm

        codec, adapter = self.codec(intrinsic), self.adapters.get(intrinsic)
        found: list[Reflection] = []
        with tqdm(total=len(states), desc=f"{intrinsic}: {self.name}", unit="row", disable=None) as bar:
            for start in range(0, len(states), self.chunk):
                part = states[start : start + self.chunk]
                found += reflections(codec, self.executor, part, adapter)
                bar.update(len(part))
        return found

    def result(self, intrinsic: str, reflection: Reflection) -> Any:
        """The typed result, as the public interface gives it."""
        return find(intrinsic)(self.executor, self.codec(intrinsic), self.adapters.get(intrinsic)).result(reflection)


@dataclass(frozen=True)
class FewShot:
    """A codec with worked examples before its request."""

    inner: Codec  # the codec
    shots: tuple[Message, ...]  # turns of user and assistant

    @property
    def intrinsic(self) -> str:
        """Of the inner codec."""
        return self.inner.intrinsic

    @property
    def dialect(self) -> str:
        """Of the inner codec."""
        return self.inner.dialect

    def encode(self, state: State) -> Request:
        """The inner request behind the examples; a prompt that is rendered by the dialect stays as it is."""
        request = self.inner.encode(state)
        if not isinstance(request.prompt, ChatPrompt):
            return request
        return replace(request, prompt=replace(request.prompt, messages=(*self.shots, *request.prompt.messages)))

    def decode(self, request: Request, completion: Completion) -> Reflection:
        """As the inner codec."""
        return self.inner.decode(request, completion)


def worked(rows: Sequence[Labelled], codec: Teachable, count: int, *, seed: int = 0) -> tuple[Message, ...]:
    """Worked examples from the shorter half of training rows, labels in turn."""
    short = sorted(rows, key=lambda row: (_length(row.state), row.id))[: max(count, len(rows) // 2)]
    turns: list[Message] = []
    for row in chosen(short, count, seed):
        request = codec.encode(row.state)
        targets = codec.teach(request, gold_of(row, request))
        if targets and isinstance(request.prompt, ChatPrompt):
            reply = "\n".join(target.prefill + target.text for target in targets)
            turns += [*request.prompt.messages, Message("assistant", reply)]
    return tuple(turns)


def _length(state: State) -> int:
    return sum(len(m.content) for m in state.messages) + sum(len(p.text) for p in state.passages)


RECALL: Mapping[str, Mapping[str, tuple[float, float, float]]] = {
    "full": {
        "no rewrite": (0.49, 0.59, 0.67),
        "Mixtral 8x7b": (0.52, 0.64, 0.72),
        "Granite 3.2-8b LoRA": (0.56, 0.68, 0.76),
        "gold rewrite": (0.56, 0.67, 0.75),
    },
    "non-standalone": {
        "no rewrite": (0.26, 0.39, 0.44),
        "Mixtral 8x7b": (0.36, 0.49, 0.57),
        "Granite 3.2-8b LoRA": (0.44, 0.57, 0.66),
        "gold rewrite": (0.48, 0.58, 0.66),
    },
    "standalone": {
        "no rewrite": (0.61, 0.72, 0.79),
        "Mixtral 8x7b": (0.61, 0.73, 0.81),
        "Granite 3.2-8b LoRA": (0.63, 0.75, 0.83),
        "gold rewrite": (0.61, 0.72, 0.79),
    },
}
"""Tables 2, 3 and 4: recall at 5, 10 and 20 on MT-RAG."""

HALLUCINATION: Mapping[str, tuple[float, float, float]] = {
    "gpt-3.5-turbo (prompted)": (18.8, 84.4, 30.8),
    "gpt-4-turbo (prompted)": (33.2, 90.6, 45.6),
    "SelfCheckGPT": (35.0, 58.0, 43.7),
    "LMvLM": (18.7, 76.9, 30.1),
    "Finetuned Llama-2-13B": (61.6, 76.3, 68.2),
    "Granite 3.2-8b LoRA": (67.6, 77.4, 72.2),
}
"""Table 8: precision, recall and F1 of hallucinated responses on RAGTruth QA."""

ANSWERABILITY: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "Table 9, SQuADRun": {
        "BigBird w/ MLP": (49.2, 68.5, 57.3, 48.0, 29.2, 36.3, 46.8),
        "LLaMA 2-7B": (72.2, 71.0, 71.6, 71.4, 72.6, 72.0, 71.8),
        "Granite 3.2-8b LoRA": (84.2, 68.0, 75.2, 73.1, 87.2, 79.5, 77.4),
    },
    "Table 10, MT-RAG": {
        "BigBird w/ MLP": (69.6, 77.6, 73.4, 70.1, 60.8, 65.2, 69.6),
        "LLaMA 2-7B": (86.9, 89.4, 88.2, 87.3, 84.5, 85.9, 87.1),
        "Granite 3.2-8b LoRA": (85.4, 89.3, 87.3, 87.0, 82.4, 84.6, 86.1),
    },
}
"""Tables 9 and 10: precision, recall, F1 of unanswerable, of answerable, and weighted F1."""

CITATIONS_ALCE: Mapping[str, tuple[float, float, float]] = {
    "Llama-3.1-70B, its own answers": (61.4, 58.1, 59.7),
    "Granite 3.2-8b LoRA on Llama's answers": (54.8, 65.9, 59.8),
    "Mixtral-8x22B, its own answers": (62.2, 62.5, 62.3),
    "Granite 3.2-8b LoRA on Mixtral's answers": (54.3, 69.5, 61.0),
}
"""Table 12: recall, precision and F1 on ALCE, ELI5 with five oracle passages."""

CITATIONS_LONGBENCH: Mapping[str, tuple[tuple[float, float, float], ...]] = {
    "Llama-3.1-70B": ((27.0, 34.4, 26.1), (46.1, 63.3, 49.7), (34.0, 39.4, 30.2), (55.0, 77.5, 62.0)),
    "Granite 3.2-8b LoRA": ((61.9, 68.6, 62.0), (71.2, 84.1, 74.3), (66.8, 73.3, 65.4), (70.3, 83.6, 75.4)),
}
"""Table 13: recall, precision and F1 on LongBench-Cite: Chat, MultifieldQA, HotpotQA, GovReport."""

CALIBRATION: Mapping[str, tuple[float, float]] = {
    "Granite 3.2-8b base": (0.20, 0.60),
    "Granite 3.2-8b LoRA": (0.064, 0.10),
}
"""Section 3.2: mean and largest expected calibration error over the tasks of MMLU."""

GATING: Mapping[str, tuple[float, ...]] = {
    "Granite 3.2-8b": (14, 76, 8, 97, 75, 50),
    "Granite 3.2-8b with LoRA gate": (47, 77, 37, 88, 70, 57),
}
"""Table 11: F1 of unanswerable and answerable, their recall, RAGAS faithfulness, JAFS."""

FLOWS: Mapping[str, tuple[float, ...]] = {
    "none": (14, 76, 505, 75, 50),
    "qr": (12, 82, 578, 78, 57),
    "ad": (47, 77, 455, 70, 57),
    "qr+ad": (42, 82, 530, 73, 61),
}
"""Tables 14 to 16: F1 of unanswerable and answerable, responses, RAGAS faithfulness, JAFS."""
