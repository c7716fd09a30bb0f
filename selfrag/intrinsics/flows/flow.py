"""`Flow`: stages in order, as a value; the paper's four by name; and flows over conversations, of `SelfRAG` too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from retrieval.passage import Passage, Retriever
from selfrag.common.checks import check_choice, check_int
from selfrag.common.errors import DecodingError, UserError, count_of
from selfrag.decoding.answer import Answer, Segment
from selfrag.decoding.policy import AnswerReason, Decoding, RewriteScope
from selfrag.decoding.refusals import refuses
from selfrag.decoding.token_writer import DecodingModel
from selfrag.decoding.trace import FinishReason
from selfrag.decoding.tree import Decoder, distinct
from selfrag.intrinsics.flows.progress import (
    ABSTENTION,
    AnswerWriter,
    FlowProgress,
    FlowRun,
    JudgeStage,
    SelfRAGWriter,
    Stage,
    Staging,
    abstention,
    begin,
    first_score,
    taken,
)
from selfrag.judges.conversation import (
    Conversation,
    read_input,
    same_question,
    search_query,
)
from selfrag.judges.sentences import response_sites
from selfrag.reflection.findings import Finding, Reflection
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.reflection.judge import Judge
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import Role
from selfrag.reflection.requests import Failed, Retrieve, Retrieved
from selfrag.runtime import QuestionAnswered, QuestionFailed, drive
from selfrag.runtime.sessions import Serving


@dataclass(frozen=True)
class Rewrite(JudgeStage):
    """Rewrites the last user turn so that it stands alone (QR)."""

    role = Role.REWRITE
    # what the rewrite changes. `retrieval`: the search alone (the paper). `conversation`: gates and writer see it in
    # place of the last user turn (granite-io). `alone`: they see nothing else, for models that were trained on single
    # exchanges.
    rewrite_scope: RewriteScope = "retrieval"
    # what is searched for: the rewrite alone (the paper), or the question with its rewrite after it
    query: Literal["rewrite", "both"] = "rewrite"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(
            "rewrite_scope", self.rewrite_scope, ("retrieval", "conversation", "alone")
        )
        check_choice("query", self.query, ("rewrite", "both"))

    def run(self, progress: FlowProgress, run: FlowRun) -> Staging[FlowProgress]:
        """Set the query; where the model wrote no rewrite, the question stays."""
        (reflection,) = yield from run.ask(
            self.judge, [JudgeInput(progress.seen.messages)]
        )
        text = reflection.text
        if text is None or not text.strip():
            why = (
                reflection.diagnostics[0].message
                if reflection.diagnostics
                else "nothing was written"
            )
            return progress.noted("rewrite", f"kept as asked: {why}")
        changed = "unchanged" if same_question(progress.query, text) else text
        seen = self._seen(progress.seen, text)
        query = search_query(progress.query, text) if self.query == "both" else text
        return progress.noted(
            "rewrite", changed, reflection.judgments, query=query, seen=seen
        )

    def _seen(self, seen: JudgeInput, text: str) -> JudgeInput:
        index = seen.last("user")
        if self.rewrite_scope == "retrieval" or index is None:
            return seen
        turns: tuple[Message, ...] = (Message("user", text),)
        if self.rewrite_scope == "conversation":
            turns = (*seen.messages[:index], *turns, *seen.messages[index + 1 :])
        return replace(seen, messages=turns)


@dataclass(frozen=True)
class Search(Stage):
    """Searches for evidence."""

    k: int = 5  # passages of a search
    # `question`: one search for the query. `answer`: one for each sentence of the first answer, after the query, for
    # citing what somebody else wrote.
    by: Literal["question", "answer"] = "question"

    def __post_init__(self) -> None:
        check_int("k", self.k)
        check_choice("by", self.by, ("question", "answer"))

    def run(self, progress: FlowProgress, run: FlowRun) -> Staging[FlowProgress]:
        """Set the passages; those that came with the conversation make a search needless.

        A search that fails after an answer was written finds nothing, and the answer stays.
        """
        if progress.evidence_given or progress.seen.passages:
            passages = (
                progress.evidence if progress.evidence_given else progress.seen.passages
            )
            return progress.noted(
                "search", f"{len(passages or ())} given", passages=passages
            )
        queries = list(dict.fromkeys(self._queries(progress)))
        results = yield [Retrieve(query, self.k) for query in queries]
        hits: list[Passage] = []
        failures = []
        for result in results:
            if isinstance(result, Retrieved):
                hits += result.passages
            elif isinstance(result, Failed):
                failures.append(f"search failed: {result.reason}")
        if failures and not progress.answers:
            raise DecodingError(failures[0])
        passages = distinct(hits)
        outcome = "; ".join([f"{len(passages)} for {'; '.join(queries)}", *failures])
        return progress.noted("search", outcome, passages=passages)

    def _queries(self, progress: FlowProgress) -> list[str]:
        if self.by == "question" or not progress.answers:
            return [progress.query]
        state = JudgeInput((Message("assistant", progress.answers[0].text),))
        return [
            f"{progress.query} {site.text}" for site in response_sites(state, 0)
        ] or [progress.query]


@dataclass(frozen=True)
class RelevanceFilter(JudgeStage):
    """Leaves out passages that do not help."""

    role = Role.RELEVANCE
    threshold: float = 0.5  # passages with a score below it are left out; an undefined judgment leaves nothing out

    def run(self, progress: FlowProgress, run: FlowRun) -> Staging[FlowProgress]:
        """Shorten the passages."""
        passages = progress.evidence or ()
        states = [
            JudgeInput(progress.seen.messages, (passage,)) for passage in passages
        ]
        reflections = (yield from run.ask(self.judge, states)) if states else []
        judgments = list(map(first_score, reflections))
        kept = []
        for passage, judgment in zip(passages, judgments, strict=True):
            if judgment is None or judgment.score >= self.threshold:
                kept.append(passage)
        return progress.noted(
            "relevance",
            f"{len(kept)} of {len(passages)} kept",
            judgments,
            passages=tuple(kept),
        )


@dataclass(frozen=True)
class AnswerabilityGate(JudgeStage):
    """Ends the flow with a fixed text where the passages do not answer the question (AD)."""

    role = Role.ANSWERABLE
    threshold: float = 0.5  # least probability of answerable to continue; an undefined judgment continues
    text: str = ABSTENTION  # the fixed text

    def run(self, progress: FlowProgress, run: FlowRun) -> Staging[FlowProgress]:
        """Go on, or end; without any passage there is nothing to answer from."""
        if not progress.evidence:
            why = "no passages"
            nothing = abstention(progress, self.text, why, AnswerReason.NOTHING_FOUND)
            return progress.noted("answerability", why, over=nothing)
        (reflection,) = yield from run.ask(self.judge, [progress.state()])
        judgment = first_score(reflection)
        if judgment is None:
            return progress.noted("answerability", "undefined")
        outcome = f"answerable {judgment.score:.2f}"
        over = (
            abstention(progress, self.text, outcome)
            if judgment.score < self.threshold
            else None
        )
        return progress.noted("answerability", outcome, [judgment], over=over)


@dataclass(frozen=True)
class SearchAgain(JudgeStage):
    """Searches with other words while the passages do not answer the question (sections 1.1 and 5.1 of the paper).

    The other words are a rewrite, where a task writes one, and the user's turns put together. Passages are those
    of the search after which the question is most probably answerable.
    """

    role = Role.ANSWERABLE
    rewrite: Judge | None = None  # writes other words
    k: int = 5  # passages of a search
    threshold: float = 0.5  # least probability of answerable; an undefined judgment is taken as answerable

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("k", self.k)
        if self.rewrite is not None and self.rewrite.role != Role.REWRITE:
            raise UserError(
                f"SearchAgain rewrites with a task that writes a rewrite, not {self.rewrite.name}"
            )

    def run(self, progress: FlowProgress, run: FlowRun) -> Staging[FlowProgress]:
        """Keep the passages, or replace them."""
        best, judgments = yield from self._answerable(progress, run)
        if best >= self.threshold or progress.evidence_given:
            outcome = (
                "not needed"
                if best >= self.threshold
                else "not done: the evidence was given"
            )
            return progress.noted("search again", outcome, judgments)
        kept = progress
        queries = list[str]()
        for query in (yield from self._other_words(progress, run)):
            queries.append(query)
            (result,) = yield [Retrieve(query, self.k)]
            if not isinstance(result, Retrieved):
                continue
            alternative = replace(progress, passages=distinct(result.passages))
            score, more = yield from self._answerable(alternative, run)
            judgments += more
            if score > best:
                best = score
                kept = alternative
            if best >= self.threshold:
                break
        outcome = f"answerable {best:.2f} after {len(queries)} more for {'; '.join(queries) or 'nothing'}"
        return kept.noted("search again", outcome, judgments)

    def _answerable(
        self, progress: FlowProgress, run: FlowRun
    ) -> Staging[tuple[float, list[Judgment]]]:
        """Return the probability that the passages answer the question, 0 without any, and the judgment."""
        if not progress.evidence:
            return 0.0, []
        (reflection,) = yield from run.ask(self.judge, [progress.state()])
        judgment = first_score(reflection)
        return (1.0, []) if judgment is None else (judgment.score, [judgment])

    def _other_words(self, progress: FlowProgress, run: FlowRun) -> Staging[list[str]]:
        turns = progress.seen.messages
        texts = [" ".join(turn.content for turn in turns if turn.role == "user")]
        if self.rewrite is not None:
            (reflection,) = yield from run.ask(self.rewrite, [JudgeInput(turns)])
            texts.insert(0, reflection.text or "")
        return [
            text
            for text in dict.fromkeys(texts)
            if text.strip() and not same_question(text, progress.query)
        ]


@dataclass(frozen=True)
class Write(Stage):
    """Writes the answer."""

    writer: AnswerWriter  # who writes
    samples: int = 1  # answers to write

    def __post_init__(self) -> None:
        check_int("samples", self.samples)

    def run(self, progress: FlowProgress, run: FlowRun) -> Staging[FlowProgress]:
        """Set the answers; refuses a conversation that does not end with a question."""
        if progress.seen.messages[-1].role != "user":
            raise UserError(
                "the conversation must end with the user's turn; the last one is of another role"
            )
        answers = yield from self.writer.write(progress, run, self.samples)
        first = answers[0]
        # there is nothing for later stages to judge or to cite
        if first.abstained and not first.segments:
            return progress.noted("write", f"abstained: {first.reason}", over=first)
        return progress.noted(
            "write", f"{len(answers)} written", answers=tuple(answers)
        )


@dataclass(frozen=True)
class Take(Stage):
    """Takes the answer that the conversation ends with, whoever wrote it, in place of writing one."""

    def run(self, progress: FlowProgress, run: FlowRun) -> Staging[FlowProgress]:
        """Set the answer; refuses a conversation that does not end with one."""
        last = progress.original.messages[-1]
        if last.role != "assistant" or not last.content.strip():
            raise UserError(
                "the conversation must end with the assistant turn that is to be looked at"
            )
        seen = replace(progress.seen, messages=progress.seen.messages[:-1])
        answer = taken(progress.question, last.content, seen.passages)
        return progress.noted("take", "the answer given", seen=seen, answers=(answer,))
        yield []  # a generator, as every stage


NAMES = ("none", "qr", "ad", "qr+ad")
"""The flows of section 7.1 of the paper."""
BOTH = "qr-both"
"""Rewrites as `qr`, and searches for the question and its rewrite together."""
PARTS = ("qr", BOTH, "again", "ad")
"""What a flow is named after: rewrite, search again, answerability."""


def parts_of(name: str) -> tuple[str, ...]:
    """Return the parts of a flow's name, such as `qr+ad`; none of `none`."""
    key = name.strip().casefold().replace(" ", "")
    if key == "none":
        return ()
    parts = set(key.split("+"))
    if not parts.issubset(PARTS):
        raise UserError(
            f"unknown flow {name!r:.60}; known: none, and {', '.join(PARTS)} joined by +, such as qr+ad"
        )
    return tuple(part for part in PARTS if part in parts)


