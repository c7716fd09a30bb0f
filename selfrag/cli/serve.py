"""`selfrag serve`: an OpenAI-compatible server that cites, with a page to ask and to see why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfrag.cli import options
from selfrag.cli.fields import Fields, FieldValues
from selfrag.cli.options import EngineChoice
from selfrag.cli.running import refuse_options
from selfrag.common.errors import UserError, require
from selfrag.common.plugins import names
from selfrag.decoding.policy import Decoding
from selfrag.loading import model_address
from selfrag.serving.settings import (
    Capacity,
    ListenSettings,
    Replicas,
    ServiceSettings,
)

if TYPE_CHECKING:
    from selfrag.api import SelfRAG
    from selfrag.serving.index_watch import IndexWatch
    from selfrag.serving.service import Answering

Listening = Annotated[
    FieldValues,
    Fields(
        ListenSettings,
        "The server",
        *("host", "port", "api_key_file", "allow_host", "connections", "drain"),
    ),
]
ServeSettings = Annotated[
    FieldValues,
    Fields(
        ServiceSettings,
        "The server",
        "name=--served-model-name",
        "capacity.live",
        "capacity.queue",
        "capacity.wait",
        "drop_old_turns",
    ),
    Fields(ServiceSettings, "How it cites", "style=--citation-style", "events"),
]
ClusterSettings = Annotated[
    FieldValues,
    Fields(
        Replicas,
        "Many servers",
        "address=--ray",
        "count=--replicas",
        "num_gpus=--gpus",
    ),
]


def serve(
    *,
    ctx: typer.Context,
    model: str = "demo",
    index: options.Index = None,
    watch: list[Path] | None = None,
    skip_unreadable: bool = False,
    engine: EngineChoice,
    load_judge: list[str] | None = None,
    policy: options.Policy = "paper",
    policy_set: options.Changes = None,
    policy_options: options.PolicyOptions,
    listening: Listening,
    serving: ServeSettings,
    keep: Path | None = None,
    cluster: ClusterSettings,
) -> None:
    """Serve a model over the OpenAI API, with citations, and a page at /.

    A variable of the environment sets an option, too: SELFRAG_SERVE_PORT is --port.

    The server:
        watch: file or folder that --index follows: it is synced when they change; repeatable
        skip_unreadable: with --watch: go on past files that cannot be read
        keep: SQLite file for answers and traces; in memory by default
    """
    from selfrag.serving.app import Served, run_on_ray
    from selfrag.serving.listening import access_of, address_of, listen, run_server

    if "address" in cluster:
        purpose = "for a server of this process, and --ray starts others"
        refuse_options(ctx, ("--connections", "--drain"), purpose)
    else:
        purpose = "for --ray, which is not given"
        refuse_options(ctx, ("--replicas", "--gpus"), purpose)
    if not watch:
        refuse_options(ctx, ("--skip-unreadable",), "for --watch, which is not given")
    settings = ListenSettings(**listening)
    index_watch = _watch(index, watch, skip_unreadable, cluster.get("address"))
    limits = {}
    for name in ("live", "queue", "wait"):
        limit = serving.pop(f"capacity.{name}", None)
        if limit is not None:
            limits[name] = limit
    name, _ = model_address(model) or (model, "")
    settings_of_policy = options.with_changes(policy_options, policy_set)
    served = Served(
        _loader(model, index, engine, load_judge, policy, settings_of_policy),
        keep=None if keep is None else keep.absolute(),
        access=access_of(settings),
        watch=index_watch,
        model=model,
        index=index,
        capacity=Capacity(**limits),
        **{"name": Path(name).name, **serving},
    )
    with listen(settings) as listener:
        address = address_of(listener, settings.host)
        if served.access.any_address and not served.access.keys:
            typer.echo(
                "everyone who reaches this address may ask; --api-key-file limits that",
                err=True,
            )

        def ready() -> None:
            typer.echo(f"serving {served.name} at {address}")

        if cluster:
            number = listener.getsockname()[1]
            listener.close()
            run_on_ray(served, Replicas(**cluster), settings.host, number, ready)
            return
        app = served.app()
        ready()
        run_server(app, listener, settings)


def _loader(
    model: str,
    index: str | None,
    engine: FieldValues,
    judges: list[str] | None,
    policy: str,
    settings: FieldValues,
) -> Callable[[], Answering]:
    """Return what loads the model, here or in a replica."""
    where = (_here(model), _here(index), engine)
    if policy in names(options.FORMATS):
        settings = settings | {"load-judge": judges}
        return partial(options.load_format, *where, policy, settings)
    decoding = options.decoding(policy, settings)
    loaded = options.judge_names(model, decoding, loaded=judges or ())
    return partial(_load, *where, loaded, decoding)


def _watch(
    index: str | None, files: list[Path] | None, skip_unreadable: bool, ray: str | None
) -> IndexWatch | None:
    """Return the watch of an index that follows files, after a first sync; None where it follows none."""
    if not files:
        return None
    from retrieval.sync import sync_index
    from selfrag.cli.lazy_encoder import LazyEncoder
    from selfrag.loading import DEMO, is_plugin, remote_indexes
    from selfrag.serving.index_watch import IndexWatch

    require("watchfiles", extra="watch")
    if (
        index is None
        or index == DEMO
        or "," in index
        or is_plugin(index)
        or remote_indexes(index)
    ):
        raise UserError(
            f"--watch {files[0]}: give the folder of one index to follow it: --index DIR"
        )
    if ray is not None:
        raise UserError(
            "--watch does not work with --ray; run `selfrag index sync --follow` beside it, and restart it"
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
    if name is not None and Path(name).is_dir():
        return str(Path(name).absolute())
    return name
