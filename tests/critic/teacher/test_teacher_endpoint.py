"""The endpoint teacher against a real HTTP server: constraints, pace, faults, hostile replies; and what replies say."""

import json
import os
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from json_files import parse_table
from strange_server import Reply, StrangeServer, replies
from teaching_server import packed, questions

from critic.cases import GROUPS
from critic.teacher.endpoint import EndpointTeacher, TeacherConfig, read, read_label
from critic.teacher.forms import OWN
from critic.teacher.run import LabelOutcome
from critic.teacher.settings import LabelConstraint, TeacherError
from selfrag.common.untrusted import UNSEEN
from selfrag.engines.client import BadReplyError

FAST = {"backoff": 0.01, "retries": 1, "read_timeout": 30.0}


def teacher(server, **options):
    return EndpointTeacher(TeacherConfig(server.url, "judge", **{**FAST, **options}))


def ask(teacher, rows):
    found = dict(teacher.label(row for row in rows))
    assert sorted(found) == list(range(len(rows)))
    return [found[position] for position in range(len(rows))]


def faulty(fault, server, **options):
    [reply] = ask(
        teacher(server, constraint=LabelConstraint.FREE, **options),
        questions(1, fault=f"!{fault}"),
    )
    return reply


def test_every_constraint_gives_the_same_labels(server):
    labels, settings = [], {"temperature": 0.5, "max_tokens": 7, "seed": 3}
    for constraint in map(LabelConstraint, ("choice", "schema", "free")):
        replies = ask(teacher(server, constraint=constraint, **settings), questions(12))
        labels.append([reply.label for reply in replies])
        for r in replies:
            assert r.constraint == constraint
            assert r.requests == 1
            assert r.source == "judge"
            assert r.prompt_tokens == 100
            assert r.completion_tokens == 4
    assert labels[0] == labels[1] == labels[2]
    assert set(labels[0]) == {"Relevant", "Irrelevant"}
    sent = server.bodies[0]
    assert sent.items() >= {"model": "judge", **settings}.items()
    assert sent["structured_outputs"] == {"choice": ["[Relevant]", "[Irrelevant]"]}


@pytest.mark.parametrize("refuses", [True, False])
@pytest.mark.parametrize(
    "knows, settled",
    [
        ({"choice", "schema"}, LabelConstraint.CHOICE),
        ({"schema"}, LabelConstraint.SCHEMA),
        (set(), LabelConstraint.FREE),
    ],
)
def test_auto_takes_the_strictest_constraint_that_is_obeyed(
    server, knows, settled, refuses
):
    """An endpoint refuses a constraint that it does not know, or ignores it."""
    server.knows, server.refuses = knows, refuses
    replies = ask(teacher(server), questions(6))
    assert {reply.outcome for reply in replies} == {LabelOutcome.LABELLED}
    if refuses:
        assert {reply.constraint for reply in replies} == {settled}
        assert (
            sum(reply.requests for reply in replies)
            == 6 + {"choice": 0, "schema": 1, "free": 2}[settled]
        )
    assert len(server.bodies) == sum(reply.requests for reply in replies)


@pytest.mark.parametrize(
    "fault, outcome, requests",
    [
        ("off_set", LabelOutcome.ASIDE, [3, 3, 3, 1, 1]),
        ("400", LabelOutcome.FAILED, [3, 3, 3]),
    ],
)
def test_a_case_that_every_constraint_fails_on_is_not_taken_for_the_endpoint(
    server, fault, outcome, requests
):
    """But one that never gives a label is not asked thrice for ever."""
    odd, *others = ask(
        teacher(server, max_concurrency=1),
        [*questions(1, fault=f"!{fault}"), *questions(3)],
    )
    assert odd.outcome is outcome
    assert {reply.constraint for reply in others} == {LabelConstraint.CHOICE}
    replies = ask(
        teacher(server, max_concurrency=1), questions(len(requests), fault=f"!{fault}")
    )
    assert [reply.requests for reply in replies] == requests
    assert {reply.outcome for reply in replies} == {outcome}


