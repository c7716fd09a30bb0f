"""Measure how far judgments move between engines and batches: `bench_parity.py [--questions 32] [--formats ...]`.

Every engine and number format decodes the same questions with the same passages in a process of its own, once all
together and once one by one. Judgments are compared where both runs wrote the same text.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from selfrag.decoding.answer import Answer
from selfrag.decoding.policy import Decoding
from selfrag.reflection.weights import Weights

FORMATS = ("bfloat16", "float32")
ENGINES = ("vllm", "transformers")
POLICY = Decoding(mode="always", max_segments=1, segment_tokens=50)
OTHER = Weights(isrel=1.0, issup=3.0, isuse=0.0)
"""Weights that a decode in a batch is rescored with, and that each question is decoded with alone."""
ROLES = ("isrel", "issup", "isuse")
Run = Sequence[Mapping[str, Any]]
"""One entry a question: text of the answer, and text and distributions of every candidate."""


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--questions", type=int, default=32, help="of five passages each")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        engine, dtype = given.one
        print(json.dumps(measured(engine, dtype, given.questions)))
        return 0
    print("| format | compared | IsRel | IsSup | IsUse | other texts | other answers | exact, and another answer |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for dtype in given.formats:
        found = {engine: child(engine, dtype, given.questions) for engine in given.engines}
        for engine, runs in found.items():
            wrong = f"{disagreeing(runs['rescored'], runs['decoded'])} of {len(runs['decoded'])}"
            print(row(dtype, f"{engine}: batch and single", runs["batch"], runs["single"], wrong), flush=True)
        for one, other in combinations(found, 2):
            print(row(dtype, f"{one} and {other}", found[one]["batch"], found[other]["batch"], ""), flush=True)
    return 0


def child(engine: str, dtype: str, questions: int) -> dict[str, Run]:
    """The runs of one engine in one format, in a process of its own."""
    command = [sys.executable, __file__, "--questions", str(questions), "--one", engine, dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        sys.exit(f"{engine} in {dtype}: {done.stderr[-2000:]}")
    runs: dict[str, Run] = json.loads(done.stdout.splitlines()[-1])
    return runs


def measured(engine: str, dtype: str, questions: int) -> dict[str, Run]:
    """All questions together and one by one; then other weights from the record and by a decode of their own."""
    from selfrag import SelfRAG
    from speed.workload import demo_items

    items = demo_items(questions, 5)
    with SelfRAG.from_pretrained("demo", engine=engine, dtype=dtype, max_model_len=2048) as rag:
        asked, evidence = [item.question for item in items], [item.passages for item in items]
        batch = rag.generate(asked, evidence=evidence, decoding=POLICY)
        single = [rag.generate(q, evidence=e, decoding=POLICY) for q, e in zip(asked, evidence, strict=True)]
        pairs = zip(asked, evidence, strict=True)
        decoded = [rag.generate(q, evidence=e, decoding=POLICY, weights=OTHER) for q, e in pairs]
    rescored = [answer.rescore(OTHER) for answer in batch]
    runs = {"batch": batch, "single": single, "rescored": rescored, "decoded": decoded}
    return {name: [plain(answer) for answer in answers] for name, answers in runs.items()}


def plain(answer: Answer) -> dict[str, Any]:
    """What is compared of an answer."""
    nodes = [
        {"text": node.text, **{str(role): found and found.distribution for role, found in node.judgments.items()}}
        for node in answer.trace.nodes
    ]
    return {"text": answer.text, "exact": answer.exact, "nodes": nodes}


def moved(one: Run, other: Run) -> dict[str, list[float]]:
    """Return by how much the probabilities of each judgment moved, the most of its labels; one number a judgment.

    IsRel is judged before anything is written; the others are compared where both runs wrote the same text.
    """
    differences: dict[str, list[float]] = {role: [] for role in ROLES}
    for first, second in pairs_of(one, other):
        for role in ROLES:
            comparable = role == "isrel" or first["text"] == second["text"]
            if comparable and first[role] and second[role]:
                labels = zip(first[role], second[role], strict=True)
                differences[role].append(max(abs(p - q) for p, q in labels))
    return differences


def pairs_of(one: Run, other: Run) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return the candidates of two runs over the same questions, side by side."""
    pairs: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
    for first, second in zip(one, other, strict=True):
        pairs += zip(first["nodes"], second["nodes"], strict=True)
    return pairs


def row(dtype: str, compared: str, one: Run, other: Run, wrong: str) -> str:
    """A line of the table: most that a probability moves, and how much is written or answered otherwise."""
    cells = [f"{max(values, default=float('nan')):.2g} of {len(values)}" for values in moved(one, other).values()]
    pairs = pairs_of(one, other)
    cells.append(f"{sum(first['text'] != second['text'] for first, second in pairs)} of {len(pairs)}")
    cells.append(f"{sum(a['text'] != b['text'] for a, b in zip(one, other, strict=True))} of {len(one)}")
    return f"| {dtype} | {compared} | {' | '.join(cells)} | {wrong} |"


def disagreeing(rescored: Run, decoded: Run) -> int:
    """Answers that a record called exact and a decode of its own does not give."""
    return sum(a["exact"] and a["text"] != b["text"] for a, b in zip(rescored, decoded, strict=True))


if __name__ == "__main__":
    sys.exit(main())
