"""Tasks: kinds by fields, strict reading, published ones with wordings byte for byte, files of public originals."""

import gzip
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from json_files import parse_table, read_json
from loopback import Answering, loopback
from refusals import refused
from scripted_run import data_file as write

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

ROW = {"id": "a", "task": "short_qa", "instruction": "who?", "answers": ["Ann"]}
CHOICE = {
    "id": "c",
    "task": "multiple_choice",
    "instruction": "Choose.\n\n## Input:\n\nWhich?\nA: x\nB: y",
    "answers": ["B", "y"],
    "label": "B",
    "options": ["x", "y"],
}
ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared/data/eval/dev"


def closed(label, *options):
    return Item("q", "?", label=label, options=options)


def test_a_label_names_an_option_by_text_letter_or_number():
    assert choices(closed("true", "true", "false")).surfaces == ("true", "false")
    assert choices(closed("B", "x", "y", "z")).surfaces == ("A", "B", "C")
    assert choices(closed("2", "x", "y")).surfaces == ("1", "2")


@pytest.mark.parametrize("label", "D 4 maybe 0".split())
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


def test_a_file_is_read_with_its_kind_and_a_seeded_sample_in_order(tmp_path):
    path = write(tmp_path, *(ROW | {"id": f"q{i}"} for i in range(20)))
    file = read_task(path, limit=5, seed=3)
    assert file.name == "set"
    assert file.task == SHORT
    assert file.rows == 20
    assert len(file.items) == 5
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
    assert item.claims == ("Ann paints.",)
    assert item.topic == "Ann"
    assert item.gold == {"p0", "p2"}
    assert item.answers == ("Ann",)  # of an unknown kind of short answers, too
    assert [metric.name for metric in file.task.metrics] == ["f1", "str_em"]
    assert file.task.headline == "f1"
    assert file.task.kind == SHORT.kind
    assert file.task.new_tokens == SHORT.new_tokens


@pytest.mark.parametrize(
    "changes, message",
    [
        *parse_table(r"""
[{}, {}] | 2: id 'a' occurs twice
[{}, {"id": "c", "options": ["x", "y"]}] | 2: kind closed after rows of kind short
[{"answers": []}] | 1: no gold answer
[{"answers": ["Ann", " "]}] | 1: 'answers' has a blank text
[{"options": ["x", "y"], "label": "C"}] | 1: label 'C' is none of A, B
[{"options": ["x", "y"]}, {"id": "d", "options": ["x", "x"]}] | 2: .*equal
[{"task": null, "kind": "short_qa"}] | 1: unknown kind of row
[{"passages": [{"id": "p", "text": "x"}, {"id": "p", "text": "x"}]}] | 1: two passages have one id
[] | .no rows
[{"metrics": ["bleu"]}] | 1: unknown metric 'bleu'; all are in docs/
[{"passages": [{"id": "p", "text": "x"}]}, {"id": "b"}] | 2: no passages, though
[{}, {"id": "b", "metrics": ["f1"]}] | 2: 'metrics' differ from those of the first row
[{"task": "x", "answers": [["a"], ["b"]]}, {"id": "b"}] | 2: kind short after .* list
"""),
        ([{"options": [*map(str, range(30))]}], "1: .*30 options, and letters name 26"),
    ],
)
def test_bad_files_are_named_by_line(tmp_path, changes, message):
    rows = []
    for change in changes:
        row = (CHOICE if "options" in change else ROW) | change
        rows.append({key: value for key, value in row.items() if value is not None})
    with refused(rf"set\.jsonl:?{message}"):
        read_task(write(tmp_path, *rows))


def test_passages_are_searched_for_items_without_any_by_their_question(tmp_path):
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
    files = read_tasks(sorted(SHARED.glob("*.jsonl*")))
    assert [(file.name, file.task.kind, file.rows) for file in files] == parse_table("""
arc_c | closed | 600
clapnq_dev | long | 280
fever_symmetric | closed | 712
hotpot_dev | short | 244
nq_dev | short | 589
truthfulqa_mc | closed | 816
""")


# Published tasks


FILES = read_json(Path(__file__).with_name("preset_samples.json"))
"""A row of the public file of each preset."""


def read(path, name, protocol="paper", **options):
    return read_task(Given(path, preset(name), protocol), **options).items


