"""A chat model that grades with one label: answers that know nothing, support of citations, quality of answers.

The grades are those of MT-RAG's judge of "I don't know" (arXiv 2501.03468), of LongBench-Cite (arXiv 2409.02897) and
of RAD-Bench (arXiv 2409.12558), with which the intrinsics paper measures (sections 2.2.2, 6.2.2 and 7.1). A grader also
breaks an answer into statements, as RAGAS does. The questions are ours, since the benchmarks' own are not ours to ship;
a file puts their words in place of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from retrieval.passage import Passage
from selfrag.common.checks import unknown_name
from selfrag.common.errors import UserError
from selfrag.common.reading import read_json
from selfrag.evaluation.metrics.alce import CitedClaim, Cites, as_sentences
from selfrag.intrinsics.named import chat_model
from selfrag.judges.chat import LabelCodec, WritingCodec
from selfrag.judges.entailment import LEAST
from selfrag.judges.prompted import PromptedJudge
from selfrag.judges.sentences import judged_turn
from selfrag.judges.wire import Executor
from selfrag.reflection.findings import Reflection
from selfrag.reflection.inputs import JudgeInput, Message, SiteKind
from selfrag.reflection.intrinsic_labels import CHANGED
from selfrag.reflection.labels import Label, LabelSet, Role
from selfrag.runtime import finish

STATEMENTS = 40
"""Sentences of a response that LongBench-Cite reads."""

_NOTHING = LabelSet(
    Role.ANSWERABLE,
    (
        Label("unknown", 1.0, "unknown"),
        Label("partly", 0.5, "partly"),
        Label("answer", 0.0, "answer"),
    ),
)
ABSTENTION = LabelCodec(
    "abstention",
    _NOTHING,
    "Does the last message of the assistant answer the user, or does it say that it does not know the answer? Reply"
    " with one word: unknown if it gives no answer at all, partly if it gives some of an answer, or else answer.",
    judged_turn,
    documents=False,
)
SUPPORT = LabelCodec(
    "support",
    LabelSet(
        Role.SUPPORT,
        (
            Label("fully", 1.0, "fully"),
            Label("partly", 0.5, "partly"),
            Label("none", 0.0, "none"),
        ),
    ),
    "How far do the documents alone support the last message of the assistant? Reply with one word: fully if most of"
    " what it says stands there in nearly the same way, partly if more than half of it does, or else none.",
    judged_turn,
)
RELEVANCE = LabelCodec(
    "relevance",
    LabelSet(
        Role.RELEVANCE,
        (Label("relevant", 1.0, "relevant"), Label("irrelevant", 0.0, "irrelevant")),
    ),
    "Do the documents support any key point of the last message of the assistant? Reply with one word: relevant or"
    " irrelevant.",
    judged_turn,
)
NEED = LabelCodec(
    "need",
    LabelSet(Role.CITATION, (Label("yes", 1.0, "yes"), Label("no", 0.0, "no"))),
    "The sentence is one of the assistant's answer, which was written from a document. Does it state a fact of the"
    " document, for which a source should be cited? Reply no if it introduces, leads over, sums up or concludes from"
    " what was said before. Reply with one word: yes or no.",
    judged_turn,
    arguments=("sentence",),
)
QUALITY = LabelCodec(
    "quality",
    LabelSet(
        Role.UTILITY,
        tuple(Label(str(n), (n - 1) / 9, f"{n:02d}") for n in range(1, 11)),
    ),
    "Rate the last message of the assistant from 01 to 10: is it faithful to the documents and the conversation, does"
    " it answer the question, and does it say all that the reference answer says? Reply with two digits.",
    judged_turn,
    arguments=("reference",),
)


DECOMPOSITION = WritingCodec(
    "statements",
    "statements",
    CHANGED,
    "Break the last message of the assistant into short statements that say together all that it says. Each is one"
    " fact, and a reader understands it without the others: write names in place of pronouns. Put | between two"
    " statements.",
    scope=SiteKind.TURN,
    max_tokens=512,
)
CODECS: Mapping[str, LabelCodec | WritingCodec] = MappingProxyType(
    {
        codec.intrinsic: codec
        for codec in (ABSTENTION, SUPPORT, RELEVANCE, NEED, QUALITY, DECOMPOSITION)
    }
)
"""What a grader is asked, by name."""


def load_grader(spec: str, words: Path | None = None) -> Grader:
    """Return a chat model that grades.

    Args:
        spec: `MODEL` or `MODEL@URL`, as in `chat_model`.
        words: JSON, names of `CODECS` to the question that is asked in place of ours.

    Raises:
        UserError: the model is not there, or the file has other names or no texts.
    """
    questions = {} if words is None else read_json(words)
    if not isinstance(questions, dict):
        raise UserError(f"{words} holds no object; give names with their questions")
    for name, question in questions.items():
        if name not in CODECS:
            raise unknown_name(
                "question", name, CODECS, "docs/guides/intrinsics/training.md"
            )
        if not isinstance(question, str) or not question.strip():
            raise UserError(f"{words}: {name} must be a text; write what is asked")
    executor, name, _ = chat_model(spec)
    return Grader(executor, name, questions)


@dataclass(frozen=True, slots=True)
class Grader:
    """A chat model that gives the value of the most probable grade; None where there is none."""

    executor: Executor  # runs the model
    name: str  # what reports call it
    words: Mapping[str, str] = field(default_factory=dict)  # as of `load_grader`

    def statements(self, states: Sequence[JudgeInput]) -> list[list[str]]:
        """Return the statements of each last turn (RAGAS); its sentences where the model wrote none."""
        statements = []
        for state, reflection in zip(
            states, self._asked(DECOMPOSITION, states), strict=True
        ):
            parts = (reflection.text or "").split("|")
            written = [part.strip() for part in parts if part.strip()]
            statements.append(written or as_sentences(state.messages[-1].content))
        return statements

    def abstained(self, states: Sequence[JudgeInput]) -> list[bool | None]:
        """Return whether each last turn says that it does not know; a part of an answer is an answer (MT-RAG)."""
        return [
            None if grade is None else grade == 1.0
            for grade in self._grades(ABSTENTION, states)
        ]

    def quality(
        self, states: Sequence[JudgeInput], references: Sequence[str]
    ) -> list[float | None]:
        """Return RAD-Bench's ten grades of the last turn, as 0 to 1 [n], given a right answer to each question [n]."""
        pairs = zip(states, references, strict=True)
        return self._grades(
            QUALITY,
            [replace(state, arguments={"reference": text}) for state, text in pairs],
        )

    def cites(
        self, questions: Sequence[str], responses: Sequence[Sequence[CitedClaim]]
    ) -> list[Cites | None]:
        """Return citation recall and precision of LongBench-Cite, response by response.

        A sentence counts 1, 0.5 or 0 if all that it cites together supports it fully, partly or not; one that cites
        nothing counts 1 unless it needs a citation. A citation counts if it is relevant to its sentence. Without
        sentences recall is 0, without citations precision. None where a grade is missing.
        """
        support = list[JudgeInput]()
        need = list[JudgeInput]()
        relevance = list[JudgeInput]()
        kept = [response[:STATEMENTS] for response in responses]
        for question, response in zip(questions, kept, strict=True):
            answer = _state(question, " ".join(claim.text for claim in response))
            for claim in response:
                if claim.passages:
                    support.append(
                        _state(question, claim.text, "\n\n".join(claim.passages))
                    )
                else:
                    need.append(replace(answer, arguments={"sentence": claim.text}))
                relevance += [
                    _state(question, claim.text, snippet) for snippet in claim.passages
                ]
        supported = iter(self._grades(SUPPORT, support))
        needed = iter(self._grades(NEED, need))
        relevant = iter(self._grades(RELEVANCE, relevance))
        figures: list[Cites | None] = []
        for response in kept:
            recalled, precise = list[float | None](), list[float | None]()
            for claim in response:
                if claim.passages:
                    recalled.append(next(supported))
                else:
                    grade = next(needed)
                    if grade is not None:
                        grade = 1 - grade
                    recalled.append(grade)
                precise += islice(relevant, len(claim.passages))
            if None in (*recalled, *precise):
                figures.append(None)
            else:
                figures.append(Cites(_mean(recalled), _mean(precise)))
        return figures

    def _grades(
        self, codec: LabelCodec, states: Sequence[JudgeInput]
    ) -> list[float | None]:
        grades: list[float | None] = []
        for reflection in self._asked(codec, states):
            judgment = next(iter(reflection.judgments), None)
            if judgment is None:
                grades.append(None)
            else:
                grades.append(judgment.mode)
        return grades

    def _asked(
        self, codec: LabelCodec | WritingCodec, states: Sequence[JudgeInput]
    ) -> Sequence[Reflection]:
        if codec.intrinsic in self.words:
            codec = replace(codec, task=self.words[codec.intrinsic])
        judge = PromptedJudge(self.executor, codec, codec.labels, min_coverage=LEAST)
        return finish(judge.judge(states), judge.engine)


def _state(question: str, said: str, *snippets: str) -> JudgeInput:
    passages = tuple(
        Passage(f"s{number}", text, "") for number, text in enumerate(snippets)
    )
    return JudgeInput((Message("user", question), Message("assistant", said)), passages)


def _mean(grades: Sequence[float | None]) -> float:
    return sum(grade or 0.0 for grade in grades) / max(1, len(grades))
