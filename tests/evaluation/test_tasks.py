"""Tasks: kinds by fields, strict reading, published ones with wordings byte for byte, files of public originals."""

import gzip
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from json_files import read_json
from loopback import Answering, loopback
from refusals import refused
from scripted_run import data_file as write
from table5 import CHOOSE, CITE, CLAIM

from retrieval.passage import Passage
from selfrag.cli.main import main
from selfrag.decoding.policy import Decoding
from selfrag.evaluation import public_data
from selfrag.evaluation.items import Item, choices
from selfrag.evaluation.presets import COLUMNS, PRESETS, Given, preset, rows
from selfrag.evaluation.public_data import ROWS, Original, make, public_sets
from selfrag.evaluation.task import (
    BIOGRAPHY,
    CLOSED,
    LIST,
    LONG,
    SET_BY_TASK,
    SHORT,
    task_of,
)
from selfrag.evaluation.task_files import read_task, read_tasks, save_rows, searched
from selfrag.reflection.weights import Weights
from selfrag.render.tables import compact

ROW = {
    "id": "a",
    "task": "short_qa",
    "instruction": "who?",
    "answers": ["Ann"],
}
CHOICE = {
    "id": "c",
    "task": "multiple_choice",
    "instruction": "Choose.\n\n## Input:\n\nWhich?\nA: x\nB: y",
    "answers": ["B", "y"],
    "label": "B",
    "options": ["x", "y"],
}
ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data" / "eval" / "dev"


def closed(label, *options):
    return Item("q", "?", label=label, options=options)


def test_a_label_names_an_option_by_text_letter_or_number():
    assert choices(closed("true", "true", "false")).surfaces == ("true", "false")
    assert choices(closed("B", "x", "y", "z")).surfaces == ("A", "B", "C")
    assert choices(closed("2", "x", "y")).surfaces == ("1", "2")


@pytest.mark.parametrize("label", ["D", "4", "maybe", "0"])
def test_defect_28_a_label_out_of_range_is_refused(label):
    with refused(f"label '{label}' is none of"):
        choices(closed(label, "x", "y", "z"))


def test_the_kind_follows_from_the_fields():
    words, sets = " ".join(["word"] * 11), (("a",), ("b",))
    known = {
        closed("A", "x", "y"): CLOSED,
        Item("q", "?", task="short_qa_multihop", references=(words,)): SHORT,
        Item("q", "?", task="long_form", references=("x",)): LONG,
        Item("q", "?", task="something", references=("two words",)): SHORT,
        Item("q", "?", task="something", references=(words,)): LONG,
        Item("q", "?", task="x", references=("a", "b"), answer_sets=sets): LIST,
        Item("q", "?", task="long_qa", references=("a", "b"), answer_sets=sets): LONG,
        Item("q", "?", task="x", topic="Ann"): BIOGRAPHY,
    }
    assert {item: task_of(item) for item in known} == known


def test_a_file_is_read_with_its_kind_and_a_seeded_sample_in_order(
    tmp_path,
):
    path = write(tmp_path, *(ROW | {"id": f"q{i}"} for i in range(20)))
    file = read_task(path, limit=5, seed=3)
    assert (file.name, file.task, file.rows, len(file.items)) == ("set", SHORT, 20, 5)
    numbers = [int(item.id[1:]) for item in file.items]
    assert numbers == sorted(numbers)
    assert file.items == read_task(path, limit=5, seed=3).items
    assert file.items != read_task(path, limit=5, seed=4).items


def test_fields_of_a_row_reach_the_item_and_metrics_the_task(tmp_path):
    passages = [{"id": f"p{i}", "title": f"T{i}", "text": "x"} for i in range(3)]
    given = {
        "claims": ["Ann paints."],
        "topic": "Ann",
        "passages": passages,
        "support": ["T2", "T0"],
    }
    file = read_task(
        write(tmp_path, ROW | {"task": "trivia", "metrics": ["f1", "str_em"]} | given)
    )
    (item,) = file.items
    assert (item.claims, item.topic, item.gold) == (
        ("Ann paints.",),
        "Ann",
        {"p0", "p2"},
    )
    assert item.answers == ("Ann",)  # of an unknown kind of short answers, too
    assert [metric.name for metric in file.task.metrics] == ["f1", "str_em"]
    assert (file.task.headline, file.task.kind, file.task.new_tokens) == (
        "f1",
        SHORT.kind,
        SHORT.new_tokens,
    )


