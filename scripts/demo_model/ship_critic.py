"""Put a trained critic into the package, its model card completed by what was measured.

    python scripts/demo_model/ship_critic.py --run RUN --report report.md [--note "Use it for .."]

RUN is the folder of `train_critic.py --base demo-base`, report.md what `eval_critic.py --critic RUN/model` printed. The
critic that is there already is replaced.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from critic.demo import ADAPTER
from critic.student.card import CARD
from scripts.command import command
from selfrag.common.atomic import write_text
from selfrag.common.errors import UserError
from selfrag.training.export import published

LICENCES = (
    "Texts and annotations: Natural Questions, SQuAD 2.0, QED, QuoteSum, FEVER-Symmetric (CC BY-SA: text of Wikipedia"
    " or the data set itself); FEVEROUS, Fool Me Twice, NoMIRACL, WiCE, ARES, Factcheck-GPT, ExpertQA, BEGIN, FaithDial"
    " audit, EfficientQA, GSM8K, Self-Instruct seed tasks and others (permissive annotations, partly of Wikipedia or"
    " web text). The adapter holds no row of them; it is published under Apache-2.0 like the code."
)


def card(text: str, report: str, note: str | None) -> str:
    """The card of training with licences, tables and what they mean for use, in place of its last section."""
    begun, ending, _ = text.partition("\n## Before you publish it")
    tables, found, _ = report.partition(" in full\n")
    tables = tables.rpartition("\n## ")[0]
    if not (ending and found and tables):
        raise UserError("the card or the report is not as training and evaluation wrote them")
    parts = [
        begun.rstrip(),
        LICENCES,
        "## Measured",
        tables.strip().replace("\n## ", "\n### ").replace("## ", "### ", 1),
    ]
    if note:
        parts.append(f"## Use\n\n{note.strip()}")
    return "\n\n".join(parts) + "\n"


def ship(run: Path, report: Path, to: Path, note: str | None) -> Path:
    """Copy the adapter and complete its card.

    Raises:
        UserError: no adapter, card or report.
    """
    adapter, model = run / "adapter", run / "model"
    try:
        training = (model / "training.json").read_text(encoding="utf-8")
        text = card((model / "README.md").read_text(encoding="utf-8"), report.read_text(encoding="utf-8"), note)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{run} or {report} is not complete: {error}") from error
    if not (adapter / CARD).is_file():
        raise UserError(f"{adapter} holds no adapter of a critic")
    shutil.rmtree(to, ignore_errors=True)
    with published(to) as draft:
        shutil.copytree(adapter, draft, dirs_exist_ok=True)
        write_text(draft / "training.json", training)
        write_text(draft / "README.md", text)
    return to


@command
def main() -> int:
    """Read the command line, copy, print how large it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None, allow_abbrev=False)
    parser.add_argument("--run", type=Path, required=True, help="folder of train_critic.py")
    parser.add_argument("--report", type=Path, required=True, help="what eval_critic.py printed")
    parser.add_argument("--to", type=Path, default=ADAPTER, help="default: the package")
    parser.add_argument("--note", help="what it is good for")
    given = parser.parse_args()
    folder = ship(given.run, given.report, given.to, given.note)
    print(f"{sum(path.stat().st_size for path in folder.iterdir()) / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
