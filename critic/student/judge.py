"""A trained critic on any engine, asked for the exact probability of each label. Generates no text.

One one-token request a case where the labels part at their first token, else one for each inner node of their trie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from critic.cases import GROUPS, Case
from critic.judging import CaseJudge, Critic
from critic.student.prompt import CaseCodec, CriticPrompt, Ids
from selfrag.common.errors import UserError, count_of
from selfrag.common.provenance import model_files
from selfrag.decoding.option_scoring import option_logprobs, option_requests
from selfrag.judges.external import Late
from selfrag.loading import resolve_model
from selfrag.reflection.findings import Code, Reflection
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.reflection.judge import Cost, Judge
from selfrag.reflection.judgment import Judgment, JudgmentSource
from selfrag.reflection.requests import Generate, Generated, Steps, failure_of

if TYPE_CHECKING:
    from selfrag.engines.base import Engine

DEMO = "demo"
"""The critic of the package."""


class StudentJudge(CaseJudge):
    """A trained critic as the judge of one group."""

    cost = Cost.PREFILL

    def __init__(
        self,
        group: str,
        codec: CaseCodec,
        engine: Engine | None = None,
        name: str = "critic",
        *,
        exact: bool = False,
    ) -> None:
        """Judge by a model.

        Args:
            group: a key of `GROUPS`.
            codec: the prompt that the model was trained with, or another way of asking it.
            engine: where the model runs.
            name: of the critic.
            exact: score every token of a label written as words. Otherwise a label is scored up to where it differs
                from the others of its group, which is all that a trained critic needs.
        """
        super().__init__(group, name)
        self.codec, self.engine, self.exact = codec, engine, exact

    def judge_cases(self, cases: Sequence[Case]) -> Steps[list[Judgment | str | None]]:
        """Return the judgment of each case; the probability mass on the labels of its group is its coverage."""
        # 1. Plan the requests of each case, and send all of them.
        end = (self.codec.eos_id,)
        plans: list[_Plan] = []
        for case in cases:
            prompt = self.codec.prompt(case)
            options = tuple(ids for ids in prompt.options if ids)
            offered = options if self.exact else distinguishing(options)
            plans.append(
                _Plan(case, prompt, offered, option_requests(prompt.ids, offered, end))
            )
        results = iter((yield [request for plan in plans for request in plan.requests]))
        # 2. Read the labels' log-probabilities off their results.
        judgments: list[Judgment | str | None] = []
        for number, plan in enumerate(plans):
            answers = list(islice(results, len(plan.requests)))
            served = [answer for answer in answers if isinstance(answer, Generated)]
            if len(served) < len(answers):
                failure = next(
                    answer for answer in answers if not isinstance(answer, Generated)
                )
                judgments.append(
                    f"the engine could not judge a case: {failure_of(failure)}"
                )
                continue
            logprobs = iter(
                option_logprobs(
                    plan.requests, served, plan.prompt.ids, plan.offered, end
                )
            )
            by_label = [
                next(logprobs) if ids else -math.inf for ids in plan.prompt.options
            ]
            judgments.append(_judgment(plan.case, by_label, number))
        return judgments


@dataclass(frozen=True, slots=True)
class _Plan:
    case: Case
    prompt: CriticPrompt
    # ids of the labels that are offered, as far as they are scored
    offered: tuple[Ids, ...]
    requests: list[Generate]


class StudentCritic(Critic):
    """A trained critic, on an engine unless its judges run by themselves."""

    def __init__(
        self,
        engine: Engine | None,
        codec: CaseCodec,
        *,
        exact: bool = False,
        judges: Mapping[str, Judge] | None = None,
    ) -> None:
        """Make the judges of all groups, unless they are given; see `StudentJudge`."""
        room = None if engine is None else engine.limits.max_model_len
        if room is not None and codec.max_length > room:
            raise UserError(
                f"prompts of up to {count_of(codec.max_length, 'tokens', 'do')} not fit the engine's"
                f" max_model_len={room}; raise it"
            )
        self.codec = codec
        if judges is None:
            judges = {
                group: StudentJudge(group, codec, engine, exact=exact)
                for group in GROUPS
            }
        super().__init__(judges, engine)

    def shortened(self, cases: Sequence[Case]) -> int:
        """Return how many cases are asked with less than they hold, because their prompts would be too long."""
        return sum(bool(self.codec.prompt(case).dropped) for case in cases)


def resolve_critic(name: str | Path) -> Path:
    """Folder of a critic's checkpoint: the package's, a local one, or one on the hub."""
    if name == DEMO:
        from critic.demo import critic_path

        return critic_path()
    return resolve_model(name)


def load_critic(
    model_dir: str | Path,
    engine: str | None = None,
    **options: Any,
) -> StudentCritic:
    """Load a critic that `train_critic` wrote.

    Args:
        model_dir: directory of the checkpoint with its `critic.json`; `demo` for the critic of the package.
        engine: as for `load_engine`; an encoder-decoder runs by transformers whatever it is.
        options: settings of the engine.

    Raises:
        UserError: the directory holds no critic, or the engine cannot load it.
    """
    from critic.student.card import read_card
    from critic.student.encoder_decoder import is_encoder_decoder, label_judges
    from selfrag.engines import load_engine
    from selfrag.loading import load_tokenizer

    directory = resolve_critic(model_dir)
    codec = read_card(directory, load_tokenizer(directory))
    if is_encoder_decoder(directory):
        return StudentCritic(None, codec, judges=label_judges(directory, codec))
    return StudentCritic(load_engine(engine, directory, **options), codec)


def distinguishing(options: Sequence[Ids]) -> tuple[Ids, ...]:
    """Cut each option after the first token at which it differs from all others."""
    shortest = []
    for ids in options:
        length = 1
        while length < len(ids) and any(
            option[:length] == ids[:length] for option in options if option != ids
        ):
            length += 1
        shortest.append(ids[:length])
    return tuple(shortest)


def _judgment(case: Case, logprobs: Sequence[float], number: int) -> Judgment | None:
    if not any(math.isfinite(value) for value in logprobs) or any(
        math.isnan(value) for value in logprobs
    ):
        return None
    evidence = None if case.evidence is None else case.evidence.id
    return Judgment.from_logprobs(
        case.labels,
        logprobs,
        site=f"case {number}",
        source=JudgmentSource.JUDGE,
        evidence=evidence,
    )


def judge_of(directory: str, group: str = "IsSup") -> Judge:
    """Return a critic's checkpoint as the judge of a group, which is loaded when it is first asked.

    Args:
        directory: of the checkpoint; `demo` for the critic of the package.
        group: a key of `GROUPS`.
    """
    path = resolve_critic(directory)

    def load() -> Judge:
        judge = load_critic(path).judges[group]
        if group == "IsSup":
            return _Claims(judge)
        return judge

    identity = {
        "kind": "critic",
        "model": directory,
        "group": group,
        "files": model_files(path),
    }
    return Late(f"critic {path.name}", GROUPS[group], load, identity)


judge_relevance = partial(judge_of, group="IsRel")
judge_utility = partial(judge_of, group="IsUse")
judge_retrieval = partial(judge_of, group="Retrieve")


MIN_COVERAGE = 0.1
"""Least probability on the labels of a claim's support together; below it, nothing was judged."""