@pytest.mark.parametrize(
    "rows, message",
    [
        ([ROW, ROW], r"set.jsonl:2: id 'a' occurs twice"),
        ([ROW, CHOICE], r"set.jsonl:2: kind closed after rows of kind short"),
        ([ROW | {"answers": []}], r"set.jsonl:1: no gold answer"),
        ([ROW | {"answers": ["Ann", " "]}], r"set.jsonl:1: 'answers' has a blank text"),
        ([CHOICE | {"label": "C"}], r"set.jsonl:1: label 'C' is none of A, B"),
        (
            [CHOICE, CHOICE | {"id": "d", "options": ["x", "x"]}],
            r"set.jsonl:2: .*equal",
        ),
        (
            [CHOICE | {"options": [str(n) for n in range(30)]}],
            r"set.jsonl:1: .*30 options, and letters name 26",
        ),
        (
            [{"id": "x", "kind": "short_qa", "instruction": "who?"}],
            r"set.jsonl:1: unknown kind of row",
        ),
        (
            [ROW | {"passages": [{"id": "p", "text": "x"}] * 2}],
            r"set.jsonl:1: two passages have one id",
        ),
        ([], r"set.jsonl: no rows"),
        (
            [ROW | {"metrics": ["bleu"]}],
            r"set.jsonl:1: unknown metric 'bleu'; all are in docs/",
        ),
        (
            [ROW | {"passages": [{"id": "p", "text": "x"}]}, ROW | {"id": "b"}],
            r"set.jsonl:2: no passages, though",
        ),
        (
            [ROW, ROW | {"id": "b", "metrics": ["f1"]}],
            r"set.jsonl:2: 'metrics' differ from those of the first row",
        ),
        (
            [ROW | {"task": "x", "answers": [["a"], ["b"]]}, ROW | {"id": "b"}],
            r"set.jsonl:2: kind short after .* list",
        ),
    ],
)
def test_bad_files_are_named_by_line(tmp_path, rows, message):
    with refused(message):
        read_task(write(tmp_path, *rows))


def test_passages_are_searched_for_items_without_any_by_their_question(
    tmp_path,
):
    own = {"passages": [{"id": "own", "title": "", "text": "x"}]}
    given = (
        CHOICE,
        CHOICE | {"id": "d"} | own,
        CHOICE | {"id": "e", "question": "Which one?"},
    )
    file = read_task(write(tmp_path, *given), searched=True)
    asked = []

    def search(queries, k):
        asked.extend(queries)
        return [[Passage(f"found-{k}", "text")] for _ in queries]

    found = searched(file.items, search, 7)
    assert asked == ["Which?\nA: x\nB: y", "Which one?"]
    assert [item.passages[0].id for item in found] == ["found-7", "own", "found-7"]


@pytest.mark.skipif(
    not SHARED.is_dir(),
    reason="the given evaluation files are not beside this checkout",
)
def test_the_given_files_are_read():
    kinds = {
        file.name: (file.task.kind, file.rows)
        for file in read_tasks(sorted(SHARED.glob("*.jsonl*")))
    }
    assert kinds == {
        "arc_c": ("closed", 600),
        "clapnq_dev": ("long", 280),
        "fever_symmetric": ("closed", 712),
        "hotpot_dev": ("short", 244),
        "nq_dev": ("short", 589),
        "truthfulqa_mc": ("closed", 816),
    }


# Published tasks


FILES = read_json(Path(__file__).with_name("preset_samples.json"))
"""A row of the public file of each preset."""
QAMPARI = FILES["qampari original"]


def read(path, name, protocol="paper", **options):
    return read_task(Given(path, preset(name), protocol), **options).items


