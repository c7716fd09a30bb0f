"""Figures and kappa by hand, baselines that do what their names say, reports, and evaluations that are killed."""

import itertools
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from json_files import read_json
from refusals import refused
from student_cases import PASSAGE, asking, labelled

from critic import evaluation
from critic.agreement import compare
from critic.baselines import (
    GeneratorCodec,
    PromptedCodec,
    majority_critic,
    tfidf_critic,
)
from critic.cases import GROUPS, Case
from critic.evaluation import (
    MAJORITY,
    PROMPTED,
    TFIDF,
    EvaluationSubjects,
    figures,
    report,
    run_evaluation,
)
from critic.released import DATASET
from critic.student.judge import student_critic
from critic.student.prompt import CriticPrompt
from critic.teacher.forms import OWN
from retrieval.passage import Passage
from selfrag.common.jsonl import write_jsonl
from selfrag.engines.scripted import ScriptedEngine
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import ISREL, ISSUP

ISREL_CASE = Case.of("IsRel", "Q?", evidence=PASSAGE)
GOLD = [
    replace(ISREL_CASE, id=str(n), label="Relevant" if n < 2 else "Irrelevant")
    for n in range(4)
]


def judged(*distribution, labels=ISREL):
    return Judgment(labels, "case", distribution, 1.0)


JUDGMENTS = [judged(0.9, 0.1), judged(0.4, 0.6), judged(0.2, 0.8), judged(0.3, 0.7)]


def test_four_cases_by_hand():
    found = figures(GOLD, JUDGMENTS)
    assert found.accuracy.value == 0.75
    # Relevant: precision 1, recall 1/2, F1 2/3. Irrelevant: precision 2/3, recall 1, F1 4/5.
    assert found.macro_f1.value == pytest.approx((2 / 3 + 4 / 5) / 2)
    # 2(0.1^2), 2(0.6^2), 2(0.2^2), 2(0.3^2), over 4
    assert found.brier.value == pytest.approx((0.02 + 0.72 + 0.08 + 0.18) / 4)
    # each in a bin of its own: |0.9-1| + |0.6-0| + |0.8-1| + |0.7-1|, over 4
    assert found.ece.value == pytest.approx((0.1 + 0.6 + 0.2 + 0.3) / 4)
    assert found.confusion == ((1, 1, 0), (0, 2, 0))
    assert found.undefined == 0
    assert found.accuracy.low < 0.75 < found.accuracy.high


def test_a_case_without_a_judgment_is_wrong_and_has_no_calibration():
    found = figures(GOLD, [*JUDGMENTS[:3], None])
    assert (found.accuracy.value, found.undefined, found.brier.n) == (0.5, 1, 3)
    assert found.confusion == ((1, 1, 0), (0, 1, 1))
    nothing = figures(GOLD, [None] * 4)
    assert nothing.accuracy.value == 0
    assert math.isnan(nothing.ece.value)
    assert nothing.as_dict()["brier"]["value"] is None


def test_a_label_that_gold_lacks_is_no_part_of_macro_f1():
    case = Case.of("IsSup", "Q?", "", "y", PASSAGE)
    rows = [
        replace(case, id="0", label="Fully supported"),
        replace(case, id="1", label="Partially supported"),
    ]
    right = [judged(0.8, 0.1, 0.1, labels=ISSUP), judged(0.1, 0.8, 0.1, labels=ISSUP)]
    assert figures(rows, right).macro_f1.value == 1.0


def agreement(one, two, group="IsUse"):
    left, right = (
        {f"c{n}": value for n, value in enumerate(values) if value}
        for values in (one, two)
    )
    return compare("a", "b", group, left, right)


