"""`critic sample`: input-output pairs in, cases for a teacher out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retrieval.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from critic.pairs import Pair
    from retrieval import Passage, Retriever


def sample(
    pairs: Annotated[list[Path], typer.Argument(help="Files of pairs (JSONL).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File of cases to write.")],
    target: Annotated[
        list[str] | None,
        typer.Option(help="Cases of a group, GROUP=N; repeatable.", show_default="the paper's numbers"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    index: Annotated[
        Path | None, typer.Option(help="Index to search passages in; else those that the pairs bring.")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Directory or hub name of the index's encoder.", show_default="where it was")
    ] = None,
    passages: Annotated[int, typer.Option("-k", help="Passages a search.", min=1)] = 5,
    sentences: Annotated[str, typer.Option(help="'rules', or the name of an installed spaCy model.")] = "rules",
) -> None:
    """Draw cases for every reflection group from pairs, with a report of counts and examples beside them."""
    from rich.console import Console

    from critic.sampling import draw, report
    from critic.tables import terminal
    from critic.targets import PAPER, Targets
    from retrieval.atomic import write_json, writing
    from retrieval.splitting import sentence_finder
    from selfrag.evaluation.provenance import commit, sha256
    from selfrag.jsonl import write_jsonl

    wanted = Targets.parse(target) if target else PAPER
    if wanted.labels:
        raise UserError(
            "a label is not known before a teacher gave it; give GROUP=N here, GROUP/LABEL=N to `critic label`"
        )
    if encoder is not None and index is None:
        raise UserError("--encoder is of an index; give --index DIR with it")
    read = _read(pairs)
    drawn = draw(
        read,
        wanted.groups,
        sentence_finder(sentences),
        seed=seed,
        retriever=_retriever(index, encoder),
        passages=passages,
    )
    text = report(drawn)
    with writing(out):
        write_jsonl(out, (question.as_dict() for question in drawn.questions))
        out.with_name(f"{out.name}.report.md").write_text(text, encoding="utf-8")
    settings = {"seed": seed, "targets": wanted.as_dict(), "passages": passages, "sentences": sentences}
    searched = None if index is None else {index.name: sha256(index / "manifest.json")}
    data = {"pairs": {file.name: sha256(file) for file in pairs}, "index": searched}
    counts = {"cases": len(drawn.questions), "short": drawn.short(), "left_out": dict(drawn.left_out)}
    write_json(out.with_name(f"{out.name}.manifest.json"), {"commit": commit(), **settings, **data, "counts": counts})
    Console().print(terminal("Cases", ("group", "rule", "cases"), drawn.by_rule()))
    for group, lacking in drawn.short().items():
        typer.echo(f"{group}: {lacking:,} cases fewer than wanted; give more pairs or an index", err=True)
    typer.echo(f"{len(drawn.questions):,} cases in {out}, report in {out.name}.report.md")


def _read(files: list[Path]) -> list[Pair]:
    """All pairs; ids may not occur in two files, and texts must be writable."""
    from critic.pairs import read_pairs

    found: dict[str, Pair] = {}
    for file in files:
        for pair in read_pairs(file):
            if pair.id in found:
                raise UserError(f"{file}: id {pair.id!r} occurs in another file too; make ids distinct")
            try:
                str(pair.as_dict()).encode()
            except UnicodeEncodeError:
                raise UserError(f"{file}: pair {pair.id!r} holds half of a character (a lone surrogate)") from None
            found[pair.id] = pair
    return list(found.values())


def _retriever(index: Path | None, encoder: str | None) -> Retriever | None:
    if index is None:
        return None
    from tqdm import tqdm

    from retrieval import open_index

    opened = open_index(index, encoder)
    bar = tqdm(unit=" searches", delay=1, disable=None)

    def search(queries: Sequence[str], k: int, /) -> Sequence[Sequence[Passage]]:
        found = opened(queries, k)
        bar.update(len(queries))
        return found

    return search