@dataclass(frozen=True, slots=True)
class Flow:
    """Runs its stages in order until one ends the flow."""

    # in order; somewhere there must be one that writes or takes an answer
    stages: tuple[Stage, ...]
    name: str = ""  # for reports

    def then(self, *stages: Stage) -> Flow:
        """Return the flow with more stages after it."""
        return replace(self, stages=(*self.stages, *stages))

    def __add__(self, following: Flow) -> Flow:
        name = "+".join(filter(None, (self.name, following.name)))
        return Flow((*self.stages, *following.stages), name)

    def decoder(
        self, state: JudgeInput, engine: Any, evidence: Sequence[Passage] | None = None
    ) -> Decoder:
        """Return the flow on one conversation, for a driver of `engine`; `evidence` stands in place of searches.

        Raises:
            UserError: the conversation has no question, or no stage wrote an answer.
        """
        run = FlowRun(engine)
        progress = begin(state, evidence)
        for stage in self.stages:
            progress = yield from stage.run(progress, run)
            if progress.over is not None:
                break
        answer = progress.over or next(iter(progress.answers), None)
        if answer is None:
            raise UserError(
                f"the flow {self.name or '(without a name)'} writes no answer; add Write(..) or Take()"
            )
        return replace(answer, question=progress.question, steps=progress.steps)


