"""Many settings from few decodes: whatever is called exact is what a decode of its own gives; sweeps and ablations."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from json_files import parse_table
from random_model import random_model, random_search
from refusals import refused
from scripted import ScriptedEngine
from scripted_judges import Scripted, says
from tiny_judges import Ruled
from written import EOS, LIMITS, PROMPTING, VOCABULARY, passages, run

from retrieval.passage import Passage
from selfrag.common.errors import DecodingError, EngineError
from selfrag.decoding.policy import Decoding
from selfrag.evaluation.comparison import read_runs
from selfrag.evaluation.intervals import NONE, Estimate, bracketed
from selfrag.evaluation.items import USAGE, Item, Output, output_of
from selfrag.evaluation.metrics import answers as measured
from selfrag.evaluation.metrics.registry import ratio
from selfrag.evaluation.runner import Model, answer_here
from selfrag.evaluation.task import CLOSED, LONG, SHORT
from selfrag.evaluation.task_files import TaskFile
from selfrag.experiments import sweeps
from selfrag.experiments.ablations import (
    TRAINED,
    ablations,
    against_paper,
    published_difference,
)
from selfrag.experiments.goals import FigureLimit, Goal, choose, halves
from selfrag.experiments.studies import (
    Setting,
    Study,
    balance,
    opened,
    recording,
    rescored,
    study,
    write_answers,
)
from selfrag.experiments.sweep_plots import normalised, places_of
from selfrag.experiments.sweeps import Axis, plan
from selfrag.reflection.intrinsic_labels import ANSWERABLE
from selfrag.reflection.requests import Failed
from selfrag.reflection.weights import Weights

EVIDENCE = passages("d1", "d2", "d3")
SETTINGS = plan(
    Decoding(), (Axis.parse("issup=0,1,4"), Axis.parse("threshold=0:1:0.25"))
).settings
EXAMPLE = ("One", "Two")


def file_of(name, kind, items, question, **fields):
    item_fields = {"gold": frozenset({"d2"}), **fields}
    rows = tuple(
        Item(f"{name[0]}{i}", f"{question} {i}", EVIDENCE, **item_fields)
        for i in range(items)
    )
    return TaskFile(name, Path(f"{name}.jsonl"), "0" * 64, kind, rows, items)


def short(items):
    """Questions whose answers the model writes now and then."""
    fields = {"answers": EXAMPLE, "references": EXAMPLE, "task": "short_qa"}
    return file_of("short", SHORT, items, "Question", **fields)


def closed(items):
    fields = {"label": "true", "options": ("true", "false"), "task": "fact"}
    return file_of("closed", CLOSED, items, "Claim", **fields)


def long(items):
    """Questions with up to four segments."""
    fields = {"references": ("One. Two.",), "task": "long_form"}
    return file_of("long", LONG, items, "Topic", **fields)


def scripted(fails=lambda request: False):
    """An engine that writes random trees, the same for the same prompt, but for requests that fail."""
    model = random_model(0)
    return ScriptedEngine(
        lambda sent: Failed("no memory") if fails(sent) else model(sent),
        EOS,
        limits=LIMITS,
    )


def studied(folder, file, settings=SETTINGS, engine=None):
    return study(job(folder, engine or scripted()), file, settings)


def job(folder, engine=None):
    return Study(
        PROMPTING,
        {"model": {"weights": "abc"}, "engine": "scripted"},
        answer_here(lambda: engine),
        folder,
    )


def texts(studied_file):
    """What each setting says, without what it took."""
    return {
        name: [said(outcome.output) for outcome in row]
        for name, row in studied_file.outcomes.items()
    }


def said(output):
    return None if output is None else replace(output, usage={})


def missing(studied_file):
    return {
        name: {outcome.written is None for outcome in row}
        for name, row in studied_file.outcomes.items()
    }


@pytest.mark.parametrize(
    "file", [short(4), closed(2), long(2)], ids=lambda file: file.name
)
def test_every_setting_answers_as_it_would_alone(file, tmp_path):
    settings = (*SETTINGS, *ablations(Decoding(), file.task)[1:])
    engine = scripted()
    together = studied(tmp_path / "all", file, settings, engine)
    assert {
        outcome.source for row in together.outcomes.values() for outcome in row
    } <= {"replayed", "decoded"}
    alone = {}
    requests = 0
    for setting in settings:
        single_engine = scripted()
        alone |= texts(studied(tmp_path / setting.name, file, [setting], single_engine))
        requests += len(single_engine.requests)
    assert texts(together) == alone
    assert len(engine.requests) < requests


def test_a_record_is_asked_first_and_decoded_again_only_where_it_ends(tmp_path):
    results = studied(tmp_path / "short", short(8))
    assert balance([results])["answers"] == {
        "replayed": 8 * len(SETTINGS),
        "decoded": 0,
    }
    # twice the widest
    assert recording([Decoding(max_segments=3, beam=beam) for beam in (2, 3)]).beam == 6
    again = balance([studied(tmp_path / "again", long(10))])["answers"]
    assert 0 < again["decoded"] < again["replayed"]


def test_a_study_goes_on_where_it_died(tmp_path):
    file = long(3)
    expected = texts(studied(tmp_path / "whole", file))
    died = 0
    for allowed in (7, 60, 10**6):
        engine = scripted()

        def dying(request, engine=engine, allowed=allowed):
            if len(engine.requests) > allowed:
                raise EngineError("the server is gone")
            return False

        engine.reply = scripted(dying).reply
        try:
            assert texts(studied(tmp_path / "killed", file, engine=engine)) == expected
        except EngineError:
            died += 1
    assert died
    engine = scripted()
    assert texts(studied(tmp_path / "killed", file, engine=engine)) == expected
    assert engine.requests == []


def test_a_setting_whose_own_decode_succeeds_is_not_failed_by_the_recording(tmp_path):
    settings = [Setting(mode, Decoding(mode=mode)) for mode in ("always", "never")]
    settings.append(
        Setting("heavy", Decoding(mode="always", weights=Weights(issup=3.0)))
    )
    failing = scripted(
        lambda sent: (
            VOCABULARY.ids["<paragraph>"] in sent.prompt_ids or sent.max_tokens == 1
        )
    )
    results = studied(tmp_path / "wide", short(3), settings, failing)
    assert missing(results) == {"always": {True}, "heavy": {True}, "never": {False}}

    first = PROMPTING.evidence(EVIDENCE[0], 256).ids

    def with_the_first(request):
        ids = request.prompt_ids
        return any(ids[i : i + len(first)] == first for i in range(len(ids)))

    settings = [
        Setting(f"k{k}", Decoding(mode="always", passages=k)) for k in (3, 1, 2)
    ]
    for _ in range(2):  # resumed
        results = studied(
            tmp_path / "closed", closed(2), settings, scripted(with_the_first)
        )
        assert missing(results) == {"k3": {False}, "k1": {True}, "k2": {False}}


def test_another_study_in_the_folder_is_refused(tmp_path):
    studied(tmp_path, short(3))
    with refused("other system"):
        studied(
            tmp_path, short(3), [Setting("base", Decoding(weights=Weights(isrel=9)))]
        )
    with refused("other items"):
        studied(tmp_path, replace(short(3), items=short(2).items))


@pytest.mark.engine
def test_a_real_engine_answers_alone_as_in_the_record(tiny_llama, tmp_path):
    base = Decoding(segment_tokens=12)
    always = replace(base, mode="always")
    settings = (
        Setting("base", base),
        Setting("never", replace(base, mode="never")),
        Setting("one", replace(always, passages=1)),
        Setting("issup=5", replace(always, weights=Weights(issup=5.0))),
    )
    with opened(Model(str(tiny_llama), "transformers"), tmp_path / "all", {}) as job:
        for file in (closed(2), long(1)):
            file = replace(
                file,
                task=replace(
                    file.task, new_tokens=30, segments=min(file.task.segments, 2)
                ),
            )
            together = study(job, file, settings)
            alone = {}
            for setting in settings:
                single_job = replace(job, folder=tmp_path / setting.name)
                alone |= texts(study(single_job, file, [setting]))
            assert texts(together) == alone


ONE = Decoding(max_segments=1)
WIDE = replace(ONE, threshold=0.0, no_retrieval_branch=True)
TREE = {
    "": "{~retrieve .5 .5 0}x",
    "[Retrieval]<d1>": (
        "{isrel .9 .1}Close.{issup .1 .1 .8}{isuse 0 0 1 0 0}</s>",
        0.5,
    ),
    "[Retrieval]<d2>": ("{isrel .6 .4}Sure.{issup .9 .1 0}{isuse 0 0 1 0 0}</s>", 0.5),
    "[No Retrieval]": ("Own.{isuse 0 0 0 0 1}</s>", 0.5),
}


def replayed(recorded, policy):
    answer = run(TREE, evidence=passages("d1", "d2"), policy=recorded).answer
    usage = {name: getattr(answer.usage, name) for name in USAGE}
    (result,) = rescored(answer.trace, usage, [policy])
    return result


def test_what_a_record_cannot_be_asked_about():
    # a record of one side is an approximation of the other
    never = replayed(ONE, replace(ONE, threshold=0.9))
    assert not never.exact
    assert never.output.text == "Sure."
    # nobody looked whether to retrieve
    assert replayed(replace(ONE, mode="always"), ONE) is None
    for changes in (
        {"likelihood": "none"},
        {"passages": 1},
        {"require": {"issup": "Partially supported"}},
    ):
        assert replayed(WIDE, replace(ONE, **changes)) is None


def test_a_record_with_gates_or_reflectors_says_nothing_about_another_threshold():
    """Also where weights are asked about in the same breath, and gates hide what the threshold would have decided."""
    sure = Scripted(
        "ad", lambda state: says(0.9, 0.1, labels=ANSWERABLE), labels=ANSWERABLE
    )
    policy = replace(ONE, guardrails=("ad<0.5:write",))
    answer = run(
        TREE, evidence=passages("d1", "d2"), policy=policy, given={"judges": [sure]}
    ).answer
    assert answer.text == "Sure."
    policies = [
        policy,
        replace(policy, threshold=0.9),
        replace(policy, mode="never"),
        replace(policy, weights=Weights(9)),
    ]
    recorded, threshold, never, weights = rescored(answer.trace, {}, policies)
    assert threshold is None
    assert never is None
    assert recorded.exact
    assert weights.exact


policies = st.builds(
    Decoding,
    mode=st.sampled_from(("adaptive", "adaptive", "always", "never")),
    threshold=st.sampled_from((None, 0.0, 0.2, 0.4, 0.5, 0.7)),
    retrieve_test=st.sampled_from(("yes_no", "all", "log_ratio")),
    no_retrieval_branch=st.booleans(),
    passages=st.sampled_from((1, 2, 5)),
    beam=st.sampled_from((1, 2, 4)),
    max_segments=st.sampled_from((1, 2, 3)),
    weights=st.builds(
        Weights,
        st.sampled_from((0.0, 1.0, 3.0)),
        st.sampled_from((0.0, 1.0)),
        st.just(0.5),
    ),
    accumulate=st.sampled_from(("mean", "sum", "product")),
    require=st.sampled_from(({}, {}, {}, {"isrel": "Relevant"})),
    forbid=st.sampled_from(({}, {}, {}, {"issup": "No support / Contradictory"})),
)


@given(
    seed=st.integers(0, 10**6),
    recorded=policies,
    settings=st.lists(policies, min_size=1, max_size=6),
    data=st.data(),
)
def test_whatever_is_called_exact_is_what_a_decode_gives(
    seed, recorded, settings, data
):
    failures = data.draw(st.sampled_from((0.0, 0.0, 0.2)))
    choices = data.draw(st.sampled_from((None, None, ("One.", "Two.", "8"))))
    evidence = random_search(seed)("Q")
    model = random_model(seed, failures=failures)

    def decoded(policy):
        try:
            return run(model, evidence=evidence, policy=policy, choices=choices).answer
        except DecodingError:
            return None

    base = decoded(recorded)
    if base is None:
        return
    first, *others = rescored(base.trace, {}, [recorded, *settings])
    assert first.exact
    assert said(first.output) == said(output_of(base))
    for policy, result in zip(settings, others, strict=True):
        if result is not None and result.exact:
            again = decoded(policy)
            assert said(result.output) == said(
                None if again is None else output_of(again)
            )


def test_each_axis_alone_or_every_combination():
    for text, values in {
        "threshold=0:0.3:0.1": (0.0, 0.1, 0.2, 0.3),
        "mode=always, never": ("always", "never"),
        "no_retrieval_branch=true,false": (True, False),
    }.items():
        assert Axis.parse(text).values == values
    axes = (Axis.parse("issup=0,1"), Axis.parse("threshold=0.2,none"))
    alone = plan(Decoding(), axes)
    assert [setting.name for setting in alone.settings] == [
        "base",
        "issup=0",
        "threshold=none",
    ]
    assert alone.series["issup"] == ((0, "issup=0"), (1, "base"))
    assert alone.series["threshold"] == ((0.2, "base"), (None, "threshold=none"))
    assert alone.settings[1].decoding == Decoding(weights=Weights(issup=0))
    grid = [setting.name for setting in plan(Decoding(), axes, grid=True).settings]
    assert grid == [
        "base",
        "issup=0,threshold=0.2",
        "issup=0,threshold=none",
        "issup=1,threshold=none",
    ]


ITEM = Item(
    "q",
    "Who?",
    passages("d1", "d2"),
    answers=("d1", "Ann", "Bob"),
    references=("Ann",),
    task="short_qa",
)


@pytest.mark.parametrize(
    "text, memory",
    [
        ("It was d1.", (0.0, 1.0)),  # in a passage
        ("It was Ann.", (1.0, 1.0)),  # right, and in none
        # one of the answers given stands in a passage
        ("Ann or d1", (0.0, 1.0)),
        ("Nobody", (0.0, 0.0)),  # wrong: does not count
    ],
)
def test_reliance_on_memory(text, memory):
    output = Output(text, read=("d2",), retrieved=True)
    assert measured.FROM_MEMORY.part(ITEM, output) == memory
    for item in (replace(ITEM, answers=None), replace(ITEM, passages=())):
        assert measured.FROM_MEMORY.part(item, output) is None
    assert measured.FROM_MEMORY.part(ITEM, None) is None


def test_memory_by_substrings_as_the_paper_says_and_repeated_bigrams():
    """`Ann` is no word of the passage but a part of `Annex`: from memory by words, not by substrings (C.1)."""
    item = replace(ITEM, answers=("Ann",), passages=(Passage("d1", "The Annex.", ""),))
    assert measured.FROM_MEMORY.part(item, Output("Ann")) == (1.0, 1.0)
    assert measured.FROM_MEMORY_SUBSTRING.part(item, Output("Ann")) == (0.0, 1.0)
    assert measured.REPEATED.part(ITEM, Output("To be or not to be")) == (1.0, 5.0)


def test_curves_are_normalised_and_close_values_stand_at_equal_steps():
    curve = [(0.0, Estimate(0.6, 0.5, 0.7, 9)), (0.5, Estimate(0.3, 0.2, 0.4, 9))]
    points = [(at, estimate.value, estimate.low) for at, estimate in normalised(curve)]
    assert points == [
        (0.0, 1.0, pytest.approx(5 / 6)),
        (0.5, 0.5, pytest.approx(1 / 3)),
    ]
    assert (
        list(normalised([(0.0, Estimate(0.0, 0.0, 0.0, 9))]))
        == list(normalised([]))
        == []
    )
    assert places_of([0.999, 0, 1, 0.5]) == {0: 0, 0.5: 1, 0.999: 2, 1: 3}


def test_the_best_is_chosen_on_one_half_and_measured_on_the_other():
    first, second = halves(8)

    def both(here, there):
        return [(here if i in first else there, 1.0) for i in range(8)]

    settings = {
        name: {"acc": both(*acc), "rate": both(*rate)}
        for name, acc, rate in parse_table("""
