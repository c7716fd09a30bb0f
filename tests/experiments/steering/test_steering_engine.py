"""Replayed answers against decodes of a real engine on a tiny random model, where sums depend on the whole batch."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from steered import closed, long, short

from selfrag.decoding.policy import Decoding
from selfrag.evaluation.runner import Model
from selfrag.experiments.steering.opening import opened
from selfrag.experiments.steering.saving import saved
from selfrag.experiments.steering.setting import Setting
from selfrag.experiments.steering.study import Study, study
from selfrag.reflection.weights import Weights

SETTINGS = (
    Setting("base", Decoding(segment_tokens=12)),
    Setting("never", Decoding(segment_tokens=12, mode="never")),
    Setting("one", Decoding(segment_tokens=12, mode="always", passages=1)),
    Setting("issup=5", Decoding(segment_tokens=12, mode="always", weights=Weights(issup=5.0))),
)


@pytest.mark.engine
def test_a_real_engine_answers_alone_as_in_the_record(tiny_llama: Path, tmp_path: Path) -> None:
    with opened(Model(str(tiny_llama), "transformers")) as ready:
        job = Study(ready.prompting, ready.identity, tmp_path / "all")
        for file in (short(3), closed(2), long(2)):
            file = replace(file, task=replace(file.task, new_tokens=30, segments=min(file.task.segments, 2)))
            together = study(job, file, SETTINGS, ready.execute)
            assert saved([together]).answers["approximate"] == 0
            for setting in SETTINGS:
                own = replace(job, folder=tmp_path / setting.name)
                alone = study(own, file, [setting], ready.execute)
                for one, other in zip(together.outcomes[setting.name], alone.outcomes[setting.name], strict=True):
                    assert one.output is not None
                    assert other.output is not None
                    assert replace(one.output, usage={}) == replace(other.output, usage={})
