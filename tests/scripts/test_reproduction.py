"""The papers' tables by commands: rows of Table 2, tolerances, counts of files, and rehearsals on stand-ins."""

import re
import shlex
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import tiny
import typer
from json_files import parse_table, write_lines
from refusals import refused
from table5 import CHOOSE, CITE, CLAIM

from critic.cli.main import app as critic
from retrieval.passage import Passage
from scripts.reproduction.data import long_tail, row_of, take, without_reflection
from scripts.reproduction.prompts import prompt
from scripts.reproduction.reproduce import (
    STANDINS,
    TABLES,
    VARIABLES,
    find_empty_places,
)
from scripts.reproduction.standins import FILES
from scripts.reproduction.steps import (
    Check,
    Judges,
    Place,
    answering,
    check_counts,
    factscore_cost,
    judging,
    markdown,
    public_files,
)
from scripts.reproduction.table2 import COLUMNS, ROWS, TASKS, row
from selfrag.cli.main import app, main
from selfrag.evaluation import published
from selfrag.evaluation.intervals import NONE, Estimate
from selfrag.evaluation.presets import PRESETS
from selfrag.evaluation.published import why_left_out
from selfrag.training.rows import TargetEvidence, TargetText, TargetToken, TrainingRow

RUNNABLE = [table_row for table_row in ROWS.values() if table_row.system]


def understood(words):
    """Parameters of a command of `selfrag`, `critic` or a script, as its parser reads them."""
    program, *words = words
    if program == "python":
        _, script, *words = words
        node = typer.main.get_command(import_module(script).main.make_program())
    else:
        node = typer.main.get_command({"selfrag": app, "critic": critic}[program])
    while isinstance(node, typer.core.TyperGroup):
        node = node.get_command(typer.Context(node), words.pop(0))
    return dict(node.make_context(program, words).params)


@pytest.fixture(scope="module")
def samples():
    return public_files(FILES)


def test_the_table_agrees_with_the_presets():
    for name, size in (("selfrag-7b", "7b"), ("selfrag-13b", "13b")):
        for (task, metric), figure in zip(COLUMNS, row(name).figures, strict=True):
            assert PRESETS[task].published[metric][size] == figure
    assert len(ROWS) == 19
    assert all(
        len(table_row.figures) == len(COLUMNS) == len(table_row.tolerances)
        for table_row in ROWS.values()
    )


def test_every_row_is_one_command_that_is_understood(samples, tmp_path):
    place = Place(samples, tmp_path, ("--limit=2",))
    for table_row in RUNNABLE:
        parsed = understood(answering(table_row, place, "some/model"))
        expected = {
            "system": [table_row.system],
            "name": table_row.name,
            "model": "some/model",
            "limit": 2,
        }
        assert expected.items() <= parsed.items()
        read = place.task_files(table_row)
        assert [file.name for file in read] == list(TASKS)
        assert [file.task.preset for file in read] == [
            f"{task}/{table_row.protocol(task)}" for task in TASKS
        ]
        for words in judging(table_row, place, Judges(knowledge="index")):
            if words[:3] == ["selfrag", "eval", "judge"]:
                assert understood(words)["runs"] == [tmp_path / table_row.name]
            elif words[0] == "selfrag":
                assert understood(words)["run"] == tmp_path / table_row.name


def test_mauve_has_features_of_a_model_with_an_owner():
    """Audit P1: a hub name without an owner is no model."""
    assert Judges().features == "openai-community/gpt2-large"


def test_factscore_is_the_official_tools_and_sentences_are_another_figure(samples):
    """Audit P9: the tool runs between two commands of ours."""
    place = Place({"biographies": samples["biographies"]}, Path("runs"))
    write, tool, read = judging(row("selfrag-7b"), place, Judges())
    assert write[2] == "facts"
    assert write[-1] == "--write=runs/selfrag-7b-facts.jsonl"
    assert tool[:3] == ["python", "-m", "factscore.factscorer"]
    assert read[2] == "facts"
    assert read[-1] == "--read=runs/selfrag-7b-facts_factscore_output.json"
    assert not judging(row("ret-chatgpt"), place, Judges())


