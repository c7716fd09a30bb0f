"""Compare the demo model (or any) with and without intrinsics in its beam: accuracy, citation precision, tokens.

    python scripts/eval_joining.py --model demo --out RUNS --limit 60 FILE...
    python scripts/eval_joining.py --model demo --out RUNS --variant tokens --variant hallucination-joins FILE...

FILE is in the schema of eval/dev. Each variant is a run in RUNS/NAME that continues where it was stopped; the table
compares all of them with `tokens` and is written to RUNS/joining.md and .csv. `--adapter NAME=FOLDER` takes a LoRA
adapter for an intrinsic; the demo model brings its own, what has none is prompted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from command import command
from selfrag.common.errors import UserError
from selfrag.common.provenance import model_files
from selfrag.decoding.policy import Decoding
from selfrag.evaluation.runner import Run, run
from selfrag.evaluation.systems import Reflective
from selfrag.evaluation.task_files import TaskFile
from selfrag.intrinsics.catalog import find

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "tokens": {},
    "hallucination-joins": {"reflectors": "hallucination_detection"},
    "hallucination-for-issup": {"reflectors": "hallucination_detection=issup"},
    "hallucination-gate": {"reflectors": "hallucination_detection>=0.1", "weights": {"hallucination_detection": 0.0}},
    "citations-join": {"reflectors": "citation_generation"},
    "citations-for-issup": {"reflectors": "citation_generation=issup"},
    "relevance-for-isrel": {"reflectors": "context_relevance=isrel"},
    "answerability-abstains": {"gates": "answerability<0.5:abstain"},
    "answerability-writes": {"gates": "answerability<0.5:write"},
}
"""Name to what it changes in the policy; `weights` are those of joined reflectors."""


@dataclass(frozen=True, slots=True)
class Joining:
    """What is compared."""

    model: str  # `demo`, a checkpoint directory or a hub name
    variants: tuple[str, ...] = tuple(VARIANTS)  # names of `VARIANTS`
    # folder of the LoRA adapter of an intrinsic by its name; None for the demo's own. The others are prompted on the
    # base model.
    adapters: Mapping[str, Path] | None = None
    engine: str | None = None  # `vllm`, `transformers`, or None for the best one here
    # policy that the variants change
    decoding: Decoding = Decoding(mode="always", without_evidence="write")  # noqa: RUF009 - frozen value

    def __post_init__(self) -> None:
        if unknown := next((name for name in self.variants if name not in VARIANTS), None):
            raise UserError(f"unknown variant {unknown!r}; known: {', '.join(VARIANTS)}")
        if self.adapters is not None:
            object.__setattr__(self, "adapters", {find(name).name: folder for name, folder in self.adapters.items()})

    def policy(self, name: str) -> Decoding:
        """The policy of a variant."""
        changes = dict(VARIANTS[name])
        weights = replace(self.decoding.weights, joined=changes.pop("weights", {}))
        return replace(self.decoding, weights=weights, **changes)

    @property
    def intrinsics(self) -> tuple[str, ...]:
        """What the variants need."""
        return tuple(dict.fromkeys(one for name in self.variants for one in self.judges(name)))

    def judges(self, name: str) -> tuple[str, ...]:
        """What a variant needs."""
        policy = self.policy(name)
        return (*(part.reflector for part in policy.reflectors), *(gate.reflector for gate in policy.gates))


def run_variants(
    joining: Joining, files: Sequence[TaskFile], out: Path, source: Mapping[str, Any]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Run every variant into `out/NAME`; what is there already is not run again.

    Args:
        joining: what to compare.
        files: what to run on.
        out: directory of the run directories.
        source: how the files were read, for the manifests.

    Returns:
        Name of the variant to name of the file to items, failed, seconds and cached tokens.

    Raises:
        UserError: the model or an adapter cannot be used, or a directory holds another run.
    """
    from selfrag.api import SelfRAG
    from selfrag.intrinsics.reflectors import adapters_of, critic
    from selfrag.loading import resolve_adapter, resolve_model

    names = joining.intrinsics
    given = joining.adapters
    wanted = names if given is None else {name: given.get(name) for name in names}
    rag = SelfRAG.from_pretrained(joining.model, engine=joining.engine, intrinsics=wanted)
    critics = tuple(critic(one, rag.engine) for one in rag.reflectors)
    adapters = adapters_of(wanted, joining.model)
    reflectors: Any = rag.reflectors
    judges = {
        one.name: model_files(resolve_adapter(adapters[one.name])) if one.name in adapters else one.capability.execution
        for one in reflectors
    }
    weights = model_files(resolve_model(joining.model))
    results = {}
    with rag:
        for name in joining.variants:
            system = Reflective(rag.prompting, joining.policy(name), critics=critics)
            asked = {one: judges[one] for one in joining.judges(name)}
            identity = {"name": name, "model": weights, "judges": asked, "engine": joining.engine or "best"}
            results[name] = run(Run(system, identity, out / name, source), files, lambda: rag.engine)
    return results


@command
def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--model", default="demo", help="checkpoint directory, hub name, or demo")
    parser.add_argument("--engine", choices=["vllm", "transformers"], help="default: the best one installed")
    parser.add_argument("--out", type=Path, required=True, help="directory of the runs")
    parser.add_argument("--variant", action="append", choices=list(VARIANTS), help="repeatable; default: all")
    parser.add_argument("--adapter", action="append", metavar="NAME=FOLDER", help="of an intrinsic; repeatable")
    parser.add_argument("--limit", type=int, help="a seeded sample of this many items of each file")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from selfrag.cli.options import quiet
    from selfrag.common.atomic import write_text
    from selfrag.evaluation.comparison import compare, read_runs
    from selfrag.evaluation.runner import Source
    from selfrag.evaluation.tables import Terminal, csv_text, markdown

    quiet()
    adapters = None if arguments.adapter is None else dict(_pair(text) for text in arguments.adapter)
    variants = tuple(arguments.variant or VARIANTS)
    joining = Joining(arguments.model, variants, adapters, arguments.engine)
    source = Source(arguments.files, arguments.limit, arguments.seed)
    found = run_variants(joining, source.load(), arguments.out, source.settings())
    for name, files in found.items():
        for file, result in files.items():
            print(f"{name} {file}: {json.dumps(result)}")
    against = "tokens" if "tokens" in variants else None
    comparison = compare(read_runs([arguments.out / name for name in variants]), against=against, seed=arguments.seed)
    Console().print(Terminal(comparison))
    write_text(arguments.out / "joining.md", markdown(comparison))
    write_text(arguments.out / "joining.csv", csv_text(comparison))
    return 0


def _pair(text: str) -> tuple[str, Path]:
    name, equals, folder = text.partition("=")
    if not equals:
        raise UserError(f"--adapter {text}: give NAME=FOLDER")
    return name, Path(folder)


if __name__ == "__main__":
    sys.exit(main())
