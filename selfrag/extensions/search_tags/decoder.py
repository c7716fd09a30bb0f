"""Decoding of models that search by writing tags, such as Search-R1: a turn, a search, its documents, the next turn.

Sans-IO as the beam: yields batches of requests and gets their results. The models and their formats are data
(`PROFILES`); prompts are those of the published code.
"""

from __future__ import annotations

import re
import time
import tomllib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any, NamedTuple, get_args

from selfrag.interface import (
    ROOT,
    Action,
    Answer,
    AnswerReason,
    Chat,
    Commit,
    Decision,
    Decoder,
    Decoding,
    Failed,
    Finish,
    Generate,
    HFTextCodec,
    Node,
    Passage,
    RequestBatch,
    RequestResult,
    Retrieve,
    Retrieved,
    SearchError,
    Status,
    Trace,
    Usage,
    UserError,
    WithoutEvidence,
    ask,
    check_choice,
    check_float,
    check_int,
    contains_any,
    generation_error,
    geometric_mean,
    segments_of,
    unknown_name,
    unmarked,
)

NO_MORE = "The maximum search limit is exceeded. You are not allowed to search."
"""What stands in place of documents when the searches are used up."""
_TITLE = 300  # characters of a title


@dataclass(frozen=True, slots=True)
class Profile:
    """The format of a family of models.

    Attributes:
        name: of the family.
        system: system prompt; empty for none.
        user: prompt with `{question}`, perhaps with `{searches}`.
        query: tags around a query. Several queries stand between two of these tags inside `searching`.
        documents: tags around what was found.
        answer: tags around the answer.
        searching: tags around several queries, for formats that have them.
        document: one document, with `{number}`, `{title}` and `{text}`.
        shown: what is put after a query, with `{documents}`.
        chat: whether the prompt goes into the model's chat template.
    """

    name: str
    user: str
    query: tuple[str, str]
    documents: tuple[str, str]
    answer: tuple[str, str] = ("<answer>", "</answer>")
    searching: tuple[str, str] | None = None
    system: str = ""
    document: str = "Doc {number}(Title: {title}) {text}\n"
    shown: str = "\n\n{open}{documents}{close}\n\n"
    chat: bool = True

    def queries(self, text: str) -> list[str]:
        """Return the queries that the last search of a text asks for, none empty; at most five."""
        opening, closing = self.searching or self.query
        _, tag, inside = text.rpartition(opening)
        if not tag or closing not in inside:
            return []
        inside = inside.partition(closing)[0]
        listed = [inside]
        if self.searching is not None:
            listed = re.findall(
                f"{re.escape(self.query[0])}(.*?){re.escape(self.query[1])}",
                inside,
                re.DOTALL,
            )
        return [query for line in listed if (query := " ".join(line.split()))][:5]

    @property
    def searched(self) -> str:
        """Return the tag that ends a search."""
        return (self.searching or self.query)[1]

    def answered(self, text: str) -> str | None:
        """Return the text of the last answer, or None if there is none; a box ends at the brace that closes it."""
        opening, closing = self.answer
        _, tag, inside = text.rpartition(opening)
        if not tag:
            return None
        if closing == "}":
            return _boxed(inside)
        return inside.partition(closing)[0].strip() if closing in inside else None


_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_WRAPPED = re.compile(r"\\(?:text|mbox|math)(?:rm|bf|it|sf|tt|normal)?\s*\{([^{}]*)\}")
"""LaTeX that only says how a text looks, such as `\\text{Paris}`."""


def _boxed(inside: str) -> str | None:
    """Return what stands before the brace that closes a box, without commands of fonts; None if nothing closes it."""
    depth = 1
    for brace in _BRACE.finditer(inside):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            inner = inside[: brace.start()]
            while (unwrapped := _WRAPPED.sub(r"\1", inner)) != inner:
                inner = unwrapped
            return inner.strip()
    return None


def _profiles() -> dict[str, Profile]:
    text = files(__package__).joinpath("profiles.toml").read_text(encoding="utf-8")
    profiles = {}
    for name, fields in tomllib.loads(text).items():
        pairs = {k: tuple(v) for k, v in fields.items() if isinstance(v, list)}
        profiles[name] = Profile(name=name, **fields | pairs)
    return profiles


PROFILES: dict[str, Profile] = _profiles()
"""The published formats, by name."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What an answer may cost at most.

    Attributes:
        searches: searches of one answer.
        tokens: new tokens of all turns together.
        turn_tokens: new tokens of one turn.
        seconds: wall time; no turn begins later. None for no limit.
        passages: passages of a query.
        passage_tokens: tokens of a passage's text.
        without_evidence: as in `Decoding`, where the model searched and no search found anything.

    Raises:
        UserError: a value is out of range.
    """

    searches: int = 5
    tokens: int = 4_096
    turn_tokens: int = 1_024
    seconds: float | None = None
    passages: int = 3
    passage_tokens: int = 256
    without_evidence: WithoutEvidence = "abstain"

    def __post_init__(self) -> None:
        check_int("searches", self.searches, 0)
        for name in ("tokens", "turn_tokens", "passages", "passage_tokens"):
            check_int(name, getattr(self, name))
        if self.seconds is not None:
            check_float("seconds", self.seconds, above=True)
        check_choice(
            "without_evidence", self.without_evidence, get_args(WithoutEvidence)
        )

    def changed(self, **fields_: Any) -> Budget:
        """Return the budget with other values.

        Raises:
            UserError: an unknown name, or a value out of range.
        """
        known = type(self).__dataclass_fields__
        if unknown := next((name for name in fields_ if name not in known), None):
            raise unknown_name(
                "setting",
                unknown,
                known,
                "`python -m pydoc selfrag.extensions.search_tags.decoder.Budget`",
            )
        return replace(self, **fields_)