def test_kappa_by_hand():
    """20 both Yes, 15 both No, 5 and 10 apart: observed 0.7, by chance 0.5, kappa 0.4."""
    one = ["Relevant"] * 25 + ["Irrelevant"] * 25
    two = (
        ["Relevant"] * 20 + ["Irrelevant"] * 5 + ["Relevant"] * 10 + ["Irrelevant"] * 15
    )
    found = agreement(one, two, "IsRel")
    assert found.confusion == ((20, 5), (10, 15))
    assert (found.agreement.value, found.kappa.n, found.weighted) == (
        pytest.approx(0.7),
        50,
        None,
    )
    assert found.kappa.value == pytest.approx(0.4)
    assert found.kappa.low < 0.4 < found.kappa.high


GRADES = list(GROUPS["IsUse"].names)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.sampled_from(GRADES), st.sampled_from(GRADES)),
        min_size=2,
        max_size=40,
    )
)
def test_kappa_is_that_of_scikit_learn(pairs):
    metrics = pytest.importorskip("sklearn.metrics")
    one, two = zip(*pairs, strict=True)
    found = agreement(one, two)
    for ours, weights in ((found.kappa, None), (found.weighted, "quadratic")):
        if len({*one, *two}) == 1:
            assert math.isnan(ours.value)
        else:
            assert ours.value == pytest.approx(
                metrics.cohen_kappa_score(one, two, labels=GRADES, weights=weights)
            )


def test_only_shared_cases_are_compared_and_nothing_shared_is_undefined_not_zero():
    found = agreement(["5", "5", "1", None, None], [None, "5", "1", "5", "5"])
    assert (
        found.agreement.value,
        found.agreement.n,
        found.only_first,
        found.only_second,
    ) == (1.0, 2, 1, 2)
    found = agreement(["5", None], [None, "5"])
    assert found.agreement.n == 0
    assert math.isnan(found.kappa.value)
    assert (
        json.loads(json.dumps(found.as_dict(), allow_nan=False))["kappa"]["value"]
        is None
    )


def test_majority_gives_the_most_frequent_label_and_its_share():
    rows = [
        replace(ISREL_CASE, id=str(i), label="Irrelevant" if i < 3 else "Relevant")
        for i in range(4)
    ]
    [judgment, other] = majority_critic(rows).judge(
        [ISREL_CASE, Case.of("IsUse", "Q?", "", "y")]
    )
    assert (judgment.label, judgment.distribution, other) == (
        "Irrelevant",
        (0.25, 0.75),
        None,
    )


def test_tfidf_learns_what_words_tell_and_leaves_out_what_it_never_saw():
    told = [
        asking(f"label{row.labels.names.index(row.label)} please", row)
        for row in labelled(each=3)
    ]
    found = tfidf_critic(told).judge(told)
    assert [judgment.label for judgment in found] == [row.label for row in told]
    assert all(sum(judgment.distribution) == pytest.approx(1) for judgment in found)
    rows = [
        row
        for row in told
        if row.group == "IsSup" and row.label != "Partially supported"
    ]
    [support, use] = tfidf_critic(rows).judge(
        [rows[0], Case.of("IsUse", "Q?", "", "y")]
    )
    assert support.probability("Partially supported") == 0
    assert use is None


def test_a_prompt_that_is_too_long_loses_its_passage_then_its_beginning_and_tells_the_tokens():
    case = Case.of("IsRel", "Q?", evidence=Passage("p", "word " * 300))
    codec = PromptedCodec.from_tokenizer(
        tiny.byte_level_tokenizer(reflection=False), 20_000
    )
    whole = codec.prompt(case)
    room = len(whole.ids) + max(map(len, whole.options)) + 1  # and EOS
    for less, parts in ((0, set()), (100, {"evidence"}), (1_000, {"evidence", "task"})):
        made = replace(codec, max_length=room - less).prompt(case)
        assert set(made.dropped) == parts
        assert len(whole.ids) - len(made.ids) == sum(made.dropped.values()) >= less