@pytest.mark.parametrize(
    "name, row, wanted",
    [
        (
            "popqa",
            {},
            {
                "id": "4222362",
                "answers": ("painter", "artist"),
                "query": "What is she?",
            },
        ),
        ("triviaqa", {}, {"id": "row-1", "answers": ("Ann Roe", "A. Roe")}),
        ("pubhealth", {}, {"label": "false", "options": ("true", "false")}),
        ("arc-challenge", {}, {"label": "B", "options": ("Ice", "The sun", "Snow")}),
        ("biographies", {}, {"topic": "Ann Roe", "query": "Ann Roe", "references": ()}),
        (
            "asqa",
            {},
            {
                "answer_sets": (("Ann", "Ann Roe"), ("Bob",)),
                "references": ("Ann and Bob.", "Bob."),
            },
        ),
        ("qampari", {}, {"answer_sets": (("Jaws",), ("Duel", "The Duel"))}),
        (
            "qampari",
            QAMPARI,
            {
                "id": QAMPARI["qid"],
                "answer_sets": (("Jaws", "jaws"),),
                "query": "Which films?",
            },
        ),
    ],
)
def test_a_row_of_a_public_file_is_an_item(tmp_path, name, row, wanted):
    (item,) = read(write(tmp_path, row or FILES[name]), name, searched=True)
    assert {key: getattr(item, key) for key in wanted} == wanted


def test_passages_have_ids_and_a_protocol_keeps_the_first(tmp_path):
    (popqa,), (asqa,) = (
        read(write(tmp_path, FILES[name]), name) for name in ("popqa", "asqa")
    )
    assert [(p.id, p.title) for p in popqa.passages] == [("7", "Ann"), ("p2", "Web")]
    assert [p.id for p in asqa.passages] == ["9", "9#2", "9#3", "9#4", "9#5"]
    many = write(
        tmp_path, FILES["biographies"] | {"ctxs": [{"text": str(n)} for n in range(12)]}
    )
    assert [
        len(read(many, "biographies", how)[0].passages) for how in ("paper", "official")
    ] == [10, 5]
    wrapped = tmp_path / "b.json.gz"  # one array is read as lines are
    wrapped.write_bytes(
        gzip.compress(json.dumps({"data": [FILES["asqa"]], "args": []}).encode())
    )
    assert read(wrapped, "asqa") == (asqa,)


OPTIONS = "\nA: Ice\nB: The sun\nC: Snow"
STATED = "Is the following statement correct or not? Say true if it's correct; otherwise say false."
CANDIDATES = (
    "Given four answer candidates, A, B, C and D, choose the best answer choice."
)
LISTED = "Answer the following question with a list of all correct answers, separated by commas."
AMBIGUOUS = (
    "Answer the following question. The question may be ambiguous and have multiple correct answers, and in that"
    " case, you have to provide a long-form answer including all correct answers."
)
ASKED = {
    "popqa": {"": "What is she?"},
    "triviaqa": {"": "Who painted it?"},
    "pubhealth": {
        "": f"{STATED}\n\n## Input:\n\nTea cures.",
        "table-5": f"{CLAIM}\n\n## Input:\n\nTea cures.",
        "baseline": f"{CLAIM}\n\n### Input:\nTea cures.",
        "baseline-scored": f"{CLAIM}\n\n### Input:\nTea cures.",
    },
    "arc-challenge": {
        "": f"{CHOOSE}\n\n### Input:\nWhat is hot?{OPTIONS}",
        "paper": f"{CANDIDATES}\n\n## Input:\n\nWhat is hot?{OPTIONS}",
        "table-5": f"{CHOOSE}\n\n## Input:\n\nWhat is hot?{OPTIONS}",
        "official": f"{CANDIDATES}\n\n### Input:\nWhat is hot?{OPTIONS}\nD: ",
    },
    "biographies": {
        "": "Tell me a bio about Ann Roe",
        "official": "Question: Tell me a bio of Ann Roe.",
    },
    "asqa": {
        "paper": f"{AMBIGUOUS}\n\n## Input:\n\nWho has the record?",
        "official": f"{AMBIGUOUS}## Input:\n\nWho has the record?",
        "baseline": f"{CITE}\n\n### Input:\nWho has the record?",
    },
    "qampari": {
        "paper": f"{LISTED}\n\n## Input:\n\nWhich films?",
        "baseline": f"{LISTED}\n\n### Input:\nWhich films?",
    },
}
"""What the protocols of a task ask word for word; under no name all others of its protocols."""


