"""A trace as HTML: each decision with what was found, each candidate with its judgments, and the tree as a picture.

Everything that a model, a user or a passage wrote is untrusted and passes through `selfrag.pages.escaping`.
"""

from __future__ import annotations

from collections.abc import Sequence

from selfrag.decoding.answer import segments_of
from selfrag.decoding.trace import ROOT, Decision, Node, Trace
from selfrag.evaluation.reporting.judgments_html import judged
from selfrag.pages.escaping import inert, isolated
from selfrag.pages.markup import table
from selfrag.picture import svg
from selfrag.reflection.labels import CRITIQUES, Role

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