def test_files_of_another_length_than_the_papers_are_refused(samples):
    with refused(
        r"has 3 rows, and popqa is measured on 1,399: long tail, fewer than 100 views"
    ):
        check_counts(samples)
    check_counts({"pubhealth": samples["pubhealth"]})  # the paper gives no number


def test_the_long_tail_has_fewer_than_100_views(tmp_path, run_script):
    rows = [{"question": "Q", "s_pop": views} for views in ("99", 100, 12.5)]
    assert [row["s_pop"] for row in long_tail(rows)] == ["99", 12.5]
    with refused("row 1 .*'s_pop'"):
        list(long_tail([{"question": "Q"}]))
    (tmp_path / "test.tsv").write_text("id\tquestion\ts_pop\n1\tWho?\t7\n")
    code, _, error = run_script(
        *f"data long-tail {tmp_path}/test.tsv -o {tmp_path}/out.jsonl".split()
    )
    assert code == 2
    assert "1 row has s_pop < 100, and the paper's are 1,399" in error


def test_the_published_training_rows_are_read_as_they_are(tmp_path, run_script):
    """Output in one string, as in selfrag_train_data; what is not closed is left out and counted."""
    output = "[Retrieval]<paragraph>Paris\nIn France.</paragraph>[Relevant]A city [of light].[Utility:5]</s>"
    row = row_of(
        {"instruction": "Where?", "input": "x", "output": output, "dataset_name": "nq"},
        7,
    )
    assert row.id == "nq-7"
    assert row.instruction == "Where?\n\n### Input:\nx"
    evidence = TargetEvidence(Passage("passage", "In France.", "Paris"))
    relevant, answer = TargetToken("[Relevant]"), TargetText("A city [of light].")
    assert row.target == (
        TargetToken("[Retrieval]"),
        evidence,
        relevant,
        answer,
        TargetToken("[Utility:5]"),
    )
    lines = [
        {"instruction": "Q", "output": "[No Retrieval]A.[Utility:4]"},
        {"instruction": "Q", "output": "<paragraph>"},
    ]
    write_lines(tmp_path / "train.jsonl", lines)
    code, said, _ = run_script(
        *f"data release {tmp_path}/train.jsonl -o {tmp_path}/rows.jsonl".split()
    )
    assert code == 0
    assert (
        said
        == f"left out: 1; row 2: a passage is not closed\n{tmp_path / 'rows.jsonl'}: 1 row\n"
    )


def test_shares_of_rows_hold_the_smaller_ones_and_plain_rows_their_text():
    rows = [
        TrainingRow(str(n), "s", "Q", (TargetToken("[Relevant]"), TargetText(f" {n}.")))
        for n in range(8)
    ]
    small, large = take(list(rows), 3), take(list(rows), 5)
    assert small == large[:3]
    assert without_reflection(rows[2]).target == (TargetText("2."),)
    with refused("9 rows of 8"):
        take(list(rows), 9)


@pytest.mark.parametrize("name", TABLES)
def test_every_command_of_every_table_is_understood(name, run_script, tmp_path):
    code, said, _ = run_script("reproduce", "print", name, "--files", tmp_path)
    lines = [
        shlex.split(line[2:]) for line in said.splitlines() if line.startswith("$ ")
    ]
    assert code == 0
    assert len(lines) == len(TABLES[name].steps)
    standins = {"files": tmp_path, "out": tmp_path, "grader_url": "http://a.b/v1"}
    standins |= {**VARIABLES, **TABLES[name].variables, **STANDINS}
    lines += TABLES[name].commands({**standins, **TABLES[name].rehearsal})
    for words in lines:
        assert understood(words)
        assert "{" not in shlex.join(words)


