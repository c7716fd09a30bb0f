"""Command lines with one bad value each, over every option of every command: one error line, nothing lost or left.

The table is made from the commands' own signatures, so that a new option is in it without being written here. Every
command has a line that is right but for its model, whose weights are damaged: what is wrong with the rest of a command
line must be said before those weights are read.
"""

import collections
import contextlib
import io
import json
import os
import random
import shlex
import shutil
import signal
import unicodedata
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import intrinsic_rows
import pytest
import tiny
import typer
from json_files import parse_table, read_lines, write_records

from critic.cases import Case
from critic.cli.main import app as critic_app
from critic.cli.main import main as critic
from selfrag.cli.main import app as selfrag_app
from selfrag.cli.main import main as selfrag
from selfrag.cli.running import Commands
from selfrag.common.jsonl import write_jsonl
from selfrag.common.plugins import load_present
from selfrag.decoding.policy import Decoding
from selfrag.decoding.trace import Trace
from selfrag.training.rows import TargetText, TargetToken, TrainingRow, write_rows

SEED = int(os.environ.get("SELFRAG_TABLE_SEED", "19"))
"""Of the cases that are drawn; another number draws others."""
CASES = int(os.environ.get("SELFRAG_TABLE_CASES", "40"))
LONGEST = 400
"""Characters of an error line, without the folder of the test and what was typed."""
SECONDS = 20

MODEL = " --model {w}/model --engine transformers"
ENCODER = " --encoder {w}/encoder"


def right_lines(text):
    """Read commands and what they need: MODEL and ENCODER stand for options."""
    return dict(parse_table(text.replace(" MODEL", MODEL).replace(" ENCODER", ENCODER)))


RIGHT = right_lines("""
selfrag ask | Who? MODEL
selfrag chat | MODEL
selfrag demo | --out {w}/out/traces MODEL
selfrag serve | --port 0 MODEL
selfrag show | {w}/trace.json --out {w}/out/trace.html
selfrag doctor | {w}/no-model
selfrag judge | answerability Who? --passage 'Ann did.' --adapter none MODEL
selfrag sweep | {w}/rows.jsonl --out {w}/out/sweep MODEL
selfrag ablate | {w}/rows.jsonl --out {w}/out/ablate MODEL
selfrag index build | {w}/passages.jsonl --out {w}/out/index ENCODER
selfrag index add | {w}/index {w}/passages.jsonl ENCODER
selfrag index sync | {w}/index {w}/passages.jsonl
selfrag index remove | {w}/index p2
selfrag index compact | {w}/index
selfrag index info | {w}/index
selfrag index search | {w}/index Who? --encoder {w}/no-encoder
selfrag train adapter | {w}/train.jsonl --base {w}/model --out {w}/out/adapter
selfrag train generator | {w}/train.jsonl --base {w}/model --out {w}/out/generator --recipe cpu
selfrag train merge | {w}/adapter --base {w}/model --out {w}/out/merged
selfrag train track | {w}/adapter
selfrag eval run | {w}/rows.jsonl --out {w}/out/runs MODEL
selfrag eval tasks | ""
selfrag eval metrics | ""
selfrag eval systems | ""
selfrag data list | ""
selfrag eval report | {w}/run
selfrag eval judge | {w}/run --load-judge nli:{w}/no-judge
selfrag eval facts | {w}/run rows --write {w}/out/facts.jsonl
selfrag eval rows | squad2={w}/rows.jsonl --out {w}/out/rows
selfrag eval calibration | {w}/train.jsonl --out {w}/out/calibration MODEL
selfrag eval intrinsics | --data {w}/intrinsics --only answerability --out {w}/out/measured MODEL
selfrag data make | arc_c --out {w}/out/dev --from {w}/folder
selfrag interpret run | {w}/lists.jsonl --out {w}/out/grid --cutoff 1 MODEL
selfrag interpret faithfulness | {w}/grid MODEL
selfrag interpret agree | {w}/grid MODEL
selfrag interpret table | {w}/grid
critic sample | {w}/pairs.jsonl --out {w}/out/cases.jsonl --target IsUse=2
critic label | {w}/cases.jsonl --out {w}/out/labels --url http://127.0.0.1:9 --model m --retries 0
critic adopt | {w}/cases.jsonl {w}/model
critic split | {w}/cases.jsonl --out {w}/out/split
critic agree | {w}/cases.jsonl again={w}/cases.jsonl
critic train | {w}/cases.jsonl --base {w}/model --out {w}/out/critic
critic eval | {w}/cases.jsonl --base {w}/model --engine transformers
critic augment | {w}/pairs.jsonl --critic=lexical --out {w}/out/data --gold-passages=only --balance=none
critic pairs | gpt4_alpaca={w}/alpaca.json --out {w}/out/pairs.jsonl
critic inspect | {w}/train.jsonl --out {w}/out/page.html
""")
"""Each command of the core with what it needs."""
RIGHT_OF_GUESTS = right_lines("""
selfrag index push | {w}/index milvus:{w}/out/docs.db
selfrag index export | {w}/index --out {w}/out/passages.parquet
selfrag eval export | {w}/run --out {w}/out/exported
selfrag eval annotate | {w}/run --out {w}/out/form.html
selfrag eval board | {w}/rows.jsonl --system always --out {w}/out/board MODEL
""")
"""The same of extensions."""
GUESTS = find_spec("selfrag.extensions") is not None
if GUESTS:
    RIGHT |= RIGHT_OF_GUESTS

