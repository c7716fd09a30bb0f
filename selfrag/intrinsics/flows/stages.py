"""The stages before and at the writing: rewrite, search, filter, gate, write. Frozen values; sans-IO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from retrieval.checks import choice, whole
from selfrag.decoding.batcher import Service
from selfrag.decoding.requests import Failed, Retrieve, Retrieved
from selfrag.decoding.tree import distinct
from selfrag.errors import DecodingError, UserError
from selfrag.intrinsics.contract import Message, Reflector, State
from selfrag.intrinsics.flows.progress import ABSTENTION, Progress, Run, Staging, first_score, need
from selfrag.intrinsics.flows.writers import Writer, abstention, taken
from selfrag.intrinsics.query_rewrite import same_question
from selfrag.intrinsics.reflectors.critic import services
from selfrag.intrinsics.sentences import response_sites
from selfrag.reflection.labels import Role

Sees = Literal["retrieval", "conversation", "alone"]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Rewrites the last user turn so that it stands alone (QR).

    Attributes:
        reflector: an intrinsic that writes, such as query rewrite.
        rewrite_scope: what the rewrite changes. `retrieval`: the search alone (the paper). `conversation`: gates and
            writer see it in place of the last user turn (granite-io). `alone`: they see nothing else, for models that
            were trained on single exchanges.
    """

    reflector: Reflector
    rewrite_scope: Sees = "retrieval"

    def __post_init__(self) -> None:
        need(self.reflector, Role.REWRITE, "Rewrite")
        choice("rewrite_scope", self.rewrite_scope, ("retrieval", "conversation", "alone"))

    def run(self, progress: Progress, run: Run) -> Staging[Progress]:
        """Set the query; where the model wrote no rewrite, the question stays."""
        (reflection,) = yield from run.reflect(self.reflector, [State(progress.seen.messages)])
        text = reflection.text
        if text is None or not text.strip():
            why = reflection.diagnostics[0].message if reflection.diagnostics else "nothing was written"
            return progress.noted("rewrite", f"kept as asked: {why}")
        changed = "unchanged" if same_question(progress.query, text) else text
        seen = self._seen(progress.seen, text)
        return progress.noted("rewrite", changed, reflection.judgments, query=text, seen=seen)

    def services(self, engine: Any) -> Mapping[str, Service]:
        """The reflector's."""
        return services([self.reflector], engine)

    def _seen(self, seen: State, text: str) -> State:
        index = seen.last("user")
        if self.rewrite_scope == "retrieval" or index is None:
            return seen
        if self.rewrite_scope == "alone":
            return replace(seen, messages=(Message("user", text),))
        turns = [Message("user", text) if i == index else turn for i, turn in enumerate(seen.messages)]
        return replace(seen, messages=tuple(turns))


@dataclass(frozen=True, slots=True)
class Search:
    """Searches for evidence.

    Attributes:
        k: passages of a search.
        by: `question`: one search for the query. `answer`: one for each sentence of the first answer, after the query,
            for citing what somebody else wrote.
    """

    k: int = 5
    by: Literal["question", "answer"] = "question"

    def __post_init__(self) -> None:
        whole("k", self.k)
        choice("by", self.by, ("question", "answer"))

    def run(self, progress: Progress, run: Run) -> Staging[Progress]:
        """Set the passages; those that came with the conversation make a search needless.

        A search that fails after an answer was written finds nothing, and the answer stays.

        Raises:
            DecodingError: the retriever failed before anything was written.
        """
        if progress.seen.passages:
            return progress.noted("search", f"{len(progress.seen.passages)} given", passages=progress.seen.passages)
        queries = list(dict.fromkeys(self._queries(progress)))
        results = yield [Retrieve(query, self.k) for query in queries]
        run.usage = replace(run.usage, searches=run.usage.searches + len(queries))
        passages = distinct([p for result in results if isinstance(result, Retrieved) for p in result.passages])
        failures = [f"search failed: {result.reason}" for result in results if isinstance(result, Failed)]
        if failures and not progress.answers:
            raise DecodingError(failures[0])
        outcome = "; ".join([f"{len(passages)} for {'; '.join(queries)}", *failures])
        return progress.noted("search", outcome, passages=passages)

    def services(self, engine: Any) -> Mapping[str, Service]:
        """None."""
        del engine
        return {}

    def _queries(self, progress: Progress) -> list[str]:
        if self.by == "question" or not progress.answers:
            return [progress.query]
        state = State((Message("assistant", progress.answers[0].text),))
        return [f"{progress.query} {site.text}" for site in response_sites(state, 0)] or [progress.query]


