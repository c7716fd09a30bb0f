"""Items that fail are counted with their reasons, and where all of a system fail the exit code is 4, in every command.

The model of most cases has a context of 40 tokens, which no prompt fits.
"""

import json
from dataclasses import replace

import pytest
import tiny
from chat_server import ChatServer, said
from intrinsic_rows import save_chat_llama
from json_files import parse_table, read_json

from critic.cases import Case
from critic.evaluation import compare, undefined_cases
from scripts.reproduction.standins import FILES
from selfrag.cli.results import CommandResult
from selfrag.common.jsonl import write_jsonl
from selfrag.evaluation.failures import Failures, count_reasons
from selfrag.evaluation.records import read_records

PASSAGES = [{"id": "p", "title": "Book", "text": "Ann wrote the book. " * 9}]


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    """A model whose context holds no prompt."""
    return tiny.save_llama(tmp_path_factory.mktemp("narrow"), context=40)


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "short.jsonl"
    row = {"task": "short_qa", "answers": ["Ann"], "passages": PASSAGES}
    rows = (
        {"id": f"q{i}", "instruction": f"Who wrote book {i}?"} | row for i in (1, 2)
    )
    write_jsonl(path, rows)
    return path


def test_reasons_are_counted_and_the_first_are_told():
    errors = ["full", None, "full", "b\n\x1bc", "d", "e", ""]
    failures = Failures("rag", "nq", len(errors), count_reasons(errors))
    assert failures.failed == 5
    assert not failures.is_total
    assert str(failures).startswith("rag, nq: 5 of 7 failed: full (2); b")
    assert str(failures).endswith("d (1); 1 further reasons")
    assert "\x1b" not in str(failures)
    assert CommandResult({}, failures=[failures]).exit_code == 0
    total = Failures("rag", "nq", 2, {"full": 2})
    assert CommandResult({}, failures=[failures, total]).exit_code == 4
    assert not Failures("rag", "nq", 0, {}).is_total


@pytest.mark.engine
@pytest.mark.parametrize("verb", ["eval run", "sweep", "ablate"])
def test_a_run_or_study_in_which_every_item_fails_ends_with_4(
    verb, narrow, questions, tmp_path, command
):
    line = f"selfrag {verb} {questions} --model {narrow} --engine transformers"
    more = {"sweep": " --axis issup=0,1 --best none"}.get(verb, "")
    _, error = command(f"{line}{more} -o {tmp_path}/out", code=4)
    assert "short: 2 of 2 failed: " in error
    records = [
        record
        for path in (tmp_path / "out").rglob("short.jsonl")
        for record in read_records(path)
    ]
    assert any("context" in (record["error"] or "") for record in records)
    shown = json.loads(command(f"{line}{more} -o {tmp_path}/out", "--json", code=4)[0])
    failures = shown["comparison"]["failures"]
    assert failures[0]["items"] == 2
    assert sum(failures[0]["reasons"].values()) == 2


def test_one_item_that_fails_is_told_and_the_run_is_a_success(
    questions, tmp_path, command, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")

    def answer(body):
        if "book 1" in str(body["messages"]):
            return 500, {"error": {"message": "out of memory"}}
        return said("Ann")

    with ChatServer(answer) as server:
        line = f"selfrag eval run {questions} --model gpt@{server.url} --system base"
        out, error = command(f"{line} -o {tmp_path}/runs")
    assert "base, short: 1 of 2 failed: " in error
    assert "out of memory" in error
    assert "--retry-failed" in error
    assert "1 of 2 failed" in out.replace("\n", " ")


def test_a_judge_that_cannot_be_asked_ends_with_4(
    questions, tmp_path, command, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    failing = 500, {"error": {"message": "out of memory"}}
    with ChatServer(lambda _: said("Ann did.")) as server:
        line = f"selfrag eval run {questions} --model gpt@{server.url} --system rag-1"
        command(f"{line} -o {tmp_path}/runs")
    with ChatServer(lambda _: failing) as server:
        judge = f"--load-judge judge:gpt@{server.url} --data {questions.parent}"
        _, error = command(f"selfrag eval judge {tmp_path}/runs/rag-1 {judge}", code=4)
        assert error.count("requests failed") == 1
        assert "out of memory" in error


@pytest.mark.parametrize("count", [2, 60])
def test_mauve_of_too_few_texts_is_a_failure_and_no_dash(count):
    from selfrag.evaluation.comparison import FileResult

    result = FileResult(
        "long", ("f1",), tuple(map(str, range(count))), {"f1": ((0.0, 1.0),) * count},
        1.0, {}, 0, {}, corpus_figures={"mauve (gpt2)": None},
    )  # fmt: skip
    (failure,) = result.failures("base", "asqa")
    assert failure.is_total
    assert str(failure).startswith(f"base, mauve (gpt2) of asqa: {count} of {count}")


@pytest.mark.engine
@pytest.mark.parametrize(
    "part, system, of",
    parse_table("""
query_rewrite | no rewrite | answers after rewrites
flows | none | flows
answerability | untrained | answerability
"""),
)
def test_intrinsics_that_all_fail_end_with_4_and_show_no_dash(
    part, system, of, tmp_path, command
):
    public = FILES / "mt-rag-benchmark"
    tasks = public / "mtrag-human/retrieval_tasks/clapnq/clapnq_rewrite.jsonl"
    command(f"selfrag eval rows mtrag_rewrite={tasks} -o {tmp_path}/rows")
    squad = FILES / "dev-v2.0.json"
    if part == "answerability":
        command(f"selfrag eval rows squad2={squad} -o {tmp_path}/rows")
    model = save_chat_llama(tmp_path / "chat", context=16)
    line = f"selfrag eval intrinsics --data {tmp_path}/rows --model {model} --engine transformers"
    if part != "answerability":
        line += f" --corpus {public}/corpora/passage_level/clapnq.jsonl"
    more = {"query_rewrite": " --answers 2", "flows": " --flows 2"}.get(part, "")
    out, error = command(f"{line} --only {part}{more} -o {tmp_path}/out", code=4)
    assert f"{system}, {of}: " in error
    assert f"{system}, {of}: " in (tmp_path / "out/report.md").read_text()
    assert "failed" in out
    items = read_json(tmp_path / "out/items.json")[part]
    assert any(item.get("error") or item.get("errors") for item in items)


def test_a_critic_that_judges_nothing_is_told():
    rows = [Case.of("Retrieve", "Q?", "", "A.", id=str(i)) for i in (1, 2)]
    names = rows[0].labels.names
    rows = [replace(row, label=names[0]) for row in rows]
    (failure,) = undefined_cases({"mine": compare(rows, [None, None])})
    assert failure.is_total
    assert str(failure).startswith("mine, Retrieve: 2 of 2 failed")