@pytest.mark.parametrize("name", PRESETS)
def test_the_wording_of_a_protocol_byte_for_byte(tmp_path, name):
    """Nothing of ours is said; tests of the paper's table see the whole prompts."""
    path = write(tmp_path, FILES[name])
    for how in PRESETS[name].protocols:
        file = read_task(Given(path, preset(name), how))
        marked = (
            file.name,
            file.task.as_dict()["preset"],
            file.task.kind,
            file.task.hint,
        )
        assert marked == (name, f"{name}/{how}", PRESETS[name].kind, "")
        assert file.items[0].instruction == ASKED[name].get(how, ASKED[name].get(""))


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("popqa", {"id": 4222362}, "id '4222362' occurs twice, first in row 1"),
        ("popqa", {"possible_answers": "[]"}, "'possible_answers' is empty"),
        (
            "popqa",
            {"possible_answers": '[" "]'},
            "'possible_answers' has a blank answer",
        ),
        (
            "popqa",
            {"possible_answers": None},
            "no 'answers' or 'possible_answers' or 'answer'",
        ),
        ("popqa", {"ctxs": []}, "no passages: 'ctxs' or 'docs' is missing or empty"),
        ("popqa", {"ctxs": [{"title": "T"}]}, "passage 1 of 'ctxs' needs a 'text'"),
        ("popqa", {"id": True}, "'id' must be a name or a whole number"),
        (
            "popqa",
            {"possible_answers": [1]},
            "'possible_answers' must be a list of texts",
        ),
        ("popqa", {"question": None}, "no row of questions, which has .*"),
        ("pubhealth", {"answers": ["mixture"]}, "'answers' must be true or false"),
        (
            "arc-challenge",
            {"answerKey": "5"},
            "'answerKey' '5' is none of the labels 1, 2, 3",
        ),
        (
            "arc-challenge",
            {"choices": {"text": ["a"], "label": ["A", "B"]}},
            "lists of different lengths",
        ),
        (
            "arc-challenge",
            {"choices": {"text": ["a", "a"], "label": ["1", "2"]}},
            "two options are equal",
        ),
        (
            "arc-challenge",
            {"choices": None, "answers": ["x"]},
            "no row of choices, .*; it looks like one of ",
        ),
        (
            "arc-challenge",
            {"choices": {"text": ["a"] * 27, "label": [*map(str, range(27))]}},
            "27 choices, and letters",
        ),
        ("asqa", {"qa_pairs": []}, "'qa_pairs' is empty"),
        ("qampari", {"answers": [[]]}, "'answers' is empty"),
        ("qampari", {"answers": []}, "'answers' is empty"),
        (
            "qampari",
            {"answers": ["Jaws"]},
            "'answers' must be a list of lists of texts",
        ),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, name, change, message):
    changed = FILES[name] | {"id": "b", "sample_id": "b"} | change
    second = {key: value for key, value in changed.items() if value is not None}
    with refused(rf"set\.jsonl:2: .*{message}"):
        read(write(tmp_path, FILES[name], second), name)


def test_a_row_of_an_array_must_be_an_object(tmp_path):
    (tmp_path / "x.json").write_text("[3]")
    with refused("x.json: row 1: .*not int"):
        read(tmp_path / "x.json", "triviaqa")


