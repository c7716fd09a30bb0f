"""The authors' critic data as published: rows with GPT-4's labels, combined for training or as the teacher replied.

A combined row has the `instruction` that the critic is told, the case as text under `input`, the label under `output`,
and its `task`. A reply has the case as an object or as text, and the label under `score`, `decision_token` or `output`.
Texts have a field a line, in an order of their group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from critic.cases import GROUPS, Case
from selfrag.common.public_fields import PublicRow
from selfrag.interface import Passage, UserError

DATASET, TEACHER = "selfrag_critic", "gpt-4"
INSTRUCTION = "Task instruction: "
"""Begins a case that is written as text."""
FIELDS: Mapping[str, tuple[str, ...]] = {
    "Retrieve": ("Preceding sentences", "Evidence", "Output"),
    "IsRel": ("Evidence",),
    "IsSup": ("Preceding sentences", "Output", "Evidence"),
    "IsUse": ("Output",),
}
"""Group -> fields of a case that is written as text, in their order, after the instruction."""

_TASKS = {
    **{"retrieval": "Retrieve", "multi_retrieval": "Retrieve"},
    **{
        "relevance": "IsRel",
        "groudness": "IsSup",
        "groundness": "IsSup",
        "utility": "IsUse",
    },
}
_NOTHING = ("None", "nan")  # how the published scripts write a text that is missing


def is_released(record: Mapping[str, Any]) -> bool:
    """Return whether a row is one of the published files; ours name their group."""
    return "group" not in record and "input" in record


def parse_released(record: Mapping[str, Any], key: str) -> Case:
    """Return a published row under an id; the label is empty where the teacher gave none.

    Raises:
        UserError: it is no such row.
    """
    row = PublicRow.of("critic_labels", record)
    task, content = row["task"], row["input"]
    if task and task not in _TASKS:
        raise UserError(f"unknown task {task!r:.60}; known: {', '.join(_TASKS)}")
    written = str(row["label"]).strip() or row["raw"].partition("\n")[0].strip()
    group, label = _label(written)
    if not isinstance(content, str | Mapping):
        raise UserError(f"'input' must be text or an object, not {content!r:.60}")
    expected = _TASKS.get(task) or group or _group_of(record, content)
    fields = (
        _text_fields(content, expected)
        if isinstance(content, str)
        else _object_fields(content, expected)
    )
    if not fields["instruction"]:
        raise UserError("the instruction of the case is empty")
    evidence = _passage(f"{key}/evidence", fields.get("Evidence", ""))
    preceding, output = fields.get("Preceding sentences", ""), fields.get("Output", "")
    row_fields = {"id": key, "dataset": DATASET, "rule": task, "label_source": TEACHER}
    return Case.of(
        expected,
        fields["instruction"],
        preceding,
        output,
        evidence,
        label=label if group == expected else "",
        **row_fields,
    )


def _passage(key: str, text: str) -> Passage | None:
    """Return a passage whose first line is its title, if more follows."""
    if not text:
        return None
    title, _, body = text.partition("\n")
    if body.strip():
        return Passage(key, body, title)
    return Passage(key, text)


def _label(written: str) -> tuple[str, str]:
    """Return group and name of a label as the teacher or the combined file writes it; empty texts where it is none."""
    yes_no = {"Yes": "[Retrieval]", "No": "[No Retrieval]"}
    surface = yes_no.get(written.strip("[]"), written)
    for group, labels in GROUPS.items():
        for label in labels:
            if surface in (label.token, label.name):
                return group, label.name
    return "", ""


def _group_of(record: Mapping[str, Any], content: Any) -> str:
    """Return the group of a reply without a label, by the fields that it has."""
    if "decision_token" in record or isinstance(content, str):
        return "Retrieve"
    if not content.get("evidence"):
        return "IsUse"
    if content.get("target_output"):
        return "IsSup"
    return "IsRel"


def _text_fields(text: str, group: str) -> dict[str, str]:
    text = text.removeprefix("##\n")
    if not text.startswith(INSTRUCTION):
        raise UserError(f"'input' must begin with {INSTRUCTION!r}, not {text!r:.60}")
    fields: dict[str, str] = {}
    name, remaining = "instruction", text.removeprefix(INSTRUCTION)
    for following in FIELDS[group]:
        value, marker, after = remaining.partition(f"\n{following}: ")
        if marker:
            fields[name] = _cleaned(value)
            name, remaining = following, after
    fields[name] = _cleaned(remaining)
    return fields


def _object_fields(content: Any, group: str) -> dict[str, str]:
    row = PublicRow.of("critic_cases", content)
    texts = {"Preceding sentences": row["preceding"], "Evidence": row["evidence"]}
    texts["Output"] = row["answer"] if group == "IsUse" else row["sentence"]
    return {"instruction": row["instruction"]} | {
        name: _cleaned(texts[name]) for name in FIELDS[group]
    }


def _cleaned(text: str) -> str:
    if text.strip() in _NOTHING:
        return ""
    return text.strip()
