"""A trace may come from a stranger: whatever is wrong with one is a line, and what is read can be ranked and drawn.

`SELFRAG_MUTATIONS=12000` tries that many mutated traces.
"""

from __future__ import annotations

import copy
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mutations import at, mutate
from random_model import random_model, random_search
from scripted_judges import Scripted, distribution, says
from written import run

from selfrag.common.errors import DecodingError, UserError
from selfrag.decoding.answer import Answer, Usage, segments_of
from selfrag.decoding.rescore import rescore
from selfrag.decoding.trace import Trace, trace_of
from selfrag.reflection.judge import Scope
from selfrag.reflection.weights import Weights
from selfrag.render import html, plain
from selfrag.viewer.traces import traces_page
from selfrag.viewer.trees import svg

MUTATIONS = int(os.environ.get("SELFRAG_MUTATIONS", "300"))


@pytest.fixture(scope="module")
def traces() -> list[dict[str, Any]]:
    """Plain, constrained, judged, branch-and-bound and multiple-choice decodes."""

    def judged(state: Any) -> Any:
        return says(
            *distribution(
                7, "nli", state.text, *(passage.id for passage in state.passages)
            )
        )

    settings: list[dict[str, Any]] = [
        {"max_segments": 3, "passages": 2},
        {
            "max_segments": 2,
            "require": {"isrel": "Relevant"},
            "no_retrieval_branch": True,
            "accumulate": "product",
        },
        {"max_segments": 2, "branch_and_bound": True, "passages": 3},
        {"choices": ["Ten.", "Eleven."], "threshold": 0.1, "passages": 2},
        {
            "max_segments": 2,
            "judges": ["nli=issup>=0.1"],
            "guardrails": ["nli<0.3:drop"],
            "threshold": 0.1,
        },
    ]
    made = []
    for seed, options in enumerate(settings, start=36):
        given = {"judges": [Scripted("nli", judged, asks=True, scope=Scope.PASSAGE)]}
        answer = run(
            random_model(seed, failures=0.05),
            search=random_search(seed, 3),
            given=given if "judges" in options else {},
            **options,
        ).answer
        made.append(answer.trace.as_dict())
    return made


def use(data: Any) -> None:
    """Everything that is done with a trace that was read."""
    trace = trace_of(data)
    for weights, threshold in (
        (None, None),
        (Weights(3, 0, 0), 0.9),
        (Weights(0, -1e6, 2), 0.0),
    ):
        try:
            changed, exact = rescore(trace, weights, threshold)
        except DecodingError:
            continue
        text, segments = segments_of(changed, changed.best)
        answer = Answer(changed.question, text, segments, Usage(), changed, exact)
        json.dumps([answer.as_dict(), changed.as_dict()], allow_nan=False).encode()
        plain(answer), html(answer), answer.cited_text()
    svg(trace), traces_page({"": trace}), trace.to_json()


def test_issue_45_mutated_traces_are_refused_in_one_line_or_can_be_used(
    traces: list[dict[str, Any]],
) -> None:
    rng = random.Random(45)
    refusals = []
    for _ in range(MUTATIONS):
        try:
            use(mutate(rng, rng.choice(traces)))
        except UserError as error:
            refusals.append(str(error))
    assert 0 < len(refusals) < MUTATIONS
    assert not any("\n" in line for line in refusals)


def changed(*path: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(trace: dict[str, Any]) -> None:
        at(trace, path[:-1])[path[-1]] = to

    return change


def without(*path: str | int) -> Callable[[dict[str, Any]], None]:
    return lambda trace: at(trace, path[:-1]).pop(path[-1])


FAULTS: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (
        changed("nodes", 0, "parent", to=0),
        "node 0 has the parent 0; parents stand before their children",
    ),
    (
        changed("nodes", 0, "parent", to=1),
        "node 0 has the parent 1; parents stand before their children",
    ),
    (changed("nodes", 1, "id", to=0), "node 1 has the id 0; ids count from 0"),
    (changed("nodes", 1, "depth", to=2), "node 1 has the depth 2 in place of 1"),
    (
        changed("nodes", 1, "depth", to=5000),
        "'nodes.1.depth' must be less than or equal to 1024, not 5000",
    ),
    (changed("nodes", 1, "status", to="lost"), "node 1 has the unknown status 'lost'"),
    (
        changed("nodes", 1, "score", to=float("inf")),
        "'nodes.1.score' must be a finite number, not inf",
    ),
    (
        changed("nodes", 1, "passage_id", to="other"),
        "node 1 has the unknown passage 'other'",
    ),
    (
        changed("nodes", 1, "token_ids", to=[-1]),
        "'nodes.1.token_ids.0' must be greater than or equal to 0, not -1",
    ),
    (changed("best", to=99), "best: there is no node 99"),
    (
        changed("decisions", 0, "after", to=99),
        "the decision after node 99: there is no such node",
    ),
    (changed("decisions", to=[]), "node 0 follows node -1, where nothing was decided"),
    (changed("decoding", "beam", to=0), "beam=0: give a whole number of at least 1"),
    (changed("decoding", "weights", to=3), "decoding has no weights"),
    (without("decoding", "weights"), "decoding has no weights"),
    (without("question"), "'question' is missing"),
    (without("nodes", 0, "text"), "'nodes.0.text' is missing"),
    (
        changed("nodes", 0, "judgments", "isrel", "distribution", "Relevant", to=0.5),
        "the probabilities of the judgment 'segment 1, passage p0' sum to 0.5, not 1",
    ),
    (
        changed("nodes", 0, "judgments", "isrel", "distribution", to={"Relevant": 1.0}),
        "the judgment 'segment 1, passage p0' is not over the labels of isrel",
    ),
]