def test_commands_read_the_data_of_the_papers(run_script):
    """62.1: QAMPARI for the grid, four domains and corpora of MT-RAG, ASQA alone sampled, TriviaQA in C.1, MAUVE."""

    def printed(name):
        return run_script("reproduce", "print", name)[1]

    assert "interpret run qampari=data/qampari_eval_gtr_top100.json" in printed(
        "interpret"
    )
    for name in ("intrinsics-2-7", "intrinsics-11-16"):
        domains = re.findall(
            r"mtrag-human/retrieval_tasks/(\w+)/\1_rewrite", printed(name)
        )
        assert domains == "clapnq cloud fiqa govt".split()
        assert "--corpus data/mt-rag-benchmark/corpora/passage_level " in printed(name)
    memory, ablations, pubhealth, asqa = [
        line for line in printed("selfrag-3a").splitlines() if line.startswith("$ ")
    ]
    assert "triviaqa/baseline=" in memory
    assert "triviaqa/paper=" in ablations
    assert "--baseline runs/selfrag-3a/memory/llama2-chat-13b" in ablations
    assert ["--limit" in line for line in (ablations, pubhealth, asqa)] == [
        False,
        False,
        True,
    ]
    assert "--metric mauve" in printed("selfrag-3b")


def test_what_no_table_has_is_refused(run_script, tmp_path):
    for arguments, message in (
        (["print", "selfrag-9"], "unknown table 'selfrag-9'"),
        ("print selfrag-3a --set models=x".split(), "unknown variable 'models'"),
        ("print selfrag-3a --set model".split(), "give NAME=VALUE"),
        ("print selfrag-2 --set row=nope".split(), "row='nope'"),
        (["report", "--out", tmp_path], "holds no table that was run"),
        (
            ["run", "interpret", "--out", tmp_path],
            "needs files that are not there: data/qampari",
        ),
        (
            ["run", "selfrag-2", "--out", tmp_path],
            "needs files that are not there: data",
        ),
    ):
        code, _, error = run_script("reproduce", *arguments)
        assert code == 2
        assert message in error
        assert error.count("\n") == 1


def test_a_rehearsal_fails_where_a_column_or_a_row_holds_no_number():
    page = f"## T\n\n| system | F1 | MAUVE |\n|---|---|---|\n| a | 1.0 | - |\n| b | {NONE} | - |\n\n"
    assert list(find_empty_places(page)) == ["column MAUVE of T", "row b of T"]
    assert not list(find_empty_places(page.replace("| - |", "| 2 (1 to 3) |")))
    assert list(find_empty_places(page.replace("| - |", "| failed |")))


def test_the_key_of_factscore_is_checked_and_its_cost_told_first(tmp_path, run_script):
    line = f"run selfrag-7b --files {FILES} --out {tmp_path} --limit 1 --factscore"
    (tmp_path / "empty").write_text("\n")
    for more, message in (
        (f"{tmp_path}/no-python", "no such program"),
        ("python3", "no file holds a key; give --factscore-key FILE"),
        (f"python3 --factscore-key {tmp_path}/empty", "empty holds a key"),
    ):
        code, said, error = run_script("reproduce_selfrag", *f"{line} {more}".split())
        assert code == 2
        assert said == ""  # before anything is answered
        assert message in error
    write_lines(
        tmp_path / "facts.jsonl", [{"output": "He was born. He died."}, {"output": ""}]
    )
    cost = factscore_cost(tmp_path / "facts.jsonl")
    assert "asks OpenAI about 2 sentences" in cost
    assert "so 0.02 USD" in cost
    words = judging(
        row("selfrag-7b"),
        Place({"biographies": tmp_path / "b"}, tmp_path),
        Judges(key="K"),
    )[1]
    assert words[words.index("--openai_key") + 1] == "K"


ENTRIES = dict(
    parse_table("""
selfrag-2 | ["selfrag-2"]
selfrag-3a | ["selfrag-3a", "selfrag-3a-memory"]
selfrag-3b | ["selfrag-3b"]
selfrag-3c | ["selfrag-3c"]
selfrag-4 | ["selfrag-4"]
selfrag-5 | ["selfrag-5"]
intrinsics-2-7 | ["intrinsics-2-4", "intrinsics-5-7"]
intrinsics-3-2 | ["intrinsics-3-2"]
intrinsics-8 | ["intrinsics-8"]
intrinsics-9-10 | ["intrinsics-9", "intrinsics-10"]
intrinsics-11-16 | ["intrinsics-11-16"]
intrinsics-12-13 | ["intrinsics-12", "intrinsics-13"]
interpret | ["interpret"]
""")
)
"""Table to its entries in `published.toml`."""


