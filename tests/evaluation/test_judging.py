"""Judges asked about runs: citations, FactScore and MAUVE by hand, real runs, tables that show who judged."""

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from answering import Answering, writing
from json_files import parse_table, read_lines, write_json
from refusals import refused
from scripted import ScriptedReply
from scripted_run import Slow, data_file, finetuned, job
from tiny_judges import Ruled
from written import PROMPTING

from retrieval.passage import Passage
from selfrag.common.atomic import locked_directory
from selfrag.common.errors import MissingExtraError
from selfrag.evaluation.comparison import compare, read_runs
from selfrag.evaluation.items import Item, Output
from selfrag.evaluation.judging import (
    CITATIONS,
    Judged,
    Judges,
    Record,
    facts_judged,
    families,
    judge_citations,
    judge_likeness,
    judge_run,
    read_judged,
    write_judged,
)
from selfrag.evaluation.metrics.alce import as_list_for
from selfrag.evaluation.metrics.factscore import (
    NAMES,
    Fact,
    Facts,
    PromptedSplitter,
    SentenceSplitter,
    check,
    load_splitter,
    parts,
    penalty,
    read_facts,
    read_output,
    write_input,
)
from selfrag.evaluation.metrics.mauve import HiddenStates, as_alce, mauve
from selfrag.evaluation.runner import run
from selfrag.evaluation.tables import csv_text, markdown
from selfrag.evaluation.task_files import read_task
from selfrag.judges.wire import Completion
from selfrag.reflection.requests import Failed

PASSAGES = (
    Passage("good", "The answer is Paris.", "France"),
    Passage("bad", "It rained.", ""),
)
COLUMN = "citation_recall_nli (last word)"


def last_word(**identity):
    """Entailed is what ends in a word of the premise; `?` gives no verdict."""

    def rule(known, said):
        return None if "?" in said else said.split()[-1].strip(".") in known

    return Ruled(rule, "last word", **identity)


def record(text, cited, **fields):
    item = Item(f"q{abs(hash((text, cited))) % 10**6}", "Where is", PASSAGES, **fields)
    output = Output(text, (cited,) if cited else (), segments=((text, cited),))
    return Record(item, output, {one.id: one for one in PASSAGES})


def test_citations_of_long_short_and_listed_answers():
    judge = last_word()
    records = [
        record("In Paris. In Rome.", "good"),
        record("In Paris.", "bad"),
        record("In Paris.", None),
    ]
    found = judge_citations(records, judge, kind="long")
    shares = [(0.5, 1.0), (0.0, 1.0), (0.0, 1.0)]
    for name in ("recall", "precision"):
        assert [*found.parts[f"citation_{name}_nli"].values()] == shares
    assert ("Title: France\nThe answer is Paris.", "In Paris.") in judge.asked
    judge_citations([record("Paris", "good")], judge, kind="short")
    assert judge.asked[-1][1] == "Where is Paris"
    judge_citations([record("Rome, Paris.", "good")], judge, kind="list")
    assert [said for _, said in judge.asked[-2:]] == ["Where is Rome", "Where is Paris"]
    assert as_list_for("Q")(" , ") == []


def test_what_is_left_out_and_what_counts_as_nothing():
    closed = record("B", "good", label="B", options=("x", "y"))
    records = [
        record("Why?", "good"),
        record("", None),
        closed,
        replace(record("x", None), output=None),
    ]
    found = judge_citations(records, last_word(), kind="long")
    assert list(found.parts["citation_f1_nli"].values()) == [
        None,
        (0.0, 1.0),
        None,
        (0.0, 1.0),
    ]
    assert found.undecided == dict.fromkeys(found.parts, 1)


def writes(text):
    return lambda request: ScriptedReply((*PROMPTING.codec.encode(text), 0))


def answered(folder, data, text, **options):
    """A run that answers every question with `text`."""
    system = finetuned(1)
    work = replace(
        job(folder, **options),
        system=system,
        identity={"name": folder.name, "model": {}},
    )
    run(work, [data], lambda: Slow(writes(text), 0.0))
    return folder


@pytest.fixture
def data(tmp_path):
    """Four questions in a real file."""
    row = {"task": "short_qa", "answers": ["Paris"], "gold_passage_ids": ["good"]}
    row["passages"] = [one.as_dict() for one in PASSAGES]
    asked = ("Where is", "Where is", "Where is", "Where is it?")
    rows = [
        {"id": f"q{at}", "instruction": text, **row} for at, text in enumerate(asked)
    ]
    return read_task(data_file(tmp_path, *rows, name="places.jsonl"))