@pytest.mark.parametrize(
    "message, more, raw, reason",
    [
        *parse_table(r"""
{"content": "Perhaps."} | {} | Perhaps. | 0 labels of the set
{"content": "\ud800 nothing"} | {} | "\ufffd nothing" | 0 labels
{"content": null, "refusal": "I cannot judge this."} | {} | I cannot judge this. | the model refused
{"content": "[Relevant]"} | {"finish_reason": "content_filter"} | [Relevant] | content filter
{"content": "It is"} | {"finish_reason": "length"} | It is | cut at max_tokens
{"content": 7} | {} | "" | an answer without text
"""),
        (
            {"content": "x" * 9_000},
            {},
            "x" * 4_000 + " ... (5,000 more characters)",
            "too long",
        ),
    ],
)
def test_an_answer_outside_the_set_is_kept_aside_with_its_text(
    message, more, raw, reason
):
    said = {"choices": [{"message": message, **more}]}
    if more == {}:
        said["usage"] = {"prompt_tokens": "many"}
    config, [row] = TeacherConfig("http://h", "judge"), questions(1)
    reply = read(json.dumps(said).encode(), row, config)
    kept = (reply.outcome, reply.label, reply.raw, reply.prompt_tokens)
    assert kept == (LabelOutcome.ASIDE, None, raw, 0)
    assert reason in reply.reason
    for content in (b"[" * 200_000, b"\xff", b'{"choices": []}', b"[]"):
        with pytest.raises(BadReplyError):
            read(content, row, config)


@pytest.mark.parametrize("fault", ["dropped", "520"])
def test_a_passing_fault_is_asked_again_and_a_lasting_one_is_one_clear_line(
    server, fault
):
    reply = faulty(f"once_{fault}", server)
    assert reply.outcome == LabelOutcome.LABELLED
    assert reply.requests == 2
    reply = faulty("huge", server)  # not read to its end, and not asked for again
    assert reply.outcome == LabelOutcome.ASIDE
    assert reply.requests == 1
    assert len(reply.raw) < 4_100
    assert "more than 1,048,576 bytes" in reply.reason
    reply = faulty(fault, server)
    assert reply.outcome == LabelOutcome.FAILED
    assert reply.requests == 2
    assert re.match("no answer: |status 520: bad luck", reply.reason)
    assert "\x1b" not in reply.reason


@pytest.mark.parametrize(
    "status, body, headers, message",
    parse_table(r"""
401 | {"error": {"message": "no"}} | {} | the key in OPENAI_API_KEY is not set
404 | {"error": {"message": "no such model"}} | {} | no such model.*check the url and the model judge
301 | "" | {"Location": "https://elsewhere/"} | points to 'https://elsewhere/
402 | pay | {} | quota .* is used up
429 | insufficient_quota | {} | quota .* is used up
429 | later | {"Retry_After": "3600"} | asks to wait 3,\d\d\d s .*later, or give a higher --longest-wait
"""),
)
def test_what_no_repetition_mends_ends_the_run_in_one_line(
    server, status, body, headers, message, monkeypatch
):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    content = body.encode() if isinstance(body, str) else body
    server.refusal = (status, content, headers)
    with pytest.raises(TeacherError, match=message) as caught:
        ask(teacher(server), questions(3))
    assert "\n" not in str(caught.value)


def test_what_has_arrived_comes_out_before_the_run_ends(server):
    rows = [*questions(5), *questions(1, fault="!402")]
    found = []
    with pytest.raises(TeacherError, match="quota"):
        found.extend(
            teacher(server, constraint=LabelConstraint.CHOICE, max_concurrency=1).label(
                row for row in rows
            )
        )
    assert [position for position, _ in found] == [0, 1, 2, 3, 4]


def test_the_key_comes_from_the_environment_and_is_never_repeated(server, monkeypatch):
    server.key = "sk-very-secret"
    monkeypatch.setenv("MY_KEY", "sk-wrong-secret")
    asked = teacher(server, api_key_env="MY_KEY")
    with pytest.raises(
        TeacherError, match=r"key in MY_KEY is refused .*Bearer \*\*\*"
    ) as caught:
        ask(asked, questions(1))
    assert "secret" not in str(caught.value)
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    [reply] = ask(asked, questions(1, fault="!echo_key"))
    assert reply.raw == "my key is ***"
    assert "secret" not in repr(asked.config) + json.dumps(asked.identity()) + repr(
        reply
    )


