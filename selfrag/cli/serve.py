"""`selfrag serve`: an OpenAI-compatible server that cites, with a page to ask and to see why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from selfrag.cli import options
from selfrag.cli.engine_options import EngineChoice
from selfrag.cli.fields import FieldValues
from selfrag.cli.lazy_encoder import LazyEncoder
from selfrag.common.errors import UserError, require
from selfrag.common.plugins import names
from selfrag.decoding.policy import Decoding
from selfrag.loading import DEMO, is_address, remote_indexes

if TYPE_CHECKING:
    from selfrag.api import SelfRAG
    from selfrag.serving.index_watch import IndexWatch
    from selfrag.serving.service import Answering

SERVER, CITES, MANY = (
    partial(typer.Option, rich_help_panel=panel)
    for panel in ("The server", "How it cites", "Many servers")
)


def serve(
    *,
    model: options.Model = "demo",
    index: options.Index = None,
    watch: Annotated[
        list[Path] | None,
        SERVER(
            help="file or folder that --index follows: it is synced when they change; repeatable"
        ),
    ] = None,
    skip_unreadable: Annotated[
        bool,
        SERVER(
            "--skip-unreadable",
            help="with --watch: go on past files that cannot be read",
        ),
    ] = False,
    engine: EngineChoice,
    load_judge: options.LoadJudge = None,
    policy: options.Policy = "paper",
    when: options.When,
    score: options.Score,
    search: options.SearchOption,
    host: Annotated[str, SERVER(help="address to listen at")] = "127.0.0.1",
    port: Annotated[int, SERVER(min=0, max=65_535, help="0 takes a free one")] = 8000,
    served_model_name: Annotated[
        str | None,
        SERVER(help="the model's name for clients; the last part of --model"),
    ] = None,
    api_key_file: Annotated[
        Path | None, SERVER(help="file with the keys that clients may use, one a line")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        SERVER(
            help="name under which a server without keys answers, beside this machine's; repeatable"
        ),
    ] = None,
    live: Annotated[
        int, SERVER(min=1, help="questions and searches that run at once")
    ] = 256,
    queue: Annotated[
        int, SERVER(min=0, help="questions and searches that may wait")
    ] = 1_024,
    connections: Annotated[
        int, SERVER(min=1, help="connections that one address may hold")
    ] = 512,
    drain: Annotated[
        int,
        SERVER(min=0, help="seconds that running questions get when the server ends"),
    ] = 30,
    drop_old_turns: Annotated[
        bool,
        SERVER(
            "--drop-old-turns",
            help="leave old turns out of a conversation that is too long; without, refuse it",
        ),
    ] = False,
    keep: Annotated[
        Path | None,
        SERVER(help="SQLite file for answers and traces; in memory by default"),
    ] = None,
    citation_style: Annotated[
        Literal["brackets", "markdown", "none"],
        CITES(help="[1], a link in Markdown, or no marks in the text"),
    ] = "brackets",
    ray: Annotated[
        str | None,
        MANY(help="'local', 'auto' or the address of a Ray cluster, for replicas"),
    ] = None,
    replicas: Annotated[int, MANY(min=1, help="servers on the cluster")] = 1,
    gpus: Annotated[float, MANY(min=0, help="GPUs per replica")] = 0,
    events: Annotated[
        bool, CITES("--events", help="also send sources as Open WebUI reads them")
    ] = False,
) -> None:
    """Serve a model over the OpenAI API, with citations, and a page at /.

    A variable of the environment sets an option, too: SELFRAG_SERVE_PORT is --port.
    """
    from selfrag.serving.app import Replicas, Served, run_on_ray
    from selfrag.serving.listening import access_of, address_of, listen, run_server
    from selfrag.serving.service import Capacity

    index_watch = _watch(index, watch, skip_unreadable, ray)
    settings = when | score | search
    where = (_here(model), _here(index), engine)
    load: Callable[[], Answering]
    if policy in names(options.FORMATS):
        load = partial(
            options.load_format,
            *where,
            policy,
            settings | {"load-judge": load_judge or None},
        )
    else:
        decoding = options.decoding(policy, settings)
        load = partial(
            _load,
            *where,
            options.judge_names(model, decoding, loaded=load_judge or ()),
            decoding,
        )
    served = Served(
        load,
        served_model_name or Path(model).name,
        None if keep is None else keep.absolute(),
        Capacity(live, queue),
        citation_style,
        events,
        drop_old_turns,
        access_of(api_key_file, host, allow_host or []),
        index_watch,
        model,
        index,
    )
    with listen(host, port) as listener:
        address = address_of(listener, host)
        if served.access.any_address and not served.access.keys:
            typer.echo(
                "everyone who reaches this address may ask; --api-key-file limits that",
                err=True,
            )

        def ready() -> None:
            typer.echo(f"serving {served.name} at {address}")

        if ray is not None:
            number = listener.getsockname()[1]
            listener.close()
            run_on_ray(
                served, Replicas(ray, replicas, num_gpus=gpus), host, number, ready
            )
            return
        app = served.app()
        ready()
        run_server(app, listener, connections, drain)


def _watch(
    index: str | None, files: list[Path] | None, skip_unreadable: bool, ray: str | None
) -> IndexWatch | None:
    """Return the watch of an index that follows files, after a first sync; None where it follows none."""
    if not files:
        return None
    from retrieval.sync import sync_index
    from selfrag.serving.index_watch import IndexWatch

    require("watchfiles", extra="watch")
    if (
        index is None
        or index == DEMO
        or "," in index
        or is_address(index)
        or remote_indexes(index)
    ):
        raise UserError(
            f"--watch {files[0]}: give the folder of one index to follow it: --index DIR"
        )
    if ray is not None:
        raise UserError(
            "--watch does not work with --ray; run `selfrag index sync --watch` beside it, and restart it"
        )
    target = Path(index).absolute()
    try:
        sync_index(
            target,
            files,
            encoder=LazyEncoder(target, None, {}),
            skip_unreadable=skip_unreadable,
        )
    except UserError as error:
        if not target.is_dir():
            raise
        typer.echo(f"the index was not synced: {error}", err=True)
    return IndexWatch(target, [file.absolute() for file in files], skip_unreadable)


def _load(
    model: str,
    index: str | None,
    engine: FieldValues,
    judges: Sequence[str],
    decoding: Decoding,
) -> SelfRAG:
    rag = options.load(model, index, engine, judges)
    rag.defaults = decoding
    return rag


def _here(name: Any) -> Any:
    """Return the name of a model or index; absolute where it is a folder, since replicas run in other folders."""
    return (
        str(Path(name).absolute()) if name is not None and Path(name).is_dir() else name
    )