base | [0.5, 0.5] | [1.0, 1.0]
dear | [1.0, 1.0] | [0.9, 0.9]
lucky | [0.9, 0.25] | [0.4, 0.8]
solid | [0.8, 0.75] | [0.2, 0.2]
also | [0.9, 0.9] | [0.4, 0.4]
""")
    }
    choice = choose(
        settings, Goal("headline", (FigureLimit("rate", "<=", 0.4),)), "base", "acc"
    )
    assert choice.name == "lucky"
    assert choice.candidates == 3
    assert choice.chosen_at == 0.9
    assert choice.confirmed.value == 0.25
    assert choice.confirmed.n == len(second)
    assert choice.gain.value == -0.25
    assert not choice.kept  # 0.8 on the other half
    assert choice.as_dict()["limits"]["rate<=0.4"]["value"] == pytest.approx(0.8)
    alone = choose(settings, Goal("acc", ()), "base", "acc")
    assert alone.name == "dear"
    assert alone.kept
    none = choose(
        settings, Goal("acc", (FigureLimit("rate", "<=", 0.1),)), "base", "acc"
    )
    assert none.name is None
    assert none.candidates == 0
    # of texts without a reference: more is not better
    assert not Goal("headline", ()).fits("words", ["words"])
    assert Goal("words", ()).fits("words", ["words"])
    for text in (
        "headline,retrieval_rate<=0.4",
        "f1",
        "f1,words>=3,retrieval_rate<=0.5",
    ):
        assert str(Goal.parse(text)) == text


def test_settings_become_runs_that_say_what_the_study_says(tmp_path):
    files = [
        sweeps.measured_by(file, measured.FLUENCY) for file in (short(10), closed(4))
    ]
    settings = plan(
        Decoding(), (Axis.parse("issup=0,4"), Axis.parse("threshold=0,1"))
    ).settings
    studies = [studied(tmp_path, file, settings) for file in files]
    folders = write_answers(job(tmp_path), studies, tmp_path / "settings")
    read = {run.name: run for run in read_runs(folders)}
    assert list(read) == [setting.name for setting in settings]
    assert {len(file.ids) for run in read.values() for file in run.files.values()} == {
        10,
        4,
    }
    rates = {
        name: ratio(run.files["short"].scores["retrieval_rate"])
        for name, run in read.items()
    }
    assert rates["threshold=0"] == 1
    assert rates["threshold=1"] == 0
    judge = Ruled(lambda _, claim: len(claim.split()) < 4, "short")
    sweeps.judge_settings(studies, folders, judge, tmp_path)
    before = len(judge.asked)
    # settings share answers, whose pairs are asked about once
    assert 0 < before == len(set(judge.asked))
    sweeps.judge_settings(
        studies,
        write_answers(job(tmp_path), studies, tmp_path / "settings"),
        judge,
        tmp_path,
    )
    assert len(judge.asked) == before
    again = read_runs(folders)
    column = "citation_precision_nli (short)"
    figures = {run.name: ratio(run.files["short"].scores[column]) for run in again}
    assert figures["threshold=1"] == 0  # nothing is cited without evidence
    assert figures["base"] is not None
    tables = sweeps.brief(sweeps.comparison(studies, again)).tables
    assert [table.metrics for table in tables] == [
        (
            "contains",
            *"citation_precision citation_recall retrieval_rate words".split(),
            *(column, "citation_recall_nli (short)", "citation_f1_nli (short)"),
        ),
        ("accuracy", "citation_precision", "citation_recall", "retrieval_rate"),
    ]


def test_rows_of_the_ablation_stand_beside_the_papers_and_on_the_page(tmp_path):
    page = (Path(__file__).parents[2] / "docs/guides/sweeps.md").read_text(
        encoding="utf-8"
    )
    full_system, *others = (setting.name for setting in ablations(Decoding(), SHORT))
    listed = re.findall(
        r"^\| `([\w-]+)` \|", page.partition("## Ablations")[2], flags=re.M
    )
    assert listed == [full_system, *TRAINED, *others]
    studies = [
        studied(tmp_path, studied_file, ablations(Decoding(), studied_file.task))
        for studied_file in (short(12), closed(6))
    ]
    tables = sweeps.comparison(
        studies, read_runs(write_answers(job(tmp_path), studies, tmp_path / "rows"))
    )
    _, rows = against_paper(tables, studies)
    assert [row[1] for row in rows] == ["short", "closed", "average"] * 4
    shown = [
        [
            studied_file.output
            and (studied_file.output.text, studied_file.output.cited)
            for studied_file in studies[0].outcomes[name]
        ]
        for name in ("selfrag", "no-retrieval")
    ]
    changed = sum(a != b for a, b in zip(*shown, strict=True))
    assert changed > 0
    (row,) = (row for row in tables.tables[0].rows if row.system == "no-retrieval")
    assert rows[0][2:] == (f"{changed} of 12", bracketed(row.differences["contains"]))
    # Table 3a: PopQA 45.5 and 24.7, PubHealth 73.5 and 73.0; ASQA has no figure.
    assert [
        published_difference("no-retrieval", file)
        for file in ("popqa", "pubhealth", "asqa")
    ] == ["-20.8", "-0.5", NONE]
