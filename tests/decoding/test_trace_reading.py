"""A trace may come from a stranger: whatever is wrong with one is a line, and what is read can be ranked and drawn.

`SELFRAG_MUTATIONS=12000` tries that many mutated traces.
"""

import copy
import json
import os
import random
import re
import time

import pytest
from json_files import table, write_json
from mutations import at, mutate
from random_model import random_model, random_search
from refusals import refused
from scripted_judges import Scripted, distribution, says
from written import run

from selfrag.common.errors import DecodingError, UserError
from selfrag.decoding.answer import Answer, Usage, segments_of
from selfrag.decoding.policy import Decoding
from selfrag.decoding.rescore import rescore
from selfrag.decoding.trace import Trace, trace_of
from selfrag.reflection.judge import Scope
from selfrag.reflection.weights import Weights
from selfrag.render import html, plain
from selfrag.viewer.traces import traces_page
from selfrag.viewer.trees import svg

MUTATIONS = int(os.environ.get("SELFRAG_MUTATIONS", "300"))


@pytest.fixture(scope="module")
def traces():
    """Plain, constrained, judged, branch-and-bound and multiple-choice decodes."""

    def judged(state):
        ids = [passage.id for passage in state.passages]
        return says(*distribution(7, "nli", state.text, *ids))

    nli = Scripted("nli", judged, asks=True, scope=Scope.PASSAGE)
    guarded = {"judges": ["nli=issup>=0.1"], "guardrails": ["nli<0.3:drop"]}
    constrained = {"require": {"isrel": "Relevant"}, "no_retrieval_branch": True}
    settings = [
        {"max_segments": 3, "passages": 2},
        {"max_segments": 2, "accumulate": "product", **constrained},
        {"max_segments": 2, "passages": 3},
        {"choices": ["Ten.", "Eleven."], "threshold": 0.1, "passages": 2},
        {"max_segments": 2, "threshold": 0.1, "given": {"judges": [nli]}, **guarded},
    ]
    made = []
    for seed, options in enumerate(settings, start=36):
        model, search = random_model(seed, failures=0.05), random_search(seed, 3)
        made.append(run(model, search=search, **options).answer.trace.as_dict())
    return made


def use(data):
    """Everything that is done with a trace that was read."""
    trace = trace_of(data)
    for settings in ((), (Weights(3, 0, 0), 0.9), (Weights(0, -1e6, 2), 0.0)):
        try:
            changed, exact = rescore(trace, *settings)
        except DecodingError:
            continue
        text, segments = segments_of(changed, changed.best)
        answer = Answer(changed.question, text, segments, Usage(), changed, exact)
        json.dumps([answer.as_dict(), changed.as_dict()], allow_nan=False).encode()
        plain(answer), html(answer), answer.cited_text()
    svg(trace), traces_page({"": trace}), trace.to_json()


def test_issue_45_mutated_traces_are_refused_in_one_line_or_can_be_used(traces):
    rng = random.Random(45)
    refusals = []
    for _ in range(MUTATIONS):
        try:
            use(mutate(rng, rng.choice(traces)))
        except UserError as error:
            refusals.append(str(error))
    assert 0 < len(refusals) < MUTATIONS
    assert not any("\n" in line for line in refusals)


FAULTS = """
nodes.0.parent | 0 | node 0 has the parent 0
nodes.0.parent | 1 | node 0 has the parent 1
nodes.1.id | 0 | node 1 has the id 0
nodes.1.depth | 2 | node 1 has the depth 2
nodes.1.depth | 5000 | 'nodes.1.depth' must be less
nodes.1.status | "lost" | node 1 has the unknown status 'lost'
nodes.1.score | Infinity | 'nodes.1.score' must be a finite
nodes.1.passage_id | "other" | node 1 has the unknown passage 'other'
nodes.1.token_ids | [-1] | 'nodes.1.token_ids.0' must be greater
best | 99 | best: there is no node 99
decisions.0.after | 99 | the decision after node 99
decisions | [] | node 0 follows node -1
decoding.beam | 0 | beam=0
decoding.weights | 3 | decoding has no weights
decoding.weights | missing | decoding has no weights
question | missing | 'question' is missing
nodes.0.text | missing | 'nodes.0.text' is missing
nodes.0.judgments.isrel.distribution.Relevant | 0.5 | the probabilities of the judgment 'segment 1, passage p0' sum
nodes.0.judgments.isrel.distribution | {"Relevant": 1.0} | the judgment 'segment 1, passage p0' is not over the labels
"""


@pytest.mark.parametrize("path, value, error", table(FAULTS))
def test_issue_45_each_fault_of_a_trace_has_a_line(path, value, error):
    tree = {f"[Retrieval]<p{i}>": "{isrel 1 0}Found.</s>" for i in (0, 1)}
    trace = run(tree, "p0", "p1", mode="always").answer.trace.as_dict()
    trace_of(trace)
    *above, key = [int(part) if part.isdigit() else part for part in path.split(".")]
    place = at(trace, above)
    if value == "missing":
        del place[key]
    else:
        place[key] = json.loads(value)
    with refused(re.escape(f"this is no trace in JSON: {error}")):
        trace_of(trace)


def grown(trace, count, width, text="t{}"):
    """A tree of `width` paths side by side, without evidence."""
    trace = copy.deepcopy(trace)
    node = trace["nodes"][0] | {"branch": "none", "passage_id": None, "status": "kept"}
    trace["nodes"] = []
    for i in range(count):
        place = {"id": i, "parent": max(i - width, -1), "depth": i // width + 1}
        trace["nodes"].append(node | place | {"text": text.format(i)})
    decision = trace["decisions"][0] | {"passages": []}
    trace["decisions"] = [
        decision | {"after": after} for after in range(-1, count - width)
    ]
    trace["best"] = count - 1
    trace["decoding"] |= {"max_segments": 10**6, "beam": 10**6}
    return trace


@pytest.mark.parametrize(
    "size, paths, text",
    [(150, 1, "t{}"), (300, 10**6, "t{}"), (300, 10**6, "t"), (300, 100, "t{}")],
)
def test_issue_45_work_grows_linearly_with_the_nodes(growth, size, paths, text, traces):
    def make(count):
        return grown(traces[0], count, min(paths, count), text)

    assert growth(make, use, size) < 8  # of 4 for linear and 16 for quadratic work


def test_a_trace_of_too_many_nodes_is_refused_before_its_nodes_are_checked(traces):
    trace = traces[0] | {"nodes": [traces[0]["nodes"][0]] * 100_001}
    started = time.process_time()
    with refused("'nodes' must have at most 100000 items"):
        trace_of(trace)
    assert time.process_time() - started < 1


def test_a_trace_file_of_the_command_line_is_read_as_strictly(
    tmp_path, traces, refusal
):
    traces[0]["nodes"][0]["parent"] = 0
    file = tmp_path / "trace.json"
    write_json(file, traces[0])
    error = refusal(f"selfrag show {file}")
    assert error.startswith(f"selfrag: {file}: ")
    assert "node 0 has the parent 0" in error


def test_letters_are_written_as_they_are():
    assert '"question": "Où ?"' in Trace("Où ?", Decoding(), (), (), None).to_json()