LONG = "n" * 300
NUL = "a\0b"
PATHS = dict(
    parse_table(r"""
missing | {w}/none/at/all
loop | {w}/loop
below loop | {w}/loop/x
nul | "{w}/a\u0000b"
not utf-8 | "{w}/\udcff\udce9"
below a file | {w}/rows.jsonl/x
proc | /proc/none/x
nobody's home | ~no.such.user/x
""")
)
PATHS["long"] = f"{{w}}/{LONG}"
READ = PATHS | json.loads("""{"folder": "{w}/folder", "empty": "{w}/empty.jsonl", "latin": "{w}/latin.jsonl",
    "binary": "{w}/binary.jsonl",
 "deep": "{w}/deep.jsonl", "half": "{w}/half.jsonl", "list": "{w}/list.jsonl", "types": "{w}/types.jsonl",
 "wide number": "{w}/number.jsonl", "fifo": "{w}/fifo.jsonl", "zeros": "/dev/zero",
 "gzip": "{w}/broken.jsonl.gz", "nothing": ""}""")
WRITTEN = PATHS | {"pipe": "{w}/fifo.jsonl"}
del WRITTEN["missing"], WRITTEN["nobody's home"]
WHOLE = json.loads("""{"word": "x", "fraction": "1.5", "nan": "nan", "huge": "1e400", "negative": "-5",
 "digits": "999999999999999999999999999999", "": ""}""")
NUMBERS = json.loads(
    """{"word": "x", "nan": "nan", "inf": "inf", "huge": "1e400", "minus": "-inf", "": ""}"""
)
KINDS = dict(
    parse_table(r"""
WEIGHTS | {"": "", "file": "{w}/rows.jsonl", "folder": "{w}/folder", "three": "a/b/c"}
ADDRESSES | {"port": "http://127.0.0.1:99999", "nul": "http://a\u0000b", "bracket": "http://[::1",
    "no host": "http://", "scheme": "ftp://x", "space": "http://a b", "not utf-8": "http://\udce9"}
NAMES | {"up": "../../x", "below": "a/b", "here": ".", "parent": "..", "": "", "hidden": ".x", "nul": "a\u0000b",
    "line": "a\nb", "absolute": "/tmp/x", "blank": " "}
NAMED | {"unknown": "x", "path": "../x"}
ASKED | {"": "", "blank": " \n\t", "nul": "a\u0000b"}
""")
)
KINDS["WEIGHTS"] |= PATHS
KINDS["NAMES"]["long"] = LONG
KINDS["READ"] = READ | {"unknown": "best"}
"""Wrong values of a kind that several options take."""
WRONG = {
    name: KINDS.get(values, values) if isinstance(values, str) else values
    for names, values in parse_table(r"""
--model --base --critic --encoder --index --knowledge | WEIGHTS
--endpoint --url | ADDRESSES
--system --against --dialect --only --cell --order --prompt --metric --device | NAMED
QUESTION QUERY | ASKED
--name | NAMES
--recipe | READ
--engine | {"unknown": "best", "": ""}
--sentences | {"unknown": "no_such_model", "nul": "a\u0000b", "path": "../x"}
--axis | {"word": "x", "empty": "issup=", "nan": "issup=nan", "many": "issup=0:1e9:1e-9", "name": "x=1,2"}
--set | {"word": "x", "field": "x=1", "nan": "threshold=nan"}
--best | {"word": "x", "nan": "headline,retrieval_rate<=nan", "sign": "headline,x<1"}
--guardrail | {"word": "x", "nan": "answerability<nan:abstain", "action": "answerability<0.5:x"}
--argument | {"word": "x", "unknown": "x=1", "nothing": "="}
--per-label | {"word": "x", "group": "x=5", "zero": "IsSup=0"}
--target | {"word": "x", "group": "x=5", "negative": "IsSup=-1", "label": "IsSup/x=1"}
--judge | {"unknown": "x", "path": "../x", "role": "answerability=x", "missing": "nli:{w}/none",
    "nul": "nli:a\u0000b", "loop": "critic:{w}/loop"}
--load-judge | {"unknown": "x=y", "missing": "x=nli:{w}/none", "nul": "nli:a\u0000b", "nothing": "="}
""")
    for name in names.split()
}
WRONG["--engine"] |= KINDS["ADDRESSES"]
WRONG["--set"]["deep"] = "threshold=" + "(" * 5000
WRONG["--per-label"]["digits"] = "IsSup=" + "9" * 5000
"""What is wrong for options and arguments of these names, whatever their type."""
FOLDERS = ("--data", "--adapters", "--corpus")
"""Options that take a folder, of whatever kind."""
ODD = {
    *(
        ("critic label", name, what)
        for name in ("--model", "--name")
        for what in (*KINDS["WEIGHTS"], *KINDS["NAMES"])
    ),
    # leaves all at defaults
    *((command, "--recipe", "empty") for command in RIGHT),
    ("critic inspect", "--provenance", "empty"),
    ("selfrag data make", "--from", "folder"),  # is what the right line gives
}
"""Cases that only must not fail badly: what is given is not wrong, or not for every command."""
BUILT = ("selfrag index sync", "DIRECTORY", "missing")
"""A case that is right: the index is built there."""