@pytest.fixture
def runs(tmp_path, data):
    """One system that is right and cites a passage that says so, one that is wrong."""
    return [
        answered(tmp_path / name, data, text)
        for name, text in (("right", "Paris"), ("wrong", "Rome"))
    ]


@pytest.fixture
def ask(data):
    """`judge_run` on the items of the file."""
    items = {one.id: one for one in data.items}
    return lambda folder, judges, *only, known=items: judge_run(
        folder, lambda *_: known, judges, *only
    )


def test_figures_of_a_judge_join_those_of_the_run(runs, ask):
    before = (runs[0] / "places.jsonl").read_bytes()
    judge = last_word()
    for folder in runs:
        ask(folder, Judges(judge))
    assert (runs[0] / "places.jsonl").read_bytes() == before
    # two questions, two systems: equal pairs are asked once
    assert len(judge.asked) == 4
    table = compare(read_runs(runs), against="wrong").tables[0]
    right, wrong = (row.figures[COLUMN] for row in table.rows)
    # one verdict is missing
    assert right.value == 1.0
    assert right.n == 3
    assert wrong.value == 0.0
    assert table.rows[0].differences[COLUMN].value == 1.0
    assert (
        f"right, {COLUMN} of places: 1 of 4 failed: a verdict is missing (1)"
        in table.notes
    )
    assert COLUMN in markdown(compare(read_runs(runs)))


def test_two_judges_of_one_name_are_not_compared(runs, ask):
    other = last_word(files={"model.safetensors": "abc"})
    for folder, judge in zip(runs, (last_word(), other), strict=True):
        ask(folder, Judges(judge))
    with refused(
        r"places: citation_f1_nli \(last word\) in .*wrong is of another judge than"
    ):
        read_runs(runs)
    ask(runs[0], Judges(other))
    assert COLUMN in compare(read_runs(runs)).tables[0].metrics
    next(
        runs[0].glob("places.judged.*.json")
    ).unlink()  # a judge that not all runs have is left out
    assert COLUMN not in compare(read_runs(runs)).tables[0].metrics
    assert COLUMN in compare(read_runs(runs[1:])).tables[0].metrics


def test_figures_of_all_items_have_no_interval(runs):
    for folder, value in zip(runs, (0.9, 0.4), strict=True):
        whole = {"mauve": {"value": value, "low": value, "high": value, "texts": 4}}
        write_judged(folder, "places", Judged("gpt2", {}, corpus_figures=whole))
        write_judged(
            folder, "places", Judged("other", {}, corpus_figures={"mauve": None})
        )
    found = compare(read_runs(runs), against="wrong")
    first, second = found.tables[0].rows
    figure = first.figures["mauve (gpt2)"]
    difference = first.differences["mauve (gpt2)"]
    assert figure.value == 0.9
    assert difference.value == pytest.approx(0.5)
    assert figure.low != figure.low
    assert second.figures["mauve (other)"] is None
    for text in (markdown(found), csv_text(found)):
        assert "nan" not in text.lower()


def test_passages_that_a_file_does_not_bring_are_read_from_traces(tmp_path, data, ask):
    bare = {one.id: replace(one, passages=()) for one in data.items}
    kept, lost = (
        answered(tmp_path / str(traces), data, "Paris", traces=traces)
        for traces in (True, False)
    )
    (found,) = ask(kept, Judges(last_word()), known=bare)["places"]
    assert found.parts["citation_recall_nli"]["q0"] == (1.0, 1.0)
    with refused("'good'"):
        ask(lost, Judges(last_word()), known=bare)


def test_figures_of_one_judge_are_in_one_file(runs, data, ask):
    items = {
        one.id: replace(one, claims=("in Paris", "in Oslo"), topic="Paris")
        for one in data.items
    }
    judges = Judges(
        last_word(),
        knowledge=lambda queries, k: [PASSAGES[:k]] * len(queries),
        source={"index": "abc"},
    )
    ask(runs[0], judges, ["citations", "claims", "facts"], known=items)
    facts, own = sorted(
        read_judged(runs[0], "places"), key=lambda one: one.judge, reverse=True
    )
    assert own.judge == "last word"
    assert own.parts["claim_recall"]["q0"] == (0.5, 1.0)
    assert set(own.parts) == {*CITATIONS, "claim_recall"}
    assert facts.judge == "sentences, last word"
    assert facts.parts["factscore_unpenalised"]["q0"] == (1.0, 1.0)
    assert facts.identity["knowledge"] == {"index": "abc"}


