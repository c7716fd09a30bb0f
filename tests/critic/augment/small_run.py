"""A small real run, in a process that can be killed: `small_run.py FOLDER [--kills N | --renames]`. Not a test.

The process imports everything once and forks a child for each attempt, so that twenty kills do not cost twenty imports.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import tqdm

from critic.augment.algorithm import AugmentOptions
from critic.augment.critics import LexicalCritic, overlap
from critic.augment.run import augment_locally, augment_pairs
from critic.augment.sources import JsonlPairs
from critic.cases import Case
from retrieval.passage import Passage
from selfrag.reflection.judgment import Judgment

OPTIONS = AugmentOptions(gold="join", seed=3)
SHARD = 3
FILES = ("rows.jsonl", "provenance.jsonl", "dropped.jsonl")

PLACES = ("Paris", "Rome", "Oslo", "Bern", "Kyiv", "Lima", "Riga", "Cairo", "Quito", "Seoul")
CORPUS = [
    Passage(f"c{n}-{m}", f"{place} is city number {n} of the list. {fact}", place)
    for n, place in enumerate(PLACES)
    for m, fact in enumerate(
        (f"Its river is called the {place}ina.", f"In {1900 + n} a bridge was built there.", "It rains a lot.")
    )
]


class WordRetriever:
    """Passages by shared words."""

    def __call__(self, queries: Sequence[str], k: int, /) -> list[list[Passage]]:
        return [
            sorted((p.with_score(overlap(q, f"{p.title} {p.text}")) for p in CORPUS), key=_worst)[:k] for q in queries
        ]


def _worst(passage: Passage) -> tuple[float, str]:
    return -(passage.score or 0.0), passage.id


class SlowCritic(LexicalCritic):
    """Takes its time, so that a kill meets it at work."""

    def __init__(self, pause: float) -> None:
        self._pause = pause

    def judge(self, cases: Sequence[Case]) -> list[Judgment | None]:
        time.sleep(self._pause)
        return super().judge(cases)


def write_pairs(path: Path, count: int = 40) -> Path:
    """Questions, long answers and instructions, one line each."""
    with path.open("w") as stream:
        for n in range(count):
            place = PLACES[n % len(PLACES)]
            record = {"id": f"p{n}", "dataset": "made", "kind": "short_qa"}
            match n % 4:
                case 0:
                    record |= {"instruction": f"What is the river of {place}?", "output": f"{place}ina"}
                case 1:
                    output = (
                        f"{place} is a city. In {1900 + n % 10} a bridge was built there.\n\nI like it.  [Relevant] é"
                    )
                    record |= {"instruction": f"Tell me about {place}.", "output": output, "kind": "long_form"}
                case 2:
                    record |= {"instruction": f"Rhyme on {place}", "output": "No rhyme.", "kind": "instruction"}
                case _:
                    gold = [{"title": place, "text": f"The mayor of {place} is called Mo."}]
                    record |= {"instruction": f"Who is the mayor of {place}?", "output": "Mo", "gold_passages": gold}
            stream.write(json.dumps(record) + "\n")
    return path


def run(pairs: Path, out: Path, pause: float = 0.0) -> dict:
    """The run itself."""
    execute = augment_locally(SlowCritic(pause), WordRetriever(), OPTIONS)
    return augment_pairs(JsonlPairs(pairs), out, execute, OPTIONS, shard=SHARD)


def contents(out: Path) -> dict[str, bytes]:
    """Every byte of the output, and that nothing else is left."""
    assert sorted(path.name for path in out.iterdir()) == sorted((*FILES, "manifest.json"))
    found = {name: (out / name).read_bytes() for name in FILES}
    manifest = json.loads((out / "manifest.json").read_text())
    manifest.pop("commit")  # of the checkout, which others may change meanwhile
    return {**found, "manifest.json": json.dumps(manifest).encode()}


def child(work: Callable[[], object]) -> int:
    """Fork; the child works and leaves without a word."""
    if pid := os.fork():
        return pid
    try:
        work()
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def kill_at_random(pairs: Path, folder: Path, kills: int) -> None:
    """Kill attempts at random moments until `kills` met one at work; every time one ends by itself, begin again.

    How long to wait follows the machine: longer where kills came before anything was done, shorter where too late.
    """
    run(pairs, folder / "whole", 0.004)
    whole = contents(folder / "whole")
    rng, met, ended, out, patience = random.Random(4), 0, 0, folder / "killed", 0.2
    while met < kills:
        before = _shards(out)
        pid = child(lambda: run(pairs, out, 0.004))
        time.sleep(rng.uniform(0, patience))
        os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status == -signal.SIGKILL:
            met += 1
            patience *= 1.25 if _shards(out) - before < 3 else 0.8
            continue
        assert status == 0, status
        ended += 1
        patience *= 0.7
        assert contents(out) == whole
        shutil.rmtree(out)
    run(pairs, out)
    assert contents(out) == whole
    print(f"killed {met} times, ended {ended} times")  # noqa: T201


def _shards(out: Path) -> int:
    return len(list((out / "shards").glob("[0-9]*.jsonl")))


def kill_at_every_rename(pairs: Path, folder: Path) -> None:
    """Kill right before and right after each step at which something becomes visible."""
    run(pairs, folder / "whole")
    whole, points = contents(folder / "whole"), 0
    for after in (False, True):
        for number in range(1, 1000):
            out = folder / f"renamed-{after}-{number}"
            pid = child(lambda out=out, number=number, after=after: _dying(pairs, out, number, after))
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert status in (0, -signal.SIGKILL), status
            run(pairs, out)
            assert contents(out) == whole, (after, number)
            shutil.rmtree(out)
            if status == 0:
                break
            points += 1
    print(f"killed at {points} points")  # noqa: T201


def _dying(pairs: Path, out: Path, number: int, after: bool) -> None:
    seen, replace = 0, Path.replace

    def counted(self: Path, target: Path) -> Path:
        nonlocal seen
        seen += 1
        if seen == number and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        moved = replace(self, target)
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return moved

    Path.replace = counted  # type: ignore[method-assign] - in a process of its own
    run(pairs, out)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--renames", action="store_true")
    arguments = parser.parse_args()
    tqdm.tqdm.monitor_interval = 0  # a process that forks wants no thread that may hold a lock
    pairs = write_pairs(arguments.folder / "pairs.jsonl")
    if arguments.kills:
        kill_at_random(pairs, arguments.folder, arguments.kills)
    elif arguments.renames:
        kill_at_every_rename(write_pairs(arguments.folder / "pairs.jsonl", 8), arguments.folder)
    else:
        run(pairs, arguments.folder / "out")


if __name__ == "__main__":
    sys.exit(main())
