"""`ChatModel`: any chat model as one that writes and reflects, without reflection tokens.

A segment is a sentence, written in the model's own chat template with the passage as data. Retrieve, IsRel, IsSup and
IsUse are prompted judges on the same model (`selfrag.judges.reflection_prompts`), which the decoder has among its own.
The executor decides where the model runs: on an engine, or behind an endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.passage import Passage
from selfrag.common.errors import UserError, count_of, generation_error
from selfrag.decoding.policy import Action, Decoding
from selfrag.decoding.segments import APPLICABLE, SegmentReading, token_likelihood
from selfrag.decoding.sentence_ends import sentence_end
from selfrag.decoding.terms import ScoreTerm
from selfrag.decoding.token_writer import DecodingModel
from selfrag.decoding.trace import ROOT
from selfrag.decoding.writer import (
    Candidate,
    Hypothesis,
    ScoredOptions,
    SegmentWriter,
    branch_of,
    tokens_left,
)
from selfrag.judges.engine import EngineExecutor
from selfrag.judges.external import WrappedJudge
from selfrag.judges.prompted import PromptedJudge
from selfrag.judges.reasoning import Separated, separate
from selfrag.judges.reflection_prompts import (
    EVIDENCE_FORMS,
    PROMPT_JUDGE,
    ReflectionWording,
    judge_name,
    reflection_codecs,
    reflection_wording,
    without_passage,
)
from selfrag.judges.text_pieces import TextPieces
from selfrag.judges.wire import (
    ChatPrompt,
    Completion,
    Executor,
    ModelRequest,
    TokenLogprob,
)
from selfrag.loading import check_chat_template
from selfrag.prompting import Prompting, Turn, check_question, passage_ids
from selfrag.reflection.findings import Reflection
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.reflection.judge import Judge, Scope
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import CRITIQUES, ISREL, ISUSE, LabelSet, Role
from selfrag.reflection.requests import Failed, Finish, Steps, gather
from selfrag.reflection.vocabulary import (
    STORED,
    Scaling,
    has_reflection_tokens,
    read_scalings,
)
from selfrag.runtime import finish
from selfrag.tokenization import TextCodec

_NOTHING = "N/A"
"""Stands for a text in a prompt without content."""
_WITHOUT_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
"""For templates of models that else begin with a chain of thought; others ignore it."""


@dataclass(frozen=True)
class ChatModel:
    """A chat model on an executor."""

    executor: Executor
    codec: TextCodec  # tokenises text as the model does; counts the tokens of passages
    wording: ReflectionWording
    # fields of every prompt, see `ChatPrompt`
    extra: Mapping[str, Any] = field(default_factory=dict)
    # calibrate the judgments of a question
    scalings: Mapping[str, Scaling] = field(default_factory=dict)
    knows_tokens: bool = True  # whether `codec` is the model's own tokenizer

    @classmethod
    def on(cls, executor: Executor) -> ChatModel:
        """Return the chat model of an executor; refuses a tokenizer that has no words for the labels."""
        if not isinstance(executor, EngineExecutor):
            return cls(
                executor,
                TextPieces(),
                reflection_wording(),
                _WITHOUT_THINKING,
                knows_tokens=False,
            )
        settings = getattr(executor.renderer.tokenizer, "init_kwargs", {})
        stored = read_scalings(settings.get(STORED) or {})
        model = cls(
            executor,
            executor.renderer.text,
            reflection_wording(),
            _WITHOUT_THINKING,
            {str(role): scaling for role, scaling in stored.items()},
        )
        _ = model.judges  # refuses a tokenizer without words for the labels
        return model

    @cached_property
    def judges(self) -> dict[str, Judge]:
        """Return the judges of the four groups, by name, for texts of any origin."""
        policy = Decoding()
        return self.judges_for(policy, CutPassages(self.codec, policy.passage_tokens))

    def judges_for(self, policy: Decoding, passages: CutPassages) -> dict[str, Judge]:
        """Return the judges of the four groups under some settings, which read passages as they are cut."""
        scalings = self.scalings if policy.calibrated else {}
        tokenizer = None
        if self.knows_tokens:
            tokenizer = self.codec
        codecs = reflection_codecs(
            self.wording, tokenizer, scalings, cut=passages.shown, extra=self.extra
        )
        judges: dict[str, Judge] = {}
        for question, codec in codecs.items():
            judge = PromptedJudge(self.executor, codec, codec.labels)
            judge.name = judge_name(question)
            if codec.labels == ISUSE:
                judge.scope = Scope.ANSWER
            judges[judge.name] = judge
        return judges

    def uncalibrated(self) -> ChatModel:
        """Return the same model with the probabilities that it gives."""
        return replace(self, scalings={})

    def calibrated_by_context(self, engine: Any = None) -> ChatModel:
        """Return the model with what it says of nothing divided out of its judgments.

        Question, title, passage and answer are `N/A`, so only the words of the labels decide (contextual calibration,
        Zhao et al. 2021, arXiv 2102.09690). It costs one token for each form of a question, with and without a passage.
        `engine` runs the model where its executor has none.
        """
        turns = (Message("user", _NOTHING), Message("assistant", _NOTHING))
        nothing = Passage(_NOTHING, _NOTHING, _NOTHING)
        scalings = {}
        for name, judge in self.uncalibrated().judges.items():
            question = name.removeprefix(PROMPT_JUDGE)
            forms = EVIDENCE_FORMS[question]
            states = [JudgeInput(turns, (nothing,) * form) for form in forms]
            reflections = finish(judge.judge(states), judge.engine or engine)
            for key, reflection in zip(
                (question, without_passage(question)), reflections, strict=False
            ):
                for judgment in reflection.judgments:
                    shares = np.array(judgment.distribution)
                    biases = -np.log(np.where(shares > 0, shares, 1.0))
                    scalings[key] = Scaling(biases=tuple(biases.tolist()))
        return replace(self, scalings=scalings)

    def as_dict(self) -> dict[str, Any]:
        """Return what decides its prompts and judgments, apart from the model, as plain values."""
        fields = {"kind": "chat_template", "wording": asdict(self.wording)}
        if self.scalings:
            fields[STORED] = {str(name): asdict(s) for name, s in self.scalings.items()}
        return fields

    def writer(
        self, question: str, history: Sequence[Turn], policy: Decoding
    ) -> ChatSegmentWriter:
        """Return what writes the answer to a question after earlier turns."""
        return ChatSegmentWriter(self, question, history, policy)


def model_of(tokenizer: Any, name: str | Path) -> DecodingModel:
    """Return the model of a Hugging Face tokenizer for decoders on any engine that has it.

    Raises:
        UserError: it has some reflection tokens and not all, or neither these nor a chat template.
    """
    if has_reflection_tokens(tokenizer):
        return Prompting.from_tokenizer(tokenizer)
    check_chat_template(tokenizer, name)
    return ChatModel.on(EngineExecutor(None, tokenizer))


@dataclass(slots=True)
class CutPassages:
    """Passages without what is over the budget of tokens; each is tokenised once."""

    codec: TextCodec
    max_tokens: int
    _cut: dict[tuple[str, str, str], tuple[Passage, int]] = field(default_factory=dict)

    def cut(self, passage: Passage) -> tuple[Passage, int]:
        """Return what may be shown of a passage, and how many tokens were left out."""
        if passage.key not in self._cut:
            ids, dropped = passage_ids(self.codec, passage, self.max_tokens)
            kept = passage
            if dropped:
                text = self.codec.decode(ids)
                title, _, body = text.partition("\n")
                kept = replace(passage, title=title, text=body)
            self._cut[passage.key] = kept, dropped
        return self._cut[passage.key]

    def shown(self, passage: Passage) -> Passage:
        """Return what may be shown of a passage."""
        return self.cut(passage)[0]


class _OncePerPassage(WrappedJudge):
    """A judge of passages that is asked once about each, while one question is answered."""

    def __init__(self, inner: Judge) -> None:
        super().__init__(inner)
        self._known: dict[tuple[tuple[str, str, str], ...], Reflection] = {}

    def judge(self, inputs: Sequence[JudgeInput]) -> Steps[list[Reflection]]:
        """Return one reflection an input."""
        keys = [tuple([passage.key for passage in state.passages]) for state in inputs]
        unknown = dict(zip(keys, inputs, strict=True))
        for key in self._known:
            unknown.pop(key, None)
        reflections = yield from self.inner.judge(list(unknown.values()))
        self._known.update(zip(unknown, reflections, strict=True))
        return [self._known[key] for key in keys]


class ChatSegmentWriter(SegmentWriter):
    """The answer to one question by a chat model."""

    def __init__(
        self, model: ChatModel, question: str, history: Sequence[Turn], policy: Decoding
    ) -> None:
        """Answer a question after earlier turns, under a policy.

        Raises:
            UserError: the policy is about reflection tokens.
        """
        if policy.segment_end == "retrieval":
            raise UserError(
                "segment_end=retrieval reads reflection tokens, which this model does not have; give retrieve or"
                " completion (--policy official is for models with reflection tokens)"
            )
        self.whole_answers = not model.executor.continues
        if self.whole_answers:
            tokens = policy.segment_tokens * policy.max_segments
            policy = replace(
                policy,
                segment_end="completion",
                max_segments=1,
                segment_tokens=min(policy.answer_tokens, tokens),
            )
        self.model = model
        self.question = question
        self.history = history
        self._passages = CutPassages(model.codec, policy.passage_tokens)
        self.judges = model.judges_for(policy, self._passages)
        relevance = judge_name("isrel")
        self.judges[relevance] = _OncePerPassage(self.judges[relevance])
        self.policy = _with_own_judges(policy)

    def start(self) -> Hypothesis:
        """Return the hypothesis before anything is written."""
        check_question(self.question)
        return Hypothesis(ROOT, (), None)

    def boundaries(
        self, hypotheses: Sequence[Hypothesis]
    ) -> Steps[list[Judgment | None]]:
        """Return Retrieve at the end of each hypothesis, all of one depth; None where nothing is written yet."""
        is_first = hypotheses[0].node == ROOT
        question = "retrieve_later"
        site = "end"
        if is_first:
            question = "retrieve"
            site = "start"
        due = [h for h in hypotheses if is_first or h.answer.strip()]
        states = [self._state(h.evidence, h.answer) for h in due]
        reflections = yield from self.judges[judge_name(question)].judge(states)
        judgments = [reflection.mean(site, None) for reflection in reflections]
        if is_first and judgments[0] is None:
            reason = reflections[0].reason
            raise generation_error(f"the model could not read the question: {reason}")
        judged = dict(zip([h.node for h in due], judgments, strict=True))
        return [judged.get(h.node) for h in hypotheses]

    def relevance(
        self, places: Sequence[tuple[Hypothesis, Passage]]
    ) -> Steps[list[Judgment | None]]:
        """Return IsRel of each passage."""
        states = [self._state(passage) for _, passage in places]
        return (yield from self._critique(ISREL, states))

    def candidate(
        self, parent: Hypothesis, action: Action, passage: Passage | None
    ) -> Candidate:
        """Lay out the next segment of a hypothesis."""
        dropped = 0
        if passage is not None:
            dropped = self._passages.cut(passage)[1]
        room = tokens_left(self.policy, parent)
        return Candidate(parent, branch_of(action, passage), passage, room, (), dropped)

    def prefix(self, candidate: Candidate, reading: SegmentReading) -> tuple[int, ...]:
        """Return no ids: what was written is kept as text."""
        return ()

    def write(
        self, candidates: Sequence[Candidate]
    ) -> Steps[list[SegmentReading | Failed]]:
        """Write one segment a candidate; a sentence costs one token more, which shows that it has ended."""
        by_sentence = self.policy.segment_end == "retrieve"
        drafts = []
        for candidate in candidates:
            request = replace(self._prompt(candidate), sentence=by_sentence)
            drafts.append(_Draft(candidate, request))
        open_drafts = drafts
        while open_drafts:
            requests = [draft.next_request() for draft in open_drafts]
            completions = yield from self.model.executor.steps(requests)
            for draft, completion in zip(open_drafts, completions, strict=True):
                draft.add(completion)
            open_drafts = [draft for draft in open_drafts if draft.result is None]
        return [self._reading(draft) for draft in drafts]

    def choose(
        self, candidates: Sequence[Candidate], options: Sequence[str], most_watched: int
    ) -> Steps[list[ScoredOptions | Failed]]:
        """Score every option after each candidate's evidence; its critiques are asked for as of a written answer."""
        prompts = [self._prompt(candidate) for candidate in candidates]
        rows = yield from self.model.executor.option_steps(prompts, options)
        ids = [tuple(self.model.codec.encode(option)) for option in options]
        critiques = self._critiques()
        tables: list[ScoredOptions | Failed] = []
        judged: list[_JudgedOption] = []
        for candidate, row in zip(candidates, rows, strict=True):
            if isinstance(row, Failed):
                tables.append(row)
                continue
            judgments: list[dict[Role, Judgment | None]] = []
            for option in options:
                judgments.append(dict.fromkeys(labels.role for labels in critiques))
                judged.append(_JudgedOption(candidate, option, judgments[-1]))
            tables.append(ScoredOptions(ids, row, judgments))
        yield from self._judge_options(judged, critiques)
        return tables

    def _critiques(self) -> list[LabelSet]:
        """Return the groups that are asked for: weights or constraints need them."""
        terms = {term.judge for term in self.policy.judges}
        return [labels for labels in CRITIQUES if judge_name(labels.role) in terms]

    def _judge_options(
        self, options: Sequence[_JudgedOption], critiques: Sequence[LabelSet]
    ) -> Steps[None]:
        """Judge options by all groups that apply, in one round."""
        due: list[list[_JudgedOption]] = []
        steps = []
        for labels in critiques:
            applicable = []
            states = []
            for option in options:
                candidate = option.candidate
                if labels in APPLICABLE[candidate.branch]:
                    applicable.append(option)
                    states.append(self._state(candidate.passage, option.text))
            due.append(applicable)
            steps.append(self._critique(labels, states))
        columns = yield from gather(steps)
        for labels, applicable, judgments in zip(critiques, due, columns, strict=True):
            for option, judgment in zip(applicable, judgments, strict=True):
                option.judgments[labels.role] = judgment

    def _critique(
        self, labels: LabelSet, states: Sequence[JudgeInput]
    ) -> Steps[list[Judgment | None]]:
        """Return the judgment of each input over a group; None where it was not served."""
        reflections = yield from self.judges[judge_name(labels.role)].judge(states)
        judgments = []
        for state, reflection in zip(states, reflections, strict=True):
            evidence = state.passages[0].id if state.passages else None
            judgments.append(reflection.mean(f"passage {evidence}", evidence))
        return judgments

    def _state(self, passage: Passage | None, answer: str = "") -> JudgeInput:
        """Return the question with its passage, and the answer so far."""
        turns = [Message(turn.role, turn.text) for turn in self.history]
        turns.append(Message("user", self.question))
        if answer.strip():
            turns.append(Message("assistant", answer.strip()))
        passages: tuple[Passage, ...] = ()
        if passage is not None:
            passages = (passage,)
        return JudgeInput(tuple(turns), passages)

    def _prompt(self, candidate: Candidate) -> ModelRequest:
        """Return the conversation that a candidate's segment is written in."""
        passage = candidate.passage
        if passage is not None:
            passage = self._passages.shown(passage)
        state = self._state(passage)
        messages = self.model.wording.messages(state)
        prompt = ChatPrompt(messages, extra=self.model.extra)
        begin = candidate.parent.answer
        # Endpoints tell the probability of what was written only where alternatives are asked for.
        return ModelRequest(
            state, prompt, prefill=begin, top_logprobs=1, keeps_reasoning=True
        )

    def _reading(self, draft: _Draft) -> SegmentReading | Failed:
        """Return a draft that has ended as the decoder reads it."""
        if draft.result is None or isinstance(draft.result, Failed):
            return draft.result or Failed("nothing was written")
        written = draft.separated
        text = written.text[: draft.end]
        ids = tuple(self.model.codec.encode(text.strip()))
        logprobs = draft.logprobs
        likelihood = token_likelihood(logprobs, len(logprobs), self.policy.likelihood)
        parent = draft.candidate.parent
        cut = draft.result is Finish.BUDGET
        goes_on = self.policy.goes_on(
            cut, parent.spent + draft.spent, len(parent.texts) + 1
        )
        return SegmentReading(
            ids=ids,
            text_ids=ids,
            judgments={},
            boundary=None,
            likelihood=likelihood,
            ended=draft.result is not Finish.STOP and not goes_on,
            cut=cut,
            finish=draft.result,
            tokens=draft.spent,
            text=text,
            reasoning=draft.reasoning,
            remark=draft.remark,
        )


