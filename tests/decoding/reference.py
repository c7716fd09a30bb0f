"""Self-RAG decoding by brute force, to compare the decoder with: Algorithm 1, Eq. 3-4 and appendix A.4 of the paper.

Written from arXiv 2310.11511 and from what README and docstrings promise, for one question at a time and one request
at a time. It builds its own prompts, reads probabilities by token id and scores every path from its raw numbers again.
With `selfrag.decoding` it shares the values of requests and settings, and nothing that computes.
"""

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeVar

from scripted import ScriptedEngine

from retrieval.passage import Passage
from selfrag.engines.base import EngineLimits
from selfrag.reflection.requests import Failed, Finish, Generate

EOS, BOS, FIRST = 0, 40, 100
LIMITS = EngineLimits(max_model_len=4096, vocab_size=FIRST + 0x110000)
# The table of the published checkpoints, counted from 1.
(
    NO,
    YES,
    KEEP,
    IRRELEVANT,
    RELEVANT,
    OPEN,
    CLOSE,
    U1,
    U2,
    U3,
    U4,
    U5,
    FULLY,
    PARTIALLY,
    CONTRADICTED,
) = range(1, 16)
RETRIEVE = (YES, NO, KEEP)
GROUPS = {
    "isrel": (RELEVANT, IRRELEVANT),
    "issup": (FULLY, PARTIALLY, CONTRADICTED),
    "isuse": (U1, U2, U3, U4, U5),
}
VALUES = {
    "isrel": (1.0, 0.0),
    "issup": (1.0, 0.5, 0.0),
    "isuse": (-1.0, -0.5, 0.0, 0.5, 1.0),
}
NAMES = {
    "isrel": ("Relevant", "Irrelevant"),
    "issup": ("Fully supported", "Partially supported", "No support / Contradictory"),
    "isuse": ("1", "2", "3", "4", "5"),
}
WATCHED = (*RETRIEVE, *(i for ids in GROUPS.values() for i in ids))
DUE = {
    "passage": ("isrel", "issup", "isuse"),
    "continue": ("issup", "isuse"),
    "none": ("isuse",),
}
NEAR = 1e-9
LEAST = 0.01  # probability of a critique group below which what is read there is noise

T = TypeVar("T")
Distribution = tuple[float, ...]


class Unanswerable(Exception):  # noqa: N818 - what the question is, for the tests
    """No answer can be given."""


class Refused(Exception):  # noqa: N818 - what became of a request
    """The engine did not serve a request."""


@dataclass
class Said:
    """What the reference answers."""

    text: str
    segments: list  # text and cited passage of each
    score: float | None  # of the winning path; None without one
    # whether two candidates were compared whose scores differ by rounding only: another order of the same arithmetic
    # may choose otherwise
    close: bool = False


@dataclass(eq=False)
class Step:
    """A candidate segment with its path; the numbers are raw."""

    before: "Step | None"
    number: int
    branch: str = "none"
    passage: Passage | None = None
    prefix: tuple = ()
    ids: tuple = ()
    likelihood: float = 0.0
    critiques: dict = field(default_factory=dict)
    # critiques that the model did not expect where they were read
    noise: set = field(default_factory=set)
    boundary: tuple | None = None  # raw probabilities of Retrieve
    ended_itself: bool = False  # by EOS
    over: bool = False  # nothing may follow
    spent: int = 0

    @property
    def path(self):
        return [
            *(self.before.path if self.before else []),
            *([self] if self.number >= 0 else []),
        ]

    @property
    def written(self):
        return tuple(i for i in self.ids if i >= FIRST)

    @property
    def text(self):
        """A space stands for reflection tokens between two words that would touch."""
        text, gap = "", False
        for i in self.ids:
            if i < FIRST:
                gap = bool(text)
                continue
            character = chr(i - FIRST)
            text += " " if gap and touch(text[-1], character) else ""
            text, gap = text + character, False
        return text

    @property
    def evidence(self):
        return next(
            (step.passage for step in reversed(self.path) if step.passage is not None),
            None,
        )

    @property
    def bare(self):
        return not self.text.strip()


