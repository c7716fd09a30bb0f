"""Options of the commands that work on a Ray cluster: `--ray`, `--workers` and `--gpus`."""

from __future__ import annotations

from typing import Annotated

import typer

from selfrag.cli.fields import Fields, FieldValues
from selfrag.cli.running import refuse_options
from selfrag.cluster import Actors

RayOptions = Annotated[
    FieldValues,
    Fields(Actors, "Where it runs", "address=--ray", "workers", "num_gpus=--gpus"),
]


def ray_actors(ctx: typer.Context, ray: FieldValues) -> Actors | None:
    """Return the actors that the options name, None for this process."""
    if "address" in ray:
        return Actors(**ray)
    refuse_options(ctx, ("--workers", "--gpus"), "for --ray, which is not given")
    return None