_TEACH = "selfrag train adapter answerability --base {w}/model --out {w}/out/taught"
_BUILD = "selfrag index build --out {w}/out/i" + ENCODER
_COMPACT = "selfrag index compact {w}/index"
_LABEL = "critic label {w}/cases.jsonl --out {w}/out/l"
_EVALUATE = "critic eval {w}/cases.jsonl"
_RUN = "selfrag eval run --out {w}/out/r" + MODEL
TYPED = [shlex.quote(value) for value in READ.values()]
FREE = [
    *(f"selfrag judge answerability{MODEL} --conversation {it}" for it in TYPED),
    _TEACH,
    _TEACH + " --data {w}/intrinsics --recipe gpu",
    _TEACH + " --data {w}/folder",
    *(f"{_TEACH} --data {value}" for value in TYPED),
    *(f"{_RUN} popqa={value}" for value in TYPED if value != "''"),
    _RUN + " {w}/rows.jsonl {w}/rows.jsonl",
    "selfrag eval tasks x",
    "selfrag eval tasks ../x",
    "selfrag eval report {w}/run --out {w}/out/x.exe",
    "selfrag eval report {w}/run {w}/run",
    "selfrag eval facts {w}/run ../rows --write {w}/out/x",
    "selfrag index build --out {w}/out/i",
    _BUILD + " {w}/model/model.safetensors",
    *(
        f"{_BUILD} {{w}}/{what}.{ending}"
        for ending in "csv tsv parquet txt md".split()
        for what in ("empty", "binary", "folder")
    ),
    *(f"{_COMPACT} --kind {kind}" for kind in "'' x hnsw Nonsense,Flat".split()),
    _COMPACT + " --storage x",
    _COMPACT + " --language x",
    "selfrag index search {w}/index Who? --search-mode x",
    _LABEL,
    _LABEL + " --gold {w}/cases.jsonl --url http://127.0.0.1:9",
    _LABEL + " --gold {w}/cases.jsonl --price-in 1",
    "critic agree {w}/cases.jsonl",
    "critic agree {w}/cases.jsonl {w}/cases.jsonl",
    _EVALUATE,
    *(
        f"{_EVALUATE} --base {{w}}/model --engine transformers --out {place}"
        for place in (".", "/", "{w}/folder")
    ),
    "critic sample {w}/pairs.jsonl --out {w}/out/c" + ENCODER,
    "critic pairs asqa= --out {w}/out/p",
    "critic pairs asqa:x={w}/alpaca.json --out {w}/o",
]
"""Command lines that are wrong as a whole."""

SHORTER = dict(
    parse_table("""
ASK | ask hi --engine transformers --model {w}/tiny
ASKED | judge answerability Q? --passage x
CHECK | judge requirement_check Q?
EVAL | eval run f.jsonl --out={w}/out/x
GRID | interpret run {w}/lists.jsonl -o {w}/out/x
ROWS | train adapter {w}/train.jsonl --base {w}/model -o {w}/out/x
MEASURE | eval intrinsics --data {w}/intrinsics --model {w}/model
SWEEP | sweep {w}/rows.jsonl --out={w}/out/x --model={w}/model
""")
)


def refused_lines(text):
    """Read command lines, whose first word may be one of `SHORTER`, and what the error says of them."""
    lines = {}
    for line, said in parse_table(text):
        first, space, rest = line.partition(" ")
        lines[SHORTER.get(first, first) + space + rest] = said
    return lines