class _Claims(Judge):
    """A critic's IsSup of claims without an instruction, as `selfrag eval judge` asks.

    The title that `selfrag.judges.entailment.premise` wrote in front of a passage becomes one again, and the
    instruction names it, as in the critic's training rows of claims.
    """

    def __init__(self, inner: Judge) -> None:
        self.inner = inner
        self.name = inner.name
        self.labels = inner.labels
        self.cost = inner.cost
        self.scope = inner.scope
        self.engine = inner.engine

    def judge(self, inputs: Sequence[JudgeInput]) -> Steps[list[Reflection]]:
        """Return one reflection an input; one of little coverage is undefined."""
        reflections = yield from self.inner.judge(
            [_with_title(state) for state in inputs]
        )
        return [
            _covered(state, reflection)
            for state, reflection in zip(inputs, reflections, strict=True)
        ]


def _with_title(state: JudgeInput) -> JudgeInput:
    if state.query != factual_sentence("") or len(state.passages) != 1:
        return state
    passage = state.passages[0]
    head, newline, body = passage.text.partition("\n")
    if passage.title or not newline or not head.startswith(_TITLE):
        return state
    title = head.removeprefix(_TITLE)
    turns = (Message("user", factual_sentence(title)), *state.messages[1:])
    return replace(
        state, messages=turns, passages=(replace(passage, text=body, title=title),)
    )


def _covered(state: JudgeInput, reflection: Reflection) -> Reflection:
    judgments = reflection.judgments
    if judgments and judgments[0].coverage < MIN_COVERAGE:
        return Reflection.failed(
            state, "the labels have too little probability", Code.LOW_COVERAGE
        )
    return replace(reflection, state=state)


_TITLE = "Title: "


def factual_sentence(title: str) -> str:
    """Return the instruction that stands for a claim without one, as the rows of claims have it."""
    if title:
        return f"Write one factual sentence about {title}."
    return "Write one factual sentence."