def touch(left, right):
    """Whether a word begins right after another one or its full stop, of the texts of `random_model`."""
    begins = left.isalnum() and right.isupper() and not left.isupper()
    return right.isalnum() and (left in ".%" or begins)


def characters(text):
    return tuple(FIRST + ord(c) for c in text)


def prompt(question):
    return (BOS, *characters(f"### Instruction:\n{question}\n\n### Response:\n"))


def shown(passage, most):
    return (OPEN, *characters(f"{passage.title}\n{passage.text}")[:most], CLOSE)


def share(probabilities):
    """Probabilities that sum to 1."""
    total = math.fsum(probabilities)
    return tuple(p / total for p in probabilities)


def first_best(values):
    """Position of the highest; the first of equals."""
    return max(range(len(values)), key=lambda i: (values[i], -i))


ABSTENTION = "I don't know the answer"


class Asked:
    """A generation: its ids, and the probability of each watched id at each position."""

    def __init__(self, result, watched):
        self.ids = result.token_ids
        self.logprobs = result.token_logprobs
        self.finish = result.finish
        self.rows = [
            dict(zip(watched, map(float, row), strict=True)) for row in result.watched
        ]

    def raw(self, position, ids):
        return tuple(math.exp(self.rows[position][i]) for i in ids)

    def share(self, position, ids):
        """Normalised over the group; the common factor is taken out first, since it may underflow."""
        logs = [self.rows[position][i] for i in ids]
        return share([math.exp(log - max(logs)) for log in logs])

    def critique(self, position, name, noise):
        """A critique, noted where the model gives its tokens next to no probability."""
        if math.fsum(self.raw(position, GROUPS[name])) < LEAST:
            noise.add(name)
        return self.share(position, GROUPS[name])


