"""Many settings from few decodes: whatever is called exact is what a decode of its own gives; studies resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_model import random_model, random_search
from scripted_critics import Scripted, says
from studied import EVIDENCE, closed, executed, job, long, scripted, short
from written import EOS, LIMITS, PROMPTING, VOCABULARY, passages, run

from selfrag.decoding.answer import Answer
from selfrag.decoding.policy import Decoding
from selfrag.decoding.requests import Failed, Generate
from selfrag.engines.scripted import Reply, ScriptedEngine
from selfrag.errors import DecodingError, EngineError, UserError
from selfrag.evaluation.items import USAGE, Output, output_of
from selfrag.evaluation.runner import Model
from selfrag.evaluation.task_files import TaskFile
from selfrag.experiments.ablations import ablations
from selfrag.experiments.studies import FileStudy, Rescored, Setting, Study, balance, opened, rescored, study
from selfrag.experiments.sweeps import Axis, plan
from selfrag.intrinsics.labels import ANSWERABLE
from selfrag.reflection.weights import Weights

AXES = (Axis.parse("issup=0,1,4"), Axis.parse("threshold=0:1:0.25"))
SETTINGS = plan(Decoding(), AXES).settings


def texts(found: FileStudy) -> dict[str, list[object]]:
    """What each setting says, without what it took."""
    return {
        name: [None if one.output is None else replace(one.output, usage={}) for one in row]
        for name, row in found.outcomes.items()
    }


@pytest.mark.parametrize("file", [short(8), closed(4), long(4)], ids=lambda file: file.name)
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


def test_a_record_is_asked_first_and_decoded_again_only_where_it_ends(tmp_path: Path) -> None:
    found = study(job(tmp_path / "short"), short(8), SETTINGS, executed(scripted()))
    assert [folder.name for folder in found.decodes] == ["recording"]
    assert balance([found])["answers"] == {"replayed": 8 * len(SETTINGS), "decoded": 0, "approximate": 0}
    file = long(10)
    again = balance([study(job(tmp_path / "again"), file, SETTINGS, executed(scripted()))])["answers"]
    assert again["approximate"] == 0
    assert 0 < again["decoded"] < again["replayed"]
    never, wide = (
        study(job(tmp_path / str(beam), beam=beam, redecode=False), file, SETTINGS, executed(scripted()))
        for beam in (None, 81)
    )
    assert len(never.decodes) == 1
    assert 0 < balance([wide])["answers"]["approximate"] < balance([never])["answers"]["approximate"]
    with pytest.raises(UserError, match="a recorded beam of 1 is narrower than the beam of 2"):
        study(job(tmp_path, beam=1), file, SETTINGS, executed(scripted()))


def test_a_study_goes_on_where_it_died(tmp_path: Path) -> None:
    file = long(3)
    whole = texts(study(job(tmp_path / "whole"), file, SETTINGS, executed(scripted())))
    died = 0
    for allowed in (7, 60, 10**6):
        engine = scripted()
        answer = engine.reply

        def dying(request: Generate, answer: Any = answer, engine: Any = engine, allowed: int = allowed) -> Any:
            if len(engine.requests) > allowed:
                raise EngineError("the server is gone")
            return answer(request)

        engine.reply = dying
        try:
            assert texts(study(job(tmp_path / "killed"), file, SETTINGS, executed(engine))) == whole
        except EngineError:
            died += 1
    assert died
    engine = scripted()
    assert texts(study(job(tmp_path / "killed"), file, SETTINGS, executed(engine))) == whole
    assert engine.requests == []


def test_a_setting_whose_own_decode_succeeds_is_not_failed_by_the_wide_recording(tmp_path: Path) -> None:
    model = scripted()

    def without_evidence(request: Generate) -> Reply | Failed:
        evidence = VOCABULARY.ids["<paragraph>"] in request.prompt_ids
        return Failed("no memory") if evidence or request.max_tokens == 1 else model.reply(request)

    settings = [Setting(mode, Decoding(mode=mode)) for mode in ("always", "never")]
    settings.append(Setting("heavy", Decoding(mode="always", weights=Weights(issup=3.0))))
    engine = ScriptedEngine(without_evidence, EOS, limits=LIMITS)
    found = study(job(tmp_path), short(3), settings, executed(engine)).outcomes
    missing = {name: [one.output is None for one in row] for name, row in found.items()}
    assert missing == {"always": [True] * 3, "heavy": [True] * 3, "never": [False] * 3}


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


ENGINE_SETTINGS = (
    Setting("base", Decoding(segment_tokens=12)),
    Setting("never", Decoding(segment_tokens=12, mode="never")),
    Setting("one", Decoding(segment_tokens=12, mode="always", passages=1)),
    Setting("issup=5", Decoding(segment_tokens=12, mode="always", weights=Weights(issup=5.0))),
)


@pytest.mark.engine
def test_a_real_engine_answers_alone_as_in_the_record(tiny_llama: Path, tmp_path: Path) -> None:
    with opened(Model(str(tiny_llama), "transformers")) as ready:
        job = Study(ready.prompting, ready.identity, tmp_path / "all")
        for file in (closed(2), long(1)):
            file = replace(file, task=replace(file.task, new_tokens=30, segments=min(file.task.segments, 2)))
            together = study(job, file, ENGINE_SETTINGS, ready.execute)
            assert balance([together])["answers"]["approximate"] == 0
            for setting in ENGINE_SETTINGS:
                own = replace(job, folder=tmp_path / setting.name)
                alone = study(own, file, [setting], ready.execute)
                for one, other in zip(together.outcomes[setting.name], alone.outcomes[setting.name], strict=True):
                    assert replace(one.output, usage={}) == replace(other.output, usage={})


ONE = Decoding(max_segments=1)
WIDE = replace(ONE, threshold=0.0, no_retrieval_branch=True)
TREE = {
    "": "{~retrieve .5 .5 0}x",
    "[Retrieval]<d1>": ("{isrel .9 .1}Close.{issup .1 .1 .8}{isuse 0 0 1 0 0}</s>", 0.5),
    "[Retrieval]<d2>": ("{isrel .6 .4}Sure.{issup .9 .1 0}{isuse 0 0 1 0 0}</s>", 0.5),
    "[No Retrieval]": ("Own.{isuse 0 0 0 0 1}</s>", 0.5),
}


def replayed(answer: Answer, policy: Decoding) -> Rescored | None:
    usage = {name: getattr(answer.usage, name) for name in USAGE}
    (found,) = rescored(answer.trace, usage, [policy])
    return found


def said(output: Output | None) -> Any:
    """Everything but what it took."""
    return None if output is None else replace(output, usage={})


def test_a_record_of_one_side_is_an_approximation_of_the_other() -> None:
    narrow = run(TREE, evidence=passages("d1", "d2"), policy=ONE).answer
    other = replayed(narrow, replace(ONE, threshold=0.9))
    assert (other.exact, other.output.text) == (False, "Sure.")
    always = run(TREE, evidence=passages("d1", "d2"), policy=replace(ONE, mode="always")).answer
    assert replayed(always, ONE) is None  # nobody looked whether to retrieve


@pytest.mark.parametrize(
    "changes",
    [
        {"likelihood": "none"},
        {"passages": 1},
        {"require": {"issup": "Partially supported"}},
    ],
)
def test_what_changes_the_text_itself_or_the_candidates_cannot_be_rescored(changes: dict[str, Any]) -> None:
    wide = run(TREE, evidence=passages("d1", "d2"), policy=WIDE).answer
    assert replayed(wide, replace(ONE, **changes)) is None


def test_a_record_with_gates_or_reflectors_says_nothing_about_another_threshold() -> None:
    """Also where weights are asked about in the same breath, and gates hide what the threshold would have decided."""
    sure = Scripted("ad", lambda moment: says(0.9, 0.1, labels=ANSWERABLE), needs_evidence=False)
    policy = replace(ONE, gates=("ad<0.5:write",))  # type: ignore[arg-type]
    answer = run(TREE, evidence=passages("d1", "d2"), policy=policy, given={"critics": [sure]}).answer
    assert answer.text == "Sure."
    asked = [policy, replace(policy, threshold=0.9), replace(policy, mode="never"), replace(policy, weights=Weights(9))]
    own, threshold, never, weights = rescored(answer.trace, {}, asked)
    assert (threshold, never) == (None, None)
    assert (own.exact, weights.exact) == (True, True)


policies = st.builds(
    Decoding,
    mode=st.sampled_from(("adaptive", "adaptive", "always", "never")),
    threshold=st.sampled_from((None, 0.0, 0.2, 0.4, 0.5, 0.7)),
    retrieve_test=st.sampled_from(("yes_no", "all", "log_ratio")),
    no_retrieval_branch=st.booleans(),
    passages=st.sampled_from((1, 2, 5)),
    beam=st.sampled_from((1, 2, 4)),
    max_segments=st.sampled_from((1, 2, 3)),
    weights=st.builds(Weights, st.sampled_from((0.0, 1.0, 3.0)), st.sampled_from((0.0, 1.0)), st.just(0.5)),
    accumulate=st.sampled_from(("mean", "sum", "product")),
    require=st.sampled_from(({}, {}, {}, {"isrel": "Relevant"})),
    forbid=st.sampled_from(({}, {}, {}, {"issup": "No support / Contradictory"})),
)


@given(seed=st.integers(0, 10**6), recorded=policies, wanted=st.lists(policies, min_size=1, max_size=6), data=st.data())
def test_whatever_is_called_exact_is_what_a_decode_gives(
    seed: int, recorded: Decoding, wanted: list[Decoding], data: st.DataObject
) -> None:
    failures = data.draw(st.sampled_from((0.0, 0.0, 0.2)))
    choices = data.draw(st.sampled_from((None, None, ("One.", "Two.", "8"))))
    evidence = random_search(seed)("Q")
    model = random_model(seed, failures=failures)

    def decoded(policy: Decoding) -> Answer | None:
        try:
            return run(model, evidence=evidence, policy=policy, choices=choices).answer
        except DecodingError:
            return None

    base = decoded(recorded)
    if base is None:
        return
    own, *others = rescored(base.trace, {}, [recorded, *wanted])
    assert own.exact
    assert said(own.output) == said(output_of(base))
    for policy, other in zip(wanted, others, strict=True):
        if other is not None and other.exact:
            again = decoded(policy)
            assert said(other.output) == said(None if again is None else output_of(again))
