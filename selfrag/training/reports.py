"""The model card of a run, from its own manifest and log."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfrag.common.atomic import write_text
from selfrag.common.errors import count_of
from selfrag.render.tables import escape
from selfrag.training.records import StepRecord, read_log, read_manifest

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
