"""Citations against the gold passages of an item: precision, recall, and whether a cited passage holds the answer.

An answer that abstains makes no claim, and its citations do not count. Whether a passage *entails* a sentence is not
asked here: gold passages are those an annotator answered from, so a good passage that nobody annotated counts as wrong.
"""

from __future__ import annotations

from selfrag.evaluation.containment import abstains, contains_any
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.harmonic import harmonic
from selfrag.evaluation.metrics.metric import Metric, Part, mean_of
from selfrag.evaluation.metrics.output import Output


def citation_precision(item: Item, output: Output) -> Part | None:
    """Of all citations over all items, the share that is gold; None if the file names no gold passages."""
    if item.gold is None:
        return None
    cited = _cited(output, item)
    return float(len(cited & item.gold)), float(len(cited))


def citation_recall(item: Item, output: Output) -> float | None:
    """Share of an item's gold passages that is cited; None if there are none."""
    return len(_cited(output, item) & item.gold) / len(item.gold) if item.gold else None


def citation_precision_alce(item: Item, output: Output) -> float | None:
    """Precision of one item, 0 where nothing is cited (as ALCE counts); None without gold passages."""
    if not item.gold:
        return None
    cited = _cited(output, item)
    return len(cited & item.gold) / len(cited) if cited else 0.0


def citation_f1(item: Item, output: Output) -> float | None:
    """Harmonic mean of the two above for one item, so that its figure is the mean over questions; None likewise."""
    precision, recall = citation_precision_alce(item, output), citation_recall(item, output)
    return None if precision is None or recall is None else harmonic(precision, recall)


def citation_bears_answer(item: Item, output: Output) -> Part | None:
    """Of all citations, the share whose passage contains a gold answer; None without short answers or passages."""
    if item.answers is None or not item.passages:
        return None
    cited = _cited(output, item)
    bearing = [p for p in item.passages if p.id in cited and contains_any(f"{p.title} {p.text}", item.answers)]
    return float(len(bearing)), float(len(cited))


def _cited(output: Output, item: Item) -> frozenset[str]:
    # On a closed set the text is an option, whatever it says.
    return frozenset() if not item.options and abstains(output.text) else frozenset(output.cited)


PRECISION = Metric("citation_precision", citation_precision, of_failure=None)
RECALL = Metric("citation_recall", mean_of(citation_recall))
PRECISION_ALCE = Metric("citation_precision_alce", mean_of(citation_precision_alce))
F1 = Metric("citation_f1", mean_of(citation_f1))
BEARS_ANSWER = Metric("citation_bears_answer", citation_bears_answer, of_failure=None)
CITATIONS = (PRECISION, PRECISION_ALCE, RECALL)