def named_flow(
    name: str,
    writer: AnswerWriter,
    *,
    rewrite: Judge | None = None,
    answerability: Judge | None = None,
    k: int | None = 5,
    rewrite_scope: RewriteScope = "retrieval",
    threshold: float = 0.5,
    text: str = ABSTENTION,
) -> Flow:
    """Return one of the paper's flows, or one that searches again.

    Args:
        name: `none`, or `qr` (search for a rewrite; `qr-both`: for the question and its rewrite), `again`
            (`SearchAgain`) and `ad` (answerability), joined by `+`.
        writer: who writes.
        rewrite: for the flows with `qr`; `again` uses it, too, where it is there.
        answerability: for the flows with `ad` or `again`.
        k: passages of the search; None lets a writer that can search decide, which `ad` and `again` do not allow.
        rewrite_scope: see `Rewrite`; the paper's is `retrieval`: the gate and the writer see the original.
        threshold: least probability of answerable to continue.
        text: the fixed text in place of an answer.

    Raises:
        UserError: an unknown name, or a judge or a search is missing.
    """
    parts = parts_of(name)
    flow_name = "+".join(parts) or "none"
    stages: list[Stage] = []
    if {"qr", BOTH} & set(parts):
        if rewrite is None:
            raise UserError(
                f"the flow {flow_name} needs rewrite=.., such as QueryRewrite.on(executor)"
            )
        stages.append(
            Rewrite(rewrite, rewrite_scope, "both" if BOTH in parts else "rewrite")
        )
    if k is not None:
        stages.append(Search(k))
    if {"again", "ad"} & set(parts):
        if answerability is None:
            raise UserError(
                f"the flow {flow_name} needs answerability=.., such as Answerability.on(executor)"
            )
        if k is None:
            raise UserError(
                f"the flow {flow_name} judges what was found; give k=5, say"
            )
        if "again" in parts:
            stages.append(SearchAgain(answerability, rewrite, k, threshold))
        if "ad" in parts:
            stages.append(AnswerabilityGate(answerability, threshold, text))
    return Flow((*stages, Write(writer)), flow_name)


