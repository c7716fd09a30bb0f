"""The endpoint teacher against a real HTTP server: constraints, pace, faults, hostile replies."""

from __future__ import annotations

import json

import pytest
from teaching_server import questions

from critic.cases import Case, Question
from critic.teacher.base import Api, Constraint, EndpointConfig, Outcome, TeacherError
from critic.teacher.endpoint import EndpointTeacher
from retrieval.errors import UserError

FAST = {"backoff": 0.01, "retries": 2, "read_timeout": 30.0}


def teacher(server, **options):
    return EndpointTeacher(EndpointConfig(server.url, "judge", **{**FAST, **options}))


def ask(teacher, rows):
    found = dict(teacher.label(row.case for row in rows))
    assert sorted(found) == list(range(len(rows)))
    return [found[position] for position in range(len(rows))]


def faulty(fault, server, **options):
    [reply] = ask(teacher(server, constraint=Constraint.FREE, **options), questions(1, fault=f"!{fault}"))
    return reply


@pytest.mark.parametrize("api", list(Api))
def test_every_constraint_gives_the_same_labels(server, api) -> None:
    rows = questions(12)
    labels = []
    for constraint in (Constraint.CHOICE, Constraint.SCHEMA, Constraint.FREE):
        replies = ask(teacher(server, api=api, constraint=constraint), rows)
        labels.append([reply.label for reply in replies])
        assert {reply.constraint for reply in replies} == {constraint}
        assert {(r.requests, r.prompt_tokens, r.completion_tokens, r.source) for r in replies} == {(1, 100, 4, "judge")}
    assert labels[0] == labels[1] == labels[2]
    assert set(labels[0]) == {"Relevant", "Irrelevant"}


def test_the_settings_are_sent(server) -> None:
    ask(teacher(server, temperature=0.5, max_tokens=7, seed=3, constraint=Constraint.CHOICE), questions(1))
    [sent] = server.bodies
    assert (sent["model"], sent["temperature"], sent["max_tokens"], sent["seed"]) == ("judge", 0.5, 7, 3)
    assert sent["structured_outputs"] == {"choice": ["[Relevant]", "[Irrelevant]"]}


@pytest.mark.parametrize("refuses", [True, False])
@pytest.mark.parametrize(
    ("knows", "settled"),
    [
        ({"choice", "schema"}, Constraint.CHOICE),
        ({"schema"}, Constraint.SCHEMA),
        (set(), Constraint.FREE),
    ],
)
def test_auto_takes_the_strictest_constraint_that_is_obeyed(server, knows, settled, refuses) -> None:
    """An endpoint refuses a constraint that it does not know, or ignores it."""
    server.knows, server.refuses = knows, refuses
    replies = ask(teacher(server, constraint=Constraint.AUTO), questions(6))
    assert {reply.outcome for reply in replies} == {Outcome.LABELLED}
    known = {reply.constraint for reply in replies}
    if refuses:
        assert known == {settled}
        assert sum(reply.requests for reply in replies) == 6 + {"choice": 0, "schema": 1, "free": 2}[settled]
    assert len(server.bodies) == sum(reply.requests for reply in replies)


def test_a_case_that_every_constraint_fails_on_is_not_taken_for_the_endpoint(server) -> None:
    replies = ask(
        teacher(server, constraint=Constraint.AUTO, max_concurrency=1), [*questions(1, fault="!400"), *questions(3)]
    )
    assert [reply.outcome for reply in replies] == [Outcome.FAILED] + [Outcome.LABELLED] * 3
    assert {reply.constraint for reply in replies[1:]} == {Constraint.CHOICE}
    assert "status 400: bad luck" in replies[0].reason


def test_one_odd_case_does_not_settle_for_answers_in_words(server) -> None:
    rows = [*questions(1, fault="!refused"), *questions(2)]
    replies = ask(teacher(server, max_concurrency=1), rows)
    assert (replies[0].outcome, replies[0].requests) == (Outcome.ASIDE, 3)
    assert {reply.constraint for reply in replies[1:]} == {Constraint.CHOICE}