@dataclass(frozen=True, slots=True)
class RelevanceFilter:
    """Leaves out passages that do not help.

    Attributes:
        reflector: judges relevance.
        threshold: passages with a score below it are left out; an undefined judgment leaves nothing out.
    """

    reflector: Reflector
    threshold: float = 0.5

    def __post_init__(self) -> None:
        need(self.reflector, Role.RELEVANCE, "RelevanceFilter")

    def run(self, progress: Progress, run: Run) -> Staging[Progress]:
        """Shorten the passages."""
        passages = progress.evidence or ()
        states = [State(progress.seen.messages, (passage,)) for passage in passages]
        reflections = (yield from run.reflect(self.reflector, states)) if states else []
        found = [first_score(one) for one in reflections]
        pairs = list(zip(passages, found, strict=True))
        kept = tuple(p for p, judgment in pairs if judgment is None or judgment.score >= self.threshold)
        judgments = [judgment for judgment in found if judgment is not None]
        return progress.noted("relevance", f"{len(kept)} of {len(passages)} kept", judgments, passages=kept)

    def services(self, engine: Any) -> Mapping[str, Service]:
        """The reflector's."""
        return services([self.reflector], engine)


@dataclass(frozen=True, slots=True)
class AnswerabilityGate:
    """Ends the flow with a fixed text where the passages do not answer the question (AD).

    Attributes:
        reflector: judges answerability.
        threshold: least probability of answerable to go on; an undefined judgment goes on.
        text: the fixed text.
    """

    reflector: Reflector
    threshold: float = 0.5
    text: str = ABSTENTION

    def __post_init__(self) -> None:
        need(self.reflector, Role.ANSWERABLE, "AnswerabilityGate")

    def run(self, progress: Progress, run: Run) -> Staging[Progress]:
        """Go on, or end; without any passage there is nothing to answer from."""
        if not progress.evidence:
            why = "no passages"
            return progress.noted("answerability", why, over=abstention(progress, self.text, why))
        (reflection,) = yield from run.reflect(self.reflector, [progress.state()])
        judgment = first_score(reflection)
        if judgment is None:
            return progress.noted("answerability", "undefined")
        outcome = f"answerable {judgment.score:.2f}"
        over = abstention(progress, self.text, outcome) if judgment.score < self.threshold else None
        return progress.noted("answerability", outcome, [judgment], over=over)

    def services(self, engine: Any) -> Mapping[str, Service]:
        """The reflector's."""
        return services([self.reflector], engine)


@dataclass(frozen=True, slots=True)
class Write:
    """Writes the answer.

    Attributes:
        writer: who writes.
        samples: answers to write.
    """

    writer: Writer
    samples: int = 1

    def __post_init__(self) -> None:
        whole("samples", self.samples)

    def run(self, progress: Progress, run: Run) -> Staging[Progress]:
        """Set the answers.

        Raises:
            UserError: the conversation does not end with a question.
            DecodingError: nothing could be written.
        """
        if progress.seen.messages[-1].role != "user":
            raise UserError("the conversation must end with the user's turn; the last one is of another role")
        answers = yield from self.writer.write(progress, run, self.samples)
        return progress.noted("write", f"{len(answers)} written", answers=tuple(answers))

    def services(self, engine: Any) -> Mapping[str, Service]:
        """The writer's."""
        return self.writer.services(engine)


@dataclass(frozen=True, slots=True)
class Take:
    """Takes the answer that the conversation ends with, whoever wrote it, in place of writing one."""

    def run(self, progress: Progress, run: Run) -> Staging[Progress]:
        """Set the answer.

        Raises:
            UserError: the conversation does not end with an answer.
        """
        del run
        last = progress.given.messages[-1]
        if last.role != "assistant" or not last.content.strip():
            raise UserError("the conversation must end with the assistant turn that is to be looked at")
        seen = replace(progress.seen, messages=progress.seen.messages[:-1])
        answer = taken(progress.question, last.content, seen.passages)
        return progress.noted("take", "the answer given", seen=seen, answers=(answer,))
        yield []  # a generator, as every stage

    def services(self, engine: Any) -> Mapping[str, Service]:
        """None."""
        del engine
        return {}