def test_settings_are_the_policy_where_it_differs_from_the_defaults():
    """Algorithm 1 line 6: the critiques at every segment. Eq. 3: an option's critique is added to its probability."""
    assert preset("popqa").settings() == {"passages": 10, "undefined": "force"}
    closed = {"segment_tokens": 50, "undefined": "force", "aggregate": "sum"}
    assert (
        preset("pubhealth").settings()
        == preset("arc-challenge").settings("table-5")
        == closed
    )
    long = {
        "threshold": 0.0,
        "segment_tokens": 300,
        "undefined": "force",
        "keep_evidence": "below_threshold",
    }
    assert preset("asqa").settings() == long
    official = preset("asqa").settings("official")
    assert (official["mode"], official["weights"], official["likelihood"]) == (
        "always",
        Weights(isuse=0.0),
        "none",
    )
    short = preset("popqa").settings("official")
    assert (short["retrieve_test"], short["undefined"], short["weights"]) == (
        "log_ratio",
        "zero",
        Weights(isuse=1.0),
    )
    budgets = [
        (one.new_tokens, one.segments)
        for one in map(preset("asqa").task, preset("asqa").protocols)
    ]
    assert budgets == [(1024, 7), (1800, 6), (100, 1)]
    written = preset("pubhealth").task("baseline")
    scored = preset("pubhealth").task("baseline-scored")
    assert (written.headline, written.new_tokens, written.written) == (
        "option_match",
        50,
        True,
    )
    assert (scored.headline, scored.written) == ("accuracy", False)
    for what in PRESETS.values():
        for name, how in what.protocols.items():
            if how.decoding is not None:
                budget = {key: getattr(how.decoding, key) for key in SET_BY_TASK}
                rebuilt = Decoding(**what.settings(name), **budget)
                assert rebuilt == how.decoding, (what.name, name)


def test_what_a_command_line_names(tmp_path):
    assert Given.parse("a/b.jsonl") == Given(Path("a/b.jsonl"))
    assert Given.parse("popqa=x=y.jsonl") == Given(Path("x=y.jsonl"), preset("popqa"))
    assert Given.parse("asqa/official=f.json") == Given(
        Path("f.json"), preset("asqa"), "official"
    )
    own = tmp_path / "popqa=x.jsonl"
    own.touch()
    assert Given.parse(str(own)).preset is None
    with refused("two files are called popqa"):
        read_tasks(
            [Given.parse("popqa=a.jsonl"), Given.parse("popqa/official=b.jsonl")]
        )


def test_tasks_are_described_and_the_page_has_their_table(
    capsys,
):
    assert main(["eval", "tasks"]) == main(["eval", "tasks", "asqa"]) == 0
    shown = capsys.readouterr().out
    assert r"correct answers.## Input:\n\nQUESTION'" in shown
    assert "str_em: 30.0 (7b), 31.7 (13b)" in shown
    page = (ROOT / "docs" / "guides" / "tasks.md").read_text(encoding="utf-8")
    assert re.search(r"<!-- tasks -->\n(.*?)<!-- /tasks -->", page, flags=re.S)[
        1
    ] == compact(COLUMNS, rows())


# Development files from public originals

NQ = {
    "question": "who",
    "answers": ["Ann"],
    "ctxs": [{"title": "A", "text": "It was Ann.", "isgold": True}],
}


def test_rows_are_made_as_measured():
    def made(name, *raws, selection=""):
        return list(ROWS[name](raws, selection.split()))

    asked = "Please choose the correct answer to the question: How will it roll?"
    listed = "Answer1: slower Answer2: faster Answer3: as fast\n\nAnswer format: answer1/answer2/answer3"
    (choice,) = made(
        "arc_c", {"instruction": f"{asked}\n\n{listed}", "answer": "answer2"}
    )
    head = "Given three answer candidates, A, B and C, choose the best answer choice.\n\n## Input:\n\n"
    assert (
        choice["instruction"]
        == head + "How will it roll?\nA: slower\nB: faster\nC: as fast"
    )
    assert (choice["label"], choice["answers"]) == ("B", ["B", "faster"])
    assert choice["options"] == ["slower", "faster", "as fast"]
    given = {
        "question": "Will it?",
        "mc1_targets": {"No.": 1, "Yes.": 0, "Maybe.": 0},
        "mc2_targets": {"No.": 1},
    }
    # one is left out, options are shuffled
    (truth,) = made("truthfulqa_mc", given, given, selection="- cab")
    assert (truth["id"], truth["options"], truth["label"]) == (
        "truthfulqa-1",
        ["Maybe.", "No.", "Yes."],
        "B",
    )
    assert truth["mc2"] == {"No.": 1}
    evidence = {
        "id": "7",
        "claim": "It is French .",
        "evidence": "It is a French film .",
        "label": "REFUTES",
    }
    (claim,) = made("fever_symmetric", evidence)
    assert claim["label"] == "false"
    assert claim["instruction"].endswith("## Input:\n\nIt is French .")
    assert claim["passages"] == [
        {"id": "feversym-7-e", "title": "", "text": "It is a French film ."}
    ]
    passage = {
        "title": "T",
        "text": "Because . It is .",
        "sentences": ["Because .", "It is ."],
    }
    output = {"answer": "Because it is.", "selected_sentences": ["Because ."]}
    answered = {
        "id": "-3",
        "input": "why is it so",
        "passages": [passage],
        "output": [output],
    }
    empty = {
        **answered,
        "id": "4",
        "output": [{"answer": " ", "selected_sentences": []}],
    }
    # in the selected order
    nothing, long = made("clapnq_dev", answered, empty, selection="4 -3")
    assert (nothing["label"], nothing["answers"], nothing["gold_passage_ids"]) == (
        "unanswerable",
        [],
        [],
    )
    assert (long["label"], long["answers"]) == ("answerable", ["Because it is."])
    assert long["support"] == [{"passage_id": "clapnq-p-3", "sentences": ["Because ."]}]
    (gold,) = made("nq_gold", {}, NQ, selection="1")
    assert (gold["id"], gold["answers"], gold["gold_passage_ids"]) == (
        "nq-1",
        ["Ann"],
        ["nq-1-gold"],
    )


