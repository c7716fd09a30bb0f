"""The report of finished runs: an HTML page that opens from disk and runs no script, Markdown, CSV or plots.

The page is `report.html.j2`; it shows figures, where they come from, and what every system made of a sample of items.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from retrieval.passage import Passage
from selfrag.common.atomic import write_text, writing
from selfrag.common.errors import UserError, count_of, require
from selfrag.common.jsonl import read_jsonl
from selfrag.common.untrusted import cut
from selfrag.decoding.answer import segments_of
from selfrag.decoding.trace import ROOT, Trace, trace_of
from selfrag.evaluation.comparison import (
    Comparison,
    ComparisonRow,
    ComparisonTable,
    SystemRun,
    compare,
    read_runs,
)
from selfrag.evaluation.intervals import Estimate
from selfrag.evaluation.items import Item, Output
from selfrag.evaluation.metrics.registry import (
    COMPUTED,
    Part,
    is_count,
    ratio,
    scale_of,
)
from selfrag.evaluation.pareto import ParetoPoint, pareto_front
from selfrag.evaluation.records import item_id, items_of, read_manifest
from selfrag.evaluation.tables import about, csv_text, grid, markdown, tables, title
from selfrag.reflection.labels import CRITIQUES, Role
from selfrag.render.colours import COLOURS
from selfrag.render.documents import (
    document,
    page_policy,
    picked_out,
    style_sheet,
    templates,
)
from selfrag.render.figures import FORMATS, encoded, save
from selfrag.viewer.traces import traces_page
from selfrag.viewer.trees import svg

ITEMS = 50
"""Items of each file that are shown, unless the caller says otherwise."""
MOST = {"steps": 30, "candidates": 60, "drawn": 150, "passages": 30}
"""What is shown: decisions of a trace, candidates or passages of a decision, boxes of a tree, passages of an item."""
UNEXPECTED = 0.5
"""Coverage below this is said: most probability was on other words than the labels."""
KINDS = {
    "all": "every item",
    "differ": "items on which systems differ",
    "wrong": "items with an answer that is not right",
    "right": "items that every system got right",
    "abstained": "items on which a system abstained",
    "failed": "items that failed",
}
"""What a reader can pick out: class of an item -> in words."""
OWN_STYLE = """
.instruction, .gold { margin: .3rem 0 } .tree svg text { font: 11px sans-serif } .tree svg { max-width: none }
details.answer > summary { color: var(--ink) } img { max-width: 100%; height: auto; background: #ffffff }
article { content-visibility: auto; contain-intrinsic-size: auto 12rem }
main, header { max-width: 90rem } .results td { white-space: nowrap } article td, article th { text-align: left }
"""


@dataclass(frozen=True, slots=True)
class SystemOutcome:
    """What one system made of an item."""

    system: str  # its name
    output: Output  # the answer; an empty one where the item failed
    error: str | None  # why there is none; None if there is one
    # metric to part, the headline first; None where a metric says nothing
    scores: Mapping[str, Part | None]
    trace: Trace | None  # everything that was considered; None if the run kept none
    damage: str | None = None  # why a trace that is there cannot be read

    @property
    def share(self) -> float | None:
        """Return the headline figure of this item alone; None where it says nothing, or is a count."""
        head, part = next(iter(self.scores.items()), ("", None))
        if is_count(head):
            return None
        return ratio([part])


@dataclass(frozen=True, slots=True)
class ItemCase:
    """An item (None if the data file is not at hand) and what every system made of it, in the order of the runs."""

    id: str
    item: Item | None
    outcomes: tuple[SystemOutcome, ...]

    @property
    def question(self) -> str | None:
        """Return the question as asked; None if neither the data file nor a trace is at hand."""
        if self.item is not None:
            return self.item.instruction
        for outcome in self.outcomes:
            if outcome.trace is not None:
                return outcome.trace.question
        return None

    @property
    def passages(self) -> tuple[Passage, ...]:
        """Return the passages of the item and of all traces, each id once."""
        sources = []
        if self.item is not None:
            sources.append(self.item.passages)
        for outcome in self.outcomes:
            if outcome.trace is not None:
                sources += [decision.passages for decision in outcome.trace.decisions]
        passages: dict[str, Passage] = {}
        for passage in chain.from_iterable(sources):
            passages.setdefault(passage.id, passage)
        return tuple(passages.values())

    @property
    def kinds(self) -> set[str]:
        """Return which of `KINDS` it is of."""
        kinds, shares = {"all"}, set()
        for outcome in self.outcomes:
            if outcome.error is not None:
                kinds.add("failed")
            elif outcome.output.abstained:
                kinds.add("abstained")
            if outcome.share is not None:
                shares.add(outcome.share)
        if len(shares) > 1:
            kinds.add("differ")
        if shares:
            kinds.add("wrong" if min(shares) < 1 else "right")
        return kinds

    def citing(self, passage: str) -> list[str]:
        """Return the systems that cite the passage with this id."""
        return [
            outcome.system
            for outcome in self.outcomes
            if passage in dict(outcome.output.segments).values()
        ]


@dataclass(frozen=True, slots=True)
class CaseFile:
    """The cases of one file."""

    name: str  # of the file
    cases: tuple[ItemCase, ...]  # in the order of the file
    items: int  # how many the runs have
    note: str | None = None  # why there is no question or gold answer; None if there is


def read_cases(
    runs: Sequence[SystemRun], most: int, *, data: Path | None = None, seed: int = 0
) -> list[CaseFile]:
    """Return the cases of every file: a seeded sample, in which items that failed come first.

    At `most` so many of a file are read. `data` is the folder where the data files are now; by default where the
    first run read them.
    """
    if most < 0:
        raise UserError(f"{count_of(most, 'items')}; 0 or more can be shown")
    return [_read_case_file(runs, name, most, data, seed) for name in runs[0].files]


def _read_case_file(
    runs: Sequence[SystemRun], name: str, most: int, data: Path | None, seed: int
) -> CaseFile:
    ids = runs[0].files[name].ids
    if most == 0:
        return CaseFile(name, (), len(ids))
    failed: set[str] = set()
    for run in runs:
        records = read_jsonl(
            run.folder / f"{name}.jsonl",
            lambda record: (item_id(record), record.get("error")),
        )
        failed |= {key for key, error in records if error is not None}
    order = random.Random(seed).sample(ids, len(ids))  # noqa: S311 - no cryptography
    chosen = set(sorted(order, key=lambda key: key not in failed)[:most])
    items: Mapping[str, Item] = {}
    note = None
    try:
        items = items_of(runs[0].folder, name, data)
    except (UserError, OSError, KeyError) as error:
        note = f"{error}; questions come from traces"
    outcomes = [_outcomes(run, name, chosen) for run in runs]
    cases = []
    for key in filter(chosen.__contains__, ids):
        of_runs = tuple(of_run[key] for of_run in outcomes)
        cases.append(ItemCase(key, items.get(key), of_runs))
    return CaseFile(name, tuple(cases), len(ids), note)


def _outcomes(run: SystemRun, name: str, chosen: set[str]) -> dict[str, SystemOutcome]:
    result = run.files[name]
    places = {key: place for place, key in enumerate(result.ids)}
    outcomes: dict[str, SystemOutcome] = {}

    def take(record: dict[str, Any]) -> None:
        key = item_id(record)
        if key in chosen:
            scores = {
                metric: result.scores[metric][places[key]] for metric in result.metrics
            }
            outcomes[key] = _outcome(run.name, record, scores)

    for _ in read_jsonl(run.folder / f"{name}.jsonl", take):
        pass
    return outcomes


def _outcome(
    system: str, record: Mapping[str, Any], scores: Mapping[str, Part | None]
) -> SystemOutcome:
    trace, damage = None, None
    if record.get("trace") is not None:
        try:
            trace = trace_of(record["trace"])
        except UserError as error:
            damage = str(error)
    output, failure = Output.from_record(record) or Output(""), record.get("error")
    if failure is not None:
        failure = str(failure)
    return SystemOutcome(system, output, failure, scores, trace, damage)


def run_origin(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return kind of system, model, engine, code, time and packages of a run; what the manifest lacks is a dash."""
    identity, about_run = manifest["identity"], manifest.get("about", {})
    packages = ", ".join(
        f"{name} {version}" for name, version in about_run.get("versions", {}).items()
    )
    commit, changes, _ = str(about_run.get("commit") or "-").partition("+changes")
    return {
        "kind": str(identity.get("system", {}).get("kind", "-")),
        "model": _model(identity.get("model")),
        "engine": str(identity.get("engine") or "-"),
        "code": commit[:12] + changes,
        "made": str(about_run.get("time") or "-"),
        "packages": packages or "-",
    }


def file_origin(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return kind of task, number of items, sample and checksum of one file of a run."""
    settings = entry["settings"]
    limit = settings.get("limit")
    return {
        "kind": str(settings["task"]["kind"]),
        "items": str(settings.get("items", "-")),
        "of": str(settings.get("rows", "-")),
        "sample": "all" if limit is None else f"{limit}, seed {settings.get('seed')}",
        "sha256": str(settings.get("sha256", "-"))[:12],
    }


def _model(model: Any) -> str:
    """Return a model as the first digits of the checksums of its weights, or what the manifest says."""
    if not isinstance(model, Mapping):
        return str(model or "-")[:80]
    weights = [
        name for name in model if str(name).endswith((".safetensors", ".bin", ".gguf"))
    ]
    shown = sorted(weights or model)[:3]
    return ", ".join(f"{name} {str(model[name])[:12]}" for name in shown) or "-"


@dataclass(frozen=True, slots=True)
class Report:
    """What the page shows."""

    comparison: Comparison  # all figures
    # name of a system to the manifest of its run
    manifests: Mapping[str, Mapping[str, Any]]
    files: Sequence[CaseFile]  # items of each file
    seed: int = 0  # of the sample of items


def read_report(
    folders: Sequence[Path],
    *,
    against: str | None = None,
    only: Sequence[str] | None = None,
    items: int = ITEMS,
    data: Path | None = None,
    seed: int = 0,
    seeds: bool = False,
) -> Report:
    """Read finished runs of the same items.

    At most `items` of each file are shown: failed ones come first, the others are a seeded sample. `data` is the
    folder where the data files are now; by default where the runs read them. `seeds` is as for `compare`.

    Raises:
        UserError: a directory is no finished run, or the runs cannot be compared.
    """
    runs = read_runs(folders, only)
    comparison = compare(runs, against=against, seed=seed, seeds=seeds)
    manifests = {run.name: read_manifest(run.folder) for run in runs}
    return Report(
        comparison, manifests, read_cases(runs, items, data=data, seed=seed), seed
    )


@cache
def parts() -> Any:
    """Return the macros of the page, such as `page`, `article`, `segments` and `judged`; what they get is untrusted."""
    environment = templates("selfrag", "evaluation")
    filters: dict[str, Any] = {
        "judge_names": lambda nodes: list(
            dict.fromkeys(chain.from_iterable(node.judges for node in nodes))
        ),
        "gold": _gold,
        "figures": _figures,
        "mark": _mark,
    }
    environment.filters |= filters
    roles = (Role.RETRIEVE, *(labels.role for labels in CRITIQUES))
    environment.globals |= {
        "colours": COLOURS,
        "unexpected": UNEXPECTED,
        "most": MOST,
        "kinds": KINDS,
        "root": ROOT,
    }
    environment.globals |= {"all_roles": roles, "segments_of": segments_of, "svg": svg}
    return environment.get_template("report.html.j2").module


def _mark(share: float | None) -> str:
    marks = {None: "-", 0.0: "\N{MULTIPLICATION X}", 1.0: "\N{CHECK MARK}"}
    return marks.get(share, f"{share or 0:.2f}")


def _gold(item: Item) -> list[tuple[str, Sequence[str], str, int]]:
    """Return what is known of the right answer: a lead, texts, what stands between them, characters of each."""
    known: list[tuple[str, Sequence[str], str, int]] = []
    if item.label is not None:
        known.append(("right: ", [item.label], "", 200))
    if item.options:
        known.append(("of ", item.options[:30], ", ", 200))
    known += [("answer: ", names, " or ", 200) for names in item.answer_sets[:50]]
    if item.references and not item.answer_sets:
        known.append(("gold: ", item.references[:20], " or ", 1000))
    if item.answerable is not None:
        text = "not answerable from its passages"
        if item.answerable:
            text = "answerable"
        known.append((text, (), "", 0))
    return known


def _figures(outcome: SystemOutcome) -> list[tuple[str, str]]:
    figures = []
    for name, part in outcome.scores.items():
        if name not in outcome.output.usage:
            value = ratio([part])
            text = "-"
            if value is not None:
                text = f"{value:.3g}"
            figures.append((name.replace("_", " "), text))
    return figures


def render(report: Report, viewer: str = "") -> str:
    """Return the page as text. The same report gives the same page."""
    manifests, comparison = report.manifests, report.comparison
    files = next(iter(manifests.values()))["files"]
    shown = []
    for table in tables(comparison):
        cells = grid(table, comparison.reference)
        values = {
            "name": table.name,
            "title": title(table),
            "grid": cells,
            "notes": table.notes,
        }
        shown.append({**values, "picture": _picture(table), "spoken": spoken(table)})
    counts = dict.fromkeys(KINDS, 0)
    for file in report.files:
        for case in file.cases:
            for kind in case.kinds:
                counts[kind] += 1
    runs = {name: run_origin(manifest) for name, manifest in manifests.items()}
    origins = {name: file_origin(entry) for name, entry in files.items()}
    shown_manifests = {}
    for name, manifest in manifests.items():
        shown_manifests[name] = json.dumps(manifest, ensure_ascii=False, indent=1)
    body = parts().page(
        about=about(comparison),
        tables=shown,
        runs=[
            _origins("Runs", "system", runs),
            _origins("Files", "file", origins),
        ],
        manifests=shown_manifests,
        files=report.files,
        counts=counts,
        seed=report.seed,
        viewer=viewer,
    )
    heading = ", ".join([*manifests][:4])
    if len(manifests) > 4:
        heading += " ..."
    picks = [picked_out(f"show-{kind}", f"article:not(.is-{kind})") for kind in KINDS]
    style = style_sheet(OWN_STYLE.strip(), *picks)
    return document(
        f"Results: {cut(heading, 120)}", style, body, page_policy(pictures=True)
    )


def _origins(
    caption: str, what: str, rows: Mapping[str, Mapping[str, str]]
) -> tuple[Any, ...]:
    """Return caption, head and body of a table of where runs or files come from."""
    head = (what, *next(iter(rows.values()), {}))
    return caption, head, [(name, *cells.values()) for name, cells in rows.items()]


def traces_of(report: Report) -> dict[str, Trace]:
    """Return the traces that the page shows, by the id of their answer in it."""
    traces = {}
    for number, file in enumerate(report.files):
        for place, case in enumerate(file.cases):
            for system, outcome in enumerate(case.outcomes):
                if outcome.trace is not None:
                    traces[f"item-{number}-{place}-{system}"] = outcome.trace
    return traces


def _picture(shown: ComparisonTable) -> str:
    """Return a table's plots as base64 of an SVG, which in an `img` cannot run; empty without a figure."""
    if not any(row.figures[shown.metrics[0]] for row in shown.rows):
        return ""
    return base64.b64encode(encoded(draw_tables([shown]), ".svg")).decode()


TEXTS: dict[str, Callable[[Report], str]] = {
    ".md": lambda report: markdown(report.comparison),
    ".csv": lambda report: csv_text(report.comparison),
}
"""Ending of a file -> its text."""
ENDINGS = (".html", *TEXTS, *FORMATS)


def check_ending(out: Path) -> Path:
    """Return the same path, if its ending says what to write."""
    if out.suffix not in ENDINGS:
        raise UserError(
            f"{out}: cannot tell what to write; the file must end in {', '.join(ENDINGS)}"
        )
    return out


def write_report(report: Report, out: Path) -> Path:
    """Write one file: a page (`.html`), tables (`.md`, `.csv`) or plots (`.png`, `.svg`, `.pdf`).

    Beside a page `NAME.html` whose runs kept traces, `NAME-traces.html` ranks them again under other weights.

    Raises:
        UserError: another ending, or the place cannot be written.
        MissingExtraError: matplotlib is not installed and is needed.
    """
    check_ending(out)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".html":
        traces = traces_of(report)
        viewer = out.with_name(f"{out.stem}-traces.html")
        if traces:
            write_text(viewer, traces_page(traces))
        write_text(out, render(report, viewer.name if traces else ""))
        return out
    if out.suffix in TEXTS:
        write_text(out, TEXTS[out.suffix](report))
        return out
    return save(draw(report.comparison), out)


TOKENS = ("prompt_tokens", "generated_tokens")
COMPUTED_TOKENS = "computed tokens an item"
_WIDTH = 12.0
_HEADING = 1.4
_LINE = 0.32  # inches: of a row of panels, of its titles and axes, of a system
_CLOSE = 0.06  # of a panel: nearer points share a label


def draw(comparison: Comparison) -> Any:
    """Draw all tables of a comparison, one below the other.

    Raises:
        UserError: there is nothing to draw.
        MissingExtraError: matplotlib is not installed.
    """
    return draw_tables(tables(comparison))


def draw_tables(shown: Sequence[ComparisonTable]) -> Any:
    """Draw a row of panels for each table: the headline with interval, against tokens and against retrieval."""
    if not shown or not any(
        row.figures[table.metrics[0]] for table in shown for row in table.rows
    ):
        raise UserError("no system has a headline figure: nothing to draw")
    require("matplotlib", extra="eval")
    from matplotlib.figure import Figure

    heights = [_HEADING + _LINE * max(4, len(table.rows)) for table in shown]
    figure = Figure(figsize=(_WIDTH, sum(heights)), layout="constrained")
    widths = [1.3, 1.0]
    if any(_tokens(row) is not None for table in shown for row in table.rows):
        widths.append(1.0)
    panels = figure.subplots(
        len(shown),
        len(widths),
        squeeze=False,
        height_ratios=heights,
        width_ratios=widths,
    )
    for table, (scores, *tokens, retrieval) in zip(shown, panels, strict=True):
        _scores(scores, table)
        for axes in tokens:
            _against(
                axes,
                table,
                {row.system: _tokens(row) for row in table.rows},
                "tokens an item" if TOKENS[0] in table.metrics else COMPUTED_TOKENS,
            )
        rates = {
            row.system: _percent(row.figures.get("retrieval_rate"))
            for row in table.rows
        }
        _against(retrieval, table, rates, "items with retrieval, %")
        # the ends are figures of their own, and have a number beside them
        retrieval.set_xlim(-8, 112)
    return figure


def spoken(table: ComparisonTable) -> str:
    """Describe the picture of one table in words, for readers who do not see it."""
    head = table.metrics[0]
    parts = [f"{row.system} {_say(row.figures[head], head)}" for row in table.rows]
    return f"{title(table)}: {head} of {'; '.join(parts)}; the same against tokens and against the retrieval rate"


def _scores(axes: Any, table: ComparisonTable) -> None:
    head = table.metrics[0]
    names = [f"{place}  {_name(row.system)}" for place, row in enumerate(table.rows, 1)]
    for place, row in enumerate(table.rows):
        if (figure := row.figures[head]) is not None:
            value, low, high = _ends(figure, head)
            error = [[value - low], [high - value]]
            axes.errorbar(
                value, place, xerr=error, fmt="o", color=f"C{place % 10}", capsize=3
            )
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(f"{_label(head)} with 95% interval", parse_math=False)
    axes.set_title(
        _name(title(table), 60), parse_math=False, loc="left", fontsize="medium"
    )
    axes.grid(axis="x", alpha=0.3)


def _against(
    axes: Any, table: ComparisonTable, costs: dict[str, float | None], what: str
) -> None:
    head = table.metrics[0]
    points: dict[str, ParetoPoint] = {}  # by the number of the system
    for place, row in enumerate(table.rows):
        cost, figure = costs[row.system], row.figures[head]
        if cost is not None and figure is not None:
            value, low, high = _ends(figure, head)
            error = [[value - low], [high - value]]
            axes.errorbar(
                cost, value, yerr=error, fmt="o", color=f"C{place % 10}", capsize=3
            )
            points[str(place + 1)] = ParetoPoint(cost, value)
    best = [points[name] for name in pareto_front(points)]
    if len(best) > 1:
        prices, gains = zip(*((point.price, point.gain) for point in best), strict=True)
        axes.plot(prices, gains, color="grey", linewidth=1, linestyle="--", zorder=0)
    if not points:
        axes.set_axis_off()
        return
    for spot, label in _number_labels(points):
        axes.annotate(
            label, spot, xytext=(4, 3), textcoords="offset points", fontsize=8
        )
    axes.margins(x=0.2, y=0.15)
    axes.set_xlabel(what)
    axes.set_ylabel(_label(head), parse_math=False)
    axes.grid(alpha=0.3)


def _number_labels(
    points: Mapping[str, ParetoPoint],
) -> list[tuple[tuple[float, float], str]]:
    """Return where to write which numbers; those of points that lie together are written as one label."""
    prices, gains = zip(
        *((point.price, point.gain) for point in points.values()), strict=True
    )
    width, height = (
        _CLOSE * (max(values) - min(values) or 1.0) for values in (prices, gains)
    )
    labels: dict[ParetoPoint, str] = {}
    for number, point in points.items():
        for spot in labels:
            if (
                abs(spot.price - point.price) < width
                and abs(spot.gain - point.gain) < height
            ):
                labels[spot] += f", {number}"
                break
        else:
            labels[point] = number
    return [((spot.price, spot.gain), label) for spot, label in labels.items()]


def _name(text: str, longest: int = 32) -> str:
    """Return a name of others in one short line."""
    shown = " ".join(cut(text, longest).split())
    if len(shown) > longest:
        return f"{shown[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"
    return shown


def _tokens(row: ComparisonRow) -> float | None:
    prompt, generated = map(row.figures.get, TOKENS)
    if prompt is not None and generated is not None:
        return prompt.value + generated.value
    computed = row.figures.get(COMPUTED)  # an average has no other
    return None if computed is None else computed.value


def _percent(estimate: Estimate | None) -> float | None:
    if estimate is None:
        return None
    return 100 * estimate.value


def _label(head: str) -> str:
    if is_count(head):
        return _name(head)
    return f"{_name(head)}, %"


def _ends(estimate: Estimate, head: str) -> tuple[float, float, float]:
    """Return value and ends, of a share in percent; a figure without an interval is its own."""
    scale = scale_of(head)
    value = scale * estimate.value
    if estimate.low != estimate.low:
        return value, value, value
    return value, min(value, scale * estimate.low), max(value, scale * estimate.high)


def _say(estimate: Estimate | None, head: str) -> str:
    if estimate is None:
        return "not known"
    value, low, high = _ends(estimate, head)
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"
