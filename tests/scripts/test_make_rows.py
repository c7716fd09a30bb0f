"""Rows made of other rows: of the baselines, of a critic from neighbouring annotations, of hallucination detection."""

from json_files import write_lines

from selfrag.training.intrinsics.rows import read_labelled


def written(path, *records):
    write_lines(path, records)
    return path


def test_every_label_of_issup_becomes_that_of_a_response(tmp_path, run_script):
    labels = ["Fully supported", "Partially supported", "No support / Contradictory"]
    row = {
        "instruction": "Who?",
        "output": "Goethe. In 1808.",
        "evidence": {"title": "Faust", "text": "By Goethe."},
    }
    lines = [
        {**row, "id": label, "dataset": "d", "group": "IsSup", "label": label}
        for label in labels
    ]
    lines.append({**lines[0], "id": "e", "output": " "})
    lines += [
        {**lines[0], "id": "x", "dataset": "other"},
        {**row, "id": "r", "dataset": "d", "group": "IsRel", "label": "Relevant"},
    ]
    file = written(tmp_path / "critic.jsonl", *lines)
    done = run_script(
        *f"make_support_rows {file} --without other --out {tmp_path}".split()
    )
    assert done == (0, "d: 3\nleft out, because the reply is empty: 1\n", "")
    rows = read_labelled(
        tmp_path / "hallucination_dev.jsonl", "hallucination_detection"
    )
    assert [record.response for record in rows] == ["faithful", "partial", "unfaithful"]
    assert rows[0].state.response == "Goethe. In 1808."
    assert rows[0].state.passages[0].title == "Faust"
    code, _, error = run_script(
        *f"make_support_rows {file} --without none --out {tmp_path}".split()
    )
    assert code == 2
    assert error.count("\n") == 1
    assert "has only d, other" in error
