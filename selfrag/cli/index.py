"""`selfrag index build` and `selfrag index search`: arguments in, text out. All work is done by `retrieval`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from retrieval import Passage, build_index
from retrieval.encoders import load_encoder
from retrieval.splitting import Splitting, sentence_finder
from selfrag.cli.running import Commands
from selfrag.errors import UserError
from selfrag.loading import DEMO, load_index, resolve_encoder
from selfrag.rendering import NAME, cut
from selfrag.untrusted import printable, whole

app = Commands(name="index", help="Build and search an index of your own documents.", no_args_is_help=True)

_DEFAULT = Splitting()
_SHOWN = 300  # characters of a passage on the terminal

EncoderOption = Annotated[
    str | None,
    typer.Option("--encoder", help="Directory or hub name of a text encoder.", show_default="packaged MiniLM"),
]
DeviceOption = Annotated[str, typer.Option(help="Device of the encoder: cpu, cuda, or auto for a GPU if there is one.")]
PrecisionOption = Annotated[
    str, typer.Option(help="Number format of the encoder: float32, bfloat16, or auto for the fast one of the device.")
]


@app.command()
def build(
    files: Annotated[list[Path], typer.Argument(help="jsonl, tsv, csv, parquet (id, title, text), txt or md files.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory of the index.")],
    encoder: EncoderOption = None,
    words: Annotated[int, typer.Option(help="Most words of a passage cut from a document.")] = _DEFAULT.words,
    overlap: Annotated[
        int, typer.Option(help="Sentences that a passage repeats from the one before.")
    ] = _DEFAULT.overlap,
    sentences: Annotated[
        str, typer.Option(help="'rules', or the name of an installed spaCy model.")
    ] = _DEFAULT.sentences,
    batch_size: Annotated[int, typer.Option(help="Texts that go through the encoder at once.", min=1)] = 64,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = "float32",
) -> None:
    """Build an index. Interrupted, it continues where it stopped when the same command is run again."""
    splitting = Splitting(words=words, overlap=overlap, sentences=sentences)
    sentence_finder(sentences)  # also where no file is a document: a name that is not known is a mistake
    loaded = load_encoder(resolve_encoder(encoder or DEMO), device=device, precision=precision)
    retriever = build_index(files, out, encoder=loaded, splitting=splitting, batch_size=batch_size)
    typer.echo(f"{len(retriever.corpus)} passages in {out}, encoded by {retriever.encoder.card.name}")


@app.command()
def search(
    directory: Annotated[Path, typer.Argument(help="Directory of the index.")],
    query: Annotated[str, typer.Argument(help="What to look for.")],
    k: Annotated[int, typer.Option("-k", help="Number of passages.", min=1)] = 5,
    encoder: EncoderOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the passages of an index that match a query best."""
    if not query.strip():
        raise UserError("the query is empty; write one in quotes")
    passages = load_index(directory, encoder)([query], k)[0]
    if as_json:
        found = {"query": query, "passages": [passage.as_dict() for passage in passages]}
        typer.echo(whole(json.dumps(found, ensure_ascii=False)))
        return
    for rank, passage in enumerate(passages, start=1):
        typer.echo(_line(rank, passage))


def _line(rank: int, passage: Passage) -> str:
    text = " ".join(passage.text.split())
    shown = text if len(text) <= _SHOWN else text[:_SHOWN].rsplit(" ", 1)[0] + " ..."
    title, text = (" ".join(part.split()) for part in (cut(passage.title, NAME), printable(shown)))
    return f"{rank}. [{passage.score:.3f}] {cut(passage.id, NAME)}  {title}\n   {text}"
