"""The model card beside a product: how it was made, what it learned from, what the last steps looked like.

Everything in it comes from the run's own files. What a model is good for, only an evaluation can say; the card says so.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.atomic import write_text
from retrieval.reading import read_json
from selfrag.training.plot import REFLECTION, read_log
from selfrag.untrusted import printable

_LAST = 10  # the figures of the card are means over the last tenth of the run


@dataclass(frozen=True, slots=True)
class Product:
    """What a run made, in the words of its card; `{rank}` stands for the adapter's rank.

    Attributes:
        title: what it is.
        use: how to use it, in one line.
        loader: what loads it, as hubs call it.
    """

    title: str
    use: str
    loader: str


ADAPTER = Product(
    "Self-RAG LoRA adapter (rank {rank}) with reflection rows",
    "Expands the vocabulary of its base model and is merged into it: `selfrag train merge`.",
    "peft",
)
CHECKPOINT = Product(
    "Self-RAG fine-tuned checkpoint", "Load it by its folder: `SelfRAG.from_pretrained(folder)`.", "transformers"
)


def write_card(run_dir: Path, folder: Path, product: Product, *, base: str, recipe: str) -> Path:
    """Write README.md and training.json (the run's manifest) into the product's folder.

    Args:
        run_dir: manifest and log.
        folder: of the product.
        product: what it is.
        base: what to call the base model in public.
        recipe: name of the settings.

    Raises:
        UserError: the run's manifest or log is missing or bad.
    """
    run: dict[str, Any] = read_json(run_dir / "manifest.json", nan=True)
    records = read_log(run_dir / "log.jsonl")
    write_text(folder / "training.json", json.dumps(run, indent=2) + "\n")
    card = folder / "README.md"
    write_text(card, render(product, base, recipe, run, records))
    return card


def render(product: Product, base: str, recipe: str, run: dict[str, Any], records: Sequence[dict[str, Any]]) -> str:
    """The card as Markdown."""
    config, facts = run["config"], run["facts"]
    title = product.title.format(rank=config.get("lora", {}).get("rank"))
    kinds_of = facts.get("sources") or facts.get("rows_by_label") or {}
    seconds, tokens = sum(r["seconds"] for r in records), sum(r["tokens"] for r in records)
    kinds = "\n".join(f"| {_cell(name)} | {count} |" for name, count in kinds_of.items())
    figures = "\n".join(
        f"| {name} | {count} | {loss:.3f} | {accuracy:.3f} |" for name, count, loss, accuracy in last_figures(records)
    )
    return f"""---
library_name: {product.loader}
tags: [self-rag, retrieval-augmented-generation]
---
# {title} for {_cell(base)}

{product.use}

- **Base**: {_cell(base)}, SHA-256 of its weights `{run["inputs"]["base"]}`.
- **Rows**: SHA-256 `{run["inputs"].get("rows", "")}`; {facts.get("rows", "?")} rows, {facts["tokens"]} tokens a pass;
  {facts.get("rows_with_shortened_passages", 0)} with a shortened passage, no target was shortened;
  {_left_out(facts.get("rows_left_out", 0))}.
- **Run**: recipe `{_cell(recipe)}`, {len(records)} steps, {tokens} tokens in {seconds / 60:.1f} minutes of computing
  ({tokens / max(seconds, 1e-9):.0f} tokens a second). All settings, versions and the commit: `training.json`.

## Data

| {"source" if "sources" in facts else "label"} | rows |
|---|---|
{kinds}

## Last {_LAST}% of the steps

Training rows, not an evaluation: loss in nats, and how often the target was the most probable token.

| group | targets | loss | accuracy |
|---|---|---|---|
{figures}

## Before you publish it

Measure it on rows that were not trained on, say here what it is good and bad at, and add the licences of the base model
and of the data: this card knows none of that.
"""


def _left_out(count: int | dict[str, int]) -> str:
    """Of a generator's rows there is one reason; of a critic's, the manifest names each."""
    if isinstance(count, int):
        return f"{count} too long and left out"
    return "; ".join(f"{rows} left out ({_cell(reason)})" for reason, rows in count.items()) or "none left out"


def last_figures(records: Sequence[dict[str, Any]]) -> Iterable[tuple[str, int, float, float]]:
    """(group, target positions, mean loss, accuracy) over the last tenth of the steps, reflection groups first."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for record in records[-max(1, len(records) // _LAST) :]:
        for group, values in record["groups"].items():
            for place, amount in enumerate((1.0, values["loss"], values["accuracy"])):
                sums[group][place] += values["n"] * amount
    for group in sorted(sums, key=lambda name: (name not in REFLECTION, name)):
        count, loss, hits = sums[group]
        yield group, int(count), loss / count, hits / count


def _cell(text: str) -> str:
    """Names from files, harmless in a Markdown table."""
    return " ".join(printable(text).split()).replace("|", "\\|").replace("`", "'").replace("<", "&lt;")