@pytest.mark.parametrize(
    ("change", "said"), FAULTS, ids=[said[:40] for _, said in FAULTS]
)
def test_issue_45_each_fault_of_a_trace_has_a_line(
    change: Callable[[dict[str, Any]], None], said: str
) -> None:
    tree = {
        "[Retrieval]<d1>": "[Relevant]Found.</s>",
        "[Retrieval]<d2>": "[Relevant]Else.</s>",
    }
    trace = run(tree, "d1", "d2", mode="always").answer.trace.as_dict()
    for node in trace["nodes"]:
        for judgment in filter(None, node["judgments"].values()):
            judgment["site"] = "segment 1, passage p0"
    trace["nodes"][0]["judgments"]["isrel"]["distribution"] = {
        "Relevant": 1.0,
        "Irrelevant": 0.0,
    }
    trace_of(trace)
    change(trace)
    with pytest.raises(UserError) as error:
        trace_of(trace)
    assert str(error.value) == f"this is no trace in JSON: {said}"


def grown(
    trace: dict[str, Any], count: int, width: int, text: str = "t{}"
) -> dict[str, Any]:
    """A tree of `width` paths side by side, without evidence."""
    trace = copy.deepcopy(trace)
    node = trace["nodes"][0] | {"branch": "none", "passage_id": None, "status": "kept"}
    decision = trace["decisions"][0] | {"passages": []}
    trace["nodes"] = [
        node
        | {
            "id": i,
            "parent": max(i - width, -1),
            "depth": i // width + 1,
            "text": text.format(i),
        }
        for i in range(count)
    ]
    trace["decisions"] = [
        decision | {"after": after} for after in range(-1, count - width)
    ]
    trace["best"] = count - 1
    trace["decoding"] |= {"max_segments": 10**6, "beam": 10**6}
    return trace


@pytest.mark.parametrize(
    ("count", "width", "text"),
    [(1000, 1, "t{}"), (8000, 8000, "t{}"), (8000, 8000, "t"), (8000, 100, "t{}")],
)
def test_issue_45_work_grows_linearly_with_the_nodes(
    count: int, width: int, text: str, traces: list[dict[str, Any]]
) -> None:
    def seconds(nodes: int) -> float:
        trace = grown(traces[0], nodes, min(width, nodes), text)
        start = time.process_time()
        use(trace)
        return time.process_time() - start

    seconds(count // 8)
    assert seconds(count) < 8 * 5 * seconds(count // 8) + 1


def test_a_trace_of_too_many_nodes_is_refused(traces: list[dict[str, Any]]) -> None:
    trace = copy.deepcopy(traces[0])
    trace["nodes"] = [trace["nodes"][0]] * 100_001
    with pytest.raises(UserError, match="'nodes' must have at most 100000 items"):
        trace_of(trace)


def test_a_trace_file_of_the_command_line_is_read_as_strictly(
    tmp_path: Path, traces: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    from selfrag.cli.main import main

    traces[0]["nodes"][0]["parent"] = 0
    (tmp_path / "trace.json").write_text(json.dumps(traces[0]))
    assert main(["show", str(tmp_path / "trace.json")]) == 2
    fault = "this is no trace in JSON: node 0 has the parent 0; parents stand before their children"
    assert capsys.readouterr().err == f"selfrag: {tmp_path / 'trace.json'}: {fault}\n"
    with pytest.raises(UserError, match="node 0 has the parent 0"):
        Trace.from_json(json.dumps(traces[0]))
