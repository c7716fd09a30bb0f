"""Put trained weights into the package, their model cards completed by what was measured.

    python scripts/demo_model/ship.py intrinsics --runs runs/intrinsics --report report [--note NAME="Use it for .."]
    python scripts/demo_model/ship.py critic --run RUN --report report.md [--note "Use it for .."]

The runs are those of `train_intrinsics.py` and `train_critic.py`. The reports are the folder of `selfrag eval
intrinsics --adapters RUNS --out REPORT`, and what `critic eval ROWS --critic RUN/model` printed. What is there already
is replaced; what was learned about tokens stays.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from critic.demo import ADAPTER
from critic.student.card import CARD
from scripts.command import command
from selfrag.common.atomic import new_directory, write_text
from selfrag.common.checks import split_pair
from selfrag.common.errors import UserError
from selfrag.demo import intrinsics
from selfrag.experiments.intrinsics.run import found_adapters
from selfrag.loading import CALIBRATOR, WEIGHTS

CRITIC_DATA = (
    "Natural Questions, SQuAD 2.0, QED, QuoteSum, FEVER-Symmetric (CC BY-SA: text of Wikipedia"
    " or the data set itself); FEVEROUS, Fool Me Twice, NoMIRACL, WiCE, ARES, Factcheck-GPT, ExpertQA, BEGIN, FaithDial"
    " audit, EfficientQA, GSM8K, Self-Instruct seed tasks and others (permissive annotations, partly of Wikipedia or"
    " web text)"
)
INTRINSIC_DATA = {
    "answerability": "SQuAD 2.0 (CC BY-SA 4.0), NoMIRACL (Apache-2.0 annotations of CC BY-SA text of Wikipedia)",
    "citation_generation": "QED (CC BY-SA 3.0), QuoteSum (CC BY-SA 4.0)",
    "hallucination_detection": "BEGIN (CC BY 4.0, CDLA-Sharing 1.0), FaithDial audit (MIT), WiCE (ODC-By annotations of"
    " CC BY-SA text of Wikipedia and cited web text)",
    "query_rewrite": "TREC CAsT and iKAT (MIT), MTRAG (Apache-2.0)",
    "uncertainty": "ARC-Easy and OpenBookQA via LLM-Adapters (ODC-By); the labels are the model's own correctness",
}


def complete_card(
    path: Path, ending: str, data: str, measured: str, note: str | None
) -> str:
    """Return a card of training with licences, figures and what they mean for use, in place of its end.

    Raises:
        UserError: the card cannot be read, or does not have this end.
    """
    try:
        head, separator, _ = path.read_text(encoding="utf-8").rpartition(ending)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not separator:
        raise UserError(
            f"{path} is not as training wrote it; give the folder that training wrote to"
        )
    licences = f"Texts and annotations: {data}. The adapter holds no row of them; it is published under Apache-2.0."
    parts = [head.rstrip(), licences, f"## Measured\n\n{measured.strip()}"]
    if note:
        parts.append(f"## Use\n\n{note.strip()}")
    return "\n\n".join(parts) + "\n"


def replace_weights(
    adapter: Path, target: Path, texts: dict[str, str], keep: Sequence[str] = ()
) -> None:
    """Copy an adapter to a folder of the package, with some texts beside it; files of `keep` stay there."""
    with new_directory(target) as draft:
        shutil.copytree(adapter, draft, dirs_exist_ok=True)
        for name in keep:
            if (target / name).is_file():
                shutil.copyfile(target / name, draft / name)
        for name, text in texts.items():
            write_text(draft / name, text)
    megabytes = sum(path.stat().st_size for path in target.iterdir()) / 1e6
    print(f"{target.name}: {megabytes:.2f} MB")


def ship_critic(
    *, run: Path, report: Path, note: str | None = None, to: Path = ADAPTER
) -> None:
    """Copy the adapter of a critic and complete its card.

    Args:
        run: folder of train_critic.py.
        report: what `critic eval` printed.
        note: what it is good for.
        to: folder that gets it.

    Raises:
        UserError: no adapter, card or report.
    """
    try:
        training = (run / "model" / "training.json").read_text(encoding="utf-8")
        text = report.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{run} or {report} is not complete: {error}") from error
    tables, separator, _ = text.partition(" in full\n")
    tables = tables.rpartition("\n## ")[0].strip().replace("\n## ", "\n### ")
    if not (separator and tables):
        raise UserError(f"{report} is not as `critic eval` printed it")
    adapter = run / "adapter"
    if not (adapter / CARD).is_file():
        raise UserError(f"{adapter} holds no adapter of a critic")
    ending = "\n## Before you publish it"
    card = complete_card(
        run / "model" / "README.md", ending, CRITIC_DATA, f"#{tables}", note
    )
    replace_weights(adapter, to, {"training.json": training, "README.md": card})


def ship_intrinsics(
    *,
    runs: Path,
    report: Path,
    note: list[str] | None = None,
    to: Path = Path(intrinsics.__file__).parent,
) -> None:
    """Copy the adapters of intrinsics and complete their cards.

    Args:
        runs: folder of train_intrinsics.py.
        report: folder that `selfrag eval intrinsics` wrote.
        note: NAME=TEXT, what an adapter is good for; repeatable.
        to: folder that gets them.

    Raises:
        UserError: no adapter, or the report does not measure one of them.
    """
    notes = dict(split_pair("--note", text, "NAME=TEXT") for text in note or ())
    adapters = found_adapters(runs)
    if unknown := sorted(set(notes) - set(adapters)):
        raise UserError(f"--note {unknown[0]}: there is no such adapter in {runs}")
    try:
        manifest = json.loads((report / "figures.json").read_text(encoding="utf-8"))[
            "manifest"
        ]
        reports = {
            name: (report / f"{name}.md").read_text(encoding="utf-8")
            for name in adapters
        }
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{report} does not measure all of {', '.join(sorted(adapters))}: {error}"
        ) from error
    limit = manifest["settings"]["limit"]
    rows = "all" if limit is None else f"{limit} at most of each kind"
    how = f"On development rows, {rows}, code at commit `{manifest['commit']}`. In brackets: 95% bootstrap intervals."
    cards = {}
    for name, folder in adapters.items():
        tables = re.split(r"(?m)^(?=### )", reports[name])
        ours = [
            table
            for table in tables
            if table.strip() and not table.startswith("### Published")
        ]
        measured = "\n".join([f"{how}\n", *ours])
        ending = "\nWhat it is good for"
        cards[name] = complete_card(
            folder / "README.md",
            ending,
            INTRINSIC_DATA[name],
            measured,
            notes.get(name),
        )
    for name, folder in sorted(adapters.items()):
        replace_weights(
            folder,
            to / name,
            {"README.md": cards[name]},
            keep=(WEIGHTS, CALIBRATOR),
        )


main = command(intrinsics=ship_intrinsics, critic=ship_critic)

if __name__ == "__main__":
    main()