@pytest.mark.parametrize("name", TABLES)
def test_published_figures_stand_beside_the_same_data_items_and_metric_alone(name):
    """The reports ask `why_left_out`; tests of the reports show that what it names is not printed."""
    assert list(ENTRIES) == list(TABLES)
    for entry in ENTRIES[name]:
        for data, of in published.OF[entry].items():
            if data == "figures":
                assert of is False
                continue
            counts = of["items"]
            count = counts["most"] if isinstance(counts, dict) else counts[0]
            for metric in of["metrics"]:
                assert why_left_out(entry, data, count, metric) == ""
                for wrong in (
                    (data, 2 * count, metric),
                    ("mine", count, metric),
                    (data, count, "x"),
                ):
                    reason = why_left_out(entry, *wrong)
                    assert reason.startswith(
                        f"Published figure of {entry} left out: it is "
                    )
                    assert "\n" not in reason


REHEARSED = [
    pytest.param(name, marks=[] if name == "intrinsics-8" else [pytest.mark.slow])
    for name in TABLES
]
"""One of them is run in CI, the others take minutes."""


@pytest.mark.demo
@pytest.mark.engine
@pytest.mark.parametrize("name", REHEARSED)
def test_every_printed_step_runs_and_every_column_holds_a_number(
    name, tmp_path_factory, run_script
):
    """With the demo model on made-up files, whose numbers of items are none of the papers': no figure of theirs."""
    out = tmp_path_factory.getbasetemp() / "rehearsal"
    code, _, error = run_script(*f"reproduce rehearse {name} --out {out}".split())
    assert code == 0, error
    section = (out / "report.md").read_text().partition(f"## {TABLES[name].title}")[2]
    assert section.count("|")
    assert not list(find_empty_places(section))
    for entry in ENTRIES[name]:
        if published.OF[entry] != {"figures": False}:
            assert f"Published figure of {entry} left out: it is" in section


def test_a_figure_is_within_its_tolerance_or_not():
    for published_figure, ours, left_out, verdict in parse_table("""
54.9 | 55.9 | "" | within
54.9 | 53.8 | "" | outside
null | 50.0 | of 3 items | not comparable
null | 50.0 | "" | not published
54.9 | null | "" | not measured
"""):
        estimate = None if ours is None else Estimate(ours, ours - 4.0, ours + 4.0, 100)
        cell = Check("popqa", "em", published_figure, estimate, 1.0, left_out)
        assert cell.verdict == verdict
    cell = Check("popqa", "official_match", 54.9, Estimate(50.0, 46.0, 54.0, 9), 1.0)
    shown = markdown(row("selfrag-7b"), [cell])
    assert "| 54.9 | 50.0 [46.0, 54.0] | -4.9 | 1.0 | outside |" in shown
    bare = markdown(row("selfrag-7b"), [replace(cell, published=None, left_out="Why")])
    assert "| task | metric | ours |" in bare
    assert "54.9" not in bare
    assert "Why." in bare


@pytest.mark.engine
def test_the_script_from_end_to_end_on_a_tiny_model(tmp_path, run_script, monkeypatch):
    pytest.importorskip("rouge_score")

    step = "scripts.reproduction.reproduce_selfrag.run_step"
    monkeypatch.setattr(step, lambda words: main(words[1:]))
    # its answers are shorter than the tasks allow
    short = tiny.save_llama(tmp_path / "model", context=512)
    words = f"--files {FILES} --out {tmp_path} --model {short} --limit 1"
    options = [*words.split(), "--engine=transformers", "--no-judges"]
    code, _, error = run_script("reproduce_selfrag", "run", "selfrag-7b", *options)
    assert code == 1, error  # not everything was measured, and it says so
    table = (tmp_path / "selfrag-7b.md").read_text()
    assert "Another model than the paper's was run." in table
    cells = re.findall(r"^\| (\S+) .*\| (\S[^|]*) \|$", table, re.M)
    assert [task for task, _ in cells if task in TASKS] == [task for task, _ in COLUMNS]
    # FactScore, MAUVE, citations need a judge; one item is not what the paper's figures are of
    assert [ours for _, ours in cells].count(NONE) == 4
    assert "54.9" not in table
    assert "left out: it is of 1,399 items of popqa (long tail" in table
    assert not re.search(r"\bnan\b", table)  # one item has no interval


