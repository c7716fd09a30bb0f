"""The `official` preset: scores of the published code on examples worked out by hand from its formulas."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from written import EOS, FIRST_CHARACTER, PROMPTING, VOCABULARY, passages, run

from retrieval.passage import Passage
from selfrag.decoding.policy import Decoding
from selfrag.decoding.requests import Generate
from selfrag.engines.scripted import Reply
from selfrag.errors import UserError
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, RETRIEVE

SHORT, LONG = Decoding.official(max_segments=1), Decoding.official()
D1 = "[Retrieval]<d1>"


def retrieve_row(log_yes: float, log_no: float) -> Judgment:
    return Judgment.from_logprobs(RETRIEVE, [log_yes, log_no, -math.inf], site="start")


@pytest.mark.parametrize(("log_yes", "log_no", "ratio"), [(-0.01, -5, 0.002), (-2, -0.2, 0.909), (-1, -1, 0.5)])
def test_short_form_tests_the_ratio_of_log_probabilities(log_yes: float, log_no: float, ratio: float) -> None:
    assert SHORT.retrieval_score(retrieve_row(log_yes, log_no)) == pytest.approx(ratio, abs=6e-4)


def test_long_form_tests_the_ratio_of_probabilities() -> None:
    assert LONG.retrieval_score(retrieve_row(-0.01, -5)) == pytest.approx(0.9933, abs=1e-4)


def test_long_form_searches_once_and_drops_earlier_passages() -> None:
    tree = {
        D1: "[Relevant]A.[Fully supported]{retrieve 1 0 0}lost</s>",
        "A." + D1: "[Relevant]B.[Fully supported]</s>",
    }
    found = run(tree, "d1", policy=Decoding.official(mode="always"))
    assert found.searches.queries == ["Q"]
    assert found.prompts == [D1, "A." + D1]
    assert found.answer.text == "A. B."
    assert found.node("B.").path_score == pytest.approx(4.0)


# --- completions with Retrieve tokens in them, against the published formulas ----------------------------------------


class Published:
    """The published formulas on a scripted model, written down from `run_short_form.py` and `run_long_form_static.py`.

    Scores and cuts are as there. A finished answer stays in the running, which there it does not.
    """

    def __init__(self, model: Callable[[Generate], Reply], evidence: Sequence[Passage], *, long: bool) -> None:
        self.model, self.evidence, self.long = model, evidence, long
        self.scores: list[float] = []

    def complete(self, prompt: Sequence[int], tokens: int) -> tuple[list[int], Any, float]:
        said = self.model(Generate(tuple(prompt), tokens, watch_ids=VOCABULARY.watch))
        ids = list(said.token_ids)
        ids = ids[: min(tokens, ids.index(EOS) + 1 if EOS in ids else tokens)]
        return ids, said.rows, math.exp(sum(said.logprobs[: len(ids)]) / len(ids))

    def step(self, prompt: Sequence[int], passage: Passage) -> tuple[list[int], float]:
        """Ids of a completion after a passage, and its score."""
        marker = VOCABULARY.ids["[Retrieval]"]
        evidence = PROMPTING.evidence(passage, 256).ids
        ids, rows, likelihood = self.complete([*prompt, marker, *evidence], 300 if self.long else 100)
        relevant, irrelevant = (rows[0][i] for i in VOCABULARY.group(ISREL))
        score = relevant / (relevant + irrelevant)
        support = next((at for at, i in enumerate(ids) if i in VOCABULARY.group(ISSUP)), None)
        if support is not None:
            full, partial, none = (rows[support][i] for i in VOCABULARY.group(ISSUP))
            score += (full + 0.5 * partial) / (full + partial + none)
        utility = next((at for at, i in enumerate(ids) if i in VOCABULARY.group(ISUSE)), None)
        if utility is not None and not self.long:
            row = [rows[utility][i] for i in VOCABULARY.group(ISUSE)]
            score += sum(value * p for value, p in zip((-1, -0.5, 0, 0.5, 1), row, strict=True)) / sum(row)
        return ids, score if self.long else score + likelihood

    def answer(self, question: str, beam: int = 2, most: int = 7) -> str:
        """The text; `scores` are those of all candidates, level by level."""
        marker = VOCABULARY.ids["[Retrieval]"]
        level: list[tuple[list[int], float, list[int]]] = [(list(PROMPTING.prompt(question)), 1.0, [])]
        finished: list[tuple[float, list[int]]] = []
        for depth in range(most if self.long else 1):
            following = []
            for prompt, before, written in level:
                for passage in self.evidence:
                    ids, score = self.step(prompt, passage)
                    self.scores.append(before * score)
                    goes_on = self.long and marker in ids
                    text = VOCABULARY.text_ids(ids[: ids.index(marker)] if goes_on else ids)
                    last = not goes_on or depth + 1 == most
                    following.append(([*prompt, *text], before * score, [*written, *text], last))
            ranked = sorted(following, key=lambda one: -one[1])
            finished += [(score, text) for _, score, text, last in ranked if last]
            level = [(prompt, score, text) for prompt, score, text, last in ranked[:beam] if not last]
        best = max(finished, key=lambda one: one[0])[1]
        return PROMPTING.codec.decode([i for i in best if i >= FIRST_CHARACTER])


def several(seed: int) -> Callable[[Generate], Reply]:
    """Completions of one to four segments, with every kind of Retrieve token between them; distinct texts."""

    def reply(request: Generate) -> Reply:
        draw = random.Random(f"{seed} {request.prompt_ids}")
        ids: list[int] = []
        for _ in range(draw.randint(1, 4)):
            ids += draw.sample(VOCABULARY.group(ISREL), draw.randint(0, 1))
            ids += [FIRST_CHARACTER + ord(c) for c in f"w{draw.random()}."]
            ids += draw.sample(VOCABULARY.group(ISSUP), draw.randint(0, 1))
            ids += draw.sample(VOCABULARY.group(ISUSE), draw.randint(0, 1))
            ids.append(draw.choice(VOCABULARY.group(RETRIEVE)))
        ids[-1] = EOS
        rows = {at: {i: draw.uniform(0.01, 1.0) for i in VOCABULARY.watch} for at in range(len(ids))}
        return Reply(tuple(ids), rows, [-draw.random() for _ in ids])

    return reply


@pytest.mark.parametrize("long", [False, True])
def test_completions_of_several_segments_are_scored_and_cut_as_published(long: bool) -> None:
    evidence = passages("d1", "d2", "d3")
    policy = replace(LONG if long else SHORT, mode="always", passages=3, answer_tokens=10**6)
    continued = 0
    for seed in range(40):
        published = Published(several(seed), evidence, long=long)
        expected = published.answer("Q")
        found = run(several(seed), evidence=evidence, policy=policy).answer
        assert found.trace.best is not None
        written = "".join(node.text for node in found.trace.path(found.trace.best))
        assert written == expected
        nodes = [node for node in found.trace.nodes if node.text.strip()]
        assert len(nodes) == len(published.scores)
        assert sorted(node.path_score for node in nodes) == pytest.approx(sorted(published.scores), abs=1e-5)
        continued += any(node.depth > 1 for node in nodes)
    assert continued > 13 if long else not continued


def test_changes_win_over_the_preset() -> None:
    policy = Decoding.official(accumulate="sum", beam=5)
    assert (policy.accumulate, policy.beam, policy.retrieve_once) == ("sum", 5, True)
    with pytest.raises(UserError, match="threshold"):
        Decoding.official(threshold=2)


@pytest.mark.parametrize("policy", [SHORT, LONG, Decoding(max_segments=1), Decoding()])
@pytest.mark.parametrize("mode", ["adaptive", "always", "never"])
@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("text", ["", "Words."])
@pytest.mark.parametrize("threshold", [0.2, None])
def test_defect_14_every_mode_returns_a_value(
    policy: Decoding, mode: str, count: int, text: str, threshold: float | None
) -> None:
    """Each mode x {0, 1, 2 passages} x {empty, normal output} x {threshold, none}, long and short form."""
    tree = {
        "": "{~retrieve .9 .1 0}x",
        "[No Retrieval]": f"{text}</s>",
        "[Retrieval]<d1>": f"[Relevant]{text}</s>",
        "[Retrieval]<d2>": f"[Relevant]{text}</s>",
    }
    found = run(tree, evidence=passages("d1", "d2")[:count], policy=replace(policy, mode=mode, threshold=threshold))
    assert found.answer.text == text
    assert found.answer.error is None
