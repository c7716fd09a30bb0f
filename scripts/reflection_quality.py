"""How well a model's reflection works: one decode an item, then figures from what was recorded.

`measure` runs the product's own decoder in its short form on every passage of an item; everything a figure needs
(p(Retrieval), IsRel of each passage, the candidates' texts and scores) is in that one trace. `figures` is pure.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from selfrag.common.checks import whole
from selfrag.common.errors import UserError
from selfrag.common.jsonl import write_jsonl
from selfrag.common.provenance import commit, sha256
from selfrag.common.reading import filled
from selfrag.decoding.answer import Answer
from selfrag.decoding.beam import decode
from selfrag.decoding.policy import Decoding
from selfrag.decoding.refusals import abstains
from selfrag.decoding.trace import UNUSABLE, decoding_dict
from selfrag.evaluation.intervals import Estimate, mean, pooled_auc, win_matrix
from selfrag.evaluation.items import Item, is_answerable, item_of, passages_of, read_items
from selfrag.evaluation.normalisation import contains_any, normalise
from selfrag.evaluation.task_files import nothing_searched
from selfrag.prompting import Prompting
from selfrag.reflection.labels import Role
from selfrag.runtime.driver import Answered, Broken, drive
from selfrag.runtime.sessions import Serving
from selfrag.training.rows import Token, parse_row

SHORT_FORM = Decoding(threshold=0.0, max_segments=1, segment_tokens=50, without_evidence="write")
"""Retrieve always (any probability is above 0) but record p(Retrieval); one segment."""
CHOICES = 5
"""Passages among which the best-scored answer is chosen."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The answer from one passage."""

    passage: str | None  # its id; None for an answer without evidence
    text: str  # what was written
    score: float  # the decoder's segment score
    relevant: float | None  # p(Relevant); None if the model did not judge

    @property
    def takes_in(self) -> bool:
        """Whether it calls its passage relevant and answers."""
        return self.relevant is not None and self.relevant > 0.5 and not abstains(self.text)


@dataclass(frozen=True, slots=True)
class Measured:
    """What the model did with one item."""

    item: Item  # the row
    # p(Retrieval) / (p(Retrieval) + p(No Retrieval)) before anything is written; None if it failed
    retrieval: float | None
    candidates: tuple[Candidate, ...] = ()  # usable answers, in the order of the item's passages
    error: str | None = None  # why there is nothing, None if there is

    def as_dict(self) -> dict[str, Any]:
        """Plain values of this item, without the passages' text."""
        gold = None if self.item.gold is None else sorted(self.item.gold)
        return {
            "id": self.item.id,
            "instruction": self.item.instruction,
            "needs_retrieval": self.item.needs_retrieval,
            "answers": self.item.answers,
            "gold": gold,
            "answerable": self.item.answerable,
            "label": self.item.label,
            "retrieval": self.retrieval,
            "candidates": [asdict(candidate) for candidate in self.candidates],
            "error": self.error,
        }


def measure(
    items: Sequence[Item],
    prompting: Prompting,
    engine: Serving,
    *,
    decoding: Decoding = SHORT_FORM,
    progress: Callable[[], object] = lambda: None,
) -> list[Measured]:
    """Decode every item once.

    Args:
        items: what to ask.
        prompting: the model's codec, vocabulary and layout.
        engine: the model.
        decoding: settings; `passages` is set to the number each item brings.
        progress: called after each item.

    Returns:
        One record an item, in order. An item that fails carries its error.
    """
    found: dict[int, Measured] = {}
    for event in drive(_decoders(items, prompting, decoding), engine, None):
        if isinstance(event, Answered):
            found[event.index] = _measured(items[event.index], event.answer, decoding)
            progress()
        elif isinstance(event, Broken):
            found[event.index] = Measured(items[event.index], None, error=str(event.error))
            progress()
    return [found[i] for i in range(len(items))]


def _decoders(items: Sequence[Item], prompting: Prompting, decoding: Decoding) -> Iterator[Any]:
    for item in items:
        # Without evidence only the decision (and, for a closed task, a short answer) is of interest.
        budget = decoding.segment_tokens if item.passages else 8 if item.label is not None else 1
        policy = replace(decoding, passages=max(1, len(item.passages)), segment_tokens=budget)
        yield decode(item.instruction, prompting, policy, passages=item.passages)


def _measured(item: Item, answer: Answer, decoding: Decoding) -> Measured:
    decision = answer.trace.decisions[0]
    retrieval = None if decision.judgment is None else decoding.retrieval_score(decision.judgment)
    candidates = []
    for node in answer.trace.nodes:
        if node.status not in UNUSABLE:
            judgment = node.judgments.get(Role.RELEVANCE)
            relevant = None if judgment is None else judgment.probability("Relevant")
            candidates.append(Candidate(node.passage.id if node.passage else None, node.text, node.score, relevant))
    return Measured(item, retrieval, tuple(candidates))


