"""The race for labels: its cases, how a generated answer is read, and (slow) both sides on a tiny model in vLLM."""

import sys
from collections import Counter
from pathlib import Path

import pytest
import tiny

import bench_critic as bench
from selfrag.errors import UserError
from selfrag.jsonl import write_jsonl

TESTS = Path(__file__).parents[1] / "critic"


def test_a_row_asks_two_labels_and_two_more_a_passage(tmp_path):
    passages = [{"id": f"p{k}", "title": "T", "text": f"Text {k}."} for k in range(3)]
    row = {"task": "short_qa", "instruction": "Who?", "answers": ["Answer"], "gold_passage_ids": ["p0"]}
    write_jsonl(tmp_path / "rows.jsonl", [{"id": f"q{i}", **row, "passages": passages} for i in range(3)])
    cases = bench.cases_of(tmp_path / "rows.jsonl", rows=2, passages=3)
    assert Counter(case.group for case in cases) == {"Retrieve": 2, "IsUse": 2, "IsRel": 6, "IsSup": 6}
    assert all(case.output == "Answer" for case in cases if case.group in ("IsUse", "IsSup"))
    with pytest.raises(UserError, match="holds 3 rows with an answer and 3 passages; 4 are asked for"):
        bench.cases_of(tmp_path / "rows.jsonl", rows=4, passages=3)


@pytest.mark.engine
@pytest.mark.slow
def test_both_ways_name_the_same_labels_on_vllm(tmp_path):
    pytest.importorskip("vllm")
    sys.path.insert(0, str(TESTS / "student"))
    from student_cases import labelled
    from test_student_training import config, told

    from critic.student.training import train_critic

    base = tiny.save_llama(tmp_path / "base", reflection=False, tie=True)
    write_jsonl(tmp_path / "rows.jsonl", [told(row).as_dict() for row in labelled(each=2)])
    settings = config(epochs=30, learning_rate=1e-2, row_learning_rate=1e-2)
    model = train_critic(tmp_path / "rows.jsonl", base, tmp_path / "run", settings)
    found = bench.race(model, [told(row).case for row in labelled(each=1)], repeats=1)
    assert [len(pace.labels) for pace in found.paces] == [13, 13, 13]
    assert found.paces[1].generated == 13 * 15
    assert bench.same(found.paces[0], found.paces[1]) == 13
    assert 0 < found.computed_tokens <= found.prompt_tokens
    assert len(found.operators) == 5
    assert 0 < sum(found.operators.values()) <= 1