def test_a_label_that_the_form_does_not_offer_is_not_asked_for():
    codec = PromptedCodec.from_tokenizer(
        tiny.byte_level_tokenizer(reflection=False), 9_000
    )
    for case, offered in (
        (Case.of("Retrieve", "Add 1 and 1."), 2),
        (Case.of("Retrieve", "Q?", "", "It is.", PASSAGE), 3),
    ):
        assert [bool(option) for option in codec.prompt(case).options] == [
            True,
            True,
            offered == 3,
        ]


SHOWN = f"[Retrieval]<paragraph>{PASSAGE.title}\n{PASSAGE.text}</paragraph>"


@pytest.mark.parametrize(
    "case, asked",
    [
        (Case.of("Retrieve", "Q?"), ""),
        (Case.of("Retrieve", "Q?", "One.", "Two."), "[No Retrieval]One."),
        (Case.of("Retrieve", "Q?", "One.", "Two.", PASSAGE), f"{SHOWN}[Relevant]One."),
        (Case.of("IsRel", "Q?", evidence=PASSAGE), SHOWN),
        (Case.of("IsSup", "Q?", "", "It is.", PASSAGE), f"{SHOWN}[Relevant]It is."),
        (
            Case.of("IsSup", "Q?", "One.", "Two.", PASSAGE),
            f"[No Retrieval]One.{SHOWN}[Relevant]Two.",
        ),
        (Case.of("IsUse", "Q?", "", "It is."), "[No Retrieval]It is."),
        (
            Case.of("IsUse", "Q?", "", "It is.", PASSAGE),
            f"{SHOWN}[Relevant]It is.[Fully supported]",
        ),
    ],
)
def test_a_generator_is_asked_where_its_token_is_due(case, asked):
    """C.1: the accuracy of the generator's own tokens, all four groups."""
    tokenizer = tiny.byte_level_tokenizer()
    codec = GeneratorCodec.from_tokenizer(tokenizer)
    made = codec.prompt(case)
    assert (
        tokenizer.decode(made.ids) == f"### Instruction:\nQ?\n\n### Response:\n{asked}"
    )
    assert [tokenizer.decode(option) for option in made.options] == list(
        case.labels.tokens
    )
    words = "word " * 3000
    cut = codec.prompt(Case.of("IsUse", words, words, words, Passage("p", words)))
    assert len(cut.ids) + 1 <= codec.max_length
    assert set(cut.dropped) == {"instruction", "preceding", "output", "evidence"}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "critic.jsonl"
    write_jsonl(path, [row.as_dict() for row in labelled(each=4)])
    return path


def test_baselines_are_written_one_after_the_other_with_a_manifest_and_reported_beside_the_paper(
    tmp_path, rows
):
    out, seen = tmp_path / "new" / "folder" / "figures.json", []

    def say(text):
        seen.append(list(read_json(out)["critics"]) if out.exists() else [])

    found = run_evaluation(rows, EvaluationSubjects(train=rows), out=out, say=say)
    assert seen == [[], [TFIDF]]
    assert found[MAJORITY].groups["IsUse"].accuracy.value == pytest.approx(0.2)
    written = read_json(out)
    assert list(written["manifest"]["rows"]) == [rows.name]
    assert len(written["judgments"][TFIDF]) == 4 * 13
    assert written["critics"][MAJORITY]["groups"]["IsRel"]["accuracy"]["n"] == 8
    text = report(found, TFIDF)
    for line in (
        "left out: it is of labels of GPT-4, not of set0, set1.",
        f"| {MAJORITY} |",
        "| set1/rule |",
    ):
        assert line in text
    assert "(paper)" not in text
    published = [replace(row, dataset=DATASET) for row in labelled(each=4)]
    write_jsonl(rows, [row.as_dict() for row in published])
    theirs = report(run_evaluation(rows, EvaluationSubjects(train=rows)), TFIDF)
    assert "| Llama2-7B (paper) | 0.938 | 0.802 | 0.935 | 0.735 |" in theirs
    parts = found[TFIDF].parts["IsRel"]
    assert set(parts) == {"human", "derived", "set0/rule", "set1/rule"}
    assert parts["human"].accuracy.n == 4


