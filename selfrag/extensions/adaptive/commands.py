"""`selfrag eval board`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from selfrag.interface import (
    CommandResult,
    EngineChoice,
    Fields,
    FieldValues,
    SourceSettings,
    UserError,
    check_int,
    engine_options,
    parse_settings,
    quiet,
    show_markdown,
    write_text,
)


def board(
    files: list[str],
    *,
    out: Path,
    model: str = "demo",
    system: list[str] | None = None,
    against: str = "always",
    budget: str | None = None,
    engine: EngineChoice,
    item_options: Annotated[
        FieldValues,
        Fields(
            SourceSettings,
            "What is asked",
            *("index=--index/--retriever", "found", "limit", "seed"),
        ),
    ],
) -> CommandResult:
    """Compare methods of adaptive retrieval on one model: scores, costs, paired differences, the Pareto front.

    Args:
        files: FILE of your own rows, or TASK=FILE or TASK/PROTOCOL=FILE of a published task
        out: folder of the runs and of board.md and board.html; the same command continues an interrupted board
        model: demo, a folder with a checkpoint, a name on the hub, or MODEL@URL of an OpenAI-compatible endpoint
        system: by name; repeatable; by default twelve
        against: system that the others are compared with
        budget: tokens=N, the most tokens of an item, prompt and new ones; the setting of each method is then chosen on
            half of the items, and the other half is reported
    """
    from selfrag.extensions.adaptive.board import (
        SYSTEMS,
        Board,
        board_markdown,
        board_rows,
    )
    from selfrag.interface import Model, Source, read_report, write_report

    quiet()
    systems = tuple(dict.fromkeys(system or SYSTEMS))
    if against not in systems:
        raise UserError(f"--against {against}: the systems are {', '.join(systems)}")
    engine_name, settings = engine_options(engine)
    source = Source.named(files, **item_options)
    source_settings = source.settings()
    task_files = source.load()
    runs = Board(
        Model(model, engine_name, settings),
        task_files,
        out,
        source_settings,
        systems,
        source.retriever,
        source.found,
        read_budget(budget),
        source.seed,
    )
    chosen = runs.run()
    names = [file.name for file in task_files]
    folders = [out / name for name in systems]
    tables = board_rows(folders, names, against, chosen, source.seed)
    heads = {file.name: file.task.headline for file in task_files}
    text = board_markdown(tables, heads, against)
    write_text(out / "board.md", text)
    report = read_report(
        folders, against=against, only=names, items=20, seed=source.seed
    )
    page = write_report(report, out / "board.html")
    value = {"files": dict(tables), "settings": chosen, "page": page}
    return CommandResult(
        value, lambda: show_markdown(text), failures=report.comparison.failures
    )


def read_budget(text: str | None) -> int | None:
    """Return the number of `tokens=N`."""
    if text is None:
        return None
    settings = parse_settings([text], "--budget")
    if list(settings) != ["tokens"]:
        raise UserError(f"--budget {text}: give tokens=NUMBER")
    check_int("--budget tokens", settings["tokens"])
    return int(settings["tokens"])
