"""Put trained adapters of the demo model into the package, their model cards completed by what was measured.

    python scripts/demo_model/ship_intrinsics.py --runs runs/intrinsics --report report [--note NAME="Use it for .."]

RUNS is the folder of `train_intrinsics.py`, REPORT that of `selfrag eval intrinsics --adapters RUNS --out REPORT`. An
adapter that is there already is replaced; what was learned about tokens stays.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from pathlib import Path

from scripts.command import command
from selfrag.common.atomic import write_text
from selfrag.common.errors import UserError
from selfrag.demo import intrinsics
from selfrag.experiments.intrinsics.run import found_adapters
from selfrag.loading import CALIBRATOR, WEIGHTS
from selfrag.training.export import published
from selfrag.training.intrinsics.rows import STEMS

LICENCES = {
    "answerability": "SQuAD 2.0 (CC BY-SA 4.0), NoMIRACL (Apache-2.0 annotations of CC BY-SA text of Wikipedia)",
    "citation_generation": "QED (CC BY-SA 3.0), QuoteSum (CC BY-SA 4.0)",
    "hallucination_detection": "BEGIN (CC BY 4.0, CDLA-Sharing 1.0), FaithDial audit (MIT), WiCE (ODC-By annotations of"
    " CC BY-SA text of Wikipedia and cited web text)",
    "query_rewrite": "TREC CAsT and iKAT (MIT), MTRAG (Apache-2.0)",
    "uncertainty": "ARC-Easy and OpenBookQA via LLM-Adapters (ODC-By); the labels are the model's own correctness",
}


def card(text: str, name: str, measured: str, how: str, note: str | None) -> str:
    """A card with licences, figures and what they mean for use, in place of its last sentence."""
    begun, ending, _ = text.rpartition("\nWhat it is good for")
    if not ending:
        raise UserError(f"the card of {name} is not as training wrote it; give the folder that training wrote to")
    parts = [
        begun.rstrip(),
        f"Texts and annotations: {LICENCES[name]}. The adapter holds no row of them; it is published under Apache-2.0.",
        f"## Measured\n\nOn development rows, {how}. In brackets: 95% bootstrap intervals.",
        measured.strip(),
    ]
    if note:
        parts.append(f"## Use\n\n{note.strip()}")
    return "\n\n".join(parts) + "\n"


def own_tables(text: str) -> str:
    """The tables of a section's report, without the published figures of other models."""
    tables = re.split(r"(?m)^(?=### )", text)
    return "\n".join(table for table in tables if table.strip() and not table.startswith("### Published"))


def ship(runs: Path, report: Path, to: Path, notes: dict[str, str]) -> list[Path]:
    """Copy the adapters and complete their cards.

    Raises:
        UserError: no adapter, or the report does not measure one of them.
    """
    found = found_adapters(runs)
    if unknown := sorted(set(notes) - set(found)):
        raise UserError(f"--note {unknown[0]}: there is no such adapter in {runs}")
    try:
        manifest = json.loads((report / "figures.json").read_text(encoding="utf-8"))["manifest"]
        tables = {name: own_tables((report / f"{name}.md").read_text(encoding="utf-8")) for name in found}
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{report} does not measure all of {', '.join(sorted(found))}: {error}") from error
    limit = manifest["settings"]["limit"]
    how = f"{'all' if limit is None else f'{limit} at most of each kind'}, code at commit `{manifest['commit']}`"
    cards = {}
    for name, folder in found.items():
        try:
            text = (folder / "README.md").read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(f"{folder} has no card that can be read: {error}") from error
        cards[name] = card(text, name, tables[name], how, notes.get(name))
    made = []
    for name, folder in sorted(found.items()):
        target = to / name
        learned = [path for file in (WEIGHTS, CALIBRATOR) if (path := target / file).is_file()]
        kept = {path.name: path.read_bytes() for path in learned}
        shutil.rmtree(target, ignore_errors=True)
        with published(target) as draft:
            shutil.copytree(folder, draft, dirs_exist_ok=True)
            for file, content in kept.items():
                (draft / file).write_bytes(content)
            write_text(draft / "README.md", cards[name])
        made.append(target)
    return made


@command
def main() -> int:
    """Read the command line, copy, print where to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None, allow_abbrev=False)
    parser.add_argument("--runs", type=Path, required=True, help="folder of train_intrinsics.py")
    parser.add_argument("--report", type=Path, required=True, help="folder of selfrag eval intrinsics")
    parser.add_argument("--to", type=Path, default=Path(intrinsics.__file__).parent, help="default: the package")
    parser.add_argument("--note", action="append", default=[], metavar="NAME=TEXT", help="what it is good for")
    given = parser.parse_args()
    notes = dict(one.split("=", 1) if "=" in one else (one, "") for one in given.note)
    if unknown := [name for name, text in notes.items() if name not in STEMS or not text.strip()]:
        raise UserError(f"--note {unknown[0]!r}: write NAME=TEXT; known: {', '.join(STEMS)}")
    for folder in ship(given.runs, given.report, given.to, notes):
        print(f"{folder.name}: {sum(path.stat().st_size for path in folder.iterdir()) / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