def run(
    flow: Flow,
    conversations: Iterable[Conversation],
    engine: Serving,
    retriever: Retriever | None = None,
) -> list[Answer | UserError]:
    """Run a flow over conversations that share the engine's batches.

    Args:
        flow: what to do.
        conversations: questions, lists of turns or states (with passages, where these are given).
        engine: of the driver; what runs elsewhere is asked beside it.
        retriever: for searches.

    Returns:
        For each conversation its answer, or why it has none.
    """
    states = [read_input(conversation) for conversation in conversations]
    decoders = (flow.decoder(state, engine) for state in states)
    results: dict[int, Answer | UserError] = {}
    for event in drive(decoders, engine, retriever):
        if isinstance(event, QuestionAnswered):
            results[event.index] = event.answer
        elif isinstance(event, QuestionFailed):
            results[event.index] = event.error
    return [results[index] for index in range(len(states))]


@dataclass(frozen=True)
class CertaintyFilter(JudgeStage):
    """Keeps the answers that the model is certain of, the most certain first; the fixed text where there is none."""

    role = Role.CERTAINTY
    threshold: float = 0.85  # least certainty, on the paper's scale from 0.05 to 0.95 (granite-io's 0.75 is 0.85 here)
    # `decile`: the most probable one, which is what was calibrated; or the `expectation`
    by: Literal["decile", "expectation"] = "decile"
    text: str = ABSTENTION  # the fixed text
    # runs in place of the fixed text, such as the `Write` of a larger model
    otherwise: Stage | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("by", self.by, ("decile", "expectation"))

    def run(self, progress: FlowProgress, run: FlowRun) -> Staging[FlowProgress]:
        """Keep, order, or end; an undefined judgment keeps nothing."""
        states = [progress.state(answer) for answer in progress.answers]
        reflections = yield from run.ask(self.judge, states)
        judgments = list(map(first_score, reflections))
        certain: list[tuple[float, Answer]] = []  # with their certainty
        for answer, judgment in zip(progress.answers, judgments, strict=True):
            if judgment is not None:
                certain.append((self._certainty(judgment), answer))
        certain.sort(key=lambda pair: -pair[0])
        kept = tuple(
            [
                answer
                for certainty, answer in certain
                if certainty >= self.threshold - 1e-9
            ]
        )
        outcome = f"{len(kept)} of {len(judgments)} at least {self.threshold:g}"
        if certain:
            outcome += f", best {certain[0][0]:.2f}"
        if kept:
            return progress.noted("certainty", outcome, judgments, answers=kept)
        if self.otherwise is not None:
            uncertain = progress.noted("certainty", outcome, judgments)
            return (yield from self.otherwise.run(uncertain, run))
        over = abstention(progress, self.text, outcome)
        return progress.noted("certainty", outcome, judgments, over=over)

    def _certainty(self, judgment: Judgment) -> float:
        return judgment.score if self.by == "expectation" else judgment.mode