@pytest.mark.parametrize(
    "name, wanted",
    parse_table("""
popqa | {"id": "4222362", "answers": ["painter", "artist"], "query": "What is she?"}
triviaqa | {"id": "row-1", "answers": ["Ann Roe", "A. Roe"]}
pubhealth | {"label": "false", "options": ["true", "false"]}
arc-challenge | {"label": "B", "options": ["Ice", "The sun", "Snow"]}
biographies | {"topic": "Ann Roe", "query": "Ann Roe", "references": []}
asqa | {"answer_sets": [["Ann", "Ann Roe"], ["Bob"]], "references": ["Ann and Bob.", "Bob."]}
qampari | {"answer_sets": [["Jaws"], ["Duel", "The Duel"]]}
qampari original | {"id": "12__wikidata_simple__dev", "answer_sets": [["Jaws", "jaws"]], "query": "Which films?"}
"""),
)
def test_a_row_of_a_public_file_is_an_item(tmp_path, name, wanted):
    (item,) = read(write(tmp_path, FILES[name]), name.split()[0], searched=True)
    assert json.loads(json.dumps({key: getattr(item, key) for key in wanted})) == wanted


def test_passages_have_ids_and_a_protocol_keeps_the_first(tmp_path):
    (popqa,), (asqa,) = (
        read(write(tmp_path, FILES[name]), name) for name in ("popqa", "asqa")
    )
    assert [(p.id, p.title) for p in popqa.passages] == [("7", "Ann"), ("p2", "Web")]
    assert [p.id for p in asqa.passages] == "9 9#2 9#3 9#4 9#5".split()
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


