"""`SelfRAG`: a model, an engine and a retriever behind `generate`, `choose` and `stream`. Holds no decoding logic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
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

Evidence = Sequence[Passage] | Sequence[Sequence[Passage] | None]


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
            evidence: passages to use in place of searching; for a list of questions, one list for each, or None for a
                question that is to be searched for.
            options: fields of `Decoding`, or `decoding=` a whole one.

        Returns:
            An answer, or a list in the order of the questions. In a list a question that failed has `answer.error` set.

        Raises:
            UserError: a wrong option, or the one question failed.
        """
        policy = self._policy(options)
        if isinstance(question, str):
            (one,) = self._run([decode(question, self.prompting, policy, passages=_evidence(evidence))])
            return _or_raise(one)
        if not isinstance(question, Sequence):
            raise UserError(f"the question must be text or a list of texts, not {type(question).__name__}")
        given = _evidence_lists(evidence, len(question))
        decoders = [decode(q, self.prompting, policy, passages=e) for q, e in zip(question, given, strict=True)]
        results = self._run(decoders)
        return [_or_failed(result, q, policy) for result, q in zip(results, question, strict=True)]

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
        given = _evidence(evidence)
        decoder = decode_options(question, choices, self.prompting, policy, passages=given, per_token=per_token)
        (one,) = self._run([decoder])
        return _or_raise(one)

    def stream(
        self, question: str, *, evidence: Sequence[Passage] | None = None, **options: Any
    ) -> Iterator[Segment | Answer]:
        """Segments as soon as they are final, then the answer. Leaving early aborts what is still running."""
        decoder = decode(question, self.prompting, self._policy(options), passages=_evidence(evidence))
        return self._events(decoder)

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
        base = options.pop("decoding", self.defaults)
        if not isinstance(base, Decoding):
            raise UserError(f"decoding={base!r}: give a selfrag.Decoding, or its fields one by one")
        known = [field.name for field in fields(Decoding)]
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise UserError(f"unknown option {unknown[0]!r}; known: {', '.join(known)}")
        return replace(base, **options)

    def _run(self, decoders: Sequence[Decoder]) -> list[Answer | UserError]:
        """For each decoder its answer, or why it has none."""
        results: dict[int, Answer | UserError] = {}
        for event in drive(decoders, self.engine, self.retriever):
            if not isinstance(event, Committed):
                results[event.index] = event.answer if isinstance(event, Answered) else event.error
        return [results[index] for index in range(len(decoders))]

    def _events(self, decoder: Decoder) -> Iterator[Segment | Answer]:
        for event in drive([decoder], self.engine, self.retriever):
            if isinstance(event, Broken):
                raise event.error
            yield event.segment if isinstance(event, Committed) else event.answer


def _or_raise(result: Answer | UserError) -> Answer:
    if isinstance(result, UserError):
        raise result
    return result


def _or_failed(result: Answer | UserError, question: str, policy: Decoding) -> Answer:
    if isinstance(result, UserError):
        return Answer(question, "", (), Usage(), Trace(question, policy, (), (), None), error=str(result))
    return result


def _evidence(given: Any) -> tuple[Passage, ...] | None:
    """Passages for one question, checked; None to search."""
    if given is None:
        return None
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise UserError(f"evidence must be a list of selfrag.Passage, not {type(given).__name__}")
    passages = tuple(given)
    for item in passages:
        if not isinstance(item, Passage):
            raise UserError(f"evidence must be a list of selfrag.Passage, not of {type(item).__name__}")
    return passages


def _evidence_lists(given: Any, questions: int) -> list[tuple[Passage, ...] | None]:
    """Evidence for each of a list of questions."""
    if given is None:
        return [None] * questions
    if not isinstance(given, Sequence) or len(given) != questions:
        count = len(given) if isinstance(given, Sequence) else "something that is no list"
        raise UserError(f"evidence for a list of questions is one list for each: {count} for {questions} questions")
    return [_evidence(passages) for passages in given]
