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
from json_files import parse_table, read_json, write_records
from refusals import refused
from scripted import ScriptedEngine
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
    assert found.accuracy.value == 0.5
    assert found.undefined == 1
    assert found.brier.n == 3
    assert found.confusion == ((1, 1, 0), (0, 1, 1))
    nothing = figures(GOLD, [None] * 4)
    assert nothing.accuracy.value == 0
    assert nothing.as_dict()["brier"]["value"] is None


def test_a_label_that_gold_lacks_is_no_part_of_macro_f1():
    case = Case.of("IsSup", "Q?", "", "y", PASSAGE)
    names = ISSUP.names[:2]
    rows = [replace(case, id=name, label=name) for name in names]
    shares = ((0.8, 0.1, 0.1), (0.1, 0.8, 0.1))
    right = [judged(*share, labels=ISSUP) for share in shares]
    assert figures(rows, right).macro_f1.value == 1.0


def agreement(one, two, group="IsUse"):
    left, right = (
        {f"c{n}": value for n, value in enumerate(values) if value}
        for values in (one, two)
    )
    return compare("a", "b", group, left, right)


GRADES = list(GROUPS["IsUse"].names)


@settings(max_examples=25)
@given(st.lists(st.tuples(*[st.sampled_from(GRADES)] * 2), min_size=2, max_size=40))
def test_kappa_is_that_of_scikit_learn(pairs):
    metrics = pytest.importorskip("sklearn.metrics")
    one, two = zip(*pairs, strict=True)
    found = agreement(one, two)
    same = sum(map(str.__eq__, one, two)) / len(pairs)
    assert found.agreement.value == pytest.approx(same)
    table = metrics.confusion_matrix(one, two, labels=GRADES)
    assert found.confusion == tuple(map(tuple, table.tolist()))
    for ours, weights in ((found.kappa, None), (found.weighted, "quadratic")):
        if len({*one, *two}) == 1:
            assert math.isnan(ours.value)
        else:
            score = metrics.cohen_kappa_score(one, two, labels=GRADES, weights=weights)
            assert ours.value == pytest.approx(score)


def test_only_shared_cases_are_compared_and_nothing_shared_is_undefined_not_zero():
    found = agreement(["5", "5", "1", None, None], [None, "5", "1", "5", "5"])
    assert found.agreement.value == 1.0
    assert found.agreement.n == 2
    assert found.only_first == 1
    assert found.only_second == 2
    found = agreement(["5", None], [None, "5"])
    assert found.agreement.n == 0
    assert found.as_dict()["kappa"]["value"] is None


def test_majority_gives_the_most_frequent_label_and_its_share():
    critic = majority_critic(GOLD[1:])
    judgment, other = critic.judge([ISREL_CASE, Case.of("IsUse", "Q?", "", "y")])
    assert judgment.label == "Irrelevant"
    assert other is None
    assert judgment.distribution == pytest.approx((1 / 3, 2 / 3))


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
    assert all(codec.prompt(Case.of("Retrieve", "Q?", "", "It is.", PASSAGE)).options)
    assert not codec.prompt(Case.of("Retrieve", "Add 1 and 1.")).options[2]


SHOWN = f"[Retrieval]<paragraph>{PASSAGE.title}\n{PASSAGE.text}</paragraph>"


@pytest.mark.parametrize(
    "group, texts, evidence, asked",
    parse_table("""
Retrieve | [] | 0 | ""
Retrieve | ["One.", "Two."] | 0 | [No Retrieval]One.
Retrieve | ["One.", "Two."] | 1 | SHOWN[Relevant]One.
IsRel | [] | 1 | SHOWN
IsSup | ["", "It is."] | 1 | SHOWN[Relevant]It is.
IsSup | ["One.", "Two."] | 1 | [No Retrieval]One.SHOWN[Relevant]Two.
IsUse | ["", "It is."] | 0 | [No Retrieval]It is.
IsUse | ["", "It is."] | 1 | SHOWN[Relevant]It is.[Fully supported]
"""),
)
def test_a_generator_is_asked_where_its_token_is_due(group, texts, evidence, asked):
    """C.1: the accuracy of the generator's own tokens, all four groups."""
    tokenizer = tiny.byte_level_tokenizer()
    codec = GeneratorCodec.from_tokenizer(tokenizer)
    case = Case.of(group, "Q?", *texts, evidence=PASSAGE if evidence else None)
    made = codec.prompt(case)
    asked = asked.replace("SHOWN", SHOWN)
    prompt = f"### Instruction:\nQ?\n\n### Response:\n{asked}"
    assert tokenizer.decode(made.ids) == prompt
    assert [*map(tokenizer.decode, made.options)] == [*case.labels.tokens]
    words = "word " * 3000
    cut = codec.prompt(Case.of("IsUse", words, words, words, Passage("p", words)))
    assert len(cut.ids) + 1 <= codec.max_length
    assert set(cut.dropped) == set("instruction preceding output evidence".split())


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "critic.jsonl"
    write_records(path, labelled(each=4))
    return path