AMBIGUOUS = (
    "Answer the following question. The question may be ambiguous and have multiple correct answers, and in that case,"
    " you have to provide a long-form answer including all correct answers."
)
CITY = "Which city is the capital of France?\nA: Paris\nB: Lima\nC: Quito\nD: Cusco"
TABLE_5 = {  # the tasks in the words of Table 5: an instruction and an input, or the input alone
    "popqa": ("", "What is the capital of France?"),
    "triviaqa": ("", "Which river flows through Paris?"),
    "pubhealth": (CLAIM, "Paris is the capital of France."),
    "arc-challenge": (CHOOSE, CITY),
    "biographies": ("", "Tell me a bio about Paris"),
    "asqa": (CITE, "What is France known for?"),
}
FIRST = "Paris\nParis is the capital of France."
DOCUMENTS = (
    FIRST,
    "Paris\nThe Seine flows through Paris.",
    "Bread\nBread is made of flour.",
)
DOCUMENTS += ("Bread\nBread is baked.", "Bread\nRye bread is dark.")


@pytest.mark.parametrize(
    "name",
    [
        "selfrag-7b",
        "llama2-7b",
        "ret-llama2-7b",
        "ret-alpaca-7b",
        "llama2-chat-13b",
        "llama2-ft-7b",
        "ret-chatgpt",
    ],
)
def test_what_a_row_of_each_kind_asks_is_what_the_paper_says(name, samples):
    """Table 5, 4.2 and 4.3, whole prompts; of Self-RAG's own rows with `--letter`."""
    table_row = row(name)
    for file in Place(samples, Path(), letter=True).task_files(table_row):
        task = file.name
        instruction, question = TABLE_5[task]
        if table_row.system == "selfrag":
            instruction = AMBIGUOUS if task == "asqa" else instruction
            question_text = (
                f"{instruction}\n\n## Input:\n\n{question}" if instruction else question
            )
            want = f"### Instruction:\n{question_text}\n\n### Response:\n[Retrieval]<paragraph>{FIRST}</paragraph>"
            assert prompt(table_row, file) == want
            continue
        question_text = (
            f"{instruction}\n\n### Input:\n{question}" if instruction else question
        )
        reads = DOCUMENTS if task == "asqa" else DOCUMENTS[:1]
        numbered = "".join(
            f"[{number}] {text}\n\n" for number, text in enumerate(reads, 1)
        )
        evidence = (
            numbered
            if table_row.name.startswith("ret-") or table_row.system == "finetuned-rag"
            else ""
        )
        want = f"### Instruction:\n{evidence}{question_text}\n\n### Response:\n"
        if table_row.is_endpoint:
            want = f"{evidence}{question_text}"
        elif "alpaca" in table_row.name:
            want = (
                "Below is an instruction that describes a task. Write a response that appropriately completes the"
                f" request.\n\n{want.removesuffix(chr(10))}"
            )
        read = prompt(table_row, file)
        if "chat" in table_row.name and not table_row.is_endpoint:
            assert read.startswith(
                "[INST] <<SYS>>\nYou are a helpful, respectful and honest assistant. Always "
            )
            read = read.partition("<</SYS>>\n\n")[2]
            want = f"{evidence}{question_text} [/INST]"
        assert read == want


def test_a_dry_run_shows_all_rows_with_their_settings(run_script):
    """4.3 and B.2; without `--letter` as the released code asks."""
    code, said, _ = run_script("reproduce_selfrag", "plan")
    assert code == 0
    for settings in (
        "popqa/official: new tokens: 100; segments: 1; documents: 10, one a candidate",
        "asqa/baseline: new tokens: 100; segments: 1; documents: 5; no settings\n  published: str_em 15.2, rouge_lsum",
    ):
        assert settings in said
    assert re.findall(r"^## .* \((.*)\)$", said, re.M) == list(ROWS)
    assert said.count("$ selfrag eval run ") == len(RUNNABLE)
