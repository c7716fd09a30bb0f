"""`SelfRAG`: a model, an engine and a retriever behind `generate`, `choose` and `stream`. Holds no decoding logic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, overload

from retrieval.passage import Passage, Retriever
from selfrag.decoding.answer import Answer, Segment, Usage
from selfrag.decoding.beam import decode
from selfrag.decoding.driver import Answered, Broken, Committed, drive
from selfrag.decoding.options import decode_options
from selfrag.decoding.policy import Decoding
from selfrag.decoding.trace import Trace
from selfrag.decoding.tree import Decoder
from selfrag.engines.base import Engine
from selfrag.errors import UserError
from selfrag.prompting import SELFRAG, Layout, Prompting
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.tokenization import HFTextCodec

DEMO = "demo"
"""Name of the model that needs nothing but a package index."""

Evidence = Sequence[Passage] | Sequence[Sequence[Passage]]


@dataclass(slots=True)
class SelfRAG:
    """Answers questions with retrieval on demand, citations and self-criticism.

    Attributes:
        prompting: tokenizer, vocabulary and prompt layout of the model.
        engine: where tokens come from.
        retriever: any callable `queries, k -> passages`; None if evidence is always given.
        defaults: settings of every call; single calls override single fields.
    """

    prompting: Prompting
    engine: Engine
    retriever: Retriever | None = None
    defaults: Decoding = Decoding()  # noqa: RUF009 - frozen value

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path = DEMO,
        *,
        retriever: Retriever | str | Path | None = None,
        engine: Engine | str | None = None,
        layout: Layout = SELFRAG,
        **engine_options: Any,
    ) -> SelfRAG:
        """Load a Self-RAG checkpoint.

        Args:
            name_or_path: `demo`, a directory, or a name on the Hugging Face hub such as `selfrag/selfrag_llama2_7b`.
            retriever: a callable `queries, k -> passages`, or the directory of an index. The demo model brings its own.
            engine: `vllm`, `transformers`, a ready engine, or None for the best one installed.
            layout: prompt layout of the checkpoint.
            engine_options: fields of the engine's configuration, such as `max_model_len`.

        Raises:
            UserError: the model or index cannot be used; the message says what to do.
        """
        from selfrag.engines.select import load_engine
        from selfrag.loading import load_retriever, load_tokenizer, resolve_model

        path = resolve_model(name_or_path)
        tokenizer = load_tokenizer(path)
        prompting = Prompting(HFTextCodec(tokenizer), Vocabulary.from_tokenizer(tokenizer), layout)
        found = load_retriever(retriever, demo=name_or_path == DEMO)
        ready = load_engine(engine, path, **engine_options) if engine is None or isinstance(engine, str) else engine
        return cls(prompting, ready, found)

    @overload
    def generate(self, question: str, *, evidence: Sequence[Passage] | None = None, **options: Any) -> Answer: ...

    @overload
    def generate(
        self, question: Sequence[str], *, evidence: Evidence | None = None, **options: Any
    ) -> list[Answer]: ...

    def generate(
        self, question: str | Sequence[str], *, evidence: Evidence | None = None, **options: Any
    ) -> Answer | list[Answer]:
        """Answer one question or many; many share the engine's batches.

        Args:
            question: one question, or a list.
            evidence: passages to use in place of searching; for a list of questions, one list for each.
            options: fields of `Decoding`, or `decoding=` a whole one.

        Returns:
            An answer, or a list in the order of the questions. In a list a question that failed has `answer.error` set.

        Raises:
            UserError: a wrong option, or the one question failed.
        """
        policy = self._policy(options)
        if isinstance(question, str):
            given = _evidence_of(evidence, None)
            return self._only(self._run([decode(question, self.prompting, policy, passages=given[0])], [question]))
        questions = _questions(question)
        given = _evidence_of(evidence, len(questions))
        decoders = (decode(q, self.prompting, policy, passages=e) for q, e in zip(questions, given, strict=True))
        return self._run(decoders, questions)

    def choose(
        self,
        question: str,
        choices: Sequence[str],
        *,
        evidence: Sequence[Passage] | None = None,
        per_token: bool = False,
        **options: Any,
    ) -> Answer:
        """Answer with one of `choices`, by their exact probabilities and the critique after each passage.

        Args:
            question: instruction with its input.
            choices: at least two distinct texts, as the model would write them.
            evidence: passages to use in place of searching.
            per_token: compare geometric means per token.
            options: fields of `Decoding`.
        """
        policy = self._policy(options)
        given = _evidence_of(evidence, None)[0]
        decoder = decode_options(question, choices, self.prompting, policy, passages=given, per_token=per_token)
        return self._only(self._run([decoder], [question]))

    def stream(
        self, question: str, *, evidence: Sequence[Passage] | None = None, **options: Any
    ) -> Iterator[Segment | Answer]:
        """Segments as soon as they are final, then the answer. Leaving early aborts what is still running."""
        policy = self._policy(options)
        decoder = decode(question, self.prompting, policy, passages=_evidence_of(evidence, None)[0])
        for event in drive([decoder], self.engine, self.retriever):
            if isinstance(event, Broken):
                raise event.error
            yield event.segment if isinstance(event, Committed) else event.answer

    def close(self) -> None:
        """Free the engine."""
        self.engine.close()

    def __enter__(self) -> SelfRAG:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _policy(self, options: dict[str, Any]) -> Decoding:
        base: Decoding = options.pop("decoding", self.defaults)
        unknown = sorted(set(options) - set(Decoding.__dataclass_fields__))
        if unknown:
            known = ", ".join(Decoding.__dataclass_fields__)
            raise UserError(f"unknown option {unknown[0]!r}; known: {known}")
        return replace(base, **options)

    def _run(self, decoders: Iterable[Decoder], questions: Sequence[str]) -> list[Answer]:
        answers: list[Answer | None] = [None] * len(questions)
        for event in drive(decoders, self.engine, self.retriever):
            if isinstance(event, Answered):
                answers[event.index] = event.answer
            elif isinstance(event, Broken):
                answers[event.index] = _failed(questions[event.index], event.error)
        return [answer for answer in answers if answer is not None]

    @staticmethod
    def _only(answers: list[Answer]) -> Answer:
        (answer,) = answers
        if answer.error is not None:
            raise UserError(answer.error)
        return answer


def _failed(question: str, error: UserError) -> Answer:
    trace = Trace(question, Decoding(), (), (), None)
    return Answer(question, "", (), Usage(), trace, error=str(error))


def _questions(given: Sequence[str]) -> list[str]:
    if not isinstance(given, Iterable):
        raise UserError(f"the question must be text or a list of texts, not {type(given).__name__}")
    return list(given)


def _evidence_of(evidence: Evidence | None, questions: int | None) -> list[Sequence[Passage] | None]:
    """Evidence for each question; `questions` is None for a single one."""
    if evidence is None:
        return [None] * (questions or 1) if questions != 0 else []
    lists: Sequence[Any] = [evidence] if questions is None else evidence
    if questions not in (None, len(lists)):
        raise UserError(f"evidence for {len(lists)} questions, but {questions} questions")
    checked: list[Sequence[Passage] | None] = []
    for passages in lists:
        if isinstance(passages, Passage | str) or not all(isinstance(item, Passage) for item in passages):
            raise UserError("evidence must be a list of selfrag.Passage (one list for each question of a list)")
        checked.append(passages)
    return checked