def figures(measured: Sequence[Measured], *, seed: int = 0) -> dict[str, Estimate]:
    """Every figure for which there are rows, with its 95% interval.

    Returns:
        By name: `retrieves_questions` and `refrains_on_instructions` (shares above and below 0.5); `isrel_auc` (gold
        against the other passages of the same questions, pooled) and `isrel_auc_within` (mean over questions);
        `contains_*` (a gold answer is in the best-scored of five, the first passage's, the gold passage's, or any
        answer); `taken_in` and `answers_answerable` (calls a passage relevant and answers); `accuracy` (of options);
        `relevant_on_gold`, `relevant_on_other`; `isrel_undefined` and `failed` where there are such.
    """
    done = [m for m in measured if m.error is None]
    per_item: dict[str, list[float]] = {
        "retrieves_questions": [p > 0.5 for p in _retrieval(done, needed=True)],
        "refrains_on_instructions": [p < 0.5 for p in _retrieval(done, needed=False)],
        **_answers(done, seed),
        "taken_in": [_takes_in(m) for m in done if m.item.answerable is False and m.item.passages],
        "answers_answerable": [_takes_in(m) for m in done if m.item.answerable is True and m.item.passages],
        "accuracy": [_right(m) for m in done if m.item.label is not None],
        "failed": [m.error is not None for m in measured] if len(done) < len(measured) else [],
    }
    result = {name: mean(values, seed=seed) for name, values in per_item.items() if values}
    return result | _relevance(done, seed)


def _retrieval(done: Sequence[Measured], *, needed: bool) -> list[float]:
    return [m.retrieval for m in done if m.item.needs_retrieval is needed and m.retrieval is not None]


def _answers(done: Sequence[Measured], seed: int) -> dict[str, list[float]]:
    """Containment among five passages with gold among them: gold and the first four others, in a seeded order."""
    names = ("best_of_five", "first_passage", "gold_passage", "any_of_five")
    values: dict[str, list[float]] = {f"contains_{name}": [] for name in names}
    for m in done:
        order = five(m.item, seed)
        if order is None or not m.item.answers:
            continue
        by_id = {candidate.passage: candidate for candidate in m.candidates}
        gold = m.item.gold or frozenset()
        found = {key: contains_any(by_id[key].text, m.item.answers) if key in by_id else False for key in order}
        usable = [by_id[key] for key in order if key in by_id]
        best = max(usable, key=lambda candidate: candidate.score, default=None)
        values["contains_best_of_five"].append(best is not None and found[str(best.passage)])
        values["contains_first_passage"].append(found[order[0]])
        values["contains_gold_passage"].append(next(found[key] for key in order if key in gold))
        values["contains_any_of_five"].append(any(found.values()))
    return values


def five(item: Item, seed: int) -> list[str] | None:
    """Ids of gold and the first four other passages in a seeded order; None without gold among the passages."""
    gold = [p.id for p in item.passages if item.gold and p.id in item.gold]
    if not gold:
        return None
    others = [p.id for p in item.passages if p.id not in (item.gold or ())]
    order = [gold[0], *others[: CHOICES - 1]]
    random.Random(f"{seed}/{item.id}").shuffle(order)  # noqa: S311 - no cryptography
    return order


def _relevance(done: Sequence[Measured], seed: int) -> dict[str, Estimate]:
    gold: list[list[float]] = []
    other: list[list[float]] = []
    undefined: list[float] = []
    for m in done:
        undefined += [c.relevant is None for c in m.candidates if c.passage is not None]
        if m.item.gold:
            gold.append([c.relevant for c in m.candidates if c.relevant is not None and c.passage in m.item.gold])
            other.append([c.relevant for c in m.candidates if c.relevant is not None and c.passage not in m.item.gold])
    result: dict[str, Estimate] = {}
    pairs = [(g, o) for g, o in zip(gold, other, strict=True) if g and o]
    if pairs:
        result["isrel_auc"] = pooled_auc([g for g, _ in pairs], [o for _, o in pairs], seed=seed)
        result["isrel_auc_within"] = mean([auc(g, o) for g, o in pairs], seed=seed)
    for name, scores in (("relevant_on_gold", gold), ("relevant_on_other", other)):
        shares = [sum(value > 0.5 for value in values) / len(values) for values in scores if values]
        if shares:
            result[name] = mean(shares, seed=seed)
    if any(undefined):
        result["isrel_undefined"] = mean(undefined, seed=seed)
    return result


def auc(positives: Sequence[float], negatives: Sequence[float]) -> float:
    """Probability that a random positive scores above a random negative, ties half; NaN if a side is empty."""
    pairs = len(positives) * len(negatives)
    return float(win_matrix([positives], [negatives])[0, 0]) / pairs if pairs else float("nan")


def _takes_in(m: Measured) -> bool:
    best = max(m.candidates, key=lambda candidate: candidate.score, default=None)
    return best is not None and best.takes_in