@dataclass(frozen=True, slots=True)
class Searcher:
    """A model that searches by tags, bound to its tokenizer."""

    profile: Profile  # its format
    codec: HFTextCodec  # of its tokenizer
    chat: Chat | None  # its chat template; None where the prompt stands alone
    eos_id: int  # ends a turn and the answer
    budget: Budget = field(default_factory=Budget)  # of each answer
    # seconds that pass; only differences count
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        profile: str | Profile = "search-r1",
        budget: Budget | None = None,
    ) -> Searcher:
        """Return what a checkpoint with this tokenizer of transformers needs."""
        if not isinstance(profile, Profile):
            check_choice("profile", profile, PROFILES)
            profile = PROFILES[profile]
        if tokenizer.eos_token_id is None:
            raise UserError(
                "the tokenizer has no EOS token; set tokenizer.eos_token first"
            )
        codec = HFTextCodec(tokenizer)
        templated = profile.chat and getattr(tokenizer, "chat_template", None)
        chat = Chat.of(tokenizer, codec, profile.system) if templated else None
        return cls(
            profile, codec, chat, int(tokenizer.eos_token_id), budget or Budget()
        )

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Return where a turn may end: every token with the last character of a tag; most of them do not end one."""
        return self.codec.ending(
            {self.profile.searched[-1], self.profile.answer[1][-1]}
        )

    def prompt(self, question: str) -> tuple[int, ...]:
        """Ids of the prompt; the question stays text."""
        if not question.strip():
            raise UserError("the question is empty")
        before, _, after = self.profile.user.replace(
            "{searches}", str(self.budget.searches)
        ).partition("{question}")
        ids = self.codec.encode_surface(before)
        ids += [
            *self.codec.encode(unmarked(question)),
            *self.codec.encode_surface(after),
        ]
        if self.chat is None:
            return (*self.codec.bos_ids, *ids)
        return (*self.chat.before, *ids, *self.chat.after)

    def documents(self, passages: Sequence[Passage] | None) -> list[int]:
        """Ids of what is put after a search; None where no search is left. No passage can open or close a tag."""
        opening, closing = self.profile.documents
        before, _, after = self.profile.shown.format(
            open=opening, close=closing, documents="\0"
        ).partition("\0")
        ids = self.codec.encode_surface(before)
        for rank, passage in enumerate(passages or (), 1):
            title, text = (
                unmarked(part).replace("\\boxed", "boxed")
                for part in (passage.title[:_TITLE], passage.text)
            )
            shown = self.profile.document.format(number=rank, title=title, text="\0")
            head, _, tail = shown.partition("\0")
            most = self.budget.passage_tokens
            body = self.codec.encode(text[: 32 * most])[:most]
            ids += [*self.codec.encode(head), *body, *self.codec.encode(tail)]
        if passages is None:
            ids += self.codec.encode(NO_MORE)
        return [*ids, *self.codec.encode_surface(after)]


class _Turn(NamedTuple):
    """What the model wrote up to the end of a search, of the answer, or of its budget."""

    text: str
    ids: tuple[int, ...]
    likelihood: float
    finish: Finish


@dataclass(slots=True)
class _State:
    """One answer in the making."""

    question: str
    ids: list[int]
    without_evidence: WithoutEvidence
    tokens: int = 0
    searches: int = 0  # made so far
    nodes: list[Node] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    shown: dict[tuple[str, str, str], Passage] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """Return the newest node."""
        return len(self.nodes) - 1 if self.nodes else ROOT

    def record(self, turn: _Turn, said: str = "") -> None:
        """Add a turn, or the answer in it, which cites the first passage that holds it in whole words."""
        shown = self.shown.values() if said else ()
        holding = (passage for passage in shown if contains_any(passage.text, [said]))
        cited = next(holding, None)
        node = Node(
            len(self.nodes),
            self.last,
            len(self.nodes) + 1,
            "none" if cited is None else "passage",
            cited,
            said,
        )
        node.token_ids = node.text_ids = turn.ids
        node.finish = turn.text
        node.likelihood = node.score = node.path_score = turn.likelihood
        node.status, node.ended = (
            (Status.FINISHED, True) if said else (Status.KEPT, False)
        )
        self.nodes.append(node)

    def decide(self, action: Action, reason: str, query: str | None = None) -> None:
        """Record what follows a turn. An answer rests on all that was found so far, not on the last search alone."""
        passages = tuple(self.shown.values())
        cause = None
        if action != "write" and not passages:
            cause = AnswerReason.NO_SEARCH
            if self.searches:
                cause = AnswerReason.NOTHING_FOUND
        self.decisions.append(
            Decision(self.last, action, reason, None, query, passages, cause=cause)
        )

    def answer(self, error: str | None = None) -> Answer:
        """Return what there is so far, as an answer."""
        policy = Decoding(
            beam=1,
            max_segments=max(1, len(self.nodes)),
            passages=max(1, len(self.shown)),
            without_evidence=self.without_evidence,
        )
        best = None if self.decisions[-1].action == "abstain" else self.last
        trace = Trace(
            self.question, policy, tuple(self.nodes), tuple(self.decisions), best
        )
        text, segments = segments_of(trace, trace.best)
        return Answer(self.question, text, segments, Usage(), trace, error=error)


def decode_tags(
    question: str, searcher: Searcher, passages: Sequence[Passage] | None = None
) -> Decoder:
    """Answer a question by turns and searches; with `passages` these stand for what every search finds.

    The model names no source. The answer cites the first passage, of all that were found, in which its text occurs;
    `Answer.retrieved` lists what the searches found.
    """
    budget, profile = searcher.budget, searcher.profile
    state = _State(question, list(searcher.prompt(question)), budget.without_evidence)
    until = None if budget.seconds is None else searcher.clock() + budget.seconds
    state.decide("write", "the model decides when to search")
    refused = False  # whether it asked for a search that the budget lacks
    while True:
        turn = yield from _turn(searcher, state)
        said, queries = profile.answered(turn.text), profile.queries(turn.text)
        if said is None and turn.finish is Finish.EOS and not queries:
            said = turn.text.strip()
        if (
            said is not None
            and state.searches
            and not state.shown
            and budget.without_evidence == "abstain"
        ):
            state.record(turn)
            state.decide("abstain", "nothing was found")
            return state.answer()
        state.record(turn, said or "")
        if said == "":
            return state.answer("the model gave an empty answer")
        if said is not None:
            answer = state.answer()
            for segment in answer.segments:
                yield Commit(segment)
            return answer
        over = (
            turn.finish in (Finish.EOS, Finish.CONTEXT) or state.tokens >= budget.tokens
        )
        if over or not queries or refused:
            return state.answer("the model gave no answer within its budget")
        if until is not None and searcher.clock() >= until:
            return state.answer("the time is over")
        refused = state.searches == budget.searches
        if refused:
            state.decide("continue", "no search is left")
            state.ids += searcher.documents(None)
            continue
        state.searches += 1
        if passages is None:
            hits = yield from _searched(state, queries, budget.passages)
        else:
            hits = list(passages[: budget.passages])
        state.shown |= {hit.key: hit for hit in hits if hit.key not in state.shown}
        state.decide("retrieve", "the model asked", queries[0])
        state.ids += searcher.documents(hits)


def _turn(
    searcher: Searcher, state: _State
) -> Generator[RequestBatch | Commit, list[RequestResult], _Turn]:
    """Yield the next turn, read in pieces: a token that may end one ends a piece."""
    ids: list[int] = []
    logprobs: list[float] = []
    budget, profile, stop = searcher.budget, searcher.profile, searcher.stop_ids
    finish = Finish.BUDGET
    while (
        room := min(budget.turn_tokens - len(ids), budget.tokens - state.tokens)
    ) > 0:
        (result,) = yield from ask([Generate(tuple(state.ids), room, stop_ids=stop)])
        if isinstance(result, Failed):
            if not state.nodes and not ids:
                raise generation_error(f"no turn could be generated: {result.reason}")
            finish = Finish.CONTEXT
            break
        new = result.token_ids
        if result.finish is Finish.EOS:
            new = new[:-1]
        ids += new
        logprobs += result.token_logprobs[: len(new)]
        state.ids += new
        state.tokens += len(result.token_ids)
        text = searcher.codec.surface(ids)
        closed = text.rstrip().endswith(profile.searched) and profile.queries(text)
        if (
            result.finish is not Finish.STOP
            or closed
            or profile.answered(text) is not None
        ):
            finish = result.finish
            break
    return _Turn(
        searcher.codec.surface(ids), tuple(ids), geometric_mean(tuple(logprobs)), finish
    )


def _searched(
    state: _State, queries: Sequence[str], k: int
) -> Generator[RequestBatch | Commit, list[RequestResult], list[Passage]]:
    """Yield what all queries find, each passage once. A failed search ends only an answer that has nothing yet."""
    results = yield [Retrieve(query, k) for query in queries]
    passages: dict[tuple[str, str, str], Passage] = {}
    for result in results:
        if isinstance(result, Retrieved):
            passages |= {
                passage.key: passage
                for passage in result.passages
                if passage.key not in passages
            }
        elif not state.shown:
            raise SearchError(
                f"search failed: {result.reason if isinstance(result, Failed) else result}"
            )
    return list(passages.values())
