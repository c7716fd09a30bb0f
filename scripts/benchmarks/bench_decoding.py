"""Measure decoding speed: `bench_decoding.py [--model DIR] [--data FILE.jsonl.gz] [--out REPORT.json]`.

Ours against the official loop, against the engine's floor and against itself without each of its choices; rescoring;
growth with questions and passages. Tables go to the standard output, progress to the error stream.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path

from scripts.benchmarks.speed.decoding import benchmark, markdown
from scripts.benchmarks.speed.workload import FormSizes, Sizes, demo_items, read_items
from scripts.command import command, progress
from selfrag.engines.vllm import VLLMConfig
from selfrag.loading import resolve_model


@command
def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    default = Sizes()
    parser.add_argument("--official", type=Path, metavar="CLONE", help="clone of AkariAsai/self-rag, one more rival")
    parser.add_argument("--model", default="demo", help="checkpoint directory, hub name or `demo`")
    parser.add_argument("--data", type=Path, help="rows with instruction and passages; else made from the demo corpus")
    parser.add_argument("--out", type=Path, help="write everything measured as JSON")
    parser.add_argument("--kv-gib", type=float, help="memory for keys and values of each of the two engines")
    parser.add_argument("--no-growth", action="store_true", help="leave the growth table out")
    parser.add_argument("--forms", default=",".join(default.forms), help="default %(default)s")
    for item in fields(FormSizes):
        parser.add_argument(f"--{item.name}", type=int, metavar="N", help="in every form; see FormSizes")
    given = parser.parse_args()
    sizes = default.changed(**{item.name: getattr(given, item.name) for item in fields(FormSizes)})
    names = given.forms.split(",")
    if unknown := set(names) - set(sizes.forms):
        parser.error(f"--forms: unknown {', '.join(sorted(unknown))}; known: {', '.join(sizes.forms)}")
    growth = () if given.no_growth else sizes.growth
    sizes = replace(sizes, forms={name: sizes.forms[name] for name in names}, growth=growth)
    say = progress()

    items = read_items(given.data, *sizes.items) if given.data else demo_items(*sizes.items)
    config = VLLMConfig(str(resolve_model(given.model)), kv_cache_gib=given.kv_gib)
    report = benchmark(config, items, sizes, say, given.official)
    print(markdown(report))
    if given.out:
        given.out.write_text(json.dumps(asdict(report), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
