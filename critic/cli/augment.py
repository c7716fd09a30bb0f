"""`critic pairs`, `critic augment` and `critic inspect`: from public data sets to training rows of the generator."""

from __future__ import annotations

import contextlib
import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from critic.augment.algorithm import BALANCES, RULES, AugmentOptions
from critic.formats import FORMATS, format_of
from critic.mixture import MixturePart, MixtureReading, MixtureTally, write_mixture
from critic.pairs import PairSource, open_dataset
from selfrag.cli.options import quiet
from selfrag.cli.ray_options import RayOptions, ray_actors
from selfrag.interface import (
    CommandResult,
    Fields,
    FieldValues,
    Replaced,
    UserError,
    count_of,
    write_text,
)

_HUB = "hf:"
_READING = MixtureReading()


def pairs(
    parts: Annotated[
        list[str],
        typer.Argument(
            help="FORMAT=FILE, or FORMAT:N=FILE for at most N pairs; jsonl, json, parquet or hf:NAME[:CONFIGURATION]."
            f" Formats: {', '.join(form.name for form in FORMATS)}."
        ),
    ],
    *,
    out: Annotated[Path, Replaced()],
    seed: int = 0,
    paper_counts: bool = False,
    split: str = _READING.split,
    most_words: int = _READING.most_words,
    language: str | None = None,
) -> CommandResult:
    """Turn public data sets into pairs, the input of `critic augment`, and say what was left out and why.

    Args:
        out: File of pairs to write.
        paper_counts: Draw as many pairs as the paper where no N is given.
        split: Split, for data sets with several.
        most_words: Most words of an instruction or output; longer pairs are left out.
        language: Language to keep, such as 'en'.
    """
    mixture = [
        read_part(part, split=split, paper_counts=paper_counts) for part in parts
    ]
    reading = MixtureReading(split=split, most_words=most_words, language=language)
    tallies = write_mixture(out, mixture, seed=seed, reading=reading)
    lines = list(map(_line, mixture, tallies))
    pairs = sum(tally.taken for tally in tallies)
    lines.append(f"{count_of(pairs, 'pairs')} in {out}")
    return CommandResult(
        {"pairs": pairs, "file": out, "sources": tallies}, "\n".join(lines)
    )


def read_part(
    value: str, *, split: str = "train", paper_counts: bool = False
) -> MixturePart:
    """Read one argument: `FORMAT[:N]=SOURCE`."""
    left, equals, source = value.partition("=")
    name, colon, count = left.partition(":")
    if not equals or not source:
        raise UserError(
            f"{value!r}: write FORMAT=FILE, such as asqa=ASQA.json or kilt_nq:5000=nq-train-kilt.jsonl"
        )
    form = format_of(name)
    if colon and not re.fullmatch("[0-9]{1,10}", count):
        raise UserError(f"{value!r}: {count!r} is no count of pairs")
    most: int | None = None
    if colon:
        most = int(count)
    elif paper_counts and form.paper_rows:
        most = form.paper_rows
    if not source.startswith(_HUB):
        return MixturePart(form, Path(source), most)
    hub, _, configuration = source.removeprefix(_HUB).partition(":")
    return MixturePart(form, open_dataset(hub, configuration or None, split), most)


def _line(part: MixturePart, tally: MixtureTally) -> str:
    line = f"{part.form.name}: {tally.taken} of {count_of(tally.pairs, 'pairs')}"
    skipped = [f"{reason} {count}" for reason, count in tally.skipped.most_common()]
    if skipped:
        line += f"; left out: {', '.join(skipped)}"
    return line