def test_damage_is_named_and_what_is_missing_is_asked_for(runs, ask):
    judges = Judges(last_word())
    with locked_directory(runs[0]), refused("another process"):
        ask(runs[0], judges)  # its verdicts would be written into the other's lines
    ask(runs[0], judges)
    (path,) = runs[0].glob("places.judged.*.json")
    records = (runs[0] / "places.jsonl").read_text()
    (runs[0] / "places.jsonl").write_text(records + "\n")
    with refused("is about other records"):
        read_judged(runs[0], "places")
    (runs[0] / "places.jsonl").write_text(records)
    path.write_text(path.read_text()[:-20])
    with refused("judge"):
        read_runs(runs[:1])
    with refused("item 'q0'"):
        ask(runs[0], judges, known={})
    with refused("third; .*places"):
        judge_run(runs[0], lambda *_: {}, judges, only=["third"])
    for wanted, given, message in (
        ("citations", Judges(), "--load-judge"),
        ("claims", Judges(), "--load-judge"),
        ("mauve", Judges(), "--features"),
        ("facts", judges, "--knowledge"),
    ):
        with refused(message):
            ask(runs[0], given, [wanted])
    assert families(["citation_f1_nli", "mauve", "citations"]) == ("citations", "mauve")
    with refused(r"'contains'.*known: citation_recall_nli"):
        families(["contains"])


def test_the_command_asks_a_real_model(
    runs, data, tiny_nli, tmp_path, command, refusal, monkeypatch, caplog
):
    right, wrong = runs
    line = f"selfrag eval judge {right} {wrong} --load-judge nli:{tiny_nli}"
    assert "nli" in command(line)[0]  # who judged
    (judged,) = read_judged(runs[0], "places")
    assert judged.judge == tiny_nli.name
    assert judged.identity["files"]
    assert list(judged.parts["citation_recall_nli"]) == "q0 q1 q2 q3".split()
    # every verdict is on disk: what the judge is is known without its weights
    with monkeypatch.context() as patched:
        patched.setattr(
            "transformers.AutoModelForSequenceClassification.from_pretrained", None
        )
        command(f"{line} --metric claims")
    (later,) = read_judged(runs[0], "places")  # beside the citations
    assert later.parts == judged.parts | {"claim_recall": later.parts["claim_recall"]}
    write_judged(runs[0], "places", replace(later, identity={}, parts={}))
    assert "replaced " in caplog.text
    assert read_judged(runs[0], "places")[0].parts == {}
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    data.path.rename(moved / data.path.name)
    assert "--data" in refusal(line)
    command(f"{line} --data {moved}")
    nobody = refusal(f"selfrag eval judge {right} --data {moved}")
    assert "--load-judge: true, nli:MODEL" in nobody


# FactScore


def facts(*supported):
    return Facts(tuple(Fact(f"fact {at}", one) for at, one in enumerate(supported)))


def test_the_score_by_hand():
    # 3 of 4 facts, and exp(1 - 10 / 4) for so few.
    values = (0.75 * math.exp(-1.5), 0.75, 4.0, 1.0)
    found = parts(facts(True, True, False, True))
    assert [*found.values()] == [pytest.approx((value, 1.0)) for value in values]
    assert penalty(9) == math.exp(1 - 10 / 9)
    assert penalty(10) == 1.0
    assert penalty(11) == 1.0
    # Abstentions and failed items count as such only, missing verdicts nowhere.
    nothing = dict.fromkeys(NAMES)
    assert parts(Facts()) == parts(None) == nothing | {"responds": (0.0, 1.0)}
    assert parts(facts(True, None)) == parts(Facts(failed="no list")) == nothing


BIOS = [
    Item(f"q{at}", f"Tell me a bio of {name}", topic=name)
    for at, name in enumerate(["Ann", "Bob", "Eve"])
]


