"""docs/experiments/tasks.md is executed; its table is the presets'; what it says of the made questions is counted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from list_questions.rows import make_list_questions
from list_questions.statements import RELATIONS
from selfrag.evaluation.presets import COLUMNS, PRESETS, rows
from selfrag.evaluation.tables import compact

CORPUS = Path(__file__).parents[3] / "shared" / "data"
TEXT = (Path(__file__).parents[2] / "docs" / "experiments" / "tasks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.M | re.S)


def test_the_table_is_that_of_the_presets() -> None:
    found = re.search(r"<!-- tasks -->\n(.*?)<!-- /tasks -->", TEXT, flags=re.S)
    assert found is not None
    assert found[1] == compact(COLUMNS, rows())


def test_protocols_and_relations_are_on_the_page() -> None:
    protocols = {name for one in PRESETS.values() for name in one.protocols}
    assert all(f"- `{name}`" in TEXT for name in protocols)
    assert f"{len(RELATIONS)} relations" in TEXT


def test_its_blocks_print_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {"__name__": "__docs__"}
    for body in BLOCKS:
        exec(compile(body, "tasks.md", "exec", dont_inherit=True), namespace)  # the point of this test
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 4
    for line in printed:
        assert f"`{line}`" in TEXT, line


@pytest.mark.slow
@pytest.mark.skipif(not CORPUS.is_dir(), reason="the given corpus is not beside this checkout")
def test_the_questions_that_the_given_corpus_yields(tmp_path: Path) -> None:
    made = make_list_questions(CORPUS, tmp_path / "lists.jsonl")
    kinds = made["type"]
    counted = (
        f"{made['rows']} questions ({kinds['simple']} with one condition, {kinds['intersection']} with two,"
        f" {kinds['composition']} through another entity; 2 to {max(map(int, made['answers']))} answers)"
    )
    assert counted in " ".join(TEXT.split())
    assert made["split"]["train"] == 10
