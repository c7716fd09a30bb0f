"""A reflector with the distribution of the IsSup tokens changes nothing but who judged; a property of random trees."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_model import random_search
from scripted_critics import Scripted, distribution, draw, says
from written import FIRST_CHARACTER, SURFACE, VOCABULARY, run

from selfrag.decoding.policy import Decoding
from selfrag.decoding.reflectors import Moment
from selfrag.decoding.requests import Generate
from selfrag.decoding.trace import UNUSABLE
from selfrag.engines.scripted import Reply
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, RETRIEVE
from selfrag.reflection.weights import Weights

quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
numbers = st.sampled_from([0.0, 0.5, 1.0, 2.0, -1.0])
seeds = st.integers(0, 2**31)


def supporting_model(seed: int) -> Callable[[Generate], Any]:
    """A model whose IsSup after a text and a passage depends on these two only."""

    def reply(request: Generate) -> Reply:
        if request.max_tokens == 1:
            return Reply((FIRST_CHARACTER,), {0: dict.fromkeys(VOCABULARY.watch, 0.05)})
        chance = draw(seed, *map(str, request.prompt_ids))
        text = chance.choice(("One.", "Two.", "Three", "- five", "7", "8"))
        seen = "".join(SURFACE[i] if i in SURFACE else chr(i - FIRST_CHARACTER) for i in request.prompt_ids)
        body = seen.rpartition("<paragraph>")[2].partition("</paragraph>")[0].partition("\n")[2]
        isrel = dict(zip(VOCABULARY.group(ISREL), distribution(chance.random(), size=2), strict=True))
        issup = dict(zip(VOCABULARY.group(ISSUP), distribution(seed, body, text), strict=True))
        isuse = dict(zip(VOCABULARY.group(ISUSE), distribution(chance.random(), size=5), strict=True))
        after = dict(zip(VOCABULARY.group(RETRIEVE), distribution(chance.random()), strict=True))
        emits = draw(seed, "emits", body, text).random() < 0.8
        written = [(None, FIRST_CHARACTER + ord(c)) for c in text]
        row = [(isrel, max(isrel, key=isrel.__getitem__)), *written]
        row += [(issup, max(issup, key=issup.__getitem__))] if emits else []
        row += [(isuse, max(isuse, key=isuse.__getitem__)), (after, chance.choice((*VOCABULARY.retrieve, 0)))]
        return Reply(
            tuple(i for _, i in row), {p: r for p, (r, _) in enumerate(row) if r}, [-chance.random() for _ in row]
        )

    return reply


def support(seed: int) -> Callable[[Moment], Judgment | None]:
    """What that model says about a text and a passage, with the coverage it has there."""

    def verdict(moment: Moment) -> Judgment | None:
        (passage,) = moment.passages
        if draw(seed, "emits", passage.text, moment.text).random() >= 0.8:
            return None
        logprobs = np.log(distribution(seed, passage.text, moment.text)).astype(np.float32).tolist()
        return replace(Judgment.from_logprobs(ISSUP, logprobs, site="x"), source=says(1, 0, 0).source)

    return verdict


policies = st.builds(
    Decoding,
    mode=st.sampled_from(["adaptive", "always"]),
    threshold=st.sampled_from([0.0, 0.2, 0.8]),
    no_retrieval_branch=st.booleans(),
    passages=st.integers(1, 4),
    beam=st.integers(1, 3),
    max_segments=st.integers(1, 4),
    weights=st.builds(Weights, numbers, numbers, numbers),
    undefined=st.sampled_from(["skip", "zero"]),
    accumulate=st.sampled_from(["mean", "sum", "product"]),
    forbid=st.sampled_from([{}, {}, {"isrel": "Irrelevant"}]),  # on issup it would have undefined tokens read
    history=st.sampled_from(["text", "text+passages"]),
    survivors=st.just((10_000, 10_000, 10_000)),
)


@quick
@given(seeds, policies, st.integers(0, 3), st.booleans())
def test_a_reflector_with_the_tokens_distribution_changes_nothing(
    seed: int, policy: Decoding, cost: int, asks: bool
) -> None:
    critic = Scripted("judge", support(seed), cost, asks=asks)
    search = random_search(seed)
    tokens = run(supporting_model(seed), search=search, policy=policy).answer
    judged = run(
        supporting_model(seed),
        search=search,
        policy=replace(policy, reflectors="judge=issup"),
        given={"critics": [critic]},
    ).answer
    mine, theirs = judged.trace.as_dict(), tokens.trace.as_dict()
    assert mine["decoding"].pop("reflectors") == ["judge=issup"]
    assert mine["decoding"].pop("survivors") == [10_000] * 3
    assert mine.pop("costs") == {"judge": cost}
    for node in (node for trace in (mine, theirs) for node in trace["nodes"] if node["status"] in UNUSABLE):
        node["judgments"].pop("issup", None)  # nobody is asked about candidates that no weights can bring back
        del node["score"], node["path_score"]
    for node in mine["nodes"]:
        if node["judgments"].get("issup"):
            assert node["judgments"]["issup"]["source"] == "adapter"
            node["judgments"]["issup"]["source"] = "token"
    assert json.dumps(mine) == json.dumps(theirs)
    assert judged.text == tokens.text
    assert [s.score for s in judged.segments] == [s.score for s in tokens.segments]
    assert [s.citation for s in judged.segments] == [s.citation for s in tokens.segments]
    weights = Weights(0.3, 2.0, -0.5)
    assert judged.rescore(weights).text == tokens.rescore(weights).text
    assert judged.rescore(weights).exact == tokens.rescore(weights).exact
