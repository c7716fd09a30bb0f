"""A study: many settings of one model over one file, answered from as few decodes as can be. Resumes.

The file is decoded once with whole traces. Every setting is rescored from the record; where that is not exact for an
item, the item is decoded again under the first setting that lacks it, and all other settings look at that record too.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from selfrag.decoding.rescore import replay
from selfrag.decoding.token_writer import DecodingModel
from selfrag.evaluation.items import USAGE, Output, output_of
from selfrag.evaluation.records import RunDirectory, item_id
from selfrag.evaluation.runner import (
    Execute,
    Finished,
    Model,
    RunJob,
    answer_here,
    engine_kind,
    on_demand,
    record_of,
    run_all,
)
from selfrag.evaluation.systems import Reflective
from selfrag.evaluation.task_files import TaskFile
from selfrag.interface import (
    ROOT,
    Answer,
    Decoding,
    Item,
    Node,
    Status,
    Trace,
    Usage,
    UserError,
    Weights,
    count_of,
    load_tokenizer,
    model_files,
    read_jsonl,
    resolve_model,
    segments_of,
    trace_of,
    write_jsonl,
    writing,
)
from selfrag.judges.chat_model import model_of

_RESCORABLE = (
    "weights accumulate aggregate beam threshold retrieve_test keep_evidence mode"
)
RESCORABLE = frozenset((*_RESCORABLE.split(), "no_retrieval_branch"))
"""Fields of `Decoding` that a record can be asked about; the others change what the model writes or reads."""


NOTHING = "nothing could be generated under this setting"


@dataclass(frozen=True, slots=True)
class Setting:
    """One policy of a study, before the task sets its budget; its name is unique and good as a file name."""

    name: str
    decoding: Decoding


@dataclass(frozen=True, slots=True)
class Rescored:
    """What one policy answers from a recorded decode."""

    # None if nothing could be generated for this policy. Its usage is estimated: that of the recorded decode
    # times `share`
    output: Output | None
    exact: bool  # whether the record held everything that the policy asks for
    share: float  # candidates that the policy would have generated, of those that were recorded


def rescored(
    trace: Trace, usage: Mapping[str, int], policies: Sequence[Decoding]
) -> list[Rescored | None]:
    """Return what each policy answers from one record, whose decode took `usage`; None where it says nothing.

    Policies that differ in `RESCORABLE` fields only are answered; with other judges or guardrails, in weights only.
    """
    together: dict[object, list[int]] = {}
    for i, policy in enumerate(policies):
        if _comparable(trace, policy):
            decided = map(replace(trace, decoding=policy).action, trace.decisions)
            actions = tuple(decided)
            grown_alike = replace(
                policy,
                weights=Weights(),
                mode="always",
                threshold=None,
                retrieve_test="yes_no",
            )
            key = repr(grown_alike), actions
            together.setdefault(key, []).append(i)
    results: list[Rescored | None] = [None] * len(policies)
    for members in together.values():
        seen = _without_spare_branch(trace, policies[members[0]])
        weights = [policies[i].weights for i in members]
        answers = _answers(trace, usage, seen, weights)
        for i, result in zip(members, answers, strict=True):
            results[i] = result
    return results


def _comparable(trace: Trace, policy: Decoding) -> bool:
    recorded = trace.decoding
    differing = set()
    for item in fields(Decoding):
        if getattr(recorded, item.name) != getattr(policy, item.name):
            differing.add(item.name)
    if recorded.judges or recorded.guardrails:
        return differing <= {"weights"}
    if recorded.segment_end == "retrieval" and "threshold" in differing:
        return False  # it says where segments end
    if "mode" in differing and any(
        decision.judgment is None for decision in trace.decisions
    ):
        return False  # nobody looked whether to retrieve
    if "aggregate" in differing and "vote" in (recorded.aggregate, policy.aggregate):
        return False  # one holds what was written, the other the options
    if "no_retrieval_branch" in differing and (
        policy.no_retrieval_branch or recorded.max_segments > 1
    ):
        return False
    return differing <= RESCORABLE


def _without_spare_branch(trace: Trace, policy: Decoding) -> Trace:
    """Return the trace under a policy: without the answer beside the passages that only the recording asked for."""
    recorded = trace.decoding
    seen = replace(trace, decoding=replace(policy, weights=recorded.weights))
    spare = trace.decoding.no_retrieval_branch and not policy.no_retrieval_branch
    if not spare or not any(
        seen.action(decision) == "retrieve" and decision.passages
        for decision in trace.decisions
    ):
        return seen
    # There is one segment, so every node follows the root.
    kept = [node for node in trace.nodes if node.branch != "none"]
    nodes = tuple(replace(node, id=i) for i, node in enumerate(kept))
    return replace(seen, nodes=nodes, best=None)


def _answers(
    recorded: Trace, usage: Mapping[str, int], trace: Trace, weights: Sequence[Weights]
) -> list[Rescored]:
    # the passages that are left could not be scored
    if trace.options and recorded.nodes and not trace.nodes:
        return [Rescored(None, False, 0.0)] * len(weights)
    chosen = replay(trace, weights)
    known: dict[tuple[int, bytes], Rescored] = {}
    answers = []
    for setting in range(len(weights)):
        key = int(chosen.best[setting]), chosen.kept[:, setting].tobytes()
        if key not in known:
            expanded = {ROOT}
            for node in trace.nodes:
                if chosen.kept[node.id, setting] and not trace.over(node.id):
                    expanded.add(node.id)
            known[key] = _answer(recorded, usage, trace, key[0], expanded)
        answers.append(replace(known[key], exact=bool(chosen.exact[setting])))
    return answers


def _answer(
    recorded: Trace,
    usage: Mapping[str, int],
    trace: Trace,
    best: int,
    expanded: set[int],
) -> Rescored:
    grown: list[Node] = []
    recorded_decisions, decisions = [], []
    for decision in trace.decisions:
        if decision.after in expanded:
            nodes = [node for node in trace.nodes if node.parent == decision.after]
            grown += trace.following(decision, nodes)[0]
            recorded_decisions.append(decision)
            if trace.action(decision) == "write":
                decision = replace(decision, action="write", query=None, passages=())
            decisions.append(decision)
    share = len(grown) / len(recorded.nodes) if recorded.nodes else 1.0
    if grown and all(node.status is Status.FAILED for node in grown):
        return Rescored(None, True, share)
    # Why there is no answer depends on the candidates that the settings ask for, which the recorded decisions tell.
    seen = replace(
        trace, decisions=tuple(recorded_decisions), best=None if best < 0 else best
    )
    text, segments = segments_of(seen, seen.best)
    seen = replace(seen, decisions=tuple(decisions))
    cost = Usage(**{name: round(share * usage.get(name, 0)) for name in USAGE})
    answer = Answer(trace.question, text, segments, cost, seen)
    return Rescored(output_of(answer), True, share)


def recording(policies: Sequence[Decoding]) -> Decoding:
    """Return the policy to record: the first one, the base, made wide enough that the others can be rescored from it.

    Where answers have one segment and settings differ in when they retrieve, threshold 0 with an answer without
    evidence beside the passages holds both sides of every decision. Longer answers are recorded with twice the beam.
    """
    base = policies[0]
    if base.max_segments > 1:
        return replace(base, beam=2 * max(policy.beam for policy in policies))
    deciding = attrgetter("mode", "threshold", "retrieve_test", "no_retrieval_branch")
    retrieving = set(map(deciding, policies))
    if len(retrieving) > 1 and not (base.judges or base.guardrails):
        return replace(
            base,
            mode="adaptive",
            threshold=0.0,
            retrieve_test="yes_no",
            no_retrieval_branch=True,
        )
    return base


def read_recorded(path: Path) -> Iterator[tuple[str, Output | str, Trace | None]]:
    """Yield id, output and trace of every item of a finished file; of an item that failed id and reason."""

    def parse(record: dict[str, Any]) -> tuple[str, Output | str, Trace | None]:
        key = item_id(record)
        if record.get("error") is not None:
            return key, str(record["error"]), None
        if "trace" not in record:
            raise UserError("a record without its trace; run it with traces")
        output = Output.from_record(record) or NOTHING
        return key, output, trace_of(record["trace"])

    return read_jsonl(path, parse)


@dataclass(frozen=True, slots=True)
class Study:
    """A model that is ready, and how it is studied."""

    prompting: DecodingModel  # codec, vocabulary and layout of the model
    # what decides the records apart from the policy: model and engine
    identity: Mapping[str, Any]
    execute: Execute  # answers items on it
    folder: Path  # of the study; each file gets a folder in it
    # how the files were read, for the manifests
    source: Mapping[str, Any] = field(default_factory=dict)
    retry_failed: bool = False  # run items again that failed before


@dataclass(frozen=True, slots=True)
class SettingOutcome:
    """What one setting answers to one item."""

    output: Output | str  # why there is none, if the item failed
    # rescored exactly, decoded for this setting, not known yet
    source: Literal["replayed", "decoded", "missing"]
    seconds: float = 0.0  # of a decode of its own, estimated by the share of candidates

    @property
    def written(self) -> Output | None:
        """Return the output; None if the item failed."""
        return self.output if isinstance(self.output, Output) else None


@dataclass(frozen=True, slots=True)
class FileStudy:
    """What all settings answer to one file."""

    file: TaskFile  # what was asked
    settings: tuple[Setting, ...]  # in order, the base first
    # name of the setting to one outcome an item, in the order of the items
    outcomes: Mapping[str, tuple[SettingOutcome, ...]]


def study(job: Study, file: TaskFile, settings: Sequence[Setting]) -> FileStudy:
    """Answer a file under every setting, of which the first is the base."""
    policies = [_policy(job, file, setting.decoding) for setting in settings]
    rows: dict[str, list[SettingOutcome]] = {}
    for item in file.items:
        rows[item.id] = [SettingOutcome(NOTHING, "missing")] * len(settings)

    def decode(
        name: str, number: int | None, policy: Decoding, items: Sequence[Item]
    ) -> None:
        """Run items under a policy (setting `number`, if it is one), and read what all settings answer from it."""
        folder = job.folder / file.name / name
        identity = {**job.identity, "name": name.rpartition("/")[2]}
        source = {**job.source, "ids": _digest(items)}
        run = RunJob(
            Reflective(job.prompting, policy),
            identity,
            folder,
            source,
            job.retry_failed,
            traces=True,
        )
        (results,) = run_all(
            [run],
            [replace(file, items=tuple(items))],
            job.execute,
            f"{file.name} {name}",
        )
        seconds = float(results[file.name]["seconds"]) / len(items)
        for key, output, trace in read_recorded(folder / f"{file.name}.jsonl"):
            if isinstance(output, Output) and trace is not None:
                _read(trace, output.usage, rows[key], policies, seconds)
            else:  # no weights help where nothing could be generated
                unweighted = replace(policy, weights=Weights())
                for i, candidate in enumerate(policies):
                    if replace(candidate, weights=Weights()) == unweighted:
                        rows[key][i] = SettingOutcome(output, "decoded", seconds)
            if number is not None:
                rows[key][number] = SettingOutcome(output, "decoded", seconds)

    decode("recording", None, recording(policies), file.items)
    while lacking := _lacking(file.items, rows):
        for number, items in sorted(lacking.items()):
            setting = settings[number]
            decode(
                f"decodes/{setting.name}-{_digest(items)[:8]}",
                number,
                setting.decoding,
                items,
            )
    outcomes = {}
    for i, setting in enumerate(settings):
        outcomes[setting.name] = tuple(row[i] for row in rows.values())
    return FileStudy(file, tuple(settings), outcomes)


def _policy(job: Study, file: TaskFile, decoding: Decoding) -> Decoding:
    """Return what a decode of this file runs with."""
    if file.items[0].options:
        return replace(decoding, max_segments=1)
    return Reflective(job.prompting, decoding).policy(file.task)


def _digest(items: Sequence[Item]) -> str:
    """Return what tells one choice of items from another."""
    return hashlib.sha256("\n".join(item.id for item in items).encode()).hexdigest()


def _lacking(
    items: Sequence[Item], rows: Mapping[str, Sequence[SettingOutcome]]
) -> dict[int, list[Item]]:
    """Return setting to the items that are to be decoded under it: each item under the first setting that lacks it."""
    lacking: dict[int, list[Item]] = {}
    for item in items:
        sources = [outcome.source for outcome in rows[item.id]]
        if "missing" in sources:
            lacking.setdefault(sources.index("missing"), []).append(item)
    return lacking


def _read(
    trace: Trace,
    usage: Mapping[str, int],
    row: list[SettingOutcome],
    policies: Sequence[Decoding],
    seconds: float,
) -> None:
    """Fill in what the settings of a row that are not known yet answer exactly from a record."""
    for i, result in enumerate(rescored(trace, usage, policies)):
        if result is not None and result.exact and row[i].source == "missing":
            seconds_of = result.share * seconds
            row[i] = SettingOutcome(result.output or NOTHING, "replayed", seconds_of)


def balance(studies: Sequence[FileStudy]) -> dict[str, Any]:
    """Return how many settings there are, and how many of their answers were replayed or decoded."""
    answers = Counter({"replayed": 0, "decoded": 0})
    for file_study in studies:
        for row in file_study.outcomes.values():
            answers.update(outcome.source for outcome in row)
    return {"settings": len(studies[0].settings), "answers": dict(answers)}


def spared(studies: Sequence[FileStudy]) -> str:
    """Return `balance` in words."""
    counts = balance(studies)
    answers = counts["answers"]
    parts = [f"{count:,} {source}" for source, count in answers.items() if count]
    total = f"{count_of(sum(answers.values()), 'answers', form=',')}"
    return f"{count_of(counts['settings'], 'settings')}, {total}: {', '.join(parts)}"


def write_answers(job: Study, studies: Sequence[FileStudy], out: Path) -> list[Path]:
    """Write the run directory `out/SETTING` for every setting, in order; seconds and usage in them are estimated."""
    folders = []
    for setting in studies[0].settings:
        folder = out / setting.name
        system = Reflective(job.prompting, setting.decoding).as_dict()
        identity = {
            **job.identity,
            "name": setting.name,
            "system": system,
            "traces": False,
            "replayed": True,
        }
        directory = RunDirectory(folder, identity)
        for file_study in studies:
            file, row = file_study.file, file_study.outcomes[setting.name]
            path = folder / f"{file.name}.jsonl"
            records, failed = [], 0
            for item, outcome in zip(file.items, row, strict=True):
                error = None if outcome.written else str(outcome.output)
                finished = Finished(0, outcome.written, error)
                records.append(record_of(item, file.task, finished))
                failed += error is not None
            directory.admit(file, job.source)
            with writing(path):
                write_jsonl(path, records)
            seconds = round(sum(outcome.seconds for outcome in row), 3)
            result = {
                "items": len(row),
                "failed": failed,
                "seconds": seconds,
                "cached_tokens": 0,
            }
            directory.result(file.name, result)
        folders.append(folder)
    return folders


@contextmanager
def opened(
    model: Model, folder: Path, source: Mapping[str, Any], *, retry_failed: bool = False
) -> Iterator[Study]:
    """Yield a study of a model that reflects, whose weights are loaded only if something has to be decoded."""
    path = resolve_model(model.model)
    tokenizer = load_tokenizer(path)
    prompting = model_of(tokenizer, model.model)
    identity = {"model": model_files(path), "engine": engine_kind(model.engine)}
    with on_demand(partial(model.load, path)) as engine:
        yield Study(
            prompting, identity, answer_here(engine), folder, source, retry_failed
        )
