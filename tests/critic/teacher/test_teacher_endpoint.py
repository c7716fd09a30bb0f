"""The endpoint teacher against a real HTTP server: constraints, pace, faults, hostile replies; and what replies say."""

import json
import os
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
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
    for constraint in (
        LabelConstraint.CHOICE,
        LabelConstraint.SCHEMA,
        LabelConstraint.FREE,
    ):
        replies = ask(teacher(server, constraint=constraint, **settings), questions(12))
        labels.append([reply.label for reply in replies])
        assert {reply.constraint for reply in replies} == {constraint}
        assert {
            (r.requests, r.prompt_tokens, r.completion_tokens, r.source)
            for r in replies
        } == {(1, 100, 4, "judge")}
    assert labels[0] == labels[1] == labels[2]
    assert set(labels[0]) == {"Relevant", "Irrelevant"}
    sent = server.bodies[0]
    assert (sent["model"], sent["temperature"], sent["max_tokens"], sent["seed"]) == (
        "judge",
        0.5,
        7,
        3,
    )
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


def message(**fields):
    return {"choices": [{"message": fields}]}


@pytest.mark.parametrize(
    "said, raw, reason",
    [
        (packed("Perhaps.", chat=True), "Perhaps.", "0 labels of the set"),
        (packed("\ud800 nothing", chat=True), "\ufffd nothing", "0 labels"),
        (
            message(content=None, refusal="I cannot judge this."),
            "I cannot judge this.",
            "the model refused",
        ),
        (
            packed("[Relevant]", chat=True, finish_reason="content_filter"),
            "[Relevant]",
            "content filter",
        ),
        (
            packed("It is", chat=True, finish_reason="length"),
            "It is",
            "cut at max_tokens",
        ),
        (
            message(content=7) | {"usage": {"prompt_tokens": "many"}},
            "",
            "an answer without text",
        ),
        (
            packed("x" * 9_000, chat=True),
            "x" * 4_000 + " ... (5,000 more characters)",
            "too long",
        ),
    ],
)
def test_an_answer_outside_the_set_is_kept_aside_with_its_text(said, raw, reason):
    config, [row] = TeacherConfig("http://h", "judge"), questions(1)
    reply = read(json.dumps(said).encode(), row, config)
    assert (reply.outcome, reply.label, reply.raw, reply.prompt_tokens) == (
        LabelOutcome.ASIDE,
        None,
        raw,
        0,
    )
    assert reason in reply.reason
    for content in (b"[" * 200_000, b"\xff", b'{"choices": []}', b"[]"):
        with pytest.raises(BadReplyError):
            read(content, row, config)


@pytest.mark.parametrize("fault", ["dropped", "520"])
def test_a_passing_fault_is_asked_again_and_a_lasting_one_is_one_clear_line(
    server, fault
):
    reply = faulty(f"once_{fault}", server)
    assert (reply.outcome, reply.requests) == (LabelOutcome.LABELLED, 2)
    reply = faulty("huge", server)  # not read to its end, and not asked for again
    assert (reply.outcome, reply.requests, len(reply.raw) < 4_100) == (
        LabelOutcome.ASIDE,
        1,
        True,
    )
    assert "more than 1,048,576 bytes" in reply.reason
    reply = faulty(fault, server)
    assert (reply.outcome, reply.label, reply.requests) == (
        LabelOutcome.FAILED,
        None,
        2,
    )
    assert re.match("no answer: |status 520: bad luck", reply.reason)
    assert "\x1b" not in reply.reason


@pytest.mark.parametrize(
    "refusal, message",
    [
        (
            (401, {"error": {"message": "no"}}, {}),
            "the key in OPENAI_API_KEY is not set",
        ),
        (
            (404, {"error": {"message": "no such model"}}, {}),
            "no such model.*check the url and the model judge",
        ),
        (
            (301, b"", {"Location": "https://elsewhere/"}),
            "points to 'https://elsewhere/",
        ),
        ((402, b"pay", {}), "quota .* is used up"),
        ((429, b"insufficient_quota", {}), "quota .* is used up"),
        (
            (429, b"later", {"Retry_After": "3600"}),
            r"asks to wait 3,\d\d\d s .*later, or give a higher --longest-wait",
        ),
    ],
)
def test_what_no_repetition_mends_ends_the_run_in_one_line(
    server, refusal, message, monkeypatch
):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server.refusal = refusal
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


RELEVANCE = {"[Relevant]": "Relevant", "[Irrelevant]": "Irrelevant"}
SUPPORT = {f"[{name}]": name for name in GROUPS["IsSup"].names}
GRADES = {str(grade): str(grade) for grade in range(1, 6)}


@pytest.mark.parametrize(
    "text, surfaces, said",
    [
        ("Relevant", RELEVANCE, "Relevant"),
        ("**[Relevant]**\nExplanation: it is not [Irrelevant].", RELEVANCE, "Relevant"),
        ("[Relevant] The evidence does not say more.", RELEVANCE, "Relevant"),
        (
            "<think>\nIs it [Irrelevant]? 3 times no.\n</think>\n\n[Relevant]",
            RELEVANCE,
            "Relevant",
        ),
        ('{"label": "[Relevant]"}', RELEVANCE, "Relevant"),
        ("[No support / Contradictory]", SUPPORT, "No support / Contradictory"),
        ("Perceived utility: 4\nExplanation: 5 would be too much", GRADES, "4"),
        ("", RELEVANCE, "empty answer"),
        ("<think>[Relevant] without an end", RELEVANCE, "a thought without an end"),
        ("relevant", RELEVANCE, "0 labels of the set in the first line"),
        (
            "[Relevant] or [Irrelevant]",
            RELEVANCE,
            "2 labels of the set in the first line",
        ),
        ("This is not [Relevant]", RELEVANCE, "the first line negates or compares"),
        ("It isn\u2019t [Relevant]", RELEVANCE, "the first line negates or compares"),
        ("Well,\n[Relevant]", RELEVANCE, "0 labels of the set in the first line"),
        ("x" * 3000 + "[Relevant]", RELEVANCE, "the first line is too long"),
        (
            '{"label": "[Relevant]", "label": "x"}',
            RELEVANCE,
            "an object that is no JSON, or names a key twice",
        ),
        (
            '{"label": ["[Relevant]"]}',
            RELEVANCE,
            "an object without a label of the set",
        ),
        (
            '{"a": ' * 100_000,
            RELEVANCE,
            "an object that is no JSON, or names a key twice",
        ),
        ("-4", GRADES, "a number off the scale"),
        ("4 or 5", GRADES, "2 numbers in the first line"),
        ("\u0664", GRADES, "a number off the scale"),
    ],
)
def test_an_answer_in_words_gives_a_label_or_the_reason_why_not(text, surfaces, said):
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