REFUSED = refused_lines(r"""
answer hi | answer
ask | give a question or --conversation FILE
ask - | the question is empty
ask Who? What? | What?
ask hi --passag 5 | --passag
ask hi --set beam=0 | beam=0
ask hi --set weights=isrel=inf | weight isrel=inf is not a finite number
ask hi --set require=issup=Maybe | 'Maybe'
ask hi --set weights=+citation_generation=1 | no judge of that name has a term in the score
ASK --conversation x.json | one of the two
ASK --flow qr+sing | unknown flow 'qr+sing'; known: none, and qr, qr-both, again, ad joined by +
ASK --trace . | is a folder; name a file
ASK --trace nowhere/trace.json | nowhere/trace.json
ASK --index nowhere | selfrag index build
ASK --index {w}/half-index | half-written
ASK --set mode=always | --index DIR
ASK --set mode=always --set threshold=0.5 | threshold has no effect with mode=always
ASK --set mode=never --passages 3 | passages has no effect with mode=never
ASK --set mode=always --guardrail answerability<0.5:retrieve | guardrails has no effect with mode=always
EVAL --set mode=never --set keep_evidence=below_threshold | keep_evidence has no effect with mode=never
ask hi --engine transformers --model {w}/plain | neither reflection tokens nor a chat template
ask hi --engine transformers --model {w}/damaged | config.json holds no object
judge answers Q? | unknown intrinsic 'answers'; known: query_rewrite
judge answerability | give a question or --conversation FILE
judge answerability Q? --conversation x.json | give a question or --conversation FILE
judge answerability Q? | answerability: there are no passages
ASKED --response y | must be of role user
ASKED --dialect morse | unknown dialect 'morse'; known: chat
ASKED --endpoint http://127.0.0.1:9 | --endpoint needs --model NAME
ASKED --endpoint http://127.0.0.1:9 --engine vllm | of no use with --endpoint
CHECK | the argument 'requirement' is missing
CHECK --argument short | write it as NAME=VALUE
CHECK --argument a=1 --argument a=2 | is given twice
judge query_rewrite --conversation {w}/talk.json | role '\x1b[2Jx' is none of user, assistant
eval run f.jsonl | --out
EVAL --system=selfrg | --system selfrg: known are selfrag, selfrag-adaptive
EVAL --system=base --system=rag-1 --name=n | --name names one run
EVAL --against=base | --against base: the runs are selfrag
eval run poqa=f.jsonl --out={w}/out/x | "unknown task 'poqa'; known: popqa, "
eval run popqa/papr=f.jsonl --out={w}/out/x | "popqa has no protocol 'papr'; it has paper, "
GRID --prompt why | unknown prompt 'why'; known: basic, direct
GRID --order best | unknown order 'best'; known: ranked, top-last, random, reversed
GRID --examples 3 | 3 examples: give at least 1, and 0 to 2
GRID --examples 0 --prompt examples | nothing is left of the grid
GRID --cutoff 9 | no question has 9 passages, the most is 1
GRID --endpoint http://x | --endpoint needs --model NAME
GRID --model m --endpoint http://x --layout selfrag | needs the model's own tokens
GRID --model m --endpoint http://x --engine vllm | give --engine and its options, or --endpoint, not both
GRID --tag '<a b>' | --tag '<a b>': give one word
interpret run {w}/torn.jsonl -o {w}/out/x --model demo | torn.jsonl:4: 'answers' must be a list
interpret table {w}/half-index | holds no run
ROWS --processes 2 | generator/cpu is for one process; take cpus
ROWS --set training.epoch=3 | --set training.epoch: training.epoch is unknown; known: seed
ROWS --set training.method=full | adapter trains by 'lora', not 'full'
SWEEP --axis=sup=1 | axis 'sup': known are isrel
SWEEP --set=treshold=1 | unknown setting 'treshold'; did you mean
SWEEP --best=bleu | no file has all these figures; there are contains,
SWEEP --limit=1 | rows: one item cannot be halved
SWEEP --best='f1,rate<=1e' | write METRIC,METRIC<=NUMBER
SWEEP --axis=threshold=2 | threshold=2: give a number from 0 to 1
SWEEP --axis=max_segments=1,2 | axis 'max_segments': known are
SWEEP --axis=issup=1,1 | give at least one value, and each once
SWEEP --axis=threshold=0:1:1e-9 | a span of 1000000001 values; give 1 to 1000
SWEEP --axis=issup=1 --axis=issup=2 | axis issup is given twice
SWEEP --axis=threshold=0,1 --set=mode=always | threshold has no effect with mode=always
SWEEP --axis=isrel=0,1 --set=mode=never | weights.isrel has no effect with mode=never
SWEEP --axis=issup=high | axis issup: 'high' is not a number
MEASURE --only poetry | nothing to measure under 'poetry'
MEASURE --dialect elvish | unknown dialect 'elvish'
MEASURE --only flows | give --corpus FOLDER
MEASURE --adapters . | holds no adapter
MEASURE --corpus . | has no corpus.jsonl
MEASURE --answers 2 --only query_rewrite | answers search: give --corpus FOLDER
MEASURE --load-judge oracle:x --only citation_generation | oracle:x: the module cannot be imported
ablate {w}/rows.jsonl --out={w}/out/x --model={w}/model --baseline={w}/out | out holds no run
""")
REFUSED[
    f"ask '{'why ' * 25_000}' --engine transformers --model {{w}}/tiny --set mode=never"
] = "tokens"
if GUESTS:
    REFUSED |= refused_lines("""
ask hi --policy search-r2 | 'search-r1'
ASK --flow qr --policy search-r1 | --conversation and --flow are for models with reflection
ASK --policy search-r1 --set threshold=0 | unknown setting 'threshold'; all are in `python -m pydoc
ASK --policy flare --set beam=2 | unknown setting 'beam'
ASK --policy flare --set threshold=2 | threshold=2: give a number from 0 to 1
ASK --policy paper --set theta=1 | unknown setting 'theta'
ASK --set beam=1 --set beam=2 | --set beam is given twice; give one of the two
ASK --set require=issup | require 'issup': write it as GROUP=LABEL
ASK --passages 1 --set passages=2 | --set passages and the option of passages: give one of the two
CHECK --dialect granite-3.2 | granite-3.2 has no 'requirement_check'; it has:
""")


