"""A case as HTML: question, gold, passages, and each system's answer, which unfolds into its trace."""

from __future__ import annotations

from collections.abc import Mapping

from retrieval.passage import Passage
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.registry import ratio
from selfrag.evaluation.reporting.cases import Case, Outcome
from selfrag.evaluation.reporting.trace_html import search, segments
from selfrag.pages.escaping import inert, isolated

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