def test_what_cannot_be_evaluated_is_named_before_a_model_is_asked(tmp_path, rows):
    bad = [row.as_dict() for row in labelled(each=1)]
    at = next(n for n, row in enumerate(bad, 1) if row["group"] == "IsRel")
    bad[at - 1]["evidence"] = {"title": "T", "text": ""}
    write_jsonl(tmp_path / "bad.jsonl", bad)
    write_jsonl(
        tmp_path / "one.jsonl",
        [row.as_dict() for row in labelled(each=2) if row.label != "Irrelevant"],
    )
    (tmp_path / "empty.jsonl").write_text("")
    # a folder that is taken for a model, until it is loaded
    (tmp_path / "config.json").write_text("{}")
    for file, train, out, said in (
        (
            tmp_path / "bad.jsonl",
            rows,
            None,
            rf"bad\.jsonl:{at}: the text of 'evidence' is empty",
        ),
        (rows, tmp_path / "one.jsonl", None, "IsRel has rows of one label only"),
        (tmp_path / "empty.jsonl", rows, None, "holds no rows"),
        (rows, rows, rows / "x.json", "cannot write"),
    ):
        with refused(said):
            run_evaluation(
                file,
                EvaluationSubjects(tmp_path, train=train),
                out=out,
                say=pytest.fail,
            )
    with refused("nothing to evaluate"):
        EvaluationSubjects()


SIX = [
    Case.of(
        "IsRel",
        f"Question {i}?",
        evidence=Passage("p", "Text."),
        id=f"r{i}",
        label=label,
        dataset="set",
        label_source="human",
        rule="rule",
    )
    for i, label in enumerate(("Relevant", "Irrelevant") * 3)
]
"""Of which CHUNK=4 makes two chunks, of 4 and of 2."""


class Kept:
    """The prompts of a test: two of the rows do not fit."""

    eos_id, max_length = 0, 10

    def prompt(self, case):
        return CriticPrompt(
            (1,),
            ((2,), (3,)),
            {"evidence": 5}
            if case.instruction in ("Question 1?", "Question 5?")
            else {},
        )


class World:
    """A folder with rows and two models: which were opened, and how many cases each call asked."""

    def __init__(self, folder):
        self.rows, self.out = folder / "rows.jsonl", folder / "out" / "figures.json"
        self.journal = folder / "out" / "figures.json.journal"
        write_jsonl(self.rows, [row.as_dict() for row in SIX])
        for name in ("critic", "base"):
            (folder / name).mkdir()
            (folder / name / "config.json").write_text("{}")
        self.subjects = EvaluationSubjects(
            folder / "critic", folder / "base", self.rows, "transformers"
        )

    def load(self, model, *_):
        self.opened.append(Path(model).name)
        critic = student_critic(ScriptedEngine(None, 0), Kept())
        critic.judge = self.judge
        return critic

    def judge(self, cases):
        """Numbers that depend on how many cases are asked at once."""
        self.asked.append(len(cases))
        if len(self.asked) == self.killed:
            raise KeyboardInterrupt
        start = 0.6 if len(cases) == 4 else 0.3
        shares = [start + int(case.instruction.split()[1][:-1]) / 100 for case in cases]
        found = [
            Judgment(case.labels, "case", (p, 1 - p), 0.5)
            for case, p in zip(cases, shares, strict=True)
        ]
        return [
            None if case.instruction == "Question 3?" else one
            for case, one in zip(cases, found, strict=True)
        ]

    def run(self, killed=0):
        """Until the call of this number, from 1, which does not come back."""
        self.opened, self.asked, self.killed = [], [], killed
        return run_evaluation(self.rows, self.subjects, out=self.out)

    def kill(self, at):
        with pytest.raises(KeyboardInterrupt):
            self.run(killed=at)


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path)
    made = evaluation._manifest
    monkeypatch.setattr(evaluation, "CHUNK", 4)
    monkeypatch.setattr(
        evaluation, "_manifest", lambda *args: made(*args) | {"time": "noon"}
    )
    monkeypatch.setattr("time.perf_counter", itertools.count().__next__)
    monkeypatch.setattr(evaluation, "load_critic", world.load)
    monkeypatch.setattr(evaluation, "_load_model", world.load)
    return world