class Reference:
    """Decodes one question."""

    def __init__(
        self,
        model,
        search,
        policy,
        evidence=None,
    ):
        self.engine = ScriptedEngine(model, EOS, limits=LIMITS)
        self.search, self.policy, self.evidence = search, policy, evidence
        self.kept = None  # of the first search
        self.count, self.failed, self.close = 0, 0, False
        self.forbidden, self.nothing = False, False  # of the first step
        self.reason = ""

    def ask(
        self,
        ids,
        most=1,
        *,
        stop=(),
        **options,
    ):
        watched = options.pop("watch_ids", WATCHED)
        self.engine.submit(Generate(ids, most, stop, watch_ids=watched, **options))
        ((_, result),) = self.engine.step()
        if isinstance(result, Failed):
            raise Refused(result.reason)
        return Asked(result, watched)

    @property
    def deepest(self):
        """Whether only answers of the deepest level count, and every segment does."""
        return self.policy.pool == "deepest"

    # --- deciding and searching

    def start(self, question):
        root = Step(None, -1, prefix=prompt(question))
        if self.policy.mode == "adaptive":
            try:
                root.boundary = self.ask(root.prefix).raw(0, RETRIEVE)
            except Refused as reason:
                raise Unanswerable(
                    f"the model could not read the question: {reason}"
                ) from reason
        return root

    def action(self, step):
        """Line 2 and 3 of Algorithm 1; the tests are those of A.4, of section 3.3 and of the published code."""
        policy, raw = self.policy, step.boundary
        if policy.mode != "adaptive":
            return {"always": "retrieve", "never": "write"}[policy.mode]
        assert raw is not None
        yes, no, keep = raw
        if step.evidence is not None and policy.segment_end == "retrieval":
            return "retrieve"
        continues = step.evidence is not None and keep > max(yes, no)
        by_threshold = (
            policy.threshold == 0 or policy.keep_evidence == "below_threshold"
        )
        if continues and (policy.threshold is None or not by_threshold):
            return "continue"
        if policy.threshold is None:
            return "retrieve" if yes > no else "write"
        if policy.retrieve_test == "yes_no":
            score = yes / (yes + no)
        elif policy.retrieve_test == "all":
            score = yes / (yes + no + keep)
        else:
            # the random models' numbers may sum to more than 1
            size = max(1.0, math.fsum(raw))
            log_yes, log_no = math.log(yes / size), math.log(no / size)
            score = log_yes / (log_yes + log_no)
        if abs(score - policy.threshold) < 1e-6:  # the engine's numbers have 24 bits
            self.close = True
        if score > policy.threshold:
            return "retrieve"
        return "continue" if continues else "write"

    def find(self, question, step):
        found = self.evidence if self.evidence is not None else self.kept
        if found is None:
            last = step.text.strip()
            once = self.policy.retrieve_once or not last
            found = self.search(question if once else f"{question} {last}")[
                : self.searched
            ]
            if self.policy.retrieve_once:
                self.kept = list(found)
        distinct = []
        for passage in found:
            known = any(
                (p.title, p.text) == (passage.title, passage.text) for p in distinct
            )
            if passage.text.strip() and not known:
                distinct.append(passage)
        return self.shortlisted(step, distinct[: self.searched])

    @property
    def searched(self):
        return self.policy.shortlist or self.policy.passages

    def shortlisted(self, step, passages):
        """The best by IsRel of a longer list, those that could not be judged last."""
        if self.policy.shortlist is None:
            return passages
        scores = []
        for passage in passages:
            scores.append(-1.0)
            with suppress(Refused):
                asked = self.ask(
                    (*step.prefix, YES, *shown(passage, self.policy.passage_tokens))
                )
                scores[-1] = asked.share(0, GROUPS["isrel"])[0]
        order = sorted(range(len(passages)), key=lambda i: -scores[i])
        return [passages[i] for i in order[: self.policy.passages]]

    # --- writing and judging

    def candidates(self, question, step):
        """Everything that can follow a step (lines 3 to 10 of Algorithm 1)."""
        action = self.action(step)
        sources = []
        if action == "retrieve":
            sources = [("passage", passage) for passage in self.find(question, step)]
        elif action == "continue":
            sources = [("continue", step.evidence)]
        if (
            action == "retrieve"
            and not sources
            and self.policy.without_evidence == "abstain"
        ):
            self.nothing |= step.before is None
            return []
        if not sources or (action == "retrieve" and self.policy.no_retrieval_branch):
            sources.append(("none", None))
        return [self.candidate(step, branch, passage) for branch, passage in sources]

    def candidate(self, before, branch, passage):
        policy, again = self.policy, self.policy.history != "text+passages"
        begin = (NO,)
        if branch == "continue" and not again:
            begin = (KEEP,)
        elif passage is not None:
            begin = (YES, *shown(passage, policy.passage_tokens))
        step = Step(before, self.count, branch, passage, (*before.prefix, *begin))
        self.count += 1
        most = max(1, min(policy.segment_tokens, policy.answer_tokens - before.spent))
        try:
            asked = self.ask(
                step.prefix,
                most,
                stop=RETRIEVE if policy.segment_end == "retrieve" else (),
            )
        except Refused as reason:
            self.failed += 1
            self.reason = self.reason or str(reason)
            step.branch = "failed"
            return step
        whole = (
            asked.ids[:-1] if asked.finish in (Finish.STOP, Finish.EOS) else asked.ids
        )
        end, cuts = len(whole), False
        if policy.segment_end == "retrieval" and passage is not None:
            places = (i for i in range(len(asked.ids)) if self.retrieves(asked, i))
            end = next(places, None)
            cuts = end is not None
            end = end if cuts else len(whole)
        step.ids = whole[:end]
        stopped = cuts or asked.finish is Finish.STOP
        step.spent = before.spent + (len(step.ids) + 1 if cuts else len(asked.ids))
        step.ended_itself = asked.finish is Finish.EOS
        if stopped:
            step.boundary = asked.raw(end, RETRIEVE)
        own = asked.logprobs[: len(whole)]
        counted = {"segment": own, "product": own, "all": asked.logprobs, "none": ()}[
            policy.likelihood
        ]
        root = 1 if policy.likelihood == "product" else len(counted)
        step.likelihood = (
            math.prod(math.exp(p) for p in counted) ** (1 / root) if counted else 0.0
        )
        last = len(before.path) + 1 == policy.max_segments
        goes_on = (
            policy.after_cut == "go_on" and asked.finish is Finish.BUDGET and not last
        )
        goes_on = goes_on and not stopped and step.spent < policy.answer_tokens
        self.criticise(step, asked, whole, end, goes_on=goes_on)
        step.over = step.boundary is None or step.spent >= policy.answer_tokens
        own_part = step.written if policy.history == "text" else step.ids
        step.prefix = (*(before.prefix if again else step.prefix), *own_part)
        return step

    def retrieves(self, asked, place):
        """Whether the published long form reads `[Retrieval]` there."""
        threshold = self.policy.threshold
        if asked.ids[place] == NO and threshold is not None:
            yes, no, keep = asked.share(place, RETRIEVE)
            return yes + keep > threshold * (yes + no)
        return asked.ids[place] == YES

    def criticise(
        self,
        step,
        asked,
        whole,
        end,
        *,
        goes_on,
    ):
        """Critiques where they were emitted; else, if the settings need them, where they were due.

        `whole` was written and may be longer than the segment, which ends before position `end`.
        """
        needed = (
            set(GROUPS)
            if self.policy.undefined == "force"
            else {*map(str, self.policy.require)}
        )
        needed |= {
            *map(str, self.policy.forbid),
            *(("isrel",) if self.policy.undefined == "zero" else ()),
        }
        late = []
        for name in DUE[step.branch]:
            ids = GROUPS[name]
            places = [i for i, token in enumerate(whole) if token in ids]
            if name == "isrel":
                places = [0] if asked.ids and (0 in places or name in needed) else []
            if not places and name in needed and end < len(asked.ids):
                control = [
                    i
                    for i in range(end + 1)
                    if asked.ids[i] < FIRST and asked.ids[i] not in GROUPS["isrel"]
                ]
                places = [control[0] if name == "issup" else end]
            step.critiques[name] = (
                asked.critique(places[0], name, step.noise) if places else None
            )
            if not places and name in needed:
                late.append(name)
        if late or goes_on:
            with suppress(Refused):
                more = self.ask((*step.prefix, *step.ids))
                step.critiques |= {
                    name: more.critique(0, name, step.noise) for name in late
                }
                if goes_on:
                    step.boundary = more.raw(0, RETRIEVE)

    def allowed(self, critiques):
        for rule, wanted in ((self.policy.require, True), (self.policy.forbid, False)):
            for name, labels in rule.items():
                found = critiques.get(str(name))
                if found is None:
                    if wanted:
                        return False
                elif (NAMES[str(name)][first_best(found)] in labels) is not wanted:
                    return False
        return True

    def usable(self, step):
        if step.branch == "failed":
            return False
        earlier = [one.written for one in step.path[:-1]]
        allowed = self.allowed(step.critiques)
        self.forbidden |= not allowed and not earlier
        if self.deepest:
            return allowed
        if step.bare and not (step.ended_itself and earlier):
            return False
        if not step.bare and step.written in earlier:
            return False
        return allowed

    # --- scores

    def segment_score(self, step):
        """Eq. 3 and 4 with the group scores of A.4."""
        return step.likelihood + self.critique(step.critiques, step.noise)

    def critique(self, critiques, noise):
        weights = self.policy.weights
        weight = {
            "isrel": weights.isrel,
            "issup": weights.issup,
            "isuse": weights.isuse,
        }
        total, present = 0.0, 0.0
        for name, values in VALUES.items():
            found = critiques.get(name)
            if found is not None and (
                name not in noise or self.policy.undefined == "zero"
            ):
                total += weight[name] * math.fsum(
                    p * value for p, value in zip(found, values, strict=True)
                )
                present += abs(weight[name])
        if self.policy.undefined != "zero" and present > 0:
            total *= math.fsum(map(abs, weight.values())) / present
        return total

    def path_score(self, step):
        path = step.path
        counted = [one for one in path if self.deepest or not one.bare]
        scores = [self.segment_score(one) for one in counted] or [
            self.segment_score(path[0])
        ]
        if self.policy.accumulate == "product":
            return math.prod(scores)
        return math.fsum(scores) / (
            len(scores) if self.policy.accumulate == "mean" else 1
        )

    def ranked(self, steps):
        """Best first; the earlier of equals first."""
        scores = {step: self.path_score(step) for step in steps}
        return self.sorted_by(
            sorted(steps, key=lambda step: step.number), scores.__getitem__
        )

    # --- the search

    def decode(self, question):
        """Segment-level beam search (section 3.3): every finished hypothesis stays in the running.

        Raises:
            Unanswerable: the question could not be read, or no candidate could be generated.
        """
        live, finished = [self.start(question)], list[Step]()
        for depth in range(1, self.policy.max_segments + 1):
            usable = []
            for step in live:
                following = [
                    one for one in self.candidates(question, step) if self.usable(one)
                ]
                if not following and step.before is not None:
                    finished.append(step)  # nothing follows, so the answer ends there
                usable += following
            if self.deepest and usable:
                finished = []
            places, taken, live = 0, set[Any](), list[Step]()
            for step in self.ranked(usable):
                over = step.over or depth == self.policy.max_segments
                key = (
                    tuple(one.written for one in step.path),
                    over,
                    self.deepest and step,
                )
                if key in taken:
                    continue
                taken.add(key)
                places += 1
                if over:
                    finished.append(step)
                elif places <= self.policy.beam:
                    live.append(step)
            live.sort(key=lambda step: step.number)
            if not live:
                break
        if not finished and (self.nothing or self.forbidden):
            return Said(ABSTENTION, [], None, self.close)
        if not finished and self.count == self.failed:
            raise Unanswerable(f"no candidate could be generated: {self.reason}")
        return self.said(self.ranked(finished)[0] if finished else None)

    def said(self, best):
        """Text and citations of a path: texts joined by a space, but none next to white space or before punctuation."""
        text, segments, cited = "", list[tuple[str, Passage | None]](), None
        for step in best.path if best is not None else ():
            if step.branch == "passage" and step.passage is not None:
                relevance = step.critiques.get("isrel")
                cited = (
                    None
                    if relevance is not None and first_best(relevance) == 1
                    else step.passage
                )
            if step.bare:
                continue
            body = step.text.strip(" ") if segments else step.text.lstrip().rstrip(" ")
            glued = (
                not text
                or text[-1].isspace()
                or body[0].isspace()
                or body[0] in ".,;:!?)]}%"
            )
            text += body if glued else f" {body}"
            segments.append((body, None if step.branch == "none" else cited))
        return Said(
            text, segments, None if best is None else self.path_score(best), self.close
        )

    # --- closed sets

    def choose(self, question, options):
        """The option with the highest sum over the passages of its probability times, or plus, its critique.

        With `vote` it is the text that was written, with the highest sum of its scores.

        Raises:
            Unanswerable: the question could not be read, or no option could be scored.
        """
        root = self.start(question)
        retrieves = self.action(root) == "retrieve"
        passages = [*self.find(question, root)] if retrieves else []
        if retrieves and not passages and self.policy.without_evidence == "abstain":
            return Said(ABSTENTION, [], None, self.close)
        if not passages or self.policy.no_retrieval_branch:
            passages.append(None)
        if self.policy.aggregate == "vote":
            return self.vote(root, passages)
        found = []
        for passage in passages:
            try:
                found += self.option_row(root.prefix, passage, options)
            except Refused as reason:
                self.reason = self.reason or str(reason)
        if not found:
            raise Unanswerable(f"no option could be scored: {self.reason}")
        scored = [one for one in found if one.allowed]
        if self.policy.aggregate == "sum":
            scored = [
                replace(one, probability=one.probability + one.weight, weight=1.0)
                for one in scored
            ]
        if not any(one.weight > 0 for one in scored):
            scored = [replace(one, weight=1.0) for one in scored]
        totals = {}
        for one in scored:
            totals[one.text] = totals.get(one.text, 0.0) + one.part
        order = self.sorted_by(
            sorted(totals, key=options.index), lambda text: totals[text]
        )
        if not order:
            return Said(ABSTENTION, [], None, self.close)  # no option is allowed
        best = self.sorted_by(
            [one for one in scored if one.text == order[0]], lambda one: one.part
        )[0]
        return Said(
            best.text.strip(" "),
            [(best.text, best.cited)],
            totals[best.text],
            self.close,
        )

    def vote(self, root, passages):
        """What is written after each passage, by the sum of the scores of equal texts."""
        steps = [
            self.candidate(root, "none" if one is None else "passage", one)
            for one in passages
        ]
        if self.count == self.failed:
            raise Unanswerable(f"no candidate could be generated: {self.reason}")
        totals = {}
        for step in filter(self.usable, steps):
            text = step.text.strip()
            totals[text] = totals.get(text, 0.0) + self.segment_score(step)
        if not totals:
            return Said(ABSTENTION if self.forbidden else "", [], None, self.close)
        order = {
            text: i
            for i, text in enumerate(dict.fromkeys(step.text.strip() for step in steps))
        }
        best = self.sorted_by(
            sorted(totals, key=order.__getitem__), totals.__getitem__
        )[0]
        votes = [
            step for step in steps if self.usable(step) and step.text.strip() == best
        ]
        step = self.sorted_by(votes, self.segment_score)[0]
        relevance = step.critiques.get("isrel")
        cited = (
            None
            if relevance is not None and first_best(relevance) == 1
            else step.passage
        )
        return Said(best, [(best, cited)] if best else [], totals[best], self.close)

    def sorted_by(self, items, score):
        """Best first; the earlier of equals first. Notes scores that differ by rounding only."""
        found = sorted(items, key=lambda one: -score(one))
        for one, other in pairwise(map(score, found)):
            self.close |= 0 < abs(one - other) < NEAR * max(1.0, abs(one))
        return found

    def option_row(self, prefix, passage, options):
        """Every option after one passage, spelt out token by token."""
        relevance, branch, cited, noise = None, "none", None, set[str]()
        if passage is None:
            prefix = (*prefix, NO)
        else:
            branch = "passage"
            prefix = (*prefix, YES, *shown(passage, self.policy.passage_tokens))
            relevance = self.ask(prefix).critique(0, "isrel", noise)
            prefix = (*prefix, GROUPS["isrel"][first_best(relevance)])
            cited = passage if first_best(relevance) == 0 else None
        logs = [self.spelt(prefix, option, options) for option in options]
        row = []
        for option, probability in zip(
            options, share([math.exp(log - max(logs)) for log in logs]), strict=True
        ):
            critiques = {"isrel": relevance}
            here = (*prefix, *characters(option))
            for name in DUE[branch]:
                if name != "isrel":
                    support = critiques.get("issup")
                    after = (
                        ()
                        if support is None
                        else (GROUPS["issup"][first_best(support)],)
                    )
                    with suppress(Refused):
                        critiques[name] = self.ask((*here, *after)).critique(
                            0, name, noise
                        )
            row.append(
                Option(
                    option,
                    cited,
                    probability,
                    self.critique(critiques, noise),
                    self.allowed(critiques),
                )
            )
            noise = noise & {"isrel"}
        return row

    def spelt(self, prefix, option, options):
        """Log-probability of an option; where another one begins with it, also that it ends there."""
        ids = characters(option)
        asked = [(ids[:i], (token,)) for i, token in enumerate(ids)]
        if any(other != option and other.startswith(option) for other in options):
            asked.append((ids, (EOS, *range(1, 16))))
        rows = [
            self.ask((*prefix, *written), watch_ids=watched).rows[0]
            for written, watched in asked
        ]
        return math.fsum(
            math.log(math.fsum(math.exp(log) for log in row.values())) for row in rows
        )


@dataclass(frozen=True)
class Option:
    """An option after one passage: its probability among the options, its critique, whether it is allowed."""

    text: str
    cited: Passage | None
    probability: float
    weight: float
    allowed: bool

    @property
    def part(self):
        return self.probability * max(0.0, self.weight)
