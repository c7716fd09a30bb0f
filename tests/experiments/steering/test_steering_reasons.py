"""What an axis had to act on: counted again from the records of a study of the scripted model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from steered import closed, executed, job, scripted, short

from selfrag.decoding.policy import Decoding
from selfrag.evaluation.task_files import TaskFile
from selfrag.experiments.steering.reasons import Reason, reasons
from selfrag.experiments.steering.setting import Axis, plan
from selfrag.experiments.steering.study import study

AXES = tuple(map(Axis.parse, ("issup=5,0,1", "threshold=0,0.5,1", "mode=always,never", "passages=2")))
LAID_OUT = plan(Decoding(), AXES)


def found(folder: Path, file: TaskFile) -> tuple[dict[str, Reason], list[dict[str, Any]], dict[str, list[str]]]:
    """Reasons by axis, the recorded traces as they are on the disk, and each setting's answers."""
    one = study(job(folder), file, LAID_OUT.settings, executed(scripted()))
    path = folder / file.name / "recording" / f"{file.name}.jsonl"
    traces = [json.loads(line)["trace"] for line in path.read_text(encoding="utf-8").splitlines()]
    said = {
        name: [str(o.output and (o.output.text, o.output.cited)) for o in row] for name, row in one.outcomes.items()
    }
    return {reason.axis: reason for reason in reasons(one, LAID_OUT)}, traces, said


@pytest.mark.parametrize("file", [short(20), closed(8)], ids=lambda file: file.name)
def test_what_changes_between_the_ends_and_what_the_knob_acts_on(tmp_path: Path, file: TaskFile) -> None:
    why, traces, said = found(tmp_path, file)
    assert set(why) == {"issup", "threshold", "mode"}  # an axis of one value has no ends

    ends = {
        "issup": ("issup=0", "issup=5"),
        "threshold": ("threshold=0", "threshold=1"),
        "mode": ("mode=always", "mode=never"),
    }
    for axis, (first, last) in ends.items():
        assert why[axis].changed == sum(a != b for a, b in zip(said[first], said[last], strict=True))
        assert (why[axis].first, why[axis].last, why[axis].items) == (
            first.partition("=")[2],
            last.partition("=")[2],
            len(file.items),
        )
    assert why["threshold"].changed > 0

    starts = [next(d for d in trace["decisions"] if d["after"] == -1)["judgment"]["distribution"] for trace in traces]
    asked = [d["Retrieval"] / (d["Retrieval"] + d["No Retrieval"]) for d in starts]
    assert why["threshold"].quartiles is not None
    assert why["threshold"].quartiles[1] == pytest.approx(median(asked))
    assert why["mode"].quartiles is None
    assert "quartiles" not in str(why["mode"])
    assert f"changes {why['threshold'].changed} of {len(file.items)} answers; the probability of retrieving is" in str(
        why["threshold"]
    )

    worth = {"Fully supported": 1.0, "Partially supported": 0.5, "No support / Contradictory": 0.0}
    spans = []
    for trace in traces:
        critiques = [
            n["judgments"].get("issup") for n in trace["nodes"] if n["parent"] == -1 and n["status"] not in GONE
        ]
        scores = [sum(worth[name] * p for name, p in one["distribution"].items()) for one in critiques if one]
        spans += [max(scores) - min(scores)] if len(scores) > 1 else []
    assert why["issup"].quartiles is not None
    assert why["issup"].quartiles[1] == pytest.approx(median(spans))


GONE = ("duplicate", "empty", "forbidden", "failed")