@dataclass(frozen=True)
class Line:
    """One command line."""

    command: str  # program and command
    arguments: tuple[str, ...]  # after it; `{w}` is the folder of the files
    what: str  # option or argument, and what is wrong with it
    # the command must end with an error that is not the one of its right line
    wrong: bool = True
    value: str = "-"  # what was put in
    said: str = ""  # a part of the error


def commands():
    """Every command and its function."""

    def of(app, path):
        for command in app.registered_commands:
            if not command.hidden:  # says where a command went
                name = command.name or command.callback.__name__
                yield f"{path} {name}", command.callback
        for group in app.registered_groups:
            yield from of(group.typer_instance, f"{path} {group.name}")

    yield from of(selfrag_app, "selfrag")
    for group in ("index", "eval"):
        for point in entry_points(group=f"selfrag.{group}"):
            if (command := load_present(f"selfrag.{group}", point.name)) is not None:
                group_of_one = Commands()
                group_of_one.command(point.name)(command)
                yield from of(group_of_one, f"selfrag {group}")
    yield from of(critic_app, "critic")


def declared(function):
    """Each parameter of a command: what it is called on a command line, the type of one value, and typer's note."""
    for name, hint in get_type_hints(function, include_extras=True).items():
        for info in getattr(hint, "__metadata__", ()):
            if isinstance(info, typer.models.ParameterInfo):
                kind = get_args(hint)[0]
                while get_origin(kind) is list or type(None) in get_args(kind):
                    kind = get_args(kind)[0]
                flags = (info.default, *(info.param_decls or ()))
                flags = [flag for flag in flags if isinstance(flag, str)]
                yield flags or ["--" + name.replace("_", "-")], name, kind, info


def parameters(function):
    """Name as typed (an argument's in capitals), type of one value, and whether it is an option."""
    for flags, name, kind, info in declared(function):
        option = isinstance(info, typer.models.OptionInfo)
        yield flags[0] if option else name.upper(), kind, option


def values(name, kind):
    """Wrong values by what is wrong with them."""
    if name in WRONG:
        return WRONG[name]
    if get_origin(kind) is Literal:
        return {"unknown": "x", "": "", "nul": NUL}
    if kind is int:
        return WHOLE
    if kind is float:
        return NUMBERS
    if name in FOLDERS:
        return {**PATHS, "file": "{w}/rows.jsonl"}
    if kind is Path or name in "FILES FILE TEACHERS PARTS PAIRS WHAT".split():
        return WRITTEN if name in "--out --trace --write --keep".split() else READ
    return {"nul": NUL}


def whole_line(line):
    """Return a line of `FREE`, which begins with its command."""
    words = shlex.split(line)
    size = 3 if " ".join(words[:3]) in RIGHT else 2
    return Line(" ".join(words[:size]), tuple(words[size:]), line[-60:])


