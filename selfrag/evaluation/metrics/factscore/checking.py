"""Facts of answers checked against a knowledge source by any judge of entailment. Computes no figure."""

from __future__ import annotations

from collections.abc import Sequence

from retrieval.passage import Retriever
from selfrag.evaluation.containment import abstains
from selfrag.evaluation.metrics.cited import premise
from selfrag.evaluation.metrics.entailment.protocol import Entailment
from selfrag.evaluation.metrics.factscore.score import Fact, Facts
from selfrag.evaluation.metrics.factscore.splitting import Splitter

PASSAGES = 5
"""Passages that a fact is checked against (FActScore, section 4)."""


def check(
    texts: Sequence[str],
    topics: Sequence[str],
    splitter: Splitter,
    retriever: Retriever,
    judge: Entailment,
    *,
    passages: int = PASSAGES,
) -> list[Facts]:
    """Find the facts of each text and decide on each of them.

    A fact is supported if the passages that are found for topic and fact entail it. The official tool searches the
    page of the topic only; here the index decides what there is to find.

    Args:
        texts: answers; an abstention states no facts.
        topics: what each is about; goes into the queries.
        splitter: finds the facts.
        retriever: of the knowledge source.
        judge: decides; every distinct pair is asked once, all in one call.
        passages: found for each fact.
    """
    said = ["" if abstains(text) else text for text in texts]
    split = splitter.split(said)
    queries = [f"{topic} {fact}" for topic, facts in zip(topics, split, strict=True) for fact in facts or ()]
    unique = list(dict.fromkeys(queries))
    found = dict(zip(unique, retriever(unique, passages) if unique else (), strict=True))
    claims = [
        [("\n\n".join(map(premise, found[f"{topic} {fact}"])), fact) for fact in facts or ()]
        for topic, facts in zip(topics, split, strict=True)
    ]
    asked = list(dict.fromkeys(pair for own in claims for pair in own if pair[0]))
    verdicts = dict(zip(asked, judge.entails(asked) if asked else (), strict=True))
    checked = []
    for facts, own in zip(split, claims, strict=True):
        failed = "" if facts is not None else f"{splitter.name} found no list of facts"
        # A fact that nothing is found for has no support.
        judged = tuple(Fact(pair[1], verdicts[pair] if pair[0] else False) for pair in own)
        checked.append(Facts(judged, failed))
    return checked