def test_the_pace_is_kept_and_tokens_are_estimated_where_the_endpoint_does_not_count(
    server,
):
    rows = [*questions(1, fault="!once_429"), *questions(1)]
    replies = ask(
        teacher(server, constraint=LabelConstraint.FREE, max_concurrency=1), rows
    )
    assert server.started[1] - server.started[0] >= 0.29  # as Retry-After says, for all
    assert [reply.requests for reply in replies] == [2, 1]
    server.started.clear()
    server.counts_tokens = False
    replies = ask(
        teacher(server, requests_per_minute=1200, constraint=LabelConstraint.CHOICE),
        questions(8),
    )
    # the first may be noticed late
    assert server.started[-1] - server.started[0] >= 7 * 0.05 / 2
    assert all(
        reply.prompt_tokens > 200 and reply.completion_tokens > 0 for reply in replies
    )


def test_cases_are_taken_as_slots_get_free(server):
    left = iter(questions(50))
    arriving = teacher(
        server, max_concurrency=2, constraint=LabelConstraint.CHOICE
    ).label(row for row in left)
    server.delay = 0.2
    next(arriving)
    arriving.close()
    assert len(list(left)) >= 44


@pytest.mark.parametrize(
    "group, text, said",
    [
        *parse_table(r"""
IsRel | Relevant | Relevant
IsRel | "**[Relevant]**\nExplanation: it is not [Irrelevant]." | Relevant
IsRel | [Relevant] The evidence does not say more. | Relevant
IsRel | "<think>\nIs it [Irrelevant]? 3 times no.\n</think>\n\n[Relevant]" | Relevant
IsRel | "{\"label\": \"[Relevant]\"}" | Relevant
IsSup | [No support / Contradictory] | No support / Contradictory
IsUse | "Perceived utility: 4\nExplanation: 5 would be too much" | "4"
IsRel | "" | empty answer
IsRel | <think>[Relevant] without an end | a thought without an end
IsRel | relevant | 0 labels of the set in the first line
IsRel | [Relevant] or [Irrelevant] | 2 labels of the set in the first line
IsRel | This is not [Relevant] | the first line negates or compares
IsRel | "It isn\u2019t [Relevant]" | the first line negates or compares
IsRel | "Well,\n[Relevant]" | 0 labels of the set in the first line
IsRel | "{\"label\": \"[Relevant]\", \"label\": \"x\"}" | an object that is no JSON, or names a key twice
IsRel | "{\"label\": [\"[Relevant]\"]}" | an object without a label of the set
IsUse | "-4" | a number off the scale
IsUse | 4 or 5 | 2 numbers in the first line
IsUse | "\u0664" | a number off the scale
"""),
        ("IsRel", "x" * 3000 + "[Relevant]", "the first line is too long"),
        (
            "IsRel",
            '{"a": ' * 100_000,
            "an object that is no JSON, or names a key twice",
        ),
    ],
)
def test_an_answer_in_words_gives_a_label_or_the_reason_why_not(group, text, said):
    template = "{}" if group == "IsUse" else "[{}]"
    surfaces = {template.format(name): name for name in GROUPS[group].names}
    assert read_label(text, surfaces) == (
        (said, "") if said in surfaces.values() else (None, said)
    )


def test_defect_36_an_unknown_label_is_not_no_retrieval():
    """Official code: what is not understood becomes `[No Retrieval]`."""
    for form in OWN.forms.values():
        assert read_label("I would have to think about it.", form.surfaces)[0] is None


@settings(
    max_examples=int(os.environ.get("SELFRAG_FUZZ", "30")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(replies("[Relevant]"), st.sampled_from(list(LabelConstraint)))
def test_whatever_an_endpoint_sends_no_other_label_is_lost(strange, constraint):
    """The odd case is labelled or has a reason; what ends the run ends it in one line, after what has arrived."""
    label = Reply(json.dumps(packed("[Relevant]", chat=True)).encode())
    labels = {}
    line = None
    with StrangeServer(
        lambda path, body: strange if "STRANGE" in json.dumps(body) else label
    ) as server:
        asking = teacher(
            server, constraint=constraint, max_concurrency=1, longest_wait=0.01
        )
        cases = [*questions(2), *questions(1, fault="STRANGE"), *questions(2)]
        try:
            labels.update(asking.label(cases))
        except TeacherError as error:
            line = str(error)
    assert set(labels) == ({0, 1, 2, 3, 4} if line is None else {0, 1})
    odd = labels.pop(2, None)
    assert {reply.label for reply in labels.values()} == {"Relevant"}
    said = line or odd.reason
    assert odd is None or (odd.label is None) == bool(said)
    assert "\n" not in said
    assert not UNSEEN.search(said)
