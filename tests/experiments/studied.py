"""Small files and a scripted engine for studies: random trees that are the same for the same prompt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "decoding"))

from random_model import random_model
from written import EOS, LIMITS, PROMPTING, passages

from selfrag.engines.scripted import ScriptedEngine
from selfrag.evaluation.items import Item
from selfrag.evaluation.runner import Execute, answer_here
from selfrag.evaluation.task import CLOSED, LONG, SHORT, Task
from selfrag.evaluation.task_files import TaskFile
from selfrag.experiments.studies import Study

EVIDENCE = passages("d1", "d2", "d3")
GOLD = frozenset({"d2"})


def short(items: int) -> TaskFile:
    """Questions whose answers the model writes now and then."""
    return _file("short", SHORT, items, "Question", answers=("One", "Two"), references=("One", "Two"), task="short_qa")


def closed(items: int) -> TaskFile:
    """Claims."""
    return _file("closed", CLOSED, items, "Claim", label="true", options=("true", "false"), task="fact")


def long(items: int) -> TaskFile:
    """Questions with up to four segments."""
    return _file("long", LONG, items, "Topic", references=("One. Two.",), task="long_form")


def _file(name: str, kind: Task, items: int, asked: str, **fields: Any) -> TaskFile:
    rows = [Item(f"{name[0]}{i}", f"{asked} {i}", True, EVIDENCE, gold=GOLD, **fields) for i in range(items)]
    return TaskFile(name, Path(f"{name}.jsonl"), "0" * 64, kind, tuple(rows), items)


def scripted(seed: int = 0, failures: float = 0.0) -> ScriptedEngine:
    """An engine that writes random trees."""
    return ScriptedEngine(random_model(seed, failures=failures), EOS, limits=LIMITS)


def executed(engine: ScriptedEngine) -> Execute:
    """Answers on an engine."""
    return answer_here(lambda: engine)


def job(folder: Path, **options: Any) -> Study:
    """A study of the scripted model."""
    return Study(PROMPTING, {"model": {"weights": "abc"}, "engine": "scripted"}, folder, **options)