def test_an_endpoint_that_never_gives_a_label_is_not_asked_thrice_for_ever(server) -> None:
    replies = ask(teacher(server, max_concurrency=1), questions(6, fault="!off_set"))
    assert [reply.requests for reply in replies] == [3, 3, 3, 1, 1, 1]
    assert {reply.outcome for reply in replies} == {Outcome.ASIDE}


@pytest.mark.parametrize("api", list(Api))
def test_label_scoring_gives_a_distribution_in_label_order(server, api) -> None:
    replies = ask(teacher(server, api=api, constraint=Constraint.LOGPROBS), questions(8))
    for reply in replies:
        assert reply.outcome is Outcome.LABELLED
        assert sum(reply.distribution) == pytest.approx(1)
        best = reply.distribution[["Relevant", "Irrelevant"].index(reply.label)]
        assert best == pytest.approx(0.9 / 0.95, abs=0.01)
        assert reply.coverage == pytest.approx(1.0, abs=0.06)
    assert {body["max_tokens"] for body in server.bodies} == {1}


def test_defect_08_a_label_that_was_not_told_gets_no_probability(server) -> None:
    """Official code: a missing id has probability -100. Here the best of those told is the label, and no more."""
    server.hidden = ("B",)
    for reply in ask(teacher(server, constraint=Constraint.LOGPROBS), questions(8)):
        if reply.outcome is Outcome.LABELLED:
            assert (reply.label, reply.distribution) == ("Relevant", None)
        else:
            assert "coverage" in reply.reason
            assert reply.label is None


def test_retrieve_without_evidence_gives_continue_no_probability(server) -> None:
    row = Question("q", Case("Retrieve", "Who?"), "set", "rule")
    [reply] = ask(teacher(server, constraint=Constraint.LOGPROBS), [row])
    assert (len(reply.distribution), reply.distribution[2]) == (3, 0.0)


@pytest.mark.parametrize(
    ("fault", "raw"),
    [
        ("off_set", "Perhaps."),
        ("empty", "  \n"),
        ("surrogate", "\ufffd nothing"),
        ("refused", "I cannot judge this."),
        ("filtered", "[Relevant]"),
        ("wrong_types", ""),
    ],
)
def test_an_answer_outside_the_set_is_kept_aside_with_its_text(server, fault, raw) -> None:
    reply = faulty(fault, server)
    assert (reply.outcome, reply.label, reply.requests, reply.raw) == (Outcome.ASIDE, None, 1, raw)
    assert reply.reason


def test_a_huge_reply_is_not_read_to_its_end_and_not_asked_for_again(server) -> None:
    reply = faulty("huge", server)
    assert (reply.outcome, reply.requests) == (Outcome.ASIDE, 1)
    assert "more than 1,048,576 bytes" in reply.reason
    assert len(reply.raw) < 4_100


@pytest.mark.parametrize("fault", ["429", "dropped", "not_utf8", "no_choice"])
def test_a_passing_fault_is_asked_again(server, fault) -> None:
    reply = faulty(f"once_{fault}", server)
    assert (reply.outcome, reply.requests) == (Outcome.LABELLED, 2)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("500", "status 500: bad luck"),
        ("deep", "no JSON"),
        ("cut", "no answer: "),
        ("drip", "no answer within 0.5 s"),
    ],
)
def test_a_lasting_fault_is_one_clear_line_and_no_label(server, fault, reason) -> None:
    reply = faulty(fault, server, retries=1, read_timeout=0.5)
    assert (reply.outcome, reply.label, reply.requests) == (Outcome.FAILED, None, 2)
    assert reason in reply.reason
    assert "\x1b" not in reply.reason