def test_the_official_tool_reads_our_file_and_we_read_its_own(tmp_path):
    outputs = {
        "q0": Output("Ann wrote. Ann died."),
        "q1": Output("I do not know."),
        "q2": None,
    }
    assert write_input(tmp_path / "in.jsonl", BIOS, outputs) == 3
    rows = read_lines(tmp_path / "in.jsonl")
    wanted = [("Ann", "Ann wrote. Ann died."), ("Bob", ""), ("Eve", "")]
    assert [(row["topic"], row["output"]) for row in rows] == wanted
    out = tmp_path / "in_factscore_output.json"
    out.write_text("""{"score": 0.1, "respond_ratio": 0.33, "decisions": [
        [{"atom": "Ann wrote.", "is_supported": true}, {"atom": "Ann died.", "is_supported": 0}], null, null]}""")
    found = read_output(out, BIOS)
    known = Facts((Fact("Ann wrote.", True), Fact("Ann died.", False)))
    assert [*found.values()] == [known, Facts(), Facts()]
    records = [Record(item, outputs[item.id], {}) for item in BIOS]
    judged = facts_judged(records, found, "official", {}).parts
    assert [*judged["factscore_unpenalised"].values()] == [(0.5, 1.0), None, None]
    assert [*judged["responds"].values()] == [(1.0, 1.0), (0.0, 1.0), (0.0, 1.0)]
    with refused("no output for item 'q1'"):
        write_input(tmp_path / "in.jsonl", BIOS, {"q0": None})
    for content, message in parse_table(r"""
"[]" | has no 'decisions'
"{\"decisions\": [null]}" | on 1 answer, the file 3 items
"{\"decisions\": [[{\"atom\": \"x\", \"is_supported\": \"yes\"}], null, null]}" | neither true nor false
"{\"decisions\": [[\"x\"], null, null]}" | are none
"""):
        out.write_text(content)
        with refused(message):
            read_output(out, BIOS)


def test_the_official_tool_between_two_commands(runs, data, tmp_path, command, refusal):
    line, given = f"selfrag eval facts {runs[0]} places", tmp_path / "in.jsonl"
    assert "--write FILE.jsonl" in refusal(line)
    assert "item 'q0' has no 'topic'" in refusal(f"{line} --write {given}")
    rows = [row | {"topic": "Paris"} for row in read_lines(data.path)]
    file = read_task(data_file(tmp_path, *rows, name="places.jsonl"))
    folder = answered(tmp_path / "bios", file, "Paris")
    line = f"selfrag eval facts {folder} places"
    command(f"{line} --write {given}")
    assert read_lines(given)[0]["topic"] == "Paris"
    decisions = [[{"atom": "x", "is_supported": at < 3}] * 11 for at in range(4)]
    write_json(tmp_path / "out.json", {"decisions": decisions})
    command(f"{line} --read {tmp_path}/out.json")
    assert "give --replace" in refusal(f"{line} --read {tmp_path}/out.json")
    command(f"{line} --read {tmp_path}/out.json --replace")
    (row,) = compare(read_runs([folder])).tables[0].rows
    score, count = (
        row.figures[f"{name} (factscore.factscorer)"] for name in ("factscore", "facts")
    )
    assert score.value == 0.75
    assert count.value == 11.0


def test_splitting():
    found = read_facts("Sure:\n- Ann wrote.\n  * Ann died.\n2. Ann lived. \n\n-no\n")
    assert found == ("Ann wrote.", "Ann died.", "Ann lived.")
    assert load_splitter("sentences").split(["Ann wrote [1]. Ann died.", ""]) == [
        ("Ann wrote.", "Ann died."),
        (),
    ]
    prompted = PromptedSplitter(
        writing("- Ann wrote.\n- Ann was kind."), "facts by m", {"model": "m"}
    )
    two = ("Ann wrote.", "Ann was kind.")
    assert prompted.split(["Ann, who was kind, wrote.", "", "Ann sang. Bob died."]) == [
        two,
        (),
        two * 2,
    ]
    assert PromptedSplitter(writing("Ann wrote."), "facts by m", {}).split(
        ["Ann wrote."]
    ) == [None]

    def fails(request):
        return (
            Failed("gone")
            if "rained" in request.prompt.messages[0].content
            else Completion("- fact")
        )

    assert PromptedSplitter(Answering(fails), "facts by m", {}).split(
        ["Ann. It rained.", "Ann."]
    ) == [None, ("fact",)]