@dataclass(frozen=True, slots=True)
class _JudgedOption:
    """An option after a candidate's evidence."""

    candidate: Candidate
    text: str
    judgments: dict[Role, Judgment | None]  # filled in as they come


@dataclass(slots=True)
class _Draft:
    """A segment while it is written."""

    candidate: Candidate
    request: ModelRequest  # the prompt, and whether the segment ends with a sentence
    written: str = ""  # all text so far, with reasoning in it
    thoughts: str = ""  # reasoning that a server gave beside the text
    withheld: str = ""  # why the last text did not come, see `Completion`
    tokens: list[TokenLogprob] = field(default_factory=list)
    spent: int = 0  # new tokens so far
    looks_ahead: bool = False  # whether the next token shows if the sentence has ended
    end: int | None = None  # characters of the segment; None for all
    result: Finish | Failed | None = None  # why it has ended; None before

    @property
    def next_tokens(self) -> int:
        """Return the most tokens of the next request."""
        if self.looks_ahead:
            return 1
        return self.candidate.max_tokens - self.spent

    def next_request(self) -> ModelRequest:
        """Return the request for what comes after the text so far."""
        # the sentences of reasoning are of no use
        sentence = self.request.sentence and not self.separated.is_open
        return replace(
            self.request,
            prefill=self.request.prefill + self.written,
            max_tokens=self.next_tokens,
            sentence=sentence,
        )

    @property
    def separated(self) -> Separated:
        """Return the text so far, and its reasoning."""
        return separate(self.written)

    @property
    def reasoning(self) -> str:
        """Return what the model thought before the segment."""
        return "\n".join(filter(None, (self.thoughts, self.separated.reasoning)))

    @property
    def remark(self) -> str:
        """Return why there is no text, or not all of it; empty where there is nothing to say."""
        if self.withheld or self.separated.text.strip() or self.candidate.parent.texts:
            return self.withheld
        if not self.reasoning:
            return "the model wrote nothing"
        if self.result is Finish.EOS:
            return "the model wrote reasoning and no answer"
        return (
            f"reasoning used up the {count_of(self.spent, 'tokens')} of the answer; allow more"
            " (segment_tokens, answer_tokens)"
        )

    @property
    def logprobs(self) -> tuple[float, ...]:
        """Return the log-probabilities of the tokens of the segment; none where the server gave none."""
        values = []
        spelled = "".join([token.token for token in self.tokens])
        # What the segment holds may stand again in what follows: the whole text is at the end.
        begin = max(0, spelled.rfind(self.separated.text))
        position = 0
        for token in self.tokens:
            if self.end is not None and position >= begin + self.end:
                break
            if position >= begin:
                values.append(token.logprob)
            position += len(token.token)
        return tuple(values)

    def add(self, completion: Completion | Failed) -> None:
        """Take in what was written, and note whether the segment has ended."""
        if isinstance(completion, Failed):
            # What was written stays; without anything the candidate has failed.
            has_text = self.separated.text.strip()
            self.result = Finish.CONTEXT if has_text else completion
            return
        most_tokens = self.next_tokens
        self.written += completion.text
        self.thoughts += completion.reasoning
        self.withheld = completion.withheld
        self.tokens += completion.tokens or ()
        self.spent += completion.generated_tokens
        if self.request.sentence:
            self.end = sentence_end(self.separated.text)
        at_stop = completion.finish == "sentence"
        # White space after a stop does not show yet whether the sentence goes on.
        is_blank = not completion.text.strip()
        is_cut = completion.finish == "length" or (self.withheld and not is_blank)
        may_have_ended = at_stop or (self.looks_ahead and is_blank)
        if self.separated.is_open:
            may_have_ended = False
        if self.end is not None:
            self.result = Finish.STOP
        elif completion.finish == "stop":
            self.result = Finish.EOS
        elif self.spent >= self.candidate.max_tokens:
            self.result = Finish.STOP if may_have_ended else Finish.BUDGET
        elif at_stop and not completion.generated_tokens:
            # Asked to go on after a stop, the model had nothing more to say.
            self.result = Finish.EOS
        elif not at_stop and completion.generated_tokens < most_tokens:
            # Servers have other words than `stop` for an end, or none.
            self.result = Finish.CONTEXT if is_cut else Finish.EOS
        else:
            self.looks_ahead = may_have_ended


def _with_own_judges(policy: Decoding) -> Decoding:
    """Return a policy in which prompted judges stand for the critiques that it needs and nobody else gives."""
    taken = {term.judge for term in policy.judges}
    constrained = {*policy.require, *policy.forbid}
    terms = list[ScoreTerm]()
    for labels in CRITIQUES:
        role = labels.role
        # An irrelevant passage is not cited, whatever the weight of IsRel.
        is_needed = role is Role.RELEVANCE or role in constrained
        is_needed = is_needed or policy.weights.of(role) != 0
        if is_needed and role not in policy.replaced and judge_name(role) not in taken:
            terms.append(ScoreTerm(judge_name(role), role))
    return replace(policy, judges=(*terms, *policy.judges))