def augment(
    pairs: Path,
    *,
    ctx: typer.Context,
    critic: str,
    out: Path,
    index: Path | None = None,
    encoder: str | None = None,
    limit: Annotated[int | None, typer.Option(min=1)] = None,
    engine: str | None = None,
    judge: Annotated[list[str] | None, typer.Option("--load-judge")] = None,
    rules: Literal["ours", "paper"] = "ours",
    judging: Annotated[
        FieldValues,
        Fields(
            AugmentOptions,
            "How it is judged",
            *("passages", "threshold", "initial", "query"),
            default="by --rules",
        ),
    ],
    choosing: Annotated[
        FieldValues,
        Fields(
            AugmentOptions,
            "What is written",
            "gold=--gold-passages",
            "choice",
            "sentences",
            "seed",
        ),
    ],
    balance: Literal["none", "paper", "official"] = "paper",
    shard: Annotated[int, typer.Option(min=1)] = 128,
    ray: RayOptions,
    dry_run: bool = False,
) -> CommandResult:
    """Write reflection tokens and passages into input-output pairs: training rows for the generator.

    Args:
        pairs: Pairs, JSONL (.gz allowed).
        critic: Folder of a trained critic, 'demo', or 'lexical' (shared words).
        index: Folder made by `selfrag index build`.
        encoder: Text encoder of the index, if it has moved.
        limit: Read only this many pairs.

    How it is judged:
        engine: vllm or transformers; by default the best one installed.
        judge: Judge in place of the critic's own for its group, such as nli:MODEL for IsSup; repeatable.
        rules: ours; or the paper's: 10 --passages, --initial output, --query full, the first sentence judged like the
            others, each with the best passage of the first search, and short sentences stay alone.

    What is written:
        balance: Down-sampling and up-sampling of rows.

    Where it runs:
        shard: Pairs per shard.
        dry_run: Check the input and print the estimate; write nothing.
    """
    quiet()
    chosen: dict[str, Any] = {**judging, **choosing}
    options = replace(RULES[rules], **chosen, balance=BALANCES[balance])
    if index is None and options.gold != "only":
        raise UserError(
            "no index: give --index DIR, or --gold-passages only if every pair brings its passages"
        )
    if encoder is not None and index is None:
        raise UserError("--encoder is of an index; give --index DIR with it")
    actors = ray_actors(ctx, ray)
    from critic.augment.run import augment_locally, augment_on_ray, augment_pairs

    source = PairSource(pairs, limit)
    if dry_run:
        from critic.augment.run import count_source
        from critic.baselines import critic_folder
        from retrieval.sentences import sentence_finder

        critic_folder(critic)  # refuses one that is not there
        counts = count_source(source, options, sentence_finder(options.sentences))
        return CommandResult(counts, str(counts))
    from critic.baselines import fingerprint, open_critic
    from selfrag.common.provenance import sha256
    from selfrag.loading import load_index

    opening = functools.partial(open_critic, critic, engine, judge or ())
    searching = _nothing
    if index is not None:
        searching = functools.partial(load_index, index, encoder)
    with contextlib.ExitStack() as stack:
        if actors is None:
            execute = augment_locally(
                stack.enter_context(opening()), searching(), options
            )
        else:
            from selfrag.cluster import connect

            stack.enter_context(connect(actors.address))
            execute = augment_on_ray(opening, searching, options, actors)
        inputs: dict[str, Any] = {"critic": fingerprint(critic)}
        if judge:
            inputs["judges"] = list(judge)
        if index is not None and (index / "manifest.json").exists():
            inputs["index"] = sha256(index / "manifest.json")
        manifest = augment_pairs(
            source, out, execute, options, inputs=inputs, shard=shard
        )
    value = {"folder": out, "counts": manifest["counts"]}
    return CommandResult(value, _summary(manifest, out))


def _nothing() -> Any:
    """Return no retriever: there is no index."""


def _summary(manifest: dict[str, Any], out: Path) -> str:
    from selfrag.common.untrusted import printable

    counts = manifest["counts"]
    dropped = [f"{count} {reason}" for reason, count in counts["dropped"].items()]
    lines = [
        f"{count_of(counts['rows'], 'rows')} of {count_of(counts['items'], 'pairs')} in {out};"
        f" dropped: {', '.join(dropped) or 'none'}"
    ]
    for name, source in counts["sources"].items():
        share = source["with_retrieval"] / source["rows"]
        lines.append(
            f"  {printable(name):32} {count_of(source['rows'], 'rows', form='7')}, {share:6.1%} retrieve"
        )
    lines.extend(f"  {token:32} {count:7}" for token, count in counts["tokens"].items())
    return "\n".join(lines)


def inspect(
    rows: list[Path],
    *,
    out: Annotated[Path, Replaced()],
    count: Annotated[int, typer.Option("--rows", "-n")] = 40,
    seed: int = 0,
    provenance: Annotated[list[Path] | None, typer.Option("--provenance", "-p")] = None,
) -> CommandResult:
    """Write a page with statistics of all rows and a sample of them, to be opened from disk.

    Args:
        rows: Training rows (JSONL), or a folder of critic augment.
        out: HTML file to write.
        count: Number of rows to show.
        seed: Seed of the sample.
        provenance: Provenance file of the rows (JSONL).
    """
    from critic.inspect import inspect_rows, render

    files = [path / "rows.jsonl" if path.is_dir() else path for path in rows]
    beside = [
        path / "provenance.jsonl"
        for path in rows
        if (path / "provenance.jsonl").is_file()
    ]
    inspection = inspect_rows(
        files, count=count, seed=seed, provenance=[*(provenance or []), *beside]
    )
    write_text(out, render(inspection))
    rows_of_all = inspection.statistics.total.rows
    line = f"{len(inspection.sample)} of {count_of(rows_of_all, 'rows')}"
    if inspection.recorded:
        line += f", {len(inspection.provenance)} with provenance"
    value = {"page": out, "statistics": inspection.statistics}
    return CommandResult(value, f"{line} in {out}")
