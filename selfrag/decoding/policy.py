"""`Decoding`: every choice a user can make at inference, as one frozen value, with the presets `paper` and `official`.

Numbers and formulas: arXiv 2310.11511, sections 3.3 and 4.3 and appendix A.4.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from itertools import accumulate as running
from itertools import groupby
from typing import Any, Literal, get_args, get_type_hints

from selfrag.common.checks import check_choice, check_float, check_int, unknown_name
from selfrag.common.errors import UserError
from selfrag.decoding.terms import (
    REPLACEABLE,
    Guardrail,
    ScoreTerm,
    as_label,
    distinct_roles,
    parts,
)
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import CRITIQUES, Role, group
from selfrag.reflection.weights import TOKEN_TERMS, Weights

Action = Literal["retrieve", "continue", "write", "abstain"]
TokenConstraint = Mapping[Role, frozenset[str]]
LikelihoodKind = Literal["segment", "all", "product", "none"]
SegmentEnd = Literal["retrieve", "retrieval", "completion"]
WithoutEvidence = Literal["abstain", "write"]
RewriteScope = Literal["retrieval", "conversation", "alone"]
"""What a rewrite of the question changes, see `selfrag.intrinsics.flows.Rewrite`."""


class AnswerReason(StrEnum):
    """Why an answer abstains, or was written without the evidence that was looked for."""

    # the search, or the evidence of the caller, held no passage
    NOTHING_FOUND = "nothing found"
    NOTHING_LEFT = "every passage left out"  # guardrails dropped all that were found
    GUARDRAIL = "guardrail"  # a guardrail, or a stage of a flow, refused
    CONSTRAINTS = "constraints not met"  # no candidate met `require`, `forbid` and the limits of judges
    # the reply was empty or reasoning alone; `Answer.note` says which
    NO_TEXT = "no text"
    # the model wrote that it has no answer, such as `I don't know.`, or its server says so in place of a text: by a
    # field or a content filter, and `Node.remark` begins with these words
    REFUSED = "the model refused"
    # the model asked for a search, and its budget has none
    NO_SEARCH = "no search left"


def constraint(
    labels_by_group: Mapping[str, str | Iterable[str]] | None,
) -> TokenConstraint:
    """Normalise `{"issup": "Fully supported"}` or `{"isuse": ["4", "5"]}` to roles and canonical label names."""
    known = {labels.role for labels in CRITIQUES}
    result: dict[Role, frozenset[str]] = {}
    if not isinstance(labels_by_group, Mapping | None):
        raise UserError(
            f'constraint {labels_by_group!r:.80}: give groups and their labels, such as {{"issup": "Fully supported"}}'
        )
    for name, values in (labels_by_group or {}).items():
        labels = group(name)
        if labels.role not in known:
            raise UserError(
                f"constraint on {name!r}: only {', '.join(sorted(known))} can be constrained"
            )
        names = (
            list(values)
            if isinstance(values, Iterable) and not isinstance(values, str)
            else [values]
        )
        if not names:
            raise UserError(
                f"constraint on {name!r} names no label; known: {', '.join(labels.names)}"
            )
        result[labels.role] = frozenset(
            labels.names[labels.index(item)] for item in names
        )
    return result


def check_names(names: Iterable[str]) -> None:
    """Refuse names that are no fields of `Decoding`, with those like them."""
    known = Decoding.__dataclass_fields__
    for name in names:
        if name not in known:
            raise unknown_name(
                "setting", name, known, "`python -m pydoc selfrag.Decoding`"
            )


_UNREAD = {
    "adaptive": frozenset[str](),
    "always": frozenset({"threshold", "retrieve_test", "keep_evidence"}),
    "never": frozenset(
        {
            "threshold",
            "retrieve_test",
            "keep_evidence",
            "retrieve_once",
            "no_retrieval_branch",
            "without_evidence",
            "passages",
            "shortlist",
            "guardrails",
            "weights.isrel",
            "weights.issup",
        }
    ),
}
"""Settings that each mode never reads."""


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How to decode. Defaults differ from the paper in `undefined` and `aggregate`; `official` is the published code.

    Example:
        >>> policy = Decoding(mode="always", max_segments=2)
        >>> policy.max_segments, policy.beam, str(policy.weights)
        (2, 2, 'isrel=1,issup=1,isuse=0.5')

    Attributes:
        mode: when to retrieve; `adaptive` asks the model at each segment.
        threshold: retrieve above this ratio, in [0, 1]; None lets the most probable Retrieve token decide.
        retrieve_test: the ratio: `yes_no` (appendix A.4), `all` (section 3.3) or `log_ratio` (the official short form);
            `written` (the official long form) is `yes_no` where `[Retrieval]` also stands in the first 25 tokens.
        keep_evidence: when the next segment is written from the same passage: where Continue is the `most_probable`
            Retrieve token, or only `below_threshold`, where the ratio asks for no search (appendix A.4 to the letter).
            A threshold of 0 searches at every boundary.
        retrieve_once: keep the first search's passages for every later segment.
        no_retrieval_branch: beside the passages, also try the segment without any.
        without_evidence: where a search or the given evidence holds nothing: `abstain`, or `write` without evidence.
            Answers that are written so have `Answer.without_evidence` set. Where the model or `mode` decides not to
            search, this changes nothing.
        passages: passages per search that are written from, K.
        shortlist: passages per search that the model judges by IsRel, in one token each; the best `passages` of them
            are written from. None writes from the first `passages` that are found.
        beam: hypotheses kept after each segment, B.
        max_segments: most segments; 1 is the short form.
        segment_end: a segment ends at any Retrieve token, with the whole completion, or (`retrieval`, the official long
            form) at `[Retrieval]` and at a `[No Retrieval]` where p(Retrieval) + p(Continue) is above the threshold
            times p(Retrieval) + p(No Retrieval).
        segment_tokens: most new tokens of a segment.
        after_cut: what follows a segment that `segment_tokens` cut: `end` of the answer, or the next segment where
            `answer_tokens` are left (`go_on`; one more request reads whether to search).
        answer_tokens: most new tokens of a hypothesis over all its segments.
        passage_tokens: most tokens of a passage's body.
        weights: weights of the critiques in the segment score.
        calibrated: apply the temperatures and biases of the reflection tokens that a model brings, if it brings any.
        likelihood: p(y_t|..): the geometric mean over the tokens of the `segment` without its boundary or over `all`
            with it, the plain `product` of the segment's (Eq. 3 as it is printed), or `none`.
        undefined: for a critique that was not written: `skip` it, `force` reading it where it was due (IsUse at inner
            segments only where the model expects it, see `LEAST_COVERAGE`), or count `zero`.
        accumulate: how segment scores make up a path score.
        aggregate: what an option of a multiple choice gets from each passage: p(option|passage) times its critique
            (`product`), or plus its critique (`sum`, Eq. 3). Both are summed over the passages. With `vote` (the
            published code) the model writes after each passage, and the score goes to the text that it wrote.
        require: labels that a segment must have, by group; as an option GROUP=LABEL, such as `issup='Fully supported'`.
        forbid: labels that a segment must not have, by group.
        judges: other judges in the segment score; also as strings such as `citations` or `nli=issup`.
        survivors: candidates of a step that are judged by one token, by a new prefill, and by written text.
        guardrails: decisions before the writing; also as strings such as `answerability<0.5:abstain`.
        abstention: the text in place of an answer; see `Answer.reason` for when.
        history: what later segments see of earlier ones: everything, as in training; their `text`; what was `written`,
            which is the text with its reflection tokens; or what the official code shows (`leaked`): what was written,
            but where a segment is not from the first passage, what stood after the passage before it takes the place
            of the segment's parent.
        pool: answers that compete: every `finished` one, or (`deepest`, the official code) those that end at the
            deepest level; that code also keeps blank and repeated segments, which are left out otherwise.

    Raises:
        UserError: a value that is not allowed; the message names it.
    """

    mode: Literal["adaptive", "always", "never"] = "adaptive"
    threshold: float | None = 0.2
    retrieve_test: Literal["yes_no", "all", "log_ratio", "written"] = "yes_no"
    keep_evidence: Literal["most_probable", "below_threshold"] = "most_probable"
    retrieve_once: bool = False
    no_retrieval_branch: bool = False
    without_evidence: WithoutEvidence = "abstain"
    passages: int = 5
    shortlist: int | None = None

    beam: int = 2
    max_segments: int = 7
    segment_end: SegmentEnd = "retrieve"
    segment_tokens: int = 100
    after_cut: Literal["end", "go_on"] = "end"
    answer_tokens: int = 1024
    passage_tokens: int = 256

    weights: Weights = field(default_factory=Weights)
    calibrated: bool = True
    likelihood: LikelihoodKind = "segment"
    undefined: Literal["skip", "force", "zero"] = "skip"
    accumulate: Literal["mean", "sum", "product"] = "mean"
    aggregate: Literal["product", "sum", "vote"] = "product"
    require: Mapping[str, str | Iterable[str]] = field(default_factory=dict)
    forbid: Mapping[str, str | Iterable[str]] = field(default_factory=dict)

    judges: tuple[ScoreTerm, ...] = ()
    survivors: tuple[int, int, int] = (8, 4, 2)
    guardrails: tuple[Guardrail, ...] = ()
    abstention: str = "I don't know the answer"

    history: Literal["text+passages", "text", "written", "leaked"] = "text+passages"
    pool: Literal["finished", "deepest"] = "finished"

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for item in fields(self):
            value = getattr(self, item.name)
            hint = hints[item.name]
            choices = [choice for choice in get_args(hint) if isinstance(choice, str)]
            if choices:
                check_choice(item.name, value, choices)
            if hint is int:
                check_int(item.name, value)
            if hint is bool and not isinstance(value, bool):
                raise UserError(f"{item.name}={value!r:.80}: give True or False")
        if self.shortlist is not None:
            check_int("shortlist", self.shortlist, self.passages)
        if self.threshold is not None:
            check_float("threshold", self.threshold, 0, 1)
        if not isinstance(self.weights, Weights):
            raise UserError(
                f"weights={self.weights!r:.80}: give selfrag.Weights(isrel=.., issup=.., isuse=..)"
            )
        self._check_judges()
        object.__setattr__(self, "require", constraint(self.require))
        object.__setattr__(self, "forbid", constraint(self.forbid))

    @classmethod
    def official(cls, **changes: Any) -> Decoding:
        """Return what the published code does, where published numbers depend on it.

        Passages are searched once; a critique that was not emitted counts 0; scores multiply. Candidates are written
        without a stop at Retrieve tokens, and critiques are the first of their kind in the whole completion. The short
        form (`max_segments=1`) tests retrieval by the ratio of log-probabilities, weighs utility 1 and adds the
        likelihood over all generated tokens. The long form decides once whether to retrieve, cuts an evidence-based
        completion at its first `[Retrieval]`, continues from there with all passages, ignores the likelihood and reads
        utility as 0. It has no abstention, so `without_evidence` is `write`. Later prompts hold the text of a sibling
        (`leaked`), and answers that end before the deepest level are lost; `history="written", pool="finished"` is
        what the code evidently intends.

        Not reproduced: its crashes, shifted citations, `[Continue to Use Evidence]` in texts that vote, and the
        second-best answer to a question of ASQA whose best one is blank. Passages with equal text are written from
        once, and the test for retrieval in the short form generates one token in place of a whole answer, of which
        that code reads one.
        """
        settings: dict[str, Any] = {
            "retrieve_once": True,
            "without_evidence": "write",
            "calibrated": False,
            "undefined": "zero",
            "accumulate": "product",
            "aggregate": "vote",
            "history": "leaked",
            "pool": "deepest",
            "passage_tokens": 4096,
        }
        if changes.get("max_segments", 7) == 1:
            settings |= {
                "retrieve_test": "log_ratio",
                "segment_end": "completion",
                "likelihood": "all",
                "weights": Weights(isuse=1.0),
                "segment_tokens": 100,
            }
        else:
            settings |= {
                "retrieve_test": "written",
                "segment_end": "retrieval",
                "likelihood": "none",
                "weights": Weights(isuse=0.0),
                "segment_tokens": 300,
                "answer_tokens": 300 * changes.get("max_segments", 7),
            }
        return cls(**settings | changes)

    @classmethod
    def light(cls, **changes: Any) -> Decoding:
        """Return settings that cost little, for chat models whose critiques are prompts.

        IsRel of five passages picks the one that the answer is written from, in one segment, and the answer is judged
        by IsSup. There is no beam, and IsUse is not asked for.
        """
        settings: dict[str, Any] = {
            "shortlist": 5,
            "passages": 1,
            "beam": 1,
            "max_segments": 1,
            "segment_end": "completion",
            "segment_tokens": 200,
            "weights": Weights(isuse=0.0),
        }
        return cls(**settings | changes)

    @classmethod
    def strict(cls, **changes: Any) -> Decoding:
        """Return settings for documents that do not answer every question: passages of little relevance are left out.

        The judge `token_isrel` reads IsRel before anything is written, in one token a passage. Where no passage is
        left, the answer abstains. docs/results/reflection.md has what this costs the demo model. Another model needs a
        threshold of its own, and a model without reflection tokens the judge `prompt_isrel`.
        """
        settings: dict[str, Any] = {"guardrails": ("token_isrel<0.65:drop",)}
        return cls(**settings | changes)

    def check_effective(self, names: Iterable[str]) -> None:
        """Refuse settings that somebody asked for although the mode never reads them.

        Commands refuse them. `Decoding` and `generate` take them: programs, presets and sweeps set them with any mode.

        Args:
            names: fields that were asked for.

        Raises:
            UserError: a field has no effect in this mode.
        """
        unread = _UNREAD[self.mode]
        asks_to_retrieve = any(part.effect == "retrieve" for part in self.guardrails)
        if self.mode == "always" and asks_to_retrieve:
            unread |= {"guardrails"}
        for name in names:
            if name in unread:
                raise UserError(
                    f"{name} has no effect with mode={self.mode}; leave one of the two out"
                )

    def _check_judges(self) -> None:
        object.__setattr__(self, "judges", parts(self.judges, ScoreTerm))
        object.__setattr__(self, "guardrails", parts(self.guardrails, Guardrail))
        distinct_roles(self.judges)
        counts = self.survivors
        sound = isinstance(counts, tuple | list) and all(
            type(count) is int and count >= 1 for count in counts
        )
        if not sound or len(counts) != 3:
            raise UserError(
                f"survivors={counts!r:.80}: give three whole numbers of at least 1, such as (8, 4, 2)"
            )
        object.__setattr__(self, "survivors", tuple(counts))
        if not isinstance(self.abstention, str) or not self.abstention.strip():
            raise UserError(
                f"abstention={self.abstention!r:.80}: give the text of an answer that is none"
            )
        known = {part.judge for part in self.judges if part.replaces is None}
        for name in dict(self.weights.judges):
            if name not in known:
                raise UserError(
                    f"weight of {name!r}: no judge of that name has a term in the score"
                )

    @property
    def searched(self) -> int:
        """Return the number of passages per search."""
        return self.shortlist or self.passages

    @cached_property
    def terms(self) -> tuple[str, ...]:
        """Names of the terms of the segment score: the three critiques, then each judge with a term of its own."""
        return (
            *TOKEN_TERMS,
            *(part.judge for part in self.judges if part.replaces is None),
        )

    @cached_property
    def term_weights(self) -> tuple[float, ...]:
        """Weights of `terms`."""
        return self.weights.row(self.terms)

    @cached_property
    def replaced(self) -> Mapping[Role, str]:
        """Critique to the judge that stands in for the model's own token."""
        return {
            part.replaces: part.judge
            for part in self.judges
            if part.replaces is not None
        }

    def cascade_levels(
        self, costs: Mapping[str, int]
    ) -> list[tuple[int, tuple[ScoreTerm, ...]]]:
        """Return the judges of the score by their cost, cheapest first; one that was never there costs nothing."""
        cost = {term.judge: costs.get(term.judge, 0) for term in self.judges}
        ordered = sorted(self.judges, key=lambda term: cost[term.judge])
        return [
            (level, tuple(terms))
            for level, terms in groupby(ordered, key=lambda term: cost[term.judge])
        ]

    def level_capacity(self, cost: int) -> int | None:
        """Return how many candidates of a step continue from a level; None for all."""
        return None if cost <= 0 else self.survivors[min(cost, 3) - 1]

    def capacities(self, costs: Mapping[str, int], candidates: int) -> list[int]:
        """Return how many candidates of a step continue from each level: never more than from the level before."""
        capacities = [
            self.level_capacity(cost) or candidates
            for cost, _ in self.cascade_levels(costs)
        ]
        return list(running(capacities, min))

    @cached_property
    def own(self) -> frozenset[Role]:
        """Roles that the model's own critiques are asked for: no judge stands in for them."""
        return REPLACEABLE - self.replaced.keys()

    @cached_property
    def forced(self) -> frozenset[Role]:
        """Roles of the model's own critiques that must be defined."""
        if self.undefined == "force":
            return self.own
        roles = set(map(Role, (*self.require, *self.forbid)))
        if self.undefined == "zero":
            roles.add(Role.RELEVANCE)
        return self.own & roles

    def allows(
        self,
        judgments: Mapping[Role, Judgment | None],
        roles: Collection[Role] = REPLACEABLE,
    ) -> bool:
        """Return whether a segment with these critiques meets the hard constraints on `roles`.

        A required critique that is undefined is not met; an undefined one is never forbidden.
        """
        for name, required in self.require.items():
            role = Role(name)
            judgment = judgments.get(role)
            if role in roles and (
                judgment is None or as_label(judgment, role) not in required
            ):
                return False
        for name, forbidden in self.forbid.items():
            role = Role(name)
            judgment = judgments.get(role)
            if (
                role in roles
                and judgment is not None
                and as_label(judgment, role) in forbidden
            ):
                return False
        return True

    def goes_on(self, cut: bool, spent: int, segments: int) -> bool:
        """Return whether the next segment follows one that its budget cut, after so many tokens and segments."""
        left = spent < self.answer_tokens and segments < self.max_segments
        return cut and left and self.after_cut == "go_on"

    def retrieval_score(self, judgment: Judgment) -> float:
        """Return the number that is compared with the threshold, in [0, 1]."""
        yes, no, _ = judgment.distribution
        if self.retrieve_test == "all":
            return yes
        if self.retrieve_test in ("yes_no", "written"):
            return yes / (yes + no) if yes + no > 0 else 0.0
        tiny = 1e-38
        log_yes, log_no = (
            min(0.0, math.log(max(p * judgment.coverage, tiny))) for p in (yes, no)
        )
        return log_yes / (log_yes + log_no) if log_yes + log_no < 0 else 0.5

    def action(
        self, judgment: Judgment | None, *, has_evidence: bool
    ) -> tuple[Action, str]:
        """Return what to do at a segment boundary, and why; `judgment` is None in the modes that need none."""
        if self.mode != "adaptive":
            return (
                "retrieve" if self.mode == "always" else "write"
            ), f"mode={self.mode}"
        if judgment is None:
            return "write", "no Retrieve distribution"
        if has_evidence and self.segment_end == "retrieval":
            return "retrieve", "[Retrieval] was written"
        yes, no, keep = judgment.distribution
        continues = has_evidence and keep > max(yes, no)
        kept = f"p(Continue)={keep:.3f} is highest"
        if self.threshold is None:
            if continues:
                return "continue", kept
            return (
                "retrieve" if yes > no else "write"
            ), f"p(Retrieval)={yes:.3f}, p(No Retrieval)={no:.3f}"
        score = self.retrieval_score(judgment)
        above = score > self.threshold
        threshold_wins = self.threshold == 0 or self.keep_evidence == "below_threshold"
        if continues and not (above and threshold_wins):
            return "continue", kept
        if above:
            return "retrieve", f"{score:.3f} > {self.threshold:g}"
        return "write", f"{score:.3f} <= {self.threshold:g}"