@dataclass(frozen=True)
class HallucinationFilter(JudgeStage):
    """Keeps the answers in which no sentence is unfaithful (sections 1.1 and 7 of the paper); else the fixed text."""

    role = Role.SUPPORT
    threshold: float = 0.1  # an answer goes if its worst sentence is below this; undefined sentences do not count
    text: str = ABSTENTION  # the fixed text

    def run(self, progress: FlowProgress, run: FlowRun) -> Staging[FlowProgress]:
        """Keep or end."""
        if not progress.evidence:
            return progress.noted("faithfulness", "no passages to compare with")
        kept = []
        worst = []
        judgments: list[Judgment] = []
        reflections = yield from run.ask(
            self.judge, list(map(progress.state, progress.answers))
        )
        for answer, reflection in zip(progress.answers, reflections, strict=True):
            judgments += reflection.judgments
            lowest = min(
                (
                    judgment.score
                    for judgment in reflection.judgments
                    if judgment.defined
                ),
                default=None,
            )
            worst.append("undefined" if lowest is None else f"{lowest:.2f}")
            if lowest is None or lowest >= self.threshold:
                kept.append(answer)
        outcome = (
            f"{len(kept)} of {len(worst)} kept, worst sentences {', '.join(worst)}"
        )
        if not kept:
            return progress.noted(
                "faithfulness",
                outcome,
                judgments,
                over=abstention(progress, self.text, outcome),
            )
        return progress.noted("faithfulness", outcome, judgments, answers=tuple(kept))


