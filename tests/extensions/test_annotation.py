"""Tasks for Label Studio, and what people said in its export."""

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
import reported
from json_files import read_json, write_json
from refusals import refused

from selfrag.extensions.annotation.label_studio import (
    NO_LABEL,
    read_export,
    write_tasks,
)


def annotation(data, person, wrong):
    """What somebody submitted who said yes to all but `wrong`, in the form of Label Studio."""
    names = ["plausible", "supported"]
    for place in range(len(data["segments"])):
        names += [f"isrel_{place}", f"issup_{place}"]
    result = []
    for name in names:
        value = {"choices": ["no" if name in wrong else "yes"]}
        entry = {"from_name": name, "to_name": "answer", "type": "choices"}
        result.append(entry | {"value": value})
    return {"completed_by": person, "result": result}


def exported(run, folder, *people):
    """Write an export; each of `people` is a person and what was wrong in each answer."""
    file, interface = write_tasks(run, folder, 2, only=["long"])
    ElementTree.fromstring(interface.read_text(encoding="utf-8"))
    tasks = read_json(file)
    for number, task in enumerate(tasks):
        task["id"] = number
        task["annotations"] = [
            annotation(task["data"], person, wrong.get(number, ()))
            for person, wrong in people
        ]
    path = folder / "export.json"
    write_json(path, tasks)
    return path


def test_figures_and_agreement_by_hand(runs, tmp_path, command):
    run = runs[0]
    second = {0: ("plausible",), 1: ("isrel_0",)}
    export = exported(run, tmp_path, (1, {}), ({"email": "b@example.org"}, second))
    results, people = read_export(run, export)
    assert people == 2
    shares = {figure.name: figure.share.value for figure in results}
    # one of four verdicts on the second answer
    expected = {"plausible": 0.75, "s&p": 0.75, "isrel": 0.875, "issup": 1.0}
    assert shares.items() >= expected.items()
    figures = {figure.name: figure for figure in results}
    assert figures["plausible"].share.n == 2
    assert figures["plausible"].agreement.value == 0.5
    assert figures["isrel"].agreement.value == pytest.approx(0.75)
    assert figures["plausible"].kappa.value == 0.0  # one person says yes to all
    shown, _ = command(f"selfrag eval annotate {run} --read {export}")
    [line] = re.findall(".*supported and plausible.*", shown)
    cells = [cell.strip() for cell in line.split("|")[3:5]]
    assert cells == ["2", "75.0 [50.0, 100.0]"]
    assert "2 people" in shown
    alone, _ = read_export(run, exported(run, tmp_path, (1, {})))
    assert alone[0].agreement is None


def test_a_skipped_task_a_label_that_is_none_and_other_results_say_nothing(
    runs, tmp_path
):
    export = exported(runs[0], tmp_path, (1, {}))
    tasks = read_json(export)
    tasks[0]["annotations"][0]["was_cancelled"] = True
    note = {"from_name": "note", "type": "textarea", "value": {"text": ["hm"]}}
    tasks[1]["annotations"][0]["result"].append(note)
    write_json(export, tasks)
    [plausible, *_] = read_export(runs[0], export)[0]
    assert plausible.name == "plausible"
    assert plausible.share.n == 1


def test_tasks_hold_what_people_see(runs, tmp_path, command):
    line = f"selfrag eval annotate {runs[0]} --sample 2 --only long -o {tmp_path}"
    assert "import it into a project of Label Studio" in command(line)[0]
    for task in read_json(tmp_path / "tasks.json"):
        data = task["data"]
        assert data["file"] == "long"
        assert data["answer"]
        for segment in data["segments"]:
            assert segment["text"]
            assert segment["passage"]
            assert segment["isrel"] in ("Relevant", "Irrelevant", NO_LABEL)


def test_what_cannot_be_done_is_one_line(runs, tmp_path, refusal):
    assert "--out FOLDER" in refusal(f"selfrag eval annotate {runs[0]}")
    bare = f"selfrag eval annotate {runs[1]} -o {tmp_path}/tasks"
    assert "--traces" in refusal(bare)
    export = exported(runs[0], tmp_path, (1, {}))
    changed = Path(shutil.copytree(runs[0], tmp_path / runs[0].name))
    file = changed / "long.jsonl"
    hostile = json.dumps("".join(reported.HOSTILE.values()))[1:-1]
    lines = file.read_text(encoding="utf-8").replace("It is large.", hostile)
    file.write_text(lines, encoding="utf-8")
    with refused("is not that of"):
        read_export(changed, export)
    tasks = read_json(export)
    for damaged, message in (
        ({"tasks": tasks}, "is no JSON export of Label Studio"),
        ([{"data": {"text": "?"}, "annotations": []}], "is no JSON export"),
        ([task | {"annotations": []} for task in tasks], "nothing was answered"),
        ([], "nothing was answered"),
    ):
        write_json(export, damaged)
        with refused(message):
            read_export(runs[0], export)
