"""What all methods share: a model that reads, the work on one question, and the record of it as an answer. Sans-IO."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, Self, TypeVar

from selfrag.interface import (
    ROOT,
    Action,
    Answer,
    AnswerReason,
    ChatModel,
    ChatPrompt,
    Completion,
    CutPassages,
    Decision,
    Decoding,
    EngineExecutor,
    Executor,
    Failed,
    Finish,
    Internals,
    Judge,
    JudgeInput,
    Judgment,
    Message,
    ModelRequest,
    Node,
    Passage,
    Prompting,
    PromptPiece,
    Renderer,
    Retrieve,
    Retrieved,
    SearchError,
    Status,
    Steps,
    TextPrompt,
    TokenLogprob,
    Trace,
    Usage,
    UserError,
    check_int,
    contains_any,
    count_of,
    generation_error,
    geometric_mean,
    open_judge,
    segments_of,
    sentence_end,
)

T = TypeVar("T")


@cache
def prompts() -> dict[str, dict[str, str]]:
    """Return the prompts, by name: `alone`, `user` with passages, and the `source` of their form."""
    text = files(__package__).joinpath("prompts.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


_CONTROL = re.compile(r"\[[^\]]+\]|<[^>]+>")
_MARKER = re.compile(r"answer is\s*:?", re.IGNORECASE)
"""Stands before the answer at the end of a chain of thought."""


def has_answer(chain: str) -> bool:
    """Return whether a chain of thought has come to its answer."""
    return _MARKER.search(chain) is not None


def answer_of(chain: str) -> str:
    """Return what follows the last `answer is` of a chain of thought, to the end of the line, without a full stop.

    A chain without these words is an answer as it stands.
    """
    *before, text = _MARKER.split(chain)
    text = text.strip()
    if before:
        text = text.partition("\n")[0].strip()
    return text.removesuffix(".").strip()


@dataclass(frozen=True, slots=True)
class Written:
    """What the model wrote for one request."""

    text: str
    tokens: (
        tuple[TokenLogprob, ...] | None
    )  # of the text; None where a server gives none
    ended: bool  # whether the model ended its reply here

    def probable(self, what: str) -> tuple[TokenLogprob, ...]:
        """Return the tokens with their log-probabilities, which `what` needs."""
        if self.tokens is None:
            raise UserError(
                f"{what} needs the probabilities of tokens, which the server of this model does not give"
            )
        return self.tokens


@dataclass(frozen=True)
class _MarkerRenderer(Renderer):
    """Renders prompts whose control pieces are reflection tokens and the markers of paragraphs."""

    ids: Mapping[str, int] = field(default_factory=dict)  # of each such token

    def control(self, text: str) -> list[int]:
        """Return the ids of such tokens."""
        return [self.ids[token] for token in _CONTROL.findall(text)]


@dataclass(frozen=True, slots=True)
class Reader:
    """A model that answers from passages: a chat model in its template, or one with reflection tokens in its layout.

    Attributes:
        model: as a decoder has it.
        executor: asks it.
        passages: passages of a search.
        passage_tokens: a passage is cut here.
    """

    model: Prompting | ChatModel
    executor: Executor
    passages: int = 5
    passage_tokens: int = 256

    def __post_init__(self) -> None:
        check_int("passages", self.passages)
        check_int("passage_tokens", self.passage_tokens)

    @classmethod
    def of(cls, model: Any, **settings: Any) -> Self:
        """Return the reader of a model, for a driver of whichever engine has it."""
        if isinstance(model, Prompting):
            vocabulary = model.vocabulary
            renderer = _MarkerRenderer(
                None, model.codec, vocabulary.eos_id, ids=vocabulary.ids
            )
            return cls(model, EngineExecutor(None, renderer), **settings)
        if not isinstance(model, ChatModel):
            raise UserError(f"{type(model).__name__} is no chat model; give one")
        return cls(model, model.executor, **settings)

    def prompt(
        self, name: str, question: str, passages: Sequence[Passage]
    ) -> TextPrompt | ChatPrompt:
        """Return a prompt by name, with passages where the model is used to read them."""
        words = prompts()[name]
        documents = ""
        cut = CutPassages(self.model.codec, self.passage_tokens)
        for number, passage in enumerate(passages, 1):
            shown = cut.shown(passage)
            documents += f"[{number}] {shown.title}\n{shown.text}\n\n"
        template = words["user"] if passages else words["alone"]
        if isinstance(self.model, ChatModel):
            text = template.strip().format(documents=documents, question=question)
            return ChatPrompt((Message("user", text),), extra=self.model.extra)
        # A model with reflection tokens reads evidence in its reply, and without any it is told not to search.
        text = words["alone"].strip().format(question=question)
        pieces = [PromptPiece(self.model.layout.render(text))]
        if passages:
            pieces.append(PromptPiece("[Retrieval]<paragraph>", control=True))
            pieces.append(PromptPiece(documents.strip()))
            pieces.append(PromptPiece("</paragraph>", control=True))
        else:
            pieces.append(PromptPiece("[No Retrieval]", control=True))
        return TextPrompt(tuple(pieces))


@dataclass(slots=True)
class QuestionWork:
    """One question in the making."""

    question: str
    reader: Reader
    answer_tokens: int = 100  # new tokens of an answer
    hint: str = ""  # what a task says about answers
    evidence: Sequence[Passage] | None = None  # stands for what every search finds
    nodes: list[Node] = field(default_factory=list)
    decisions: dict[int, Decision] = field(default_factory=dict)  # by `after`
    shown: dict[tuple[str, str, str], Passage] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)  # of searches, in a line each

    def fill(
        self, name: str, passages: Sequence[Passage] = ()
    ) -> TextPrompt | ChatPrompt:
        """Return a prompt by name, about the question and perhaps passages."""
        question = self.question
        if self.hint and name == "read":
            question += f"\n\n{self.hint}"
        return self.reader.prompt(name, question, passages)

    @property
    def state(self) -> JudgeInput:
        """Return the question as judges and requests have it."""
        return JudgeInput((Message("user", self.question),))

    def ask(self, requests: Sequence[ModelRequest]) -> Steps[list[Completion]]:
        """Return what the model gives for each request."""
        executor = self.reader.executor
        if any(request.prefill for request in requests) and not executor.continues:
            raise UserError(
                "this method goes on with a reply that has begun, which the server of this model cannot; "
                "run always, iter-retgen, crag or max-probability"
            )
        return _served((yield from executor.steps(requests)))

    def inspect(self, requests: Sequence[ModelRequest]) -> Steps[list[Internals]]:
        """Return what the model does inside on the beginning of each reply."""
        return _served((yield from self.reader.executor.inspect_steps(requests)))

    def write(
        self, prompt: TextPrompt | ChatPrompt, tokens: int, beginning: str = ""
    ) -> Steps[Written]:
        """Write a whole reply, or what follows its beginning."""
        return (yield from self._whole(self.request(prompt, tokens, beginning)))

    def _whole(self, request: ModelRequest) -> Steps[Written]:
        """Write all that is asked for."""
        (completion,) = yield from self.ask([request])
        ended = completion.finish != "length"
        written = Written(completion.text, completion.tokens, ended)
        return self._record(written, Finish.EOS if ended else Finish.BUDGET)

    def write_part(
        self,
        prompt: TextPrompt | ChatPrompt,
        tokens: int,
        beginning: str,
        end_of: Callable[[str], int | None] = sentence_end,
    ) -> Steps[Written]:
        """Write on after `beginning`, to the first place where a part surely ends: a sentence, unless told otherwise.

        An engine stops at every token that may end a sentence. The next token then shows whether it did.
        """
        text = ""
        logprobs: tuple[TokenLogprob, ...] | None = ()
        spent = 0
        looks_ahead = False
        while True:
            most = 1 if looks_ahead else tokens - spent
            request = self.request(prompt, most, beginning + text)
            (completion,) = yield from self.ask([replace(request, sentence=True)])
            text += completion.text
            spent += max(1, completion.generated_tokens)
            if completion.tokens is None or logprobs is None:
                logprobs = None
            else:
                logprobs += completion.tokens
            end = end_of(text)
            at_stop = completion.finish == "sentence"
            if end is not None:
                if logprobs is not None:
                    texts = [token.token for token in logprobs]
                    logprobs = logprobs[: count_before(texts, end)]
                written = Written(text[:end], logprobs, ended=False)
                return self._record(written, Finish.STOP)
            # without any text it is a reflection token, after which nothing shows more
            is_blank = completion.text.isspace()
            ended = not at_stop and completion.finish != "length"
            if ended or spent >= tokens:
                finish = Finish.EOS if ended else Finish.BUDGET
                return self._record(Written(text, logprobs, ended), finish)
            looks_ahead = at_stop or (looks_ahead and is_blank)

    def request(
        self,
        prompt: TextPrompt | ChatPrompt,
        tokens: int,
        beginning: str = "",
        alternatives: int = 1,
    ) -> ModelRequest:
        """Return a request for text; servers tell probabilities only beside alternatives."""
        return ModelRequest(
            self.state,
            prompt,
            tokens,
            prefill=beginning,
            top_logprobs=alternatives,
        )

    def read(
        self, passages: Sequence[Passage] = (), alternatives: int = 1
    ) -> Steps[Written]:
        """Write a short answer, from passages if there are any."""
        prompt = self.fill("read", passages)
        request = self.request(prompt, self.answer_tokens, "", alternatives)
        return (yield from self._whole(request))

    def search(self, query: str) -> Steps[list[Passage]]:
        """Return what a query finds; a failed search ends only a question that has no passages yet."""
        count = self.reader.passages
        if self.evidence is not None:
            hits = tuple(self.evidence[:count])
        else:
            (result,) = yield [Retrieve(query, count)]
            if isinstance(result, Retrieved):
                hits = result.passages
            else:
                reason = result.reason if isinstance(result, Failed) else str(result)
                if not self.shown:
                    raise SearchError(f"search failed: {reason}")
                self.failures.append(reason)
                hits = ()
        for hit in hits:
            self.shown.setdefault(hit.key, hit)
        self._decide("retrieve", "the method searches", query)
        return list(hits)

    @property
    def note(self) -> str | None:
        """Return what a reader should see of searches that failed; None if none did."""
        if not self.failures:
            return None
        count = count_of(len(self.failures), "searches")
        return f"{count} failed ({self.failures[0]}); the answer rests on the others"

    def answer(self, text: str) -> Answer:
        """Return the answer, which cites the first of all passages that holds its text in whole words."""
        text = text.strip()
        cited = None
        for passage in self.shown.values():
            if text and contains_any(passage.text, [text]):
                cited = passage
                break
        node = self.nodes[-1]
        node.branch, node.passage = "passage" if cited else "none", cited
        if node.reasoning.strip() == text:
            node.reasoning = ""
        node.text, node.status, node.ended = text, Status.FINISHED, True
        policy = Decoding(
            beam=1,
            max_segments=len(self.nodes),
            passages=max(1, len(self.shown)),
            without_evidence="write",
        )
        decisions = [self.decisions[after] for after in sorted(self.decisions)]
        trace = Trace(
            self.question, policy, tuple(self.nodes), tuple(decisions), node.id
        )
        text, segments = segments_of(trace, trace.best)
        return Answer(self.question, text, segments, Usage(), trace, note=self.note)

    def _record(self, written: Written, finish: Finish) -> Written:
        """Add what was written to the trace."""
        last = len(self.nodes) - 1 if self.nodes else ROOT
        writing = Decision(last, "write", "the method does not search here")
        self.decisions.setdefault(last, writing)
        node = Node(len(self.nodes), last, len(self.nodes) + 1, "none", None)
        logprobs = [token.logprob for token in written.tokens or ()]
        node.likelihood = geometric_mean(tuple(logprobs))
        node.score = node.path_score = node.likelihood
        node.reasoning, node.status, node.finish = written.text, Status.KEPT, finish
        self.nodes.append(node)
        return written

    def _decide(self, action: Action, reason: str, query: str) -> None:
        """Record a search. An answer rests on all passages so far, not on those of the last search alone."""
        after = len(self.nodes) - 1 if self.nodes else ROOT
        cause = None if self.shown else AnswerReason.NOTHING_FOUND
        passages = tuple(self.shown.values())
        self.decisions[after] = Decision(
            after, action, reason, None, query, passages, cause=cause
        )


opened = cache(open_judge)


def judge_all(judge: Judge, inputs: Sequence[JudgeInput]) -> Steps[list[Judgment]]:
    """Return what a judge says about each input; refuse one about which it says nothing."""
    judgments = []
    for reflection in (yield from judge.judge(inputs)):
        if not reflection.scored:
            reason = reflection.reason or "it said nothing"
            raise generation_error(f"{judge.name} could not judge: {reason}")
        judgments.append(reflection.scored[0])
    return judgments


def _served(results: Sequence[T | Failed]) -> list[T]:
    """Return the results; refuse one that failed."""
    served = []
    for result in results:
        if isinstance(result, Failed):
            raise generation_error(f"no answer could be generated: {result.reason}")
        served.append(result)
    return served


def count_before(texts: Sequence[str], end: int) -> int:
    """Return how many tokens begin before a character of their text."""
    position = 0
    for count, text in enumerate(texts):
        if position >= end:
            return count
        position += len(text)
    return len(texts)
