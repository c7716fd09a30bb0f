"""`critic augment`: arguments in, a directory with rows out."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from critic.augment.options import BALANCES, AugmentOptions
from retrieval.errors import UserError

if TYPE_CHECKING:
    from critic.augment.sources import Source

_DEFAULT = AugmentOptions()
READ, JUDGE, CHOOSE, WORK = "What is read", "How it is judged", "What is written", "Where it runs"


def augment(
    pairs: Annotated[str, typer.Argument(help="JSONL file, folder of a saved data set, or name of one on the hub.")],
    critic: Annotated[str, typer.Option(help="Folder of a trained critic, 'demo', or 'lexical' (shared words).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run; started again, it goes on.")],
    index: Annotated[Path | None, typer.Option(help="Folder made by `selfrag index build`.")] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Text encoder of the index, if it is not where it was at build time.")
    ] = None,
    configuration: Annotated[
        str | None, typer.Option(help="Configuration of a data set that has several.", rich_help_panel=READ)
    ] = None,
    split: Annotated[str, typer.Option(help="Split of a data set.", rich_help_panel=READ)] = "train",
    streaming: Annotated[bool, typer.Option("--streaming", help="Stream a data set.", rich_help_panel=READ)] = False,
    column: Annotated[
        list[str] | None, typer.Option(help="KEY=COLUMN, such as output=answer; repeatable.", rich_help_panel=READ)
    ] = None,
    bad_rows: Annotated[
        Literal["stop", "drop"], typer.Option(help="Stop at the first, or count and list them.", rich_help_panel=READ)
    ] = "stop",
    limit: Annotated[int | None, typer.Option(help="Read this many rows only.", min=1, rich_help_panel=READ)] = None,
    engine: Annotated[
        str | None, typer.Option(help="vllm or transformers; else the best one here.", rich_help_panel=JUDGE)
    ] = None,
    passages: Annotated[int, typer.Option(help="Passages a search.", rich_help_panel=JUDGE)] = _DEFAULT.passages,
    threshold: Annotated[
        float, typer.Option(help="Retrieve above this probability.", rich_help_panel=JUDGE)
    ] = _DEFAULT.threshold,
    initial: Annotated[
        Literal["instruction", "output"], typer.Option(help="What the first judgment sees.", rich_help_panel=JUDGE)
    ] = _DEFAULT.initial,
    first: Annotated[
        Literal["initial", "judged"],
        typer.Option(help="Retrieve token of the first sentence.", rich_help_panel=JUDGE),
    ] = _DEFAULT.first,
    query: Annotated[
        Literal["full", "input"],
        typer.Option(help="Search with the instruction, or with its input only.", rich_help_panel=JUDGE),
    ] = _DEFAULT.query,
    gold: Annotated[
        Literal["off", "join", "only"],
        typer.Option(help="Passages that pairs bring: candidates too?", rich_help_panel=CHOOSE),
    ] = _DEFAULT.gold,
    choice: Annotated[
        Literal["paper", "graded"],
        typer.Option(help="By rank alone, or fully before partly supporting.", rich_help_panel=CHOOSE),
    ] = _DEFAULT.choice,
    unsupported: Annotated[
        Literal["random", "best", "drop"],
        typer.Option(help="Where no passage supports a sentence.", rich_help_panel=CHOOSE),
    ] = _DEFAULT.unsupported,
    balance: Annotated[
        Literal["none", "paper", "official"], typer.Option(help="Down- and up-sampling.", rich_help_panel=CHOOSE)
    ] = "paper",
    keep_unretrieved: Annotated[
        float | None, typer.Option(help="Share of rows without retrieval kept.", rich_help_panel=CHOOSE)
    ] = None,
    irrelevant: Annotated[
        float | None, typer.Option(help="Share of QA pairs with an irrelevant passage.", rich_help_panel=CHOOSE)
    ] = None,
    sentences: Annotated[
        str, typer.Option(help="'rules', or the name of an installed spaCy model.", rich_help_panel=CHOOSE)
    ] = _DEFAULT.sentences,
    seed: Annotated[int, typer.Option(help="Of every random choice.", rich_help_panel=CHOOSE)] = 0,
    shard: Annotated[int, typer.Option(help="Pairs that are worked on at once.", min=1, rich_help_panel=WORK)] = 128,
    ray: Annotated[
        str | None,
        typer.Option(help="'local', 'auto' or the address of a Ray cluster.", rich_help_panel=WORK),
    ] = None,
    workers: Annotated[int, typer.Option(help="Ray actors.", min=1, rich_help_panel=WORK)] = 1,
    gpus: Annotated[float, typer.Option(help="GPUs of a Ray actor.", min=0, rich_help_panel=WORK)] = 0,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check and count what there is to do; write nothing.", rich_help_panel=WORK),
    ] = False,
) -> None:
    """Write reflection tokens and passages into input-output pairs: training rows for the generator."""
    shares: dict[str, Any] = {"keep_unretrieved": keep_unretrieved, "irrelevant": irrelevant}
    options = AugmentOptions(
        seed=seed,
        passages=passages,
        threshold=threshold,
        initial=initial,
        first=first,
        choice=choice,
        unsupported=unsupported,
        gold=gold,
        query=query,
        sentences=sentences,
        balance=replace(BALANCES[balance], **{name: share for name, share in shares.items() if share is not None}),
    )
    if index is None and gold != "only":
        raise UserError("no index: give --index DIR, or --gold only if every pair brings its passages")
    if encoder is not None and index is None:
        raise UserError("--encoder is of an index; give --index DIR with it")
    from critic.augment.run import augment_locally, augment_pairs
    from critic.augment.sources import open_source

    reading: dict[str, Any] = {"split": split, "columns": _columns(column), "bad_rows": bad_rows, "limit": limit}
    source = open_source(pairs, configuration=configuration, streaming=streaming, **reading)
    if dry_run:
        _estimate(source, options, Path(critic))
        return
    from critic.augment.critics import fingerprint, open_critic
    from selfrag.evaluation.provenance import sha256
    from selfrag.loading import load_index

    judging = functools.partial(open_critic, critic, engine)
    searching = functools.partial(load_index, index, encoder) if index is not None else _nothing
    with contextlib.ExitStack() as stack:
        if ray is None:
            judge = judging()
            if isinstance(judge, contextlib.AbstractContextManager):
                stack.enter_context(judge)
            execute = augment_locally(judge, searching(), options)
        else:
            from critic.augment.cluster import augment_on_ray
            from selfrag.cluster import connect

            stack.enter_context(connect(ray))
            execute = augment_on_ray(judging, searching, options, workers=workers, num_gpus=gpus)
        inputs: dict[str, Any] = {"critic": fingerprint(critic)}
        if index is not None and (index / "manifest.json").exists():
            inputs["index"] = sha256(index / "manifest.json")
        if streaming:  # its pairs are not read again to compare them with those of a finished run
            inputs["stream"] = reading
        manifest = augment_pairs(source, out, execute, options, inputs=inputs, shard=shard)
    typer.echo(_summary(manifest, out))


def _nothing() -> None:
    """No index, no retriever."""


def _estimate(source: Source, options: AugmentOptions, critic: Path) -> None:
    """Say what a run will ask for, and what it costs a trained critic."""
    from critic.augment.cost import estimate, price
    from retrieval.splitting import sentence_finder

    find = sentence_finder(options.sentences)
    found = estimate(source, options, find)
    typer.echo(str(found))
    if critic.is_dir():
        typer.echo(str(price(source, found, options, find, critic)))


def _columns(given: Sequence[str] | None) -> dict[str, str]:
    columns = {}
    for text in given or ():
        key, equals, column = text.partition("=")
        if not (key and equals and column):
            raise UserError(f"--column {text!r}: write it as KEY=COLUMN, such as output=answer")
        columns[key] = column
    return columns


def _summary(manifest: dict[str, Any], out: Path) -> str:
    from selfrag.untrusted import printable

    counts = manifest["counts"]
    dropped = ", ".join(f"{count} {reason}" for reason, count in counts["dropped"].items()) or "none"
    lines = [f"{counts['rows']} rows of {counts['items']} pairs in {out}; dropped: {dropped}"]
    for name, source in counts["sources"].items():
        share = source["with_retrieval"] / source["rows"]
        lines.append(f"  {printable(name):32} {source['rows']:7} rows, {share:6.1%} retrieve")
    lines.extend(f"  {token:32} {count:7}" for token, count in counts["tokens"].items())
    return "\n".join(lines)