def test_facts_are_looked_up_under_their_topic():
    def search(queries, k):
        return [
            [Passage("p", "Ann wrote", "Ann")][:k] if query.startswith("Ann ") else []
            for query in queries
        ]

    judge = Ruled(lambda known, said: set(said.split()) <= set(known.split()))
    said = ["Ann wrote\n\nAnn died", "Ann wrote", ""]
    found = check(said, ["Ann", "Bob", "Eve"], SentenceSplitter(), search, judge)
    assert found == [
        Facts((Fact("Ann wrote", True), Fact("Ann died", False))),
        Facts((Fact("Ann wrote", False),)),  # nothing is found on Bob
        Facts(),
    ]
    assert judge.asked == [
        ("Title: Ann\nAnn wrote", "Ann wrote"),
        ("Title: Ann\nAnn wrote", "Ann died"),
    ]


# MAUVE


class Drawn:
    """Vectors by hand: `a..` near one corner, everything else near another, with a little seeded noise."""

    name = "drawn"

    def identity(self):
        return {"kind": "drawn"}

    def embed(self, texts):
        noise = np.random.default_rng(len(texts)).normal(
            scale=0.01, size=(len(texts), 4)
        )
        return noise + [
            [1.0, 0, 0, 0] if text.startswith("a") else [0, 1.0, 0, 0] for text in texts
        ]


def test_equal_sets_score_high_disjoint_ones_low_and_few_texts_have_no_figure(
    monkeypatch,
):
    pytest.importorskip("mauve")
    pytest.importorskip("faiss")
    mixed = [("a" if at % 2 else "b") + str(at) for at in range(40)]
    same = mauve(mixed, mixed[::-1], Drawn(), seeds=(1, 2))
    other = mauve(["a"] * 40, ["b"] * 40, Drawn(), seeds=(1, 2))
    assert 0.95 < same.low <= same.value <= same.high <= 1.0
    assert other.value < 0.05
    assert same.texts == 40
    assert same.features == "drawn"
    assert mauve(["a"] * 20, ["b"] * 10 + [" "] * 10, Drawn()) is None
    records = [
        Record(Item(f"q{at}", "", references=("a", "b")), Output("a"), {})
        for at in range(20)
    ]
    assert (judge_likeness(records, Drawn()).corpus_figures["mauve"] or {})[
        "texts"
    ] == 20
    assert judge_likeness(records[:19], Drawn()).corpus_figures == {"mauve": None}
    with refused("2 human texts for 1"):
        mauve(["a", "b"], ["a"], Drawn())
    monkeypatch.setitem(sys.modules, "mauve", None)
    with pytest.raises(
        MissingExtraError, match=r"mauve is not installed; run: .*mauve"
    ):
        mauve(["a"] * 20, ["b"] * 20, Drawn())


def test_answers_are_judged_as_alce_prepares_them(monkeypatch):
    assert as_alce("q", "w " * 200) == "q" + " w" * 99
    seen = []
    monkeypatch.setattr(
        "selfrag.evaluation.judging.mauve",
        lambda human, said, features: seen.extend((human, said)),
    )
    item = Item("q", "what", query="who?", references=("Ann did.\nIn May.!", "second"))
    texts = ("Ann did [1], in May [2][3].\nQuestion: what?", "[1]", " ")
    judge_likeness(
        [*(Record(item, Output(text), {}) for text in texts), Record(item, None, {})],
        Drawn(),
    )
    assert seen == [["who? Ann did. In May"], ["who? Ann did, in May"]]


def test_features_are_the_last_states_and_those_of_mauve_text_whatever_the_batch(
    tiny_gpt2,
):
    torch = pytest.importorskip("torch")
    made = HiddenStates.load(str(tiny_gpt2))
    texts = [
        "The capital of France is Paris.",
        "Water",
        "In 1969 two people walked on the Moon.",
    ]
    found = made.embed(texts)
    tokens = [made.tokenizer(text, return_tensors="pt").input_ids for text in texts]
    with torch.inference_mode():
        states = [made.model(ids).last_hidden_state[0, -1].numpy() for ids in tokens]
    assert found == pytest.approx(np.array(states), abs=1e-4)
    one_by_one = HiddenStates(
        made.model, made.tokenizer, made.source, made.files, 1
    ).embed(texts)
    assert one_by_one == pytest.approx(found, abs=1e-4)
    with refused("empty text"):
        made.embed([""])
    utils = pytest.importorskip("mauve.utils")
    theirs = utils.featurize_tokens_from_model(made.model, tokens, 2, "p")
    assert found == pytest.approx(theirs.numpy(), abs=1e-4)