@pytest.fixture
def small(monkeypatch, tmp_path):
    """`nq_gold` of one question, whose original lies in a folder."""
    content = gzip.compress(json.dumps(NQ).encode(), mtime=0)
    original = Original(
        "owner/name", "abc", "qa/nq.jsonl.gz", hashlib.sha256(content).hexdigest()
    )
    made = "".join(map(public_data.json_line, ROWS["nq_gold"]([NQ], ["0"])))
    checksum = hashlib.sha256(made.encode()).hexdigest()
    one = replace(
        public_sets()["nq_gold"], originals=(original,), sha256=checksum, selection="0"
    )
    monkeypatch.setattr(public_data, "public_sets", lambda: {"nq_gold": one})
    monkeypatch.setenv("SELFRAG_CACHE", str(tmp_path / "cache"))
    (tmp_path / "nq.jsonl.gz").write_bytes(content)
    return tmp_path / "nq.jsonl.gz"


def test_a_file_is_made_from_a_folder(small, tmp_path, command, refusal, monkeypatch):
    line = f"selfrag data make nq_gold --from {tmp_path} -o {tmp_path}/dev"
    for content, said in (
        (None, "holds no nq.jsonl.gz; get it from https://raw"),
        (b"\xff\x00", "has SHA-256 "),
    ):
        original = small.read_bytes()
        small.unlink() if content is None else small.write_bytes(content)
        assert said in refusal(line)
        assert not (tmp_path / "dev").exists()
        small.write_bytes(original)
    shown, _ = command(line)
    file = read_task(Path(shown.strip()))
    assert (file.task.kind, file.items[0].answers) == ("short", ("Ann",))
    monkeypatch.setitem(ROWS, "nq_gold", lambda raws, selection: [{"id": "other"}])
    assert "came out other" in refusal(f"{line} --replace")


def test_originals_are_downloaded_once_and_checked(small, tmp_path, monkeypatch):
    served = {"/owner/name/abc/qa/nq.jsonl.gz": b"another file"}
    asked = []

    class Original(Answering):
        def do_GET(self):
            asked.append(self.path)
            self.answer(200, served[self.path])

    server = loopback(Original)
    monkeypatch.setattr(public_data, "HOST", server.url)
    with refused("gave another file"):
        make("nq_gold", tmp_path / "dev")
    served[asked[0]] = small.read_bytes()
    first = make("nq_gold", tmp_path / "dev").read_bytes()
    assert make("nq_gold", tmp_path / "dev").read_bytes() == first
    assert len(asked) == 2
    server.stop()
    monkeypatch.setenv("SELFRAG_CACHE", str(tmp_path / "empty"))
    with refused(r"http://127.*--from"):
        make("nq_gold", tmp_path / "dev")


