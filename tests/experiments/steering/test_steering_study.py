"""Studies on a scripted model: every setting answers what it would on its own, with as few requests as can be."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from steered import EVIDENCE, closed, executed, job, long, scripted, short
from written import EOS, LIMITS, PROMPTING, VOCABULARY

from selfrag.decoding.policy import Decoding
from selfrag.decoding.requests import Failed, Generate
from selfrag.engines.scripted import Reply, ScriptedEngine
from selfrag.errors import EngineError, UserError
from selfrag.evaluation.task_files import TaskFile
from selfrag.experiments.steering.saving import saved
from selfrag.experiments.steering.setting import Axis, Setting, plan
from selfrag.experiments.steering.study import FileStudy, study
from selfrag.experiments.steering.table3a import ablations
from selfrag.reflection.weights import Weights

AXES = (Axis.parse("issup=0,1,4"), Axis.parse("threshold=0:1:0.25"))
SETTINGS = plan(Decoding(), AXES).settings


def texts(found: FileStudy) -> dict[str, list[object]]:
    """What each setting says, without what it took."""
    return {
        name: [None if one.output is None else replace(one.output, usage={}) for one in row]
        for name, row in found.outcomes.items()
    }


@pytest.mark.parametrize("file", [short(12), closed(6), long(6)], ids=lambda file: file.name)
def test_every_setting_answers_as_it_would_alone(file: TaskFile, tmp_path: Path) -> None:
    settings = (*SETTINGS, *ablations(Decoding(), file.task)[1:])
    engine = scripted()
    together = study(job(tmp_path / "all"), file, settings, executed(engine))
    assert {one.source for row in together.outcomes.values() for one in row} <= {"replayed", "decoded"}
    alone: dict[str, list[object]] = {}
    requests = 0
    for setting in settings:
        own = scripted()
        single = study(job(tmp_path / setting.name, beam=2), file, [setting], executed(own))
        alone |= texts(single)
        requests += len(own.requests)
    assert texts(together) == alone
    assert len(engine.requests) < requests
    balance = saved([together])
    assert balance.spent.requests == len(engine.requests)
    assert balance.alone.requests == pytest.approx(requests, rel=0.25)


def test_short_answers_are_decoded_once_for_all_weights_and_thresholds(tmp_path: Path) -> None:
    file = short(8)
    found = study(job(tmp_path), file, SETTINGS, executed(scripted()))
    assert [decode.folder.name for decode in found.decodes] == ["recording"]
    assert saved([found]).answers == {"replayed": 8 * len(SETTINGS), "decoded": 0, "approximate": 0}


def test_long_answers_are_decoded_again_only_where_the_record_ends(tmp_path: Path) -> None:
    file = long(10)
    again = study(job(tmp_path / "again"), file, SETTINGS, executed(scripted()))
    never = study(job(tmp_path / "never", redecode=False), file, SETTINGS, executed(scripted()))
    counts = saved([again]).answers
    assert counts["approximate"] == 0
    assert 0 < counts["decoded"] < counts["replayed"]
    assert len(never.decodes) == 1
    wide = study(job(tmp_path / "wide", beam=81, redecode=False), file, SETTINGS, executed(scripted()))
    assert 0 < saved([wide]).answers["approximate"] < saved([never]).answers["approximate"]


def test_what_the_record_says_nothing_about_is_decoded_in_any_case(tmp_path: Path) -> None:
    file = short(4)
    settings = [Setting("base", Decoding()), Setting("official", Decoding.official(max_segments=1))]
    found = study(job(tmp_path, redecode=False), file, settings, executed(scripted()))
    assert saved([found]).answers == {"replayed": 4, "decoded": 4, "approximate": 0}


def test_a_study_goes_on_where_it_died(tmp_path: Path) -> None:
    file, settings = long(6), SETTINGS
    whole = study(job(tmp_path / "whole"), file, settings, executed(scripted()))
    attempts = 0
    for allowed in (7, 60, 120, 10**6):
        engine = scripted()
        answer = engine.reply

        def dying(request: object, answer: object = answer, engine: object = engine, allowed: int = allowed) -> object:
            if len(engine.requests) > allowed:  # type: ignore[attr-defined]
                raise EngineError("the server is gone")
            return answer(request)  # type: ignore[operator]

        engine.reply = dying  # type: ignore[assignment]
        attempts += 1
        try:
            found = study(job(tmp_path / "killed"), file, settings, executed(engine))
            break
        except EngineError:
            continue
    assert attempts > 1
    assert texts(found) == texts(whole)
    engine = scripted()
    assert texts(study(job(tmp_path / "killed"), file, settings, executed(engine))) == texts(whole)
    assert engine.requests == []


def test_items_that_fail_count_for_every_setting(tmp_path: Path) -> None:
    engine = scripted(failures=1.0)
    found = study(job(tmp_path), short(3), SETTINGS, executed(engine))
    assert all(one.output is None for row in found.outcomes.values() for one in row)


def test_a_setting_whose_own_decode_succeeds_is_not_failed_by_the_wide_recording(tmp_path: Path) -> None:
    model = scripted()

    def without_evidence(request: Generate) -> Reply | Failed:
        evidence = VOCABULARY.ids["<paragraph>"] in request.prompt_ids
        return Failed("no memory") if evidence or request.max_tokens == 1 else model.reply(request)

    settings = [Setting(mode, Decoding(mode=mode)) for mode in ("always", "never")]
    settings.append(Setting("heavy", Decoding(mode="always", weights=Weights(issup=3.0))))
    engine = ScriptedEngine(without_evidence, EOS, limits=LIMITS)
    found = study(job(tmp_path), short(3), settings, executed(engine)).outcomes
    assert [one.output is None for one in found["always"]] == [True] * 3
    assert [one.output is None for one in found["heavy"]] == [True] * 3
    assert [one.output is None for one in found["never"]] == [False] * 3


def test_a_closed_set_whose_first_passage_failed_is_swept_over_passages(tmp_path: Path) -> None:
    model = scripted()
    first = PROMPTING.evidence(EVIDENCE[0], 256).ids

    def but_the_first(request: Generate) -> Reply | Failed:
        ids = request.prompt_ids
        there = any(ids[i : i + len(first)] == first for i in range(len(ids)))
        return Failed("no memory") if there else model.reply(request)

    settings = [Setting(f"k{k}", Decoding(mode="always", passages=k)) for k in (3, 1, 2)]
    engine = ScriptedEngine(but_the_first, EOS, limits=LIMITS)
    for _ in range(2):  # resumed
        found = study(job(tmp_path), closed(2), settings, executed(engine)).outcomes
        assert {name: [one.output is None for one in row] for name, row in found.items()} == {
            "k3": [False] * 2,
            "k1": [True] * 2,
            "k2": [False] * 2,
        }


def test_another_study_in_the_folder_is_refused(tmp_path: Path) -> None:
    study(job(tmp_path), short(3), SETTINGS, executed(scripted()))
    other = Setting("base", Decoding(weights=Weights(isrel=9)))
    with pytest.raises(UserError, match="recording holds a run with another system"):
        study(job(tmp_path), short(3), [other], executed(scripted()))
    with pytest.raises(UserError, match="another ids"):
        study(job(tmp_path), replace(short(3), items=short(2).items), SETTINGS, executed(scripted()))


def test_a_recorded_beam_is_not_narrower_than_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a recorded beam of 1 is narrower than the beam of 2"):
        study(job(tmp_path, beam=1), long(2), SETTINGS, executed(scripted()))