@dataclass(frozen=True)
class Cite(JudgeStage):
    """Cites the passages for an answer after it was written, by whomever (CG); each sentence becomes a segment."""

    role = Role.CITATION

    def run(self, progress: FlowProgress, run: FlowRun) -> Staging[FlowProgress]:
        """Give each answer its citations; where nothing is defined it keeps those it has."""
        if not progress.evidence:
            return progress.noted("cite", "no passages to cite")
        answers = []
        spans = 0
        judgments: list[Judgment] = []
        reflections = yield from run.ask(
            self.judge, list(map(progress.state, progress.answers))
        )
        for answer, reflection in zip(progress.answers, reflections, strict=True):
            answers.append(cited(answer, reflection))
            judgments += reflection.judgments
            spans += sum(len(finding.citations) for finding in reflection.findings)
        return progress.noted(
            "cite",
            f"{count_of(spans, 'spans')} cited",
            judgments,
            answers=tuple(answers),
        )


def cited(answer: Answer, reflection: Reflection) -> Answer:
    """Return the answer with a segment for each sentence and its most probable passage as citation."""
    segments = tuple(
        _segment(answer, reflection.state, finding) for finding in reflection.findings
    )
    return (
        replace(answer, segments=segments)
        if segments and reflection.judgments
        else answer
    )


def _segment(answer: Answer, state: JudgeInput, finding: Finding) -> Segment:
    site = finding.site
    inside = [
        segment
        for segment in answer.segments
        if segment.start <= site.begin < segment.end
    ]
    owner = (inside or answer.segments[-1:])[0]
    ranked = sorted(
        finding.citations, key=lambda citation: -(citation.probability or 0.0)
    )
    indices = [
        citation.site.passage
        for citation in ranked
        if citation.site.passage is not None
    ]
    citation = (
        state.passages[indices[0]] if indices and not refuses(site.text) else None
    )
    judgments = {**owner.judgments, Role.CITATION: finding.judgment}
    finish: FinishReason = owner.finish if site.end >= owner.end else "stop"
    return Segment(
        site.text,
        site.begin,
        site.end,
        citation,
        judgments,
        owner.score,
        owner.node,
        finish=finish,
    )


@dataclass(frozen=True, slots=True)
class ConversationDecoders:
    """How one call of `SelfRAG` answers conversations: by a flow, or with a rewrite for its searches if one is written.

    Earlier turns precede the prompt.
    """

    prompting: DecodingModel  # the model
    policy: Decoding  # settings
    engine: Any  # of the driver
    judges: tuple[Judge, ...]  # at hand, by their roles and names
    # a flow, the name of one of the paper's, or None for a rewrite where there is something to rewrite
    flow: Flow | str | None
    # what a rewrite changes, see `selfrag.intrinsics.flows.Rewrite`
    rewrite_scope: RewriteScope

    def __post_init__(self) -> None:
        names = [judge.name for judge in self.judges]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UserError(
                f"two judges are called {twice!r}; give one of them another name"
            )

    def decoder(self, conversation: Any, passages: Sequence[Passage] | None) -> Decoder:
        """Return the decoder of one conversation; refuse one that does not end with the user's turn."""
        state = read_input(conversation)
        if state.messages[-1].role != "user":
            raise UserError(
                "the conversation must end with the user's turn, which is the question"
            )
        flow = self._flow(state, given_passages=passages is not None)
        if passages is not None:
            state = read_input(state, list(passages))
        return (yield from flow.decoder(state, self.engine, passages))

    def _flow(self, state: JudgeInput, *, given_passages: bool) -> Flow:
        if isinstance(self.flow, Flow):
            return self.flow
        writer = SelfRAGWriter(self.prompting, self.policy, self.judges)
        rewrite = self._of(Role.REWRITE)
        answerability = self._of(Role.ANSWERABLE)
        if self.flow is None:
            follows = sum(turn.role == "user" for turn in state.messages) > 1
            if not follows or rewrite is None or given_passages:
                return Flow((Write(writer),))
            return named_flow(
                BOTH, writer, rewrite=rewrite, k=None, rewrite_scope=self.rewrite_scope
            )
        return named_flow(
            self.flow,
            writer,
            rewrite=rewrite,
            answerability=answerability,
            k=self.policy.passages
            if {"again", "ad"} & set(parts_of(self.flow))
            else None,
            rewrite_scope=self.rewrite_scope,
            text=self.policy.abstention,
        )

    def _of(self, role: Role) -> Judge | None:
        return next((judge for judge in self.judges if judge.role == role), None)