def test_baselines_are_written_one_after_the_other_with_a_manifest_and_reported_beside_the_paper(
    tmp_path, rows
):
    out, seen = tmp_path / "new/folder/figures.json", []

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
    assert "left out: it is of labels of GPT-4, not of set0, set1." in text
    assert f"| {MAJORITY} |" in text
    assert "| set1/rule |" in text
    assert "(paper)" not in text
    write_records(rows, [replace(row, dataset=DATASET) for row in labelled(each=4)])
    theirs = report(run_evaluation(rows, EvaluationSubjects(train=rows)), TFIDF)
    assert "| Llama2-7B (paper) | 0.938 | 0.802 | 0.935 | 0.735 |" in theirs
    parts = found[TFIDF].parts["IsRel"]
    assert set(parts) == set("human derived set0/rule set1/rule".split())
    assert parts["human"].accuracy.n == 4


def test_what_cannot_be_evaluated_is_named_before_a_model_is_asked(tmp_path, rows):
    bad = [row.as_dict() for row in labelled(each=1)]
    at = next(n for n, row in enumerate(bad, 1) if row["group"] == "IsRel")
    bad[at - 1]["evidence"] = {"title": "T", "text": ""}
    write_jsonl(tmp_path / "bad.jsonl", bad)
    one = [row.as_dict() for row in labelled(each=2) if row.label != "Irrelevant"]
    write_jsonl(tmp_path / "one.jsonl", one)
    (tmp_path / "empty.jsonl").write_text("")
    # a folder that is taken for a model, until it is loaded
    (tmp_path / "config.json").write_text("{}")
    empty = rf"bad\.jsonl:{at}: the text of 'evidence' is empty"
    for file, train, out, said in (
        ("bad.jsonl", rows, None, empty),
        (rows, "one.jsonl", None, "IsRel has rows of one label only"),
        ("empty.jsonl", rows, None, "holds no rows"),
        (rows, rows, rows / "x.json", "cannot write"),
    ):
        subjects = EvaluationSubjects(tmp_path, train=tmp_path / train)
        with refused(said):
            run_evaluation(tmp_path / file, subjects, out=out, say=pytest.fail)
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
        dropped = {"evidence": 5} if case.id in ("r1", "r5") else {}
        return CriticPrompt((1,), ((2,), (3,)), dropped)


class World:
    """A folder with rows and two models: which were opened, and how many cases each call asked."""

    def __init__(self, folder):
        self.rows, self.out = folder / "rows.jsonl", folder / "out/figures.json"
        self.journal = folder / "out/figures.json.journal"
        write_records(self.rows, SIX)
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
        found = []
        for case in cases:
            number = int(case.id[1:])
            share = (0.6 if len(cases) == 4 else 0.3) + number / 100
            judgment = Judgment(case.labels, "case", (share, 1 - share), 0.5)
            found.append(None if number == 3 else judgment)
        return found

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
    judgments = written["judgments"]["critic"]
    assert judgments["r2"] == pytest.approx({"Relevant": 0.62, "Irrelevant": 0.38})
    assert judgments["r3"] is None
    assert judgments["r4"]["Relevant"] == pytest.approx(0.34)
    # r0 and r2 are called Relevant and are, r5 Irrelevant; r1 is wrong, r3 has no judgment, r4 is wrong.
    assert written["critics"]["critic"]["groups"]["IsRel"]["accuracy"]["value"] == 0.5
    assert written["critics"]["critic"]["seconds"] == 2.0  # one tick a chunk
    assert written["judgments"][PROMPTED] == judgments
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
    assert world.opened == opened
    assert world.asked == asked
    assert world.out.read_bytes() == whole
    assert list(world.out.parent.iterdir()) == [world.out]


@pytest.mark.parametrize("out", [".", "..", "/"])
def test_a_folder_is_no_place_for_the_result(out):
    with refused("is a folder; name a file"):
        evaluation.journal_of(Path(out))


CHANGES = {
    "rows": lambda world, patch: write_records(world.rows, SIX[:5]),
    "critic": lambda world, _: (world.subjects.critic / "critic.json").write_text("{}"),
    "prompt": lambda _, patch: patch.setattr(
        "critic.teacher.forms.OWN", replace(OWN, forms={})
    ),
    "chunk": lambda world, patch: patch.setattr(evaluation, "CHUNK", 3),
}


@pytest.mark.parametrize("named", CHANGES)
def test_the_journal_of_another_evaluation_is_refused(world, monkeypatch, named):
    world.kill(2)
    before = world.journal.read_bytes()
    CHANGES[named](world, monkeypatch)
    said = rf"journal holds a run with other {named}.*: give the same settings .* remove it"
    with refused(said):
        world.run()
    assert world.opened == []
    assert world.journal.read_bytes() == before