def lines():
    """The whole table."""
    table = []
    for command, function in commands():
        right = shlex.split(RIGHT[command])
        positions = iter(range(9))
        for name, kind, option in parameters(function):
            if kind is bool:
                table.append(Line(command, (*right, f"{name}=x"), f"{name} of x"))
                continue
            at = len(right) if option else next(positions)
            for what, value in values(name, kind).items():
                arguments = (*right, name, value)
                if not option:
                    arguments = (*right[:at], value, *right[at + 1 :])
                if (command, name, what) == BUILT:
                    continue
                odd = (command, name, what) in ODD
                table.append(
                    Line(command, arguments, f"{name} {what}", not odd, value or "-")
                )
        table.append(Line(command, (*right, "--no-such-option"), "unknown option"))
        table.append(
            Line(command, (*right, *["more"] * 9, "--no-such-option", NUL), "nul")
        )
    return table + list(map(whole_line, FREE))


ALL = lines()
CHOSEN = random.Random(SEED).sample(ALL, min(CASES, len(ALL)))
CHOSEN += [
    Line("selfrag", tuple(shlex.split(line)), line[:60], value=line, said=said)
    for line, said in REFUSED.items()
]


def files(w):
    """Write files of all kinds, right and wrong."""
    for folder in ("folder", "cwd", "adapter"):
        (w / folder).mkdir(parents=True)
    tiny.save_llama(w / "model")
    (w / "trace.json").write_text(Trace("Who?", Decoding(), (), (), None).to_json())
    for name, count, row in parse_table(ROWS):
        write_jsonl(w / name, (row | {"id": f"q{n}"} for n in range(count)))
    asked = read_lines(w / "lists.jsonl")
    for row in asked[:2]:
        row["split"] = "train"
    write_jsonl(w / "lists.jsonl", asked)
    asked[3]["answers"] = [[" "]]
    write_jsonl(w / "torn.jsonl", asked)
    hello = (TargetToken("[No Retrieval]"), TargetText("Hello."))
    rows = [TrainingRow(f"r{n}", "made", "Hi.", hello) for n in range(4)]
    write_rows(w / "train.jsonl", rows)
    cases = [
        Case.of("IsUse", "Who?", output="Ann.", id=f"c{n}", label="5", dataset="made")
        for n in range(4)
    ]
    write_records(w / "cases.jsonl", cases)
    tiny.save_bert(w / "encoder")
    small = f"--model {w}/model --engine transformers --limit 1"
    cell = "--cutoff 1 --order ranked --examples 0 --prompt basic --max-tokens 4"
    for line in (
        f"index build {w}/passages.jsonl --out {w}/index --encoder {w}/encoder",
        f"eval run {w}/rows.jsonl --out {w} --name run {small}",
        f"interpret run {w}/lists.jsonl --out {w}/grid {cell} {small}",
    ):
        assert selfrag(shlex.split(line)) == 0
    for name in ("tiny", "damaged"):
        shutil.copytree(w / "model", w / name)
    tiny.save_llama(w / "plain", reflection=False)
    shutil.copytree(w / "index", w / "half-index")
    (w / "half-index/manifest.json").unlink()
    intrinsic_rows.write_data(w / "intrinsics", count=4)
    (w / "loop").symlink_to("loop")
    binary = random.Random(0).randbytes(4000)
    for name, content in parse_table(CONTENTS):
        (w / name).write_text(content)
    for name, content in {
        "model/model.safetensors": b"\xff" * 64,
        "latin.jsonl": b'{"id": "\xe9"}\n',
        "binary.jsonl": binary,
        "deep.jsonl": b"[" * 100_000,
        "number.jsonl": b'{"id": ' + b"9" * 5000 + b', "text": "a"}\n',
        "broken.jsonl.gz": b"\x1f\x8b\x08\x00broken",
    }.items():
        (w / name).write_bytes(content)
    for ending in "csv tsv parquet txt md".split():
        (w / f"empty.{ending}").touch()
        (w / f"binary.{ending}").write_bytes(binary)
        (w / f"folder.{ending}").mkdir()
    os.mkfifo(w / "fifo.jsonl")


