"""Citations of every setting judged by entailment. Settings share most answers, so each pair is asked about once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfrag.evaluation.metrics.entailment import remembered
from selfrag.evaluation.metrics.judging import Record, judge_citations, write_judged
from selfrag.evaluation.metrics.nli import Entailment
from selfrag.experiments.steering.study import FileStudy


def judge_settings(
    studies: Sequence[FileStudy], folders: Sequence[Path], judge: Entailment, out: Path, about: Mapping[str, Any]
) -> int:
    """Write what the judge says beside the answers of every setting.

    Args:
        studies: one a file.
        folders: the run directories of the settings, as `answers.write_answers` gives them.
        judge: decides.
        out: folder of the study; verdicts are kept in it, so that nothing is asked twice.
        about: for the reader of the files.

    Returns:
        Pairs that had to be known for all settings, of which equal ones were asked once.

    Raises:
        UserError: the verdicts in the folder are damaged.
        EngineError: the judge is gone.
    """
    pairs: list[int] = []
    asked = remembered(judge, out, pairs.append)
    for one in studies:
        for setting, folder in zip(one.settings, folders, strict=True):
            records = [
                Record(item, found.output, {passage.id: passage for passage in item.passages})
                for item, found in zip(one.file.items, one.outcomes[setting.name], strict=True)
            ]
            judged = judge_citations(records, asked, kind=one.file.task.kind)
            write_judged(folder, one.file.name, judged, about)
    return sum(pairs)
