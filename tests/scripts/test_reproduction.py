"""Table 2 again: its rows, the commands of a row, tolerances, and the script from end to end on a tiny model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import tiny
import typer
from table5 import CHOOSE, CITE, CLAIM

from scripts.reproduction.prompts import prompt
from scripts.reproduction.steps import (
    Check,
    Judges,
    Place,
    answering,
    judging,
    markdown,
    write_samples,
)
from scripts.reproduction.table2 import COLUMNS, ROWS, TASKS, row
from selfrag.cli.main import app
from selfrag.evaluation.intervals import Estimate
from selfrag.evaluation.presets import PRESETS, Given
from selfrag.evaluation.task_files import read_tasks

RUNNABLE = [one for one in ROWS.values() if one.system]


def understood(words: list[str]) -> dict[str, object]:
    """Parameters of a command of `selfrag`, as its parser reads them."""
    node = typer.main.get_command(app)
    for name in words[:2]:
        node = node.commands[name]
    return dict(node.make_context(words[1], words[2:]).params)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_samples(tmp_path_factory.mktemp("samples"))


def test_the_table_agrees_with_the_presets() -> None:
    for name, size in (("selfrag-7b", "7b"), ("selfrag-13b", "13b")):
        for (task, metric), figure in zip(COLUMNS, row(name).figures, strict=True):
            assert PRESETS[task].published[metric][size] == figure
    assert len(ROWS) == 19
    assert all(len(one.figures) == len(COLUMNS) == len(one.tolerances) for one in ROWS.values())


def test_every_row_is_one_command_that_is_understood(samples: dict[str, Path], tmp_path: Path) -> None:
    place = Place(samples, tmp_path, ("--limit=2",))
    for one in RUNNABLE:
        given = understood(answering(one, place, "some/model"))
        assert given | {"system": [one.system], "name": one.name, "model": "some/model", "limit": 2} == given
        read = read_tasks([Given.parse(text) for text in given["files"]])
        assert [file.name for file in read] == list(TASKS)
        assert [file.task.preset for file in read] == [f"{task}/{one.protocol(task)}" for task in TASKS]
        for words in judging(one, place, Judges(facts="true", knowledge="index")):
            assert understood(words)["runs"] == [tmp_path / one.name]


def test_a_figure_is_within_its_tolerance_or_not() -> None:
    for published, ours, sampled, verdict in (
        (54.9, 55.9, False, "within"),
        (54.9, 53.8, False, "outside"),
        (54.9, 50.0, True, "within"),  # 4.9 away, 1 allowed and 4 of the interval
        (None, 50.0, False, "not published"),
        (54.9, None, False, "not measured"),
    ):
        estimate = None if ours is None else Estimate(ours, ours - 4.0, ours + 4.0, 100)
        assert Check("popqa", "official_match", published, estimate, 1.0, sampled).verdict == verdict
    alone = Check("popqa", "official_match", 54.9, Estimate(50.0, float("nan"), float("nan"), 1), 1.0, True)
    assert (alone.slack, alone.verdict) == (1.0, "outside")
    assert "| 54.9 | 50.0 | -4.9 | 1.0 | outside |" in markdown(row("selfrag-7b"), [alone])
    assert "outside" not in markdown(row("selfrag-7b"), [alone], "A rehearsal", verdicts=False)


@pytest.mark.engine
def test_the_script_from_end_to_end_on_a_tiny_model(tmp_path: Path, run_script) -> None:
    pytest.importorskip("rouge_score", reason="rouge-score is not installed")
    files = write_samples(tmp_path / "files")
    place = (f"--files={tmp_path / 'files'}", f"--out={tmp_path}")
    short = tiny.save_llama(tmp_path / "model", context=512)  # its answers are shorter than the tasks allow
    model = (f"--model={short}", "--engine=transformers", "--limit=1", "--no-judges")
    code, said, error = run_script("reproduce_selfrag", "run", "selfrag-7b", *place, *model)
    assert code == 1, error  # nothing was reproduced, and it says so
    assert "Another model than the paper's was run." in said
    manifest = json.loads((tmp_path / "selfrag-7b" / "manifest.json").read_text())
    assert list(manifest["files"]) == list(files)
    assert all(file["result"] == file["result"] | {"items": 1, "failed": 0} for file in manifest["files"].values())
    table = (tmp_path / "selfrag-7b.md").read_text()
    assert len(re.findall(r"^\| (?:popqa|triviaqa|pubhealth|arc-challenge|biographies|asqa) ", table, re.M)) == 10
    assert table.count("| not measured |") == 4  # FactScore, MAUVE and two of citations need a judge
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
DOCUMENTS = (FIRST, "Paris\nThe Seine flows through Paris.", "Bread\nBread is made of flour.")
DOCUMENTS += ("Bread\nBread is baked.", "Bread\nRye bread is dark.")


def read(one, samples: dict[str, Path], *, letter: bool = False):
    given = Place(samples, Path(), letter=letter).given(one)
    return {file.name: file for file in read_tasks([Given.parse(text) for text in given])}


@pytest.mark.parametrize(
    "name",
    ["selfrag-7b", "llama2-7b", "ret-llama2-7b", "ret-alpaca-7b", "llama2-chat-13b", "llama2-ft-7b", "ret-chatgpt"],
)
def test_what_a_row_of_each_kind_asks_is_what_the_paper_says(name, samples: dict[str, Path]) -> None:
    """Table 5, 4.2 and 4.3, whole prompts; of Self-RAG's own rows with `--letter`."""
    one = row(name)
    for task, file in read(one, samples, letter=True).items():
        instruction, question = TABLE_5[task]
        if one.system == "selfrag":
            instruction = AMBIGUOUS if task == "asqa" else instruction
            asked = f"{instruction}\n\n## Input:\n\n{question}" if instruction else question
            want = f"### Instruction:\n{asked}\n\n### Response:\n[Retrieval]<paragraph>{FIRST}</paragraph>"
            assert prompt(one, file) == want
            continue
        asked = f"{instruction}\n\n### Input:\n{question}" if instruction else question
        reads = DOCUMENTS if task == "asqa" else DOCUMENTS[:1]
        numbered = "".join(f"[{number}] {text}\n\n" for number, text in enumerate(reads, 1))
        evidence = numbered if one.name.startswith("ret-") or one.system == "finetuned-rag" else ""
        want = f"### Instruction:\n{evidence}{asked}\n\n### Response:\n"
        if not one.system:
            want = f"{evidence}{asked}"
        elif "alpaca" in one.name:
            want = (
                "Below is an instruction that describes a task. Write a response that appropriately completes the"
                f" request.\n\n{want.removesuffix(chr(10))}"
            )
        found = prompt(one, file)
        if "chat" in one.name and one.system:
            assert found.startswith("[INST] <<SYS>>\nYou are a helpful, respectful and honest assistant. Always ")
            found, want = found.partition("<</SYS>>\n\n")[2], f"{evidence}{asked} [/INST]"
        assert found == want


def test_a_dry_run_shows_all_rows_with_their_settings(run_script) -> None:
    """4.3 and B.2; without `--letter` as the released code asks."""
    code, said, _ = run_script("reproduce_selfrag", "--dry-run")
    assert code == 0
    for settings in (
        "popqa/official: new tokens: 100; segments: 1; documents: 10, one a candidate",
        "asqa/baseline: new tokens: 100; segments: 1; documents: 5; no settings\n  published: str_em 15.2, rouge_lsum",
    ):
        assert settings in said
    assert re.findall(r"^## .* \((.*)\)$", said, re.M) == list(ROWS)
    assert said.count("$ selfrag eval run ") == len(RUNNABLE)