ROWS = """
rows.jsonl | 4 | {"task": "short_qa", "instruction": "Who?", "answers": ["Ann"], "topic": "Ann",
    "passages": [{"id": "p1", "title": "Book", "text": "Ann wrote the book."}]}
lists.jsonl | 6 | {"task": "list_qa", "instruction": "Who?", "answers": [["Ann"]], "topic": "Ann", "type": "simple",
    "gold_passage_ids": ["p1"], "split": "dev", "question": "Who?",
    "passages": [{"id": "p1", "title": "Book", "text": "Ann wrote the book."}]}
passages.jsonl | 1 | {"title": "Book", "text": "Ann wrote it."}
pairs.jsonl | 4 | {"dataset": "made", "kind": "short_qa", "instruction": "Who?", "output": "Ann.",
    "gold_passages": [{"title": "Book", "text": "Ann wrote it."}]}
"""
"""Files, the number of their rows, and a row but for its id."""
CONTENTS = r"""
adapter/adapter_config.json | "{}"
adapter/manifest.json | "[]"
damaged/config.json | "[]"
talk.json | "[{\"role\": \"\\u001b[2Jx\", \"content\": \"Q?\"}]"
alpaca.json | "[{\"instruction\": \"Say hello.\", \"input\": \"\", \"output\": \"Hello.\"}]"
empty.jsonl | ""
half.jsonl | {"id": "a", "text
list.jsonl | "[]\n1\nnull\n"
types.jsonl | "{\"id\": {\"a\": 1}, \"text\": 3, \"task\": [], \"instruction\": null, \"answers\": 5}\n"
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The folder of the files."""
    w = tmp_path_factory.mktemp("table") / "w"
    files(w)
    return w


def state(world):
    """All that lies in the folder, apart from what commands are told to write to."""
    entries = {}
    for folder, folders, files in os.walk(world.parent):
        if Path(folder) == world and "out" in folders:
            folders[:] = [name for name in folders if name not in ("out", "home")]
        for path in (Path(folder, name) for name in (*folders, *files)):
            about = path.lstat()
            size = about.st_size if path.is_file() else 0
            link = path.readlink() if path.is_symlink() else None
            entries[path] = (about.st_mode, about.st_ino, size, link)
    return entries


def _late(_signal, _frame):
    raise TimeoutError(f"no end after {SECONDS} s")


def given(line, world):
    return [
        *line.command.split()[1:],
        *(text.replace("{w}", str(world)) for text in line.arguments),
    ]


def ran(line, world):
    """Exit code, output and errors of a command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    main = critic if line.command.startswith("critic") else selfrag
    # a server of Milvus may have written once more after the last
    shutil.rmtree(world / "out", ignore_errors=True)
    (world / "out").mkdir(exist_ok=True)
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(given(line, world))
    finally:
        signal.alarm(0)
    return code, out.getvalue(), err.getvalue()


WORDED = set(
    shlex.split(
        "--against --base --conversation --critic --data --dialect --dry-run"
        " --dtype --encoder --endpoint --engine --gpus --index -k --language"
        " --limit --load-judge --max-tokens --model --name --only --out -o --passages"
        " --processes --ray --read --recipe --replace --retriever --retry-failed --seed"
        " --sentences --set --skip-unreadable --system --target --threshold --words"
    )
)
"""Options that mean the same in all commands, which word it for their own work. Do not add a second meaning."""


def test_a_name_of_an_option_has_one_meaning_in_all_commands():
    """The same type of value everywhere, and the same help but for those that a reader has compared."""
    kinds, helps = collections.defaultdict(set), collections.defaultdict(set)
    for _, function in commands():
        for flags, _, kind, info in declared(function):
            for flag in flags if isinstance(info, typer.models.OptionInfo) else ():
                kinds[flag].add(str if kind is Path else kind)
                helps[flag].add(info.help)
    # engines compute in one number format more than training
    assert [flag for flag, kind in kinds.items() if len(kind) > 1] == ["--dtype"]
    assert {flag for flag, texts in helps.items() if len(texts) > 1} == WORDED


def test_every_command_is_in_the_table():
    assert {command for command, _ in commands()} == set(RIGHT)
    assert len(ALL) >= 600


NO_RESULT = {"selfrag chat", "selfrag serve"}
"""Commands that go on until they are ended."""
SHORT = json.loads("""{"selfrag train adapter": " --dry-run",
 "selfrag train generator": " --dry-run",
 "selfrag interpret run": " --dry-run",
 "selfrag sweep": " --limit 2 --axis issup=0,1 --best none",
 "selfrag ablate": " --limit 1",
 "critic train": " --dry-run"}""")


@pytest.mark.parametrize("command", sorted(RIGHT))
def test_issue_50_every_command_prints_its_result_as_json(command, world, monkeypatch):
    monkeypatch.chdir(world / "cwd")
    options = {name for name, _, _ in parameters(dict(commands())[command])}
    assert ("--json" in options) is (command not in NO_RESULT)
    if command in NO_RESULT:
        return
    right = RIGHT[command].replace("{w}/model", "{w}/tiny")
    words = shlex.split(f"{right} --json{SHORT.get(command, '')}")
    code, out, err = ran(Line(command, tuple(words), "json"), world)
    if code == 2:  # such as a judge that is not there
        assert out == "", err
    else:
        json.loads(out, parse_constant=pytest.fail)


OVERWRITTEN = dict(
    parse_table("""
