"""The upper half of the page: Table 3 for one's own data, label counts with plots, lengths, problems of form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from critic.inspect import plots
from critic.inspect.statistics import WORDS, Statistics, Tally
from selfrag.pages import NAMES, inert, isolated, slug, table
from selfrag.reflection.labels import GROUPS, ISREL, ISSUP, ISUSE, LabelSet

MOST_SOURCES = 20
"""Sources in a table or plot; the smaller ones share the last line."""

_MANY = 6  # values of a histogram before the last one stands for all above


def overview(statistics: Statistics) -> str:
    """Tables and plots over all rows."""
    sources = statistics.largest(MOST_SOURCES)
    parts = [_sources(sources, statistics.total), *(_labels(group, sources, statistics.total) for group in GROUPS)]
    return "\n".join([*parts, _lengths(statistics.total), _problems(statistics)])


def _sources(sources: Sequence[tuple[str, Tally]], total: Tally) -> str:
    head = ("source", "rows", "with [Retrieval]", "segments a row", "passages a row", "Relevant", "Fully", "mean IsUse")
    rows = [(isolated(name, 80), list(_figures(tally))) for name, tally in sources]
    rows.append(("all", list(_figures(total))))
    caption = "Rows of each source, and how many of them retrieve at least once (as Table 3 of the paper)"
    return f'<section><h2 id="sources">Sources</h2>{table(caption, head, rows, total=True)}</section>'


def _figures(tally: Tally) -> Iterator[str]:
    yield f"{tally.rows:,}"
    yield f"{tally.retrieving / tally.rows:.1%}"
    yield f"{tally.mean('segments'):.2f}"
    yield f"{tally.mean('passages'):.2f}"
    for group in (ISREL, ISSUP):
        counts = tally.labels(group)
        yield f"{counts[0] / sum(counts):.1%}" if sum(counts) else "-"
    grades = tally.labels(ISUSE)
    yield f"{sum(n * count for n, count in enumerate(grades, 1)) / sum(grades):.2f}" if sum(grades) else "-"


def _labels(group: LabelSet, sources: Sequence[tuple[str, Tally]], total: Tally) -> str:
    name = NAMES[group.role]
    rows = [*sources, ("all", total)]
    plot = plots.shares(f"Shares of {name} labels by source", group, [(source, t.labels(group)) for source, t in rows])
    cells = [
        ("all" if t is total else isolated(source, 80), [f"{count:,}" for count in t.labels(group)])
        for source, t in rows
    ]
    head = ["source", *(f'<span class="token t-{slug(token)}">{inert(token)}</span>' for token in group.tokens)]
    numbers = table(f"{name}: number of each token", head, cells, total=True)
    return f'<section><h2 id="{slug(name)}">{name}</h2>{plot}{numbers}</section>'


def _lengths(total: Tally) -> str:
    edges = [*WORDS[1:], 0]
    lengths = {
        ("0" if low == 0 else f"{low}+" if not high else f"{low}-{high - 1}"): total.words[low]
        for low, high in zip(WORDS, edges, strict=True)
    }
    plotted = [
        ("Words of written text a row, without passages", lengths),
        ("Segments a row", _histogram(total.segments)),
        ("Passages a row", _histogram(total.passages)),
    ]
    figures = "".join(
        f"<figure><figcaption>{name}</figcaption>{plots.counts(name, bars)}</figure>" for name, bars in plotted
    )
    return f'<section><h2 id="lengths">Lengths</h2><div class="figures">{figures}</div></section>'


def _histogram(values: Counter[int]) -> dict[str, int]:
    bars = {str(n): values[n] for n in range(min(max(values), _MANY) + 1)}
    if max(values) > _MANY:
        bars[f"{_MANY + 1}+"] = sum(count for value, count in values.items() if value > _MANY)
    return bars


def _problems(statistics: Statistics) -> str:
    if not statistics.problems:
        return '<section><h2 id="form">Form</h2><p>Every target has the form of the paper.</p></section>'
    rows = [
        (inert(problem), [f"{count:,}", ", ".join(isolated(key, 60) for key in statistics.examples[problem])])
        for problem, count in statistics.problems.most_common()
    ]
    caption = "Rows whose target differs from the form of the paper"
    return f'<section><h2 id="form">Form</h2>{table(caption, ("difference", "rows", "first ids"), rows)}</section>'
