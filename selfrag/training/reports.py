"""What tells of a run, from its own manifest and log: model card, and boards such as TensorBoard."""

from __future__ import annotations

import json
import math
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from selfrag.common.atomic import write_text, writing
from selfrag.common.errors import UserError, count_of, require
from selfrag.render.tables import escape
from selfrag.training.records import (
    LossRecord,
    StepRecord,
    read_log,
    read_manifest,
    recorded,
)

REFLECTION = ("retrieve", "isrel", "issup", "isuse")


_PUBLISHING = """\
## Before you publish it

Measure it on rows that were not trained on, say here what it is good and bad at, and add the licences of the base model
and of the data: this card knows none of that."""
_LAST = 10  # the figures of the card are means over the last tenth of the run


@dataclass(frozen=True, slots=True)
class Product:
    """What a run made, in the words of its card; `{rank}` stands for the adapter's rank."""

    title: str  # what it is
    use: str  # how to use it, in one line
    loader: str  # what loads it, as hubs call it
    tag: str = "self-rag"  # its kind, as hubs call it
    advice: str = _PUBLISHING  # how the card ends


ADAPTER = Product(
    "Self-RAG LoRA adapter (rank {rank}) with reflection rows",
    "Expands the vocabulary of its base model and is merged into it: `selfrag train merge`.",
    "peft",
)
CHECKPOINT = Product(
    "Self-RAG fine-tuned checkpoint",
    "Load it by its folder: `SelfRAG.from_pretrained(folder)`.",
    "transformers",
)


def write_card(
    run_dir: Path, folder: Path, product: Product, *, base: str, recipe: str
) -> Path:
    """Write README.md and training.json (the run's manifest) into the product's folder.

    `base` and `recipe` are what to call the base model and the settings in public.

    Raises:
        UserError: the run's manifest or log is missing or bad.
    """
    run = read_manifest(run_dir / "manifest.json")
    records = read_log(run_dir / "log.jsonl")
    write_text(folder / "training.json", json.dumps(run, indent=2) + "\n")
    card = folder / "README.md"
    write_text(card, render(product, base, recipe, run, records))
    return card


def render(
    product: Product,
    base: str,
    recipe: str,
    run: dict[str, Any],
    records: Sequence[StepRecord],
) -> str:
    """Return the card as Markdown, by `card.md.j2`."""
    from jinja2 import Environment, PackageLoader

    # Markdown: HTML is escaped by `escape`, in what comes from files.
    environment = Environment(  # noqa: S701
        loader=PackageLoader("selfrag", "training"), keep_trailing_newline=True
    )
    environment.filters |= {"cell": escape, "count_of": count_of}
    run = {"facts": {}, "inputs": {}, **run}
    return environment.get_template("card.md.j2").render(
        product=product,
        title=product.title.format(rank=run["config"].get("lora", {}).get("rank")),
        base=base,
        recipe=recipe,
        run=run,
        facts=run["facts"],
        records=records,
        figures=list(last_figures(records)),
        looks=[record for record in records if "validation" in record],
    )


def last_figures(
    records: Sequence[StepRecord],
) -> Iterable[tuple[str, int, float, float]]:
    """(group, target positions, mean loss, accuracy) over the last tenth of the steps, reflection groups first."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for record in records[-max(1, len(records) // _LAST) :]:
        for group, values in record["groups"].items():
            for place, amount in enumerate((1.0, values["loss"], values["accuracy"])):
                sums[group][place] += values["n"] * amount
    for group in sorted(sums, key=lambda name: (name not in REFLECTION, name)):
        count, loss, hits = sums[group]
        yield group, int(count), loss / count, hits / count


Tracker = Literal["tensorboard", "wandb"]
Send: TypeAlias = Callable[[int, Mapping[str, float]], None]
"""Takes the figures of one step, by name."""


@contextmanager
def board(tracker: Tracker, run_dir: Path, name: str) -> Iterator[Send]:
    """Open a tracker for a run; what is left is written at the end of the block.

    TensorBoard's folder is made anew. The project of wandb is `selfrag`; `WANDB_MODE` and the like are respected.

    Raises:
        UserError: its package is not installed, it cannot be written, or refuses.
    """
    package: Any = require(tracker, extra="tracking")
    if tracker == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        folder = run_dir / tracker
        with writing(folder):
            shutil.rmtree(folder, ignore_errors=True)
            writer: Any = SummaryWriter(str(folder))

        def send(step: int, figures: Mapping[str, float]) -> None:
            for figure, value in figures.items():
                writer.add_scalar(figure, value, step)

        with closing(writer):
            yield send
        return
    try:
        run = package.init(
            project="selfrag", name=name, dir=str(run_dir), config=recorded(run_dir)
        )
    except package.Error as error:
        raise UserError(
            f"Weights & Biases: {' '.join(str(error).split())[:300]}; see `wandb login`"
        ) from error
    with run:
        yield lambda step, figures: run.log(dict(figures), step=step)


def run_directory(folder: Path) -> Path:
    """Return the folder with the log: of a run, or of what `selfrag train` and `critic train` write.

    Raises:
        UserError: there is none yet.
    """
    for run_dir in (folder, folder / "run"):
        if (run_dir / "manifest.json").is_file():
            return run_dir
    raise UserError(
        f"{folder} holds no training run; give the folder of --out, after the run has begun"
    )


def track(run_dir: Path, send: Send) -> int:
    """Send the log of a run; returns the last step that was sent, 0 for none.

    Raises:
        UserError: there is no log, or a line of it is none.
    """
    last = 0
    for record in read_log(run_dir / "log.jsonl"):
        last = record["step"]
        send(last, figures_of(record))
    return last


def figures_of(record: StepRecord) -> dict[str, float]:
    """Return the numbers of a line of the log by their names on a board; undefined ones are left out."""
    figures: dict[str, float | None] = {
        "learning_rate/share_of_peak": record.get("rate"),
        "gradient_norm": record.get("norm"),
        **_losses("train", record),
    }
    if record["seconds"]:
        figures["tokens_per_second"] = record["tokens"] / record["seconds"]
    if "validation" in record:
        figures |= _losses("held_out", record["validation"])
    return {
        name: value
        for name, value in figures.items()
        if value is not None and math.isfinite(value)
    }


def _losses(part: str, record: LossRecord) -> dict[str, float]:
    losses = {f"{part}/loss": record["loss"]}
    for group, figures in record["groups"].items():
        losses[f"{part}/loss/{group}"] = figures["loss"]
        losses[f"{part}/accuracy/{group}"] = figures["accuracy"]
    return losses