selfrag ask | --trace {w}/out/t.json
selfrag demo | traces/fact.json
selfrag show | trace.html
selfrag eval report | --out {w}/out/r.md
selfrag eval facts | facts.jsonl
selfrag eval rows | rows/answerability_dev.jsonl
selfrag eval calibration | calibration/calibration.json
selfrag eval intrinsics | measured/figures.json
selfrag data make | dev/arc_c.jsonl
selfrag interpret table | --out {w}/out/t.md
critic sample | cases.jsonl
critic split | split/dev.jsonl
critic agree | --out {w}/out/a.json
critic eval | --out {w}/out/e.json
critic pairs | pairs.jsonl
critic inspect | page.html
""")
)
"""Commands that write a whole result, and a file of it in the folder that their right lines name."""
if GUESTS:
    OVERWRITTEN |= {
        "selfrag index export": "passages.parquet",
        "selfrag eval export": "exported",
        "selfrag eval annotate": "form.html/tasks.json",
    }
RESUMED = {
    *("selfrag sweep", "selfrag ablate", "selfrag eval run", "selfrag interpret run"),
    *("selfrag train adapter", "selfrag train generator", "selfrag train merge"),
    *"critic label|critic train|critic augment|selfrag index build".split("|"),
}
"""Commands that continue a run of the same settings and refuse another one; and what looks at what is there itself."""
if GUESTS:
    RESUMED.add("selfrag eval board")
WITHOUT_MODEL = set("show report facts sample agree inspect".split())
WITHOUT_MODEL |= {"export", "table"}


def test_every_command_that_writes_is_known_to_keep_what_is_there():
    written = set()
    for command, function in commands():
        options = {name for name, _, _ in parameters(function)}
        if options & {"--out", "--trace", "--write"}:
            written.add(command)
        assert ("--replace" in options) is (
            command in {*OVERWRITTEN, "selfrag index build"}
        )
    assert written == RESUMED | OVERWRITTEN.keys()


@pytest.mark.parametrize("command", sorted(OVERWRITTEN))
def test_no_command_writes_over_a_result_unless_told_to(command, world, monkeypatch):
    monkeypatch.chdir(world / "cwd")
    made = world / "made"
    option, _, file = OVERWRITTEN[command].rpartition("{w}/out/")
    line = f"{RIGHT[command]} {option and OVERWRITTEN[command]}"
    line = line.replace("{w}/out", str(made))

    def run(more=""):
        return ran(Line(command, tuple(shlex.split(line + more)), ""), world)

    try:
        if command == "selfrag eval export":
            assert run()[0] == 0
            (target,) = made.rglob("*.json")
        else:
            target = made / file
            target.parent.mkdir(parents=True)
            target.write_text("kept")
        kept = target.read_bytes()
        code, out, err = run()
        assert code == 2
        assert out == ""
        assert err.count("\n") == 1
        assert f"{target} is there already; give --replace" in err
        assert target.read_bytes() == kept
        if command.split()[-1] in WITHOUT_MODEL:
            code, out, err = run(" --replace")
            assert code == 0, err
            assert f"replaced {target}\n" in err, err
            assert target.read_bytes() != b"kept"
    finally:
        shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def at_best(world):
    """What the right lines say."""
    return {}


@pytest.mark.parametrize("line", CHOSEN, ids=lambda line: f"{line.command} {line.what}")
def test_a_bad_value_is_one_line(line, world, at_best, monkeypatch):
    monkeypatch.chdir(world / "cwd")
    monkeypatch.setenv("HOME", str(world / "home"))
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    if line.command not in at_best and not line.said:
        right = tuple(shlex.split(RIGHT[line.command]))
        at_best[line.command] = ran(Line(line.command, right, ""), world)[2]
    before = state(world)
    code, out, err = ran(line, world)
    assert state(world) == before
    # transformers' own bar, and what is loaded
    loading = ("Loading weights", " ..\n")
    lines = err.splitlines(keepends=True)
    err = "".join(one for one in lines if not any(text in one for text in loading))
    if line.said:
        assert code == 2
        assert out == ""
        assert line.said in err
    elif line.wrong:
        assert code == 2, "silent success"
        assert err != at_best[line.command], "not noticed"
    if code == 2:
        assert err.count("\n") == 1
        assert err.startswith(f"{line.command.split()[0]}: ")
        assert not {"Cc", "Cs"} & set(map(unicodedata.category, err[:-1]))
        typed = line.value.replace("{w}", "")
        assert len(err.replace(str(world), "").replace(typed, "")) <= LONGEST