ASKED = read_json(Path(__file__).with_name("preset_prompts.json"))
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
        *parse_table(r"""
popqa | {"id": 4222362} | id '4222362' occurs twice, first in row 1
popqa | {"possible_answers": "[]"} | 'possible_answers' is empty
popqa | {"possible_answers": "[\" \"]"} | 'possible_answers' has a blank answer
popqa | {"possible_answers": null} | no 'answers' or 'possible_answers' or 'answer'
popqa | {"ctxs": []} | no passages: 'ctxs' or 'docs' is missing or empty
popqa | {"ctxs": [{"title": "T"}]} | passage 1 of 'ctxs' needs a 'text'
popqa | {"id": true} | 'id' must be a name or a whole number
popqa | {"possible_answers": [1]} | 'possible_answers' must be a list of texts
popqa | {"question": null} | no row of questions, which has .*
pubhealth | {"answers": ["mixture"]} | 'answers' must be true or false
arc-challenge | {"answerKey": "5"} | 'answerKey' '5' is none of the labels 1, 2, 3
arc-challenge | {"choices": {"text": ["a"], "label": ["A", "B"]}} | lists of different lengths
arc-challenge | {"choices": {"text": ["a", "a"], "label": ["1", "2"]}} | two options are equal
arc-challenge | {"choices": null, "answers": ["x"]} | no row of choices, .*; it looks like one of
asqa | {"qa_pairs": []} | 'qa_pairs' is empty
qampari | {"answers": [[]]} | 'answers' is empty
qampari | {"answers": []} | 'answers' is empty
qampari | {"answers": ["Jaws"]} | 'answers' must be a list of lists of texts
"""),
        (
            "arc-challenge",
            {"choices": {"text": ["a"] * 27, "label": [*map(str, range(27))]}},
            "27 choices, and letters",
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
    assert preset("pubhealth").settings() == closed
    assert preset("arc-challenge").settings("table-5") == closed
    long = {"threshold": 0.0, "segment_tokens": 300} | {
        "undefined": "force",
        "keep_evidence": "below_threshold",
    }
    assert preset("asqa").settings() == long
    official = preset("asqa").settings("official")
    always = {"mode": "always", "weights": Weights(isuse=0.0), "likelihood": "none"}
    assert official.items() >= always.items()
    short = {"retrieve_test": "log_ratio", "undefined": "zero"}
    short["weights"] = Weights(isuse=1.0)
    assert preset("popqa").settings("official").items() >= short.items()
    tasks = [preset("asqa").task(how) for how in preset("asqa").protocols]
    budgets = [(task.new_tokens, task.segments) for task in tasks]
    assert budgets == [(1024, 7), (1800, 6), (100, 1)]
    written = preset("pubhealth").task("baseline")
    assert written.headline == "option_match"
    assert written.new_tokens == 50
    scored = preset("pubhealth").task("baseline-scored")
    assert scored.headline == "accuracy"
    assert written.written == 1
    assert scored.written == 0
    for what in PRESETS.values():
        for name, how in what.protocols.items():
            if how.decoding is not None:
                budget = {key: getattr(how.decoding, key) for key in SET_BY_TASK}
                rebuilt = Decoding(**what.settings(name), **budget)
                assert rebuilt == how.decoding, (what.name, name)


def test_what_a_command_line_names(tmp_path):
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


def test_tasks_are_described_and_the_page_has_their_table(capsys):
    assert main(["eval", "tasks"]) == main(["eval", "tasks", "asqa"]) == 0
    shown = capsys.readouterr().out
    assert r"correct answers.## Input:\n\nQUESTION'" in shown
    assert "str_em: 30.0 (7b), 31.7 (13b)" in shown
    page = (ROOT / "docs/guides/tasks.md").read_text()
    assert re.search(r"<!-- tasks -->\n(.*?)<!-- /tasks -->", page, flags=re.S)[
        1
    ] == compact(COLUMNS, rows())


# Development files from public originals

NQ = json.loads("""{"question": "who",
 "answers": ["Ann"],
 "ctxs": [{"title": "A", "text": "It was Ann.", "isgold": true}]}""")


@pytest.mark.parametrize(
    "case", read_json(Path(__file__).with_name("public_rows.json"))
)
def test_rows_are_made_as_measured(case):
    """In the order of the selection; options of TruthfulQA are shuffled as it says, and `-` leaves a row out."""
    made = ROWS[case["name"]](case["raws"], case["selection"].split())
    for row, fields in zip(made, case["wanted"], strict=True):
        assert row.items() >= fields.items()


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
    assert file.task.kind == "short"
    assert file.items[0].answers == ("Ann",)
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


@pytest.mark.parametrize(
    "name, text, expected",
    parse_table(r"""
qa.csv | "question,answer\nWho?,Ann\n" | [["row-1", "Who?", ["Ann"]]]
qa.csv | "question,answer\n\"Where, then?\",\"Rome, Italy\"\n" | [["row-1", "Where, then?", ["Rome, Italy"]]]
more.tsv | "ID\tQuestion\tAnswer\tnote\n7\tWho?\tAnn\tx\n" | [["7", "Who?", ["Ann"]]]
rows.jsonl | {"question": "Who?", "answer": ["Ann", "Anna"]} | [["row-1", "Who?", ["Ann", "Anna"]]]
squad.jsonl | {"id": "s", "question": "Who?", "context": "c", "answers": {"text": ["Ann"]}} | [["s", "Who?", ["Ann"]]]
trivia.json | [{"question": "Who?", "answer": {"value": "Ann", "aliases": ["A"]}}] | [["row-1", "Who?", ["Ann", "A"]]]
"""),
)
def test_issue_50_rows_of_a_question_and_its_answer(tmp_path, name, text, expected):
    """At 2d68d6f3: "unknown kind of row: key 'task' is missing", or no JSON."""
    file = tmp_path / name
    file.write_text(text if isinstance(text, str) else json.dumps(text))
    read = read_task(file)
    assert read.name == name.removesuffix(".csv").removesuffix(".tsv").removesuffix(
        ".jsonl"
    )
    assert read.task == SHORT
    items = [[item.id, item.instruction, [*item.answers]] for item in read.items]
    assert items == expected


@pytest.mark.parametrize(
    "name, text, said",
    parse_table(r"""
a.csv | "question,reply\nWho?,Ann\n" | the header must name the columns question and answer; found: question, reply
a.csv | "" | the header must name
a.csv | "question,answer\n" | no rows
a.csv | "question,answer\nWho?\n" | a.csv:2: 1 field where the header has 2
a.csv | "question,answer\nWho?,Ann\nWhen?,\n" | line 3: no answer
a.csv | "question,answer\n ,Ann\n" | line 2
a.jsonl | {"question": "Who?"} | a.jsonl:1: no answer
a.jsonl | {"question": 5, "answer": "x"} | a.jsonl:1:
a.jsonl | {"question": "Who?", "answer": 5} | a.jsonl:1:
a.jsonl | {"question": "Who?", "answer": {"x": 1}} | no answer
a.jsonl | {"query": "Who?"} | unknown kind of row
"""),
)
def test_bad_rows_of_questions_are_one_line(tmp_path, name, text, said):
    file = tmp_path / name
    file.write_text(text if isinstance(text, str) else json.dumps(text))
    with refused(re.escape(said)):
        read_task(file)


def test_issue_50_data_sets_and_frames_become_files(tmp_path):
    datasets = pytest.importorskip("datasets")
    pandas = pytest.importorskip("pandas")
    columns = {"question": ["Who?", "When?"]}
    columns |= {"answer": [["Ann"], ["1900", "in 1900"]], "note": [None, 1.5]}
    frame = pandas.DataFrame(columns)
    data = datasets.Dataset.from_dict(columns)
    for given in (data, frame, frame.to_dict("records")):
        file = save_rows(given, tmp_path / "set.jsonl")
        answers = [(item.id, item.answers) for item in file.items]
        assert answers == [("row-1", ("Ann",)), ("row-2", ("1900", "in 1900"))]
        assert read_task(file.path).items == file.items
    split = datasets.DatasetDict(validation=data)
    for wrong, said in (
        (split, "the splits validation; give one of them"),
        ([{"question": "Who?", "answer": float("nan")}], "row 1: no answer"),
        ([5], "row 1: a row must be a mapping, not int"),
        ([], "no rows"),
    ):
        with refused(said):
            save_rows(wrong, tmp_path / "wrong.jsonl")
    with refused(r"must end with \.jsonl"):
        save_rows([], tmp_path / "wrong.csv")