def _right(m: Measured) -> bool:
    best = max(m.candidates, key=lambda candidate: candidate.score, default=None)
    return best is not None and normalise(best.text) == normalise(m.item.label or "")


def read_rows(path: Path, where: Mapping[str, str] | None = None) -> list[Item]:
    """Items of a file of any kind of rows.

    These are rows of `eval/dev`, of answerability files (`conversation`, `documents`), of pairs (`kind`), of critic
    files (`group`) and of training (`target`).

    Args:
        path: `.jsonl` or `.jsonl.gz`.
        where: keep rows with these values only, such as `{"rule": "instruction_without_lookup"}`.

    Raises:
        UserError: a row is bad (names `file:line`), or no row is left.
    """
    wanted = where or {}

    def parse(record: dict[str, Any]) -> Item | None:
        if missing := sorted(set(wanted) - set(record)):
            raise UserError(f"no key {missing[0]!r} to filter on")
        return _item(record) if all(str(record[key]) == value for key, value in wanted.items()) else None

    return read_items(path, parse)


def _item(record: dict[str, Any]) -> Item:
    if "task" in record:
        return item_of(record)
    if "conversation" in record:
        return _answerability(record)
    if "target" in record:
        return _training(record)
    if "group" in record:
        return _critic(record)
    if "kind" in record:
        return Item(filled(record, "id"), filled(record, "instruction"), filled(record, "kind") != "instruction")
    return item_of(record)


def _answerability(record: dict[str, Any]) -> Item:
    turns = record["conversation"]
    if not isinstance(turns, list) or not turns or not isinstance(turns[-1], dict):
        raise UserError("'conversation' must be a list of turns")
    if len(turns) != 1:
        raise UserError(f"a conversation of {len(turns)} turns; only single questions can be asked")
    passages = passages_of(record, "documents", "doc_id")
    answerable = is_answerable(filled(record, "label"))
    return Item(filled(record, "id"), filled(turns[-1], "content"), True, passages, answerable=answerable)


def _training(record: dict[str, Any]) -> Item:
    row = parse_row(record)
    first = row.target[0]
    return Item(row.id, row.instruction, first == Token("[Retrieval]"))


def _critic(record: dict[str, Any]) -> Item:
    first = filled(record, "group") == "Retrieve" and not record.get("preceding")
    needs = {"Retrieval": True, "No Retrieval": False}.get(filled(record, "label")) if first else None
    return Item(filled(record, "id"), filled(record, "instruction"), needs)


def evaluate(
    model: str,
    files: Sequence[Path],
    *,
    engine: str | None = None,
    where: Mapping[str, str] | None = None,
    limit: int | None = None,
    seed: int = 0,
    out: Path | None = None,
) -> dict[str, dict[str, Estimate]]:
    """Measure a model on files.

    Args:
        model: checkpoint directory, hub name, or `demo`.
        files: evaluation files; all are read before the model is loaded.
        engine: `vllm`, `transformers`, or None for the best one installed.
        where: keep rows with these values only.
        limit: a seeded sample of this many rows of each file.
        seed: of sampling, passage order and intervals.
        out: where to write the report.

    Returns:
        File, as given, to figures.

    Raises:
        UserError: a file, a row or the model cannot be used.
    """
    from tqdm import tqdm

    from selfrag.api import SelfRAG
    from selfrag.loading import resolve_model

    if limit is not None:
        whole("limit", limit)
    items = {path: _sample(read_rows(path, where), limit, seed) for path in files}
    report: dict[str, dict[str, Estimate]] = {}
    values: dict[str, Any] = {}
    with (
        SelfRAG.from_pretrained(model, retriever=nothing_searched, engine=engine) as rag,
        tqdm(total=sum(map(len, items.values())), unit="item") as bar,
    ):
        for path, rows in items.items():
            measured = measure(rows, rag.prompting, rag.engine, progress=bar.update)
            report[str(path)] = figures(measured, seed=seed)
            values[str(path)] = [one.as_dict() for one in measured]
    if out is not None:
        manifest = _manifest(resolve_model(model), files)
        settings = {"model": model, "engine": engine, "where": dict(where or {}), "limit": limit, "seed": seed}
        plain = {name: {key: found.as_dict() for key, found in one.items()} for name, one in report.items()}
        settings["decoding"] = decoding_dict(SHORT_FORM)
        write_jsonl(out, [{"settings": settings, "manifest": manifest, "figures": plain, "items": values}])
    return report


def _sample(items: list[Item], limit: int | None, seed: int) -> list[Item]:
    if limit is None or limit >= len(items):
        return items
    return random.Random(seed).sample(items, limit)  # noqa: S311 - no cryptography


def _manifest(model: Path, files: Sequence[Path]) -> dict[str, Any]:
    from selfrag.common.provenance import machine

    weights = sorted([*model.glob("*.safetensors"), *model.glob("*.json"), *model.glob("*.bin")])
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "model_files": {path.name: sha256(path) for path in weights},
        "data": {str(path): sha256(path) for path in files},
    }
