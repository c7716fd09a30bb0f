"""Put trained weights into the package, their model cards completed by what was measured.

    python scripts/demo_model/ship.py rewrite --run runs/query_rewrite --report report [--note "Use it for .."]
    python scripts/demo_model/ship.py critic --run RUN --report report.md [--note "Use it for .."]

The runs are folders of `selfrag train adapter query_rewrite` and `critic train`. The reports are the folder of `selfrag
eval intrinsics --adapters RUNS --out REPORT`, and what `critic eval ROWS --critic RUN/model` printed. What is there
already is replaced.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from critic.demo import ADAPTER
from scripts.command import command
from selfrag.common.atomic import new_directory, write_text
from selfrag.common.errors import UserError
from selfrag.common.reading import read_json, read_whole
from selfrag.demo import intrinsics

NAME = "query_rewrite"
CRITIC_DATA = (
    "Natural Questions, SQuAD 2.0, QED, QuoteSum, FEVER-Symmetric (CC BY-SA: text of Wikipedia"
    " or the data set itself); FEVEROUS, Fool Me Twice, NoMIRACL, WiCE, ARES, Factcheck-GPT, ExpertQA, BEGIN, FaithDial"
    " audit, EfficientQA, GSM8K, Self-Instruct seed tasks and others (permissive annotations, partly of Wikipedia or"
    " web text)"
)
REWRITE_DATA = "TREC CAsT and iKAT (MIT), MTRAG (Apache-2.0)"


def complete_card(
    path: Path, ending: str, data: str, measured: str, note: str | None
) -> str:
    """Return a card of training with licences, figures and what they mean for use, in place of its end.

    Raises:
        UserError: the card cannot be read, or does not have this end.
    """
    head, separator, _ = read_whole(path).rpartition(ending)
    if not separator:
        raise UserError(
            f"{path} is not as training wrote it; give the folder that training wrote to"
        )
    licences = f"Texts and annotations: {data}. The adapter holds no row of them; it is published under Apache-2.0."
    parts = [head.rstrip(), licences, f"## Measured\n\n{measured.strip()}"]
    if note:
        parts.append(f"## Use\n\n{note.strip()}")
    return "\n\n".join(parts) + "\n"


def replace_weights(adapter: Path, target: Path, texts: dict[str, str]) -> None:
    """Copy an adapter to a folder of the package, with some texts beside it."""
    with new_directory(target) as draft:
        shutil.copytree(adapter, draft, dirs_exist_ok=True)
        for name, text in texts.items():
            write_text(draft / name, text)
    megabytes = sum(path.stat().st_size for path in target.iterdir()) / 1e6
    print(f"{target.name}: {megabytes:.2f} MB")


def ship_critic(
    *, run: Path, report: Path, note: str | None = None, to: Path = ADAPTER
) -> None:
    """Copy the adapter of a critic and complete its card.

    Args:
        run: folder of critic train.
        report: what `critic eval` printed.
        note: what it is good for.
        to: folder that gets it.

    Raises:
        UserError: no adapter, card or report.
    """
    training = read_whole(run / "model" / "training.json")
    tables, separator, _ = read_whole(report).partition(" in full\n")
    tables = tables.rpartition("\n## ")[0].strip().replace("\n## ", "\n### ")
    if not (separator and tables):
        raise UserError(f"{report} is not as `critic eval` printed it")
    card = run / "model" / "README.md"
    text = complete_card(
        card, "\n## Before you publish it", CRITIC_DATA, f"#{tables}", note
    )
    replace_weights(run / "adapter", to, {"training.json": training, "README.md": text})


def ship_rewrite(
    *,
    run: Path,
    report: Path,
    note: str | None = None,
    to: Path = Path(intrinsics.__file__).parent / NAME,
) -> None:
    """Copy the adapter for rewriting and complete its card.

    Args:
        run: folder of selfrag train adapter query_rewrite.
        report: folder that `selfrag eval intrinsics` wrote.
        note: what it is good for.
        to: folder that gets it.

    Raises:
        UserError: no adapter, card or report.
    """
    figures = report / "figures.json"
    try:
        manifest: dict[str, Any] = read_json(figures)["manifest"]
        limit, commit = manifest["settings"]["limit"], manifest["commit"]
    except (KeyError, TypeError) as error:
        raise UserError(f"{figures} is no report: {error}") from error
    rows = "all" if limit is None else f"{limit} at most of each kind"
    measured = f"On development rows, {rows}, code at commit `{commit}`. In brackets: 95% bootstrap intervals.\n\n"
    for table in re.split(r"(?m)^(?=### )", read_whole(report / f"{NAME}.md")):
        if not table.startswith("### Published"):
            measured += table
    card = run / "adapter" / "README.md"
    text = complete_card(card, "\nWhat it is good for", REWRITE_DATA, measured, note)
    replace_weights(run / "adapter", to, {"README.md": text})


main = command(rewrite=ship_rewrite, critic=ship_critic)

if __name__ == "__main__":
    main()