@pytest.fixture
def whole(world):
    """What an evaluation writes that nothing interrupts."""
    world.run()
    assert world.asked == [4, 2, 4, 2]
    assert list(world.out.parent.iterdir()) == [world.out]
    content = world.out.read_bytes()
    shutil.rmtree(world.out.parent)
    return content


def test_the_figures_are_those_of_the_chunks_and_shortened_rows_are_counted(
    world, whole
):
    written = json.loads(whole)
    assert written["judgments"]["critic"]["r2"] == pytest.approx(
        {"Relevant": 0.62, "Irrelevant": 0.38}
    )
    assert written["judgments"]["critic"]["r3"] is None
    assert written["judgments"]["critic"]["r4"] == pytest.approx(
        {"Relevant": 0.34, "Irrelevant": 0.66}
    )
    # r0 and r2 are called Relevant and are, r5 Irrelevant; r1 is wrong, r3 has no judgment, r4 is wrong.
    assert written["critics"]["critic"]["groups"]["IsRel"]["accuracy"]["value"] == 0.5
    assert written["critics"]["critic"]["seconds"] == 2.0  # one tick a chunk
    assert written["judgments"][PROMPTED] == written["judgments"]["critic"]
    assert written["critics"][PROMPTED]["shortened"] == 2
    assert "shortened" not in written["critics"][MAJORITY]
    told = f"\nRows with a part shortened to fit the prompt: critic 2 of 6; {PROMPTED} 2 of 6.\n"
    assert told in report(world.run(), "critic")


@pytest.mark.parametrize(
    "killed, opened, asked",
    [
        (1, ["critic", "base"], [4, 2, 4, 2]),
        (2, ["critic", "base"], [2, 4, 2]),
        (4, ["base"], [2]),
        ("last", [], []),
    ],
)
def test_killed_in_any_chunk_or_after_the_last_figures_it_goes_on_there(
    world, whole, killed, opened, asked, monkeypatch
):
    def last(path, value):
        write(path, value)
        if MAJORITY in value["critics"]:
            raise KeyboardInterrupt

    write = evaluation.write_json
    with monkeypatch.context() as patch:
        if killed == "last":
            patch.setattr(evaluation, "write_json", last)
        world.kill(killed)
    assert world.journal.exists()
    world.run()
    assert (world.opened, world.asked) == (opened, asked)
    assert world.out.read_bytes() == whole
    assert list(world.out.parent.iterdir()) == [world.out]


@pytest.mark.parametrize("out", [".", "..", "/"])
def test_a_folder_is_no_place_for_the_result(out):
    with refused("is a folder; name a file"):
        evaluation.journal_of(Path(out))


@pytest.mark.parametrize(
    "change, named",
    [
        (
            lambda world, patch: write_jsonl(
                world.rows, [row.as_dict() for row in SIX[:5]]
            ),
            "rows",
        ),
        (
            lambda world, patch: (world.subjects.critic / "critic.json").write_text(
                "{}"
            ),
            "critic",
        ),
        (
            lambda world, patch: patch.setattr(
                "critic.teacher.forms.OWN", replace(OWN, forms={})
            ),
            "prompt",
        ),
        (lambda world, patch: patch.setattr(evaluation, "CHUNK", 3), "chunk"),
    ],
)
def test_the_journal_of_another_evaluation_is_refused(
    world, monkeypatch, change, named
):
    world.kill(2)
    before = world.journal.read_bytes()
    change(world, monkeypatch)
    said = rf"journal holds a run with other {named}.*: give the same settings .* remove it"
    with refused(said):
        world.run()
    assert (world.opened, world.journal.read_bytes()) == ([], before)