def test_retry_after_is_honoured_by_all(server) -> None:
    rows = [*questions(1, fault="!once_429"), *questions(3)]
    replies = ask(teacher(server, constraint=Constraint.FREE, max_concurrency=1), rows)
    assert server.started[1] - server.started[0] >= 0.29
    assert [reply.requests for reply in replies] == [2, 1, 1, 1]


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        ((401, {"error": {"message": "no"}}, {}), "the key in OPENAI_API_KEY is not set"),
        ((404, {"error": {"message": "no such model"}}, {}), "no such model.*check the url and the model judge"),
        ((301, b"", {"Location": "https://elsewhere/"}), "points to 'https://elsewhere/"),
        (
            (400, {"error": {"message": "Unsupported value: 'temperature' does not support 0 with this model."}}, {}),
            r"judge does not take temperature 0 .* give --temperature 1",
        ),
        ((402, b"pay", {}), "quota .* is used up"),
        ((429, b"later", {"Retry_After": "3600"}), r"asks to wait 3,\d\d\d s .*later, or give a higher --longest-wait"),
    ],
)
def test_what_no_repetition_mends_ends_the_run_in_one_line(server, refusal, message, monkeypatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server.refusal = refusal
    with pytest.raises(TeacherError, match=message) as caught:
        ask(teacher(server), questions(3))
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_other_refusals_that_speak_of_temperature_end_nothing(server) -> None:
    server.refusal = (400, {"error": {"message": "too long: Which melts at the lowest temperature?"}}, {})
    [reply] = ask(teacher(server), questions(1))
    assert reply.outcome is Outcome.FAILED


def test_what_has_arrived_comes_out_before_the_run_ends(server) -> None:
    rows = [*questions(5), *questions(1, fault="!402")]
    found = []
    with pytest.raises(TeacherError, match="quota"):
        found.extend(teacher(server, constraint=Constraint.CHOICE, max_concurrency=1).label(row.case for row in rows))
    assert [position for position, _ in found] == [0, 1, 2, 3, 4]


def test_the_key_comes_from_the_environment_and_is_never_repeated(server, monkeypatch) -> None:
    server.key = "sk-very-secret"
    monkeypatch.setenv("MY_KEY", "sk-wrong-secret")
    asked = teacher(server, api_key_env="MY_KEY")
    with pytest.raises(TeacherError, match=r"key in MY_KEY is refused .*Bearer \*\*\*") as caught:
        ask(asked, questions(1))
    assert "secret" not in str(caught.value)
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    [reply] = ask(asked, questions(1, fault="!echo_key"))
    assert reply.raw == "my key is ***"
    assert "secret" not in repr(asked.config) + json.dumps(asked.identity()) + repr(reply)


def test_the_rate_is_kept(server) -> None:
    ask(teacher(server, requests_per_minute=1200, constraint=Constraint.CHOICE), questions(8))
    assert server.started[-1] - server.started[0] >= 7 * 0.05 * 0.9


def test_tokens_are_estimated_where_the_endpoint_does_not_count(server) -> None:
    server.counts_tokens = False
    [reply] = ask(teacher(server, constraint=Constraint.CHOICE), questions(1))
    assert reply.prompt_tokens > 200
    assert reply.completion_tokens > 0


def test_cases_are_taken_as_slots_get_free(server) -> None:
    taken = 0

    def cases():
        nonlocal taken
        for row in questions(50):
            taken += 1
            yield row.case

    arriving = teacher(server, max_concurrency=2, constraint=Constraint.CHOICE).label(cases())
    server.delay = 0.2
    next(arriving)
    arriving.close()
    assert taken <= 6


def test_settings_out_of_bounds_are_one_line() -> None:
    for url in ("https://user:hunter2@host/v1", "https://host/v1?api-key=hunter2"):
        with pytest.raises(UserError, match="without user, password") as caught:
            EndpointConfig(url, "judge")
        assert "hunter2" not in str(caught.value)
    with pytest.raises(UserError, match="name of the model is empty"):
        EndpointConfig("http://127.0.0.1:1", " ")
    with pytest.raises(UserError, match="temperature=-0"):
        EndpointConfig("http://127.0.0.1:1", "judge", temperature=-0.1)
