"""A trained critic on any engine, asked for the exact probability of each label. Generates no text.

One one-token request a case where the labels part at their first token, else one for each inner node of their trie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from critic.cases import GROUPS, Case
from critic.judging import Critic
from critic.student.prompt import CaseCodec, CriticPrompt, Ids
from selfrag.decoding.option_scoring import option_logprobs, option_requests
from selfrag.interface import (
    Code,
    Cost,
    Generate,
    Generated,
    Judge,
    JudgeInput,
    Judgment,
    JudgmentSource,
    Message,
    Reflection,
    Steps,
    UserError,
    count_of,
    model_files,
    resolve_model,
)
from selfrag.judges.external import Late, WrappedJudge
from selfrag.judges.sentences import role_site
from selfrag.reflection.judge import usual_scope
from selfrag.reflection.requests import failure_of

if TYPE_CHECKING:
    from selfrag.engines.base import Engine

DEMO = "demo"
"""The critic of the package."""


class StudentJudge(Judge):
    """A trained critic as the judge of one group."""

    cost = Cost.PREFILL

    def __init__(
        self,
        group: str,
        codec: CaseCodec,
        engine: Engine | None = None,
        *,
        exact: bool = False,
    ) -> None:
        """Judge by a model.

        Args:
            group: a key of `GROUPS`.
            codec: the prompt that the model was trained with, or another way of asking it.
            engine: where the model runs.
            exact: score every token of a label written as words. Otherwise a label is scored up to where it differs
                from the others of its group, which is all that a trained critic needs.
        """
        self.group, self.labels = group, GROUPS[group]
        self.name, self.scope = f"critic-{self.labels.role}", usual_scope(self.labels)
        self.codec, self.engine, self.exact = codec, engine, exact

    def judge(self, inputs: Sequence[JudgeInput]) -> Steps[list[Reflection]]:
        """Return one reflection an input; the probability mass on the labels of the group is its coverage."""
        # 1. Plan the requests of each input, and send all of them.
        end = (self.codec.eos_id,)
        plans: list[_Plan] = []
        for state in inputs:
            prompt = self.codec.prompt(Case(self.group, state))
            options = tuple(ids for ids in prompt.options if ids)
            offered = options if self.exact else distinguishing(options)
            requests = option_requests(prompt.ids, offered, end)
            plans.append(_Plan(state, prompt, offered, requests))
        results = iter((yield [request for plan in plans for request in plan.requests]))
        # 2. Read the labels' log-probabilities off their results.
        reflections = []
        for plan in plans:
            answers = list(islice(results, len(plan.requests)))
            served = [answer for answer in answers if isinstance(answer, Generated)]
            failures = [failure_of(a) for a in answers if not isinstance(a, Generated)]
            if failures:
                reason = f"the engine could not judge a case: {failures[0]}"
                reflections.append(Reflection.failed(plan.state, reason))
                continue
            values = option_logprobs(
                plan.requests, served, plan.prompt.ids, plan.offered, end
            )
            remaining = iter(values)
            by_label = [
                next(remaining) if ids else -math.inf for ids in plan.prompt.options
            ]
            reflections.append(self._reflection(plan.state, by_label))
        return reflections

    def _reflection(self, state: JudgeInput, logprobs: Sequence[float]) -> Reflection:
        """Return the judgment; undefined where no label got any probability."""
        if any(map(math.isnan, logprobs)) or max(logprobs) == -math.inf:
            return Reflection(state)
        site = role_site(self.labels.role, state)
        judgment = Judgment.from_logprobs(
            self.labels, logprobs, site=str(site), source=JudgmentSource.JUDGE
        )
        return Reflection.of(state, site, judgment)


@dataclass(frozen=True, slots=True)
class _Plan:
    state: JudgeInput
    prompt: CriticPrompt
    # ids of the labels that are offered, as far as they are scored
    offered: tuple[Ids, ...]
    requests: list[Generate]


def student_critic(engine: Engine, codec: CaseCodec, *, exact: bool = False) -> Critic:
    """Return a model on an engine as the critic of all groups; see `StudentJudge`."""
    room = engine.limits.max_model_len
    if room is not None and codec.max_length > room:
        raise UserError(
            f"prompts of up to {count_of(codec.max_length, 'tokens', 'do')} not fit the engine's"
            f" max_model_len={room}; raise it"
        )
    judges = {
        group: StudentJudge(group, codec, engine, exact=exact) for group in GROUPS
    }
    return Critic(judges, engine, partial(_is_cut, codec))


def _is_cut(codec: CaseCodec, case: Case) -> bool:
    return bool(codec.prompt(case).dropped)


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
) -> Critic:
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
    from selfrag.interface import load_engine, load_tokenizer

    directory = resolve_critic(model_dir)
    codec = read_card(directory, load_tokenizer(directory))
    if is_encoder_decoder(directory):
        return Critic(label_judges(directory, codec), is_cut=partial(_is_cut, codec))
    return student_critic(load_engine(engine, directory, **options), codec)


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


class _Claims(WrappedJudge):
    """A critic's IsSup of claims without an instruction, as `selfrag eval judge` asks.

    The title that `selfrag.judges.entailment.premise` wrote in front of a passage becomes one again, and the
    instruction names it, as in the critic's training rows of claims.
    """

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
