"""Command lines that make no sense: exit code 2, one line that names the fault, nothing on the output, nothing made."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import pytest
import tiny

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments" / "self_interpretation"))

from grid_world import item

from retrieval import Passage, index_passages
from selfrag.cli.main import main
from selfrag.jsonl import write_jsonl
from selfrag.training.rows import Row, Text, write_rows

ASK = "ask hi --engine transformers --model tiny"
TALKS = {
    "": "not JSON",
    "[" * 100_000: "JSON that cannot be read",
    '"text"': "no conversation",
    "{}": "no conversation",
    "[]": "the conversation is empty",
    '[{"role": "user"}]': "turn 1 (user): content must be text",
    '{"messages": [{"role": "user", "content": "Q?"}], "documents": "text"}': "passages must be a list",
    '{"messages": [{"role": "user", "content": "Q?"}], "documents": [{}]}': "passage 1 has no text",
    "\udcff\udcfe": "not UTF-8",
    '[{"role": "\\u001b[2Jx", "content": "Q?"}]': r"role '\x1b[2Jx' is none of user, assistant",
}
"""Files of a conversation, and what is wrong with them."""
REFUSED = [
    ("answer hi", "answer"),
    ("demo --out /dev/null/traces", "/dev/null/traces"),
    ("ask", "give a question or --conversation FILE"),
    ("ask ''", "the question is empty"),
    ("ask hi --thresh 0.5", "--thresh"),  # no abbreviations
    ("ask hi --beam 0", "beam=0"),
    ("ask hi --policy search-r2", "'search-r1'"),
    ("ask hi --require issup=Maybe", "'Maybe'"),
    ("ask hi --join answers", "unknown intrinsic 'answers'; known: query_rewrite"),
    ("ask hi --w-join citation_generation=1", "no reflector of that name joins the score"),
    (f"{ASK} --conversation x.json", "one of the two"),
    (f"{ASK} --flow qr+sing", "unknown flow 'qr+sing'; known: none, and qr, again, ad joined by +"),
    (f"{ASK} --flow qr --policy search-r1", "--conversation and --flow are for models with reflection"),
    (f"{ASK} --policy search-r1 --threshold 0", "search-r1 takes --passages; threshold is for models with reflection"),
    (f"{ASK} --trace .", "is a folder; name a file"),
    (f"{ASK} --trace nowhere/trace.json", "nowhere/trace.json"),
    (f"{ASK} --index nowhere", "selfrag index build"),
    (f"{ASK} --index half", "half-written"),
    (f"{ASK} --mode always", "--index DIR"),
    (f"ask '{'why ' * 25_000}' --engine transformers --model tiny --mode never", "tokens"),
    ("ask hi --engine transformers --model plain", "lacks 15 of 15 reflection tokens"),
    ("ask hi --engine transformers --model damaged", "no usable tokenizer"),
    ("intrinsic answers Q?", "unknown intrinsic 'answers'; known: query_rewrite"),
    ("intrinsic answerability", "give a question or --conversation FILE"),
    ("intrinsic answerability Q? --conversation x.json", "give a question or --conversation FILE"),
    ("intrinsic answerability Q?", "answerability: there are no passages"),
    ("intrinsic answerability ' ' --passage x", "the question is empty"),
    ("intrinsic answerability Q? --passage x --response y", "must be of role user"),
    ("intrinsic citation_generation Q? --passage x", "must be of role assistant"),
    ("intrinsic requirement_check Q? --dialect granite-3.2", "granite-3.2 has no 'requirement_check'; it has:"),
    ("intrinsic requirement_check Q?", "the argument 'requirement' is missing"),
    ("intrinsic requirement_check Q? --argument short", "write it as NAME=VALUE"),
    ("intrinsic requirement_check Q? --argument a=1 --argument a=2", "is given twice"),
    ("intrinsic query_rewrite Q? --dialect morse", "unknown dialect 'morse'; known: chat, granite-3.2"),
    ("intrinsic query_rewrite Q? --endpoint http://127.0.0.1:9", "--endpoint needs --model NAME"),
    ("intrinsic query_rewrite Q? --endpoint u --engine vllm", "not both"),
    *((f"intrinsic query_rewrite --conversation talk-{at}.json", said) for at, said in enumerate(TALKS.values())),
    ("eval run f.jsonl", "--out"),
    ("eval run f.jsonl --out=x --system=selfrg", "--system selfrg: known are selfrag, selfrag-adaptive"),
    ("eval run f.jsonl --out=x --system=base --system=rag-1 --name=n", "--name names one run"),
    ("eval run f.jsonl --out=x --against=base", "--against base: the runs are selfrag"),
    ("eval run poqa=f.jsonl --out=x", "unknown task 'poqa'; known: popqa, "),
    ("eval run popqa/papr=f.jsonl --out=x", "popqa has no protocol 'papr'; it has paper, "),
    ("interpret run rivers.jsonl -o x --prompt why", "unknown prompt 'why'; known: basic, direct"),
    ("interpret run rivers.jsonl -o x --cutoff 9", "no question has 9 passages, the most is 5"),
    ("interpret run rivers.jsonl -o x --endpoint http://x", "--endpoint needs --model NAME"),
    ("interpret run rivers.jsonl -o x --model m --endpoint http://x --layout selfrag", "needs the model's own tokens"),
    ("interpret run rivers.jsonl -o x --model m --endpoint http://x --engine vllm", "--engine or --endpoint, not both"),
    ("interpret run rivers.jsonl -o x --tag '<a b>'", "--tag '<a b>': give one word"),
    ("interpret run torn.jsonl -o x --model m", "torn.jsonl:4: 'answers' must be a list"),
    ("interpret table half", "holds no run"),
    ("train adapter rows.jsonl --base base -o x --processes 2", "generator/cpu is for one process; take cpus"),
    ("train adapter rows.jsonl --base base -o x --max-length 40", "needs"),
    ("train adapter rows.jsonl --base base -o x --set training.epoch=3", "[training] has unknown epoch; known: seed"),
    ("train adapter rows.jsonl --base base -o x --set training.method=full", "adapter trains by 'lora', not 'full'"),
    ("sweep short.jsonl --out=x --model=/nowhere --axis=sup=1", "axis 'sup': known are isrel"),
    ("sweep short.jsonl --out=x --model=/nowhere --set=treshold=1", "unknown setting 'treshold'; did you mean"),
    ("sweep short.jsonl --out=x --model=/nowhere --best='f1<0'", "goal 'f1<0': write METRIC"),
    ("sweep short.jsonl --out=x --model=/nowhere --best=bleu", "no file has all these figures; there are contains,"),
    ("sweep short.jsonl --out=x --model=/nowhere --limit=1", "short: one item cannot be halved"),
    ("sweep short.jsonl --out=x --model=/nowhere --axis=threshold=2", "threshold=2: give a number from 0 to 1"),
    ("ablate short.jsonl --out=x --model=/nowhere --baseline=/nowhere", "/nowhere holds no run"),
]


@pytest.fixture(scope="module")
def world(tiny_llama: Path, tiny_llama_plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, an index that is half there, and files of rows."""
    w = tmp_path_factory.mktemp("refusals")
    (w / "tiny").symlink_to(tiny_llama)
    (w / "plain").symlink_to(tiny_llama_plain)
    shutil.copytree(tiny_llama, w / "damaged")
    (w / "damaged" / "config.json").write_text("[]")
    tiny.save_llama(w / "base", reflection=False)
    index_passages([Passage("a", "Alpha is the first letter.", "Alpha")], w / "half", encoder=tiny_llama)
    (w / "half" / "manifest.json").unlink()
    passage = {"id": "p1", "title": "Book", "text": "Ann wrote it."}
    short = {"task": "short_qa", "instruction": "Who?", "answers": ["Ann"], "passages": [passage]}
    write_jsonl(w / "short.jsonl", ({**short, "id": f"u{n}"} for n in range(3)))
    write_rows(w / "rows.jsonl", [Row("a", "s", "q " * 50, (Text("x"),))])
    rivers = [{**short, "task": "list_qa", "id": one.id, "type": "simple", "split": "dev", "question": one.query,
               "answers": [list(forms) for forms in one.answer_sets], "gold_passage_ids": sorted(one.gold),
               "passages": [p.as_dict() for p in one.passages]} for one in map(item, range(6))]  # fmt: skip
    write_jsonl(w / "rivers.jsonl", rivers)
    rivers[3]["answers"] = [[" "]]
    write_jsonl(w / "torn.jsonl", rivers)
    for at, text in enumerate(TALKS):
        (w / f"talk-{at}.json").write_text(text, errors="surrogateescape")
    return w


@pytest.mark.engine
@pytest.mark.parametrize(("line", "said"), REFUSED, ids=[line[:60] for line, _ in REFUSED])
def test_it_is_refused_in_one_line(line, said, world, monkeypatch, capsys):
    monkeypatch.chdir(world)
    before = sorted(map(str, world.rglob("*")))
    assert main(shlex.split(line)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = [one for one in err.splitlines() if one and "Loading weights" not in one]  # transformers' own bar
    assert len(lines) == 1
    assert lines[0].startswith("selfrag: ")
    assert said in lines[0]
    assert len(lines[0]) < 600
    assert not set(lines[0]) & {"\x1b", "\0"}
    assert sorted(map(str, world.rglob("*"))) == before