SIMPLE = {
    "qa.csv": (
        'question,answer\nWho?,Ann\n"Where, then?","Rome, Italy"\n',
        [("row-1", "Who?", ("Ann",)), ("row-2", "Where, then?", ("Rome, Italy",))],
    ),
    "more.tsv": (
        "ID\tQuestion\tAnswer\tnote\n7\tWho?\tAnn\tx\n",
        [("7", "Who?", ("Ann",))],
    ),
    "rows.jsonl": (
        '{"question": "Who?", "answer": ["Ann", "Anna"]}\n',
        [("row-1", "Who?", ("Ann", "Anna"))],
    ),
    "squad.jsonl": (
        '{"id": "s", "question": "Who?", "context": "c", "answers": {"text": ["Ann"], "answer_start": [0]}}\n',
        [("s", "Who?", ("Ann",))],
    ),
    "trivia.json": (
        '[{"question": "Who?", "answer": {"value": "Ann", "aliases": ["Anna"]}}]',
        [("row-1", "Who?", ("Ann", "Anna"))],
    ),
}


@pytest.mark.parametrize("name", SIMPLE)
def test_issue_50_rows_of_a_question_and_its_answer(tmp_path, name):
    """At 2d68d6f3: "unknown kind of row: key 'task' is missing", or no JSON."""
    text, expected = SIMPLE[name]
    file = tmp_path / name
    file.write_text(text)
    read = read_task(file)
    assert (read.name, read.task) == (
        file.stem if file.suffix != ".json" else file.name,
        SHORT,
    )
    assert [
        (item.id, item.instruction, item.answers) for item in read.items
    ] == expected


@pytest.mark.parametrize(
    "name, text, said",
    [
        (
            "a.csv",
            "question,reply\nWho?,Ann\n",
            "the header must name the columns question and answer; found: question, reply",
        ),
        ("a.csv", "", "the header must name"),
        ("a.csv", "question,answer\n", "no rows"),
        (
            "a.csv",
            "question,answer\nWho?\n",
            "a.csv:2: 1 field where the header has 2",
        ),
        ("a.csv", "question,answer\nWho?,Ann\nWhen?,\n", "line 3: no answer"),
        ("a.csv", "question,answer\n ,Ann\n", "line 2"),
        ("a.jsonl", '{"question": "Who?"}', "a.jsonl:1: no answer"),
        ("a.jsonl", '{"question": 5, "answer": "x"}', "a.jsonl:1: "),
        ("a.jsonl", '{"question": "Who?", "answer": 5}', "a.jsonl:1: "),
        ("a.jsonl", '{"question": "Who?", "answer": {"x": 1}}', "no answer"),
        ("a.jsonl", '{"query": "Who?"}', "unknown kind of row"),
    ],
)
def test_bad_rows_of_questions_are_one_line(tmp_path, name, text, said):
    file = tmp_path / name
    file.write_text(text)
    with refused(re.escape(said)):
        read_task(file)


def test_issue_50_data_sets_and_frames_become_files(tmp_path):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    columns = {
        "question": ["Who?", "When?"],
        "answer": [["Ann"], ["1900", "in 1900"]],
        "note": [None, 1.5],
    }
    read = [
        save_rows(rows, tmp_path / f"{name}.jsonl")
        for name, rows in {
            "set": datasets.Dataset.from_dict(columns),
            "frame": pandas.DataFrame(columns),
            "list": [
                dict(zip(columns, row, strict=True))
                for row in zip(*columns.values(), strict=True)
            ],
        }.items()
    ]
    for file in read:
        assert [(item.id, item.answers) for item in file.items] == [
            ("row-1", ("Ann",)),
            ("row-2", ("1900", "in 1900")),
        ]
        assert read_task(file.path).items == file.items
    split = datasets.DatasetDict({"validation": datasets.Dataset.from_dict(columns)})
    for wrong, said in (
        (split, "the splits validation; give one of them"),
        (
            pandas.DataFrame({"question": ["Who?"], "answer": [float("nan")]}),
            "row 1: no answer",
        ),
        ([5], "row 1: a row must be a mapping, not int"),
        ([], "no rows"),
    ):
        with refused(said):
            save_rows(wrong, tmp_path / "wrong.jsonl")
    with refused(r"must end with \.jsonl"):
        save_rows([], tmp_path / "wrong.csv")
