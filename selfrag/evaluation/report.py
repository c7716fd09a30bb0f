"""The report of finished runs: an HTML page that opens from disk and runs no script, Markdown, CSV or plots."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.atomic import write_text, writing
from retrieval.passage import Passage
from selfrag.decoding.answer import segments_of
from selfrag.decoding.trace import ROOT, Decision, Node, Trace
from selfrag.errors import UserError
from selfrag.evaluation.comparison import Comparison, Table, compare, read_runs
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.registry import ratio
from selfrag.evaluation.origins import file_origin, mapping, run_origin
from selfrag.evaluation.plots import draw, draw_tables, spoken
from selfrag.evaluation.records import read_manifest
from selfrag.evaluation.report_items import Case, CaseFile, Outcome, read_cases
from selfrag.evaluation.tables import about, csv_text, grid, markdown, tables, title
from selfrag.pages import COLOURS, document, inert, isolated, links, picked_out, slug, style_sheet, table, visible
from selfrag.plotting import FORMATS, encoded, save
from selfrag.reflection.judgment import Judgment, Source
from selfrag.reflection.labels import CRITIQUES, Role
from selfrag.rendering import svg

UNEXPECTED = 0.5
"""Coverage below this is said: most probability was on other words than the labels."""


def judged(judgment: Judgment | None) -> str:
    """One judgment; a dash for one that was not made."""
    if judgment is None:
        return "-"
    top = judgment.distribution.index(max(judgment.distribution))
    label = judgment.labels.labels[top]
    kind = f" t-{slug(label.token)}" if label.token in COLOURS else ""
    badge = f'<span class="token{kind}">{isolated(label.name, 40)} {judgment.distribution[top]:.2f}</span>'
    rest = [
        f"{isolated(other.name, 40)} {share:.2f}"
        for i, (other, share) in enumerate(zip(judgment.labels, judgment.distribution, strict=True))
        if i != top and share >= 0.005
    ]
    notes = [f"coverage {judgment.coverage:.2f}"] if judgment.coverage < UNEXPECTED else []
    notes += [] if judgment.source is Source.TOKEN else [f"by {judgment.source}"]
    return badge + "".join(f' <span class="dim">{note}</span>' for note in [*rest, *notes])


MOST_STEPS, MOST_CANDIDATES, MOST_DRAWN = 30, 60, 150
"""Decisions of a trace, candidates of a decision, and boxes of a picture that are shown."""


def segments(trace: Trace, name: str) -> str:
    """The segments of the answer with citation, judgments and score.

    Args:
        trace: one decode.
        name: of the answer, for the ear.
    """
    _, found = segments_of(trace, trace.best)
    if not found:
        return ""
    joined = list(dict.fromkeys(key for segment in found for key in segment.joined))
    head = ("segment", "cites", "Retrieve", "IsRel", "IsSup", "IsUse", *(inert(key, 40) for key in joined), "score")
    rows = []
    for segment in found:
        cited = "-" if segment.citation is None else isolated(segment.citation.title or segment.citation.id, 80)
        roles = (Role.RETRIEVE, *(labels.role for labels in CRITIQUES))
        cells = [cited, *(judged(segment.judgments.get(role)) for role in roles)]
        cells += [judged(segment.joined.get(key)) for key in joined]
        rows.append((isolated(segment.text, 1000), [*cells, f"{segment.score:.3f}"]))
    return table(f"Segments of {name}", head, rows)


def search(trace: Trace, name: str) -> str:
    """How the answer was searched: every decision, every candidate, the tree.

    Args:
        trace: one decode.
        name: begins the ids of this trace; differs between the traces of a page.
    """
    chosen = {node.id for node in trace.path(trace.best)}
    children: dict[int, list[Node]] = {}
    for node in trace.nodes:
        children.setdefault(node.parent, []).append(node)
    steps = [_step(trace, one, children.get(one.after, []), chosen) for one in trace.decisions[:MOST_STEPS]]
    if len(trace.decisions) > MOST_STEPS:
        steps.append(f"<p>{len(trace.decisions) - MOST_STEPS:,} more decisions</p>")
    return f"<details><summary>the search: {_counted(trace)}</summary>{''.join(steps)}{_tree(trace, name)}</details>"


def _counted(trace: Trace) -> str:
    nodes, steps = len(trace.nodes), len(trace.decisions)
    return f"{nodes:,} candidate{'s' * (nodes != 1)} after {steps:,} decision{'s' * (steps != 1)}"


def _step(trace: Trace, decision: Decision, candidates: Sequence[Node], chosen: set[int]) -> str:
    after = "At the start" if decision.after == ROOT else f"After candidate {decision.after}"
    lines = [f"<p><strong>{after}: {inert(decision.action, 40)}</strong> {isolated(decision.reason, 200)}</p>"]
    if decision.judgment is not None:
        lines.append(f"<p>Retrieve: {judged(decision.judgment)}</p>")
    lines += [f"<p>{isolated(gate, 80)}: {judged(judgment)}</p>" for gate, judgment in decision.gates]
    if decision.query is not None:
        lines.append(f'<p class="dim">searched for {isolated(decision.query, 400)}</p>')
    if decision.passages:
        listed = "; ".join(
            isolated(passage.title or passage.id, 80) + ("" if passage.score is None else f" {passage.score:.3g}")
            for passage in decision.passages[:MOST_CANDIDATES]
        )
        lines.append(f'<p class="dim">passages: {listed}</p>')
    if candidates:
        lines.append(_candidates(trace, after, candidates, chosen))
    return "".join(lines)


def _candidates(trace: Trace, after: str, candidates: Sequence[Node], chosen: set[int]) -> str:
    joined = list(dict.fromkeys(key for node in candidates for key in node.joined))
    names = (*("IsRel", "IsSup", "IsUse"), *(inert(key, 40) for key in joined))
    head = ("candidate", "evidence", "likelihood", *names, "score", "path score", "became")
    rows = []
    for node in candidates[:MOST_CANDIDATES]:
        cells = [_evidence(node), f"{node.likelihood:.3f}"]
        cells += [judged(node.judgments.get(labels.role)) for labels in CRITIQUES]
        cells += [judged(node.joined.get(key)) for key in joined]
        became = "<strong>the answer</strong>" if node.id in chosen else str(node.status)
        rows.append((f"{node.id}. {_text(node)}", [*cells, f"{node.score:.3f}", f"{node.path_score:.3f}", became]))
    more = len(candidates) - MOST_CANDIDATES
    return table(f"{after}: {'options' if trace.options else 'candidates'}", head, rows) + (
        f"<p>{more:,} more candidates</p>" if more > 0 else ""
    )


def _evidence(node: Node) -> str:
    if node.branch == "passage" and node.passage is not None:
        return isolated(node.passage.title or node.passage.id, 80)
    return "same evidence" if node.branch == "continue" else "without evidence"


def _text(node: Node) -> str:
    """What was written, or why nothing was."""
    return isolated(node.text, 600) if node.text.strip() else f'<span class="dim">{isolated(node.finish, 200)}</span>'


def _tree(trace: Trace, name: str) -> str:
    if not 0 < len(trace.nodes) <= MOST_DRAWN:
        return ""
    label = f'tabindex="0" role="region" aria-label="Tree of {inert(name)}"'
    picture = svg(trace, name=f"{name}-node")
    return f'<details><summary>the tree</summary><div class="scroll tree" {label}>{picture}</div></details>'


MOST_PASSAGES = 30
"""Passages of a case that are shown."""

KINDS = {
    "all": "every item",
    "differ": "items on which systems differ",
    "wrong": "items with an answer that is not right",
    "right": "items that every system got right",
    "failed": "items that failed",
}
"""What a reader can pick out: class of a case -> in words."""


def kinds(case: Case) -> set[str]:
    """Which of `KINDS` a case is of."""
    shares = [outcome.share for outcome in case.outcomes]
    known = [share for share in shares if share is not None]
    found = {"all"}
    found |= {"differ"} if len(set(known)) > 1 else set()
    found |= {"wrong"} if any(share < 1 for share in known) else {"right"} if known else set()
    return found | ({"failed"} if any(outcome.error is not None for outcome in case.outcomes) else set())


def article(case: Case, name: str) -> str:
    """A case.

    Args:
        case: everything in it is untrusted.
        name: its id on the page.
    """
    classes = " ".join(f"is-{kind}" for kind in KINDS if kind in kinds(case))
    question = isolated(case.question) if case.question is not None else '<span class="dim">not at hand</span>'
    answers = "".join(_answer(outcome, f"{name}-{i}") for i, outcome in enumerate(case.outcomes))
    gold = "" if case.item is None else _gold(case.item)
    return (
        f'<article id="{name}" class="{classes}" aria-labelledby="{name}-name">'
        f'<h4 id="{name}-name">{isolated(case.id, 120)}</h4>'
        f'<div class="instruction" dir="auto">{question}</div>{gold}{answers}{_passages(case)}</article>'
    )


def _gold(item: Item) -> str:
    parts = []
    if item.label is not None:
        parts.append(f"right: {isolated(item.label, 200)}")
    if item.options:
        parts.append(f"of {', '.join(isolated(option, 200) for option in item.options[:30])}")
    if item.answer_sets:
        parts += [f"answer: {' or '.join(isolated(name, 200) for name in names)}" for names in item.answer_sets[:50]]
    elif item.references:
        parts.append(f"gold: {' or '.join(isolated(text, 1000) for text in item.references[:20])}")
    if item.answerable is not None:
        parts.append("answerable" if item.answerable else "not answerable from its passages")
    return f'<p class="gold">{"; ".join(parts)}</p>' if parts else ""


def _answer(outcome: Outcome, name: str) -> str:
    share = outcome.share
    mark = {None: "-", 0.0: "\N{MULTIPLICATION X}", 1.0: "\N{CHECK MARK}"}.get(share, f"{share or 0:.2f}")
    said = isolated(outcome.text, 300) if outcome.text else '<span class="dim">no answer</span>'
    body = [f'<div class="body" dir="auto">{inert(outcome.text)}</div>' if len(outcome.text) > 300 else ""]
    if outcome.error is not None:
        body.append(f'<p class="problem">failed: {isolated(outcome.error, 600)}</p>')
    if outcome.damage is not None:
        body.append(f'<p class="problem">{isolated(outcome.damage, 300)}</p>')
    if outcome.trace is not None:
        body += [segments(outcome.trace, outcome.system), search(outcome.trace, name)]
    else:
        body.append(_cited(outcome))
    body.append(f'<p class="dim">{_scores(outcome)}</p><p class="dim">{_usage(outcome.usage)}</p>')
    summary = f"<summary><strong>{isolated(outcome.system, 60)}</strong> {mark} {said}</summary>"
    return f'<details class="answer" id="{name}">{summary}{"".join(body)}</details>'


def _cited(outcome: Outcome) -> str:
    lines = [
        f"<li>{isolated(text, 1000)} [{'-' if cited is None else isolated(cited, 80)}]</li>"
        for text, cited in outcome.segments[:100]
    ]
    read = ", ".join(isolated(key, 80) for key in outcome.read[:MOST_PASSAGES])
    return (f"<ol>{''.join(lines)}</ol>" if lines else "") + (f'<p class="dim">was shown: {read}</p>' if read else "")


def _scores(outcome: Outcome) -> str:
    values = {name: ratio([part]) for name, part in outcome.scores.items() if name not in outcome.usage}
    shown = {name: "-" if value is None else f"{value:.3g}" for name, value in values.items()}
    return ", ".join(f"{inert(name.replace('_', ' '), 60)} {value}" for name, value in shown.items())


def _usage(usage: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {inert(name.replace('_', ' '), 40)}" for name, count in usage.items())


def _passages(case: Case) -> str:
    passages = case.passages
    gold = case.item.gold if case.item is not None else None
    found = [_passage(passage, case, gold or frozenset()) for passage in passages[:MOST_PASSAGES]]
    if len(passages) > MOST_PASSAGES:
        found.append(f"<p>{len(passages) - MOST_PASSAGES:,} more passages</p>")
    return f"<details><summary>passages ({len(passages)})</summary>{''.join(found)}</details>" if found else ""


def _passage(passage: Passage, case: Case, gold: frozenset[str]) -> str:
    citing = [one.system for one in case.outcomes if any(cited == passage.id for _, cited in one.segments)]
    notes = ["gold"] if passage.id in gold else []
    notes += [f"cited by {', '.join(isolated(system, 60) for system in citing)}"] if citing else []
    about = f' <span class="dim">{"; ".join(notes)}</span>' if notes else ""
    return (
        f'<details class="passage"><summary>{isolated(passage.title or passage.id, 120)}{about}</summary>'
        f'<div class="body" dir="auto">{inert(passage.text)}</div>'
        f'<p class="dim">{isolated(passage.id, 120)}</p></details>'
    )


_LONGEST = 20_000


def provenance(manifests: Mapping[str, Mapping[str, Any]]) -> str:
    """Two tables and the whole manifests.

    Args:
        manifests: name of a system to the manifest of its run; of others, so nothing but its frame is relied on.
    """
    ran = {name: run_origin(manifest) for name, manifest in manifests.items()}
    files = mapping(next(iter(manifests.values())).get("files"))
    read = {name: file_origin(entry) for name, entry in files.items()}
    whole = "".join(
        f"<details><summary>manifest of {isolated(name, 80)}</summary>"
        f"<pre>{inert(json.dumps(manifest, ensure_ascii=False, indent=1), _LONGEST)}</pre></details>"
        for name, manifest in manifests.items()
    )
    return _table("Runs", "system", ran) + _table("Files", "file", read) + whole


def _table(caption: str, what: str, rows: Mapping[str, Mapping[str, str]]) -> str:
    head = (what, *next(iter(rows.values()), {}))
    lines = [(isolated(name, 80), [isolated(cell, 300) for cell in cells.values()]) for name, cells in rows.items()]
    return table(caption, head, lines)


ITEMS = 50
"""Items of each file that are shown, unless the caller says otherwise."""
OWN_STYLE = """
.instruction, .gold { margin: .3rem 0 } .tree svg text { font: 11px sans-serif } .tree svg { max-width: none }
details.answer > summary { color: var(--ink) } img { max-width: 100%; height: auto; background: #ffffff }
article { content-visibility: auto; contain-intrinsic-size: auto 12rem }
main, header { max-width: 90rem } .results td { white-space: nowrap } article td, article th { text-align: left }
"""


@dataclass(frozen=True, slots=True)
class Report:
    """What the page shows."""

    comparison: Comparison  # all figures
    manifests: Mapping[str, Mapping[str, Any]]  # name of a system to the manifest of its run
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
) -> Report:
    """Read finished runs of the same items.

    Args:
        folders: run directories.
        against: name of the system that the others are compared with.
        only: names of the files to read; all by default.
        items: how many of each file are shown; failed ones come first, the others are a seeded sample.
        data: folder where the data files are now; by default where the runs read them.
        seed: of sample and intervals.

    Raises:
        UserError: a directory is no finished run, or the runs cannot be compared.
    """
    runs = read_runs(folders, only)
    comparison = compare(runs, against=against, seed=seed)
    manifests = {run.name: read_manifest(run.folder) for run in runs}
    return Report(comparison, manifests, read_cases(runs, items, data=data, seed=seed), seed)


def render(report: Report) -> str:
    """The page as text. The same report gives the same page.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    systems = list(report.manifests)
    named = ", ".join(systems[:4]) + (" ..." if len(systems) > 4 else "")
    sections = {f"table-{i}": inert(title(one), 80) for i, one in enumerate(tables(report.comparison))}
    body = (
        '<a class="skip" href="#items">Skip to the items</a>\n'
        f'<header><h1>Results</h1><p class="dim">{isolated(about(report.comparison), 300)}</p>'
        f"{links({**sections, 'runs': 'Runs', 'items': 'Items'})}</header>\n<main>\n"
        + "\n".join(_section(report.comparison, i, one) for i, one in enumerate(tables(report.comparison)))
        + f'\n<section><h2 id="runs">Runs</h2>{provenance(report.manifests)}</section>\n'
        f'<section><h2 id="items">Items</h2>{_choices(report.files)}\n{_items(report)}</section>\n</main>'
    )
    picks = [picked_out(f"show-{kind}", f"article:not(.is-{kind})") for kind in KINDS]
    return document(f"Results: {visible(named, 120)}", style_sheet(OWN_STYLE.strip(), *picks), body, pictures=True)


def _section(comparison: Comparison, number: int, shown: Table) -> str:
    header, *lines = grid(shown, comparison.reference)
    rows = [(isolated(name, 80), [inert(cell) for cell in cells]) for name, *cells in lines]
    notes = "".join(f'<p class="dim">{isolated(note, 400)}</p>' for note in shown.notes)
    return (
        f'<section class="results"><h2 id="table-{number}">{isolated(title(shown), 120)}</h2>'
        f"{table(f'Systems on {shown.name}', [inert(cell) for cell in header], rows)}{notes}{_picture(shown)}</section>"
    )


def _picture(shown: Table) -> str:
    """As a picture inside the file: what is in it can neither run nor be fetched."""
    if not any(row.figures[shown.metrics[0]] for row in shown.rows):
        return ""
    data = base64.b64encode(encoded(draw_tables([shown]), ".svg")).decode()
    return f'<p><img alt="{inert(spoken(shown), 2000)}" src="data:image/svg+xml;base64,{data}"></p>'


def _choices(files: Sequence[CaseFile]) -> str:
    counts = dict.fromkeys(KINDS, 0)
    for case in (case for file in files for case in file.cases):
        for kind in kinds(case):
            counts[kind] += 1
    if not counts["all"]:
        return ""
    choices = "".join(
        f'<label><input type="radio" name="show" id="show-{kind}"{" checked" if kind == "all" else ""}>'
        f" {words} ({counts[kind]:,})</label>"
        for kind, words in KINDS.items()
    )
    return f"<fieldset><legend>Show</legend>{choices}</fieldset>"


def _items(report: Report) -> str:
    parts = []
    for number, file in enumerate(report.files):
        shown = f"{len(file.cases):,} of {file.items:,} items"
        how = "" if len(file.cases) == file.items else f", failed ones first, the others drawn with seed {report.seed}"
        note = "" if file.note is None or not file.cases else f'<p class="dim">{isolated(file.note, 400)}</p>'
        cases = "\n".join(article(case, f"item-{number}-{i}") for i, case in enumerate(file.cases))
        parts.append(f'<h3>{isolated(file.name, 120)}</h3><p class="dim">{shown}{how}</p>{note}{cases}')
    return "\n".join(parts)


TEXTS: dict[str, Callable[[Report], str]] = {
    ".html": render,
    ".md": lambda report: markdown(report.comparison),
    ".csv": lambda report: csv_text(report.comparison),
}
"""Ending of a file -> its text."""
ENDINGS = (*TEXTS, *FORMATS)


def check_ending(out: Path) -> Path:
    """The same path, if its ending says what to write.

    Raises:
        UserError: it does not.
    """
    if out.suffix not in ENDINGS:
        raise UserError(f"{out}: cannot tell what to write; the file must end in {', '.join(ENDINGS)}")
    return out


def write(report: Report, out: Path) -> Path:
    """Write one file: a page (`.html`), tables (`.md`, `.csv`) or plots (`.png`, `.svg`, `.pdf`).

    Args:
        report: what to show; only a page shows its items.
        out: replaced in one step; its folder is made.

    Raises:
        UserError: another ending, or the place cannot be written.
        MissingExtraError: matplotlib is not installed and is needed.
    """
    check_ending(out)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix in TEXTS:
        write_text(out, TEXTS[out.suffix](report))
        return out
    return save(draw(report.comparison), out)
