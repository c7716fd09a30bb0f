"""Every long job, disturbed: `long_jobs.py FOLDER [JOB ...] --kills N`. Not a test.

Each is killed at random moments, by SIGKILL and by Ctrl-C in turn; begun again whenever it got through, so that each
job has its N kills. After every kill each product is absent or what an undisturbed run makes of it; at the end all are
there, and nothing else is. The process imports everything once and forks a child for each attempt.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.extend(
    str(Path(__file__).parent / name) for name in ("engines", "training", "critic/teacher", "critic/augment")
)
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import peft  # noqa: F401 - imported once, not in every child
import small_run
import teaching_server
import tiny
import torch
import tqdm
import trained
import transformers  # noqa: F401

import critic.cli.main
import selfrag.cli.main
from retrieval import Passage, build, index_passages
from retrieval.encoders import EncoderCard
from selfrag.demo import model as demo_model
from selfrag.errors import UserError
from selfrag.jsonl import write_jsonl

STEP = 0.01  # seconds that a fast job pauses now and then, so that a signal meets it at work
VOLATILE = {"seconds", "time", "commit", "started", "ended"}
"""Keys of JSON records that differ between two undisturbed runs."""


@dataclass(frozen=True)
class Job:
    """A long job."""

    run: Callable[[Path, Path], int | None]  # does it, from the folder of what `prepare` made, and where to write
    products: tuple[str, ...]  # patterns of the files that it is for, below where it writes
    log: str = ""  # a file that grows line by line, which must be the same at the end
    # What is compared of records; None for everything. A real model's answers depend on which questions it computes
    # together; that all of them are there, once and in order, does not.
    kept: tuple[str, ...] | None = None

    def contents(self, out: Path) -> dict[str, object]:
        """What is there of the products, without what differs from run to run."""
        named = visible(out)
        files = {path for pattern in self.products for path in out.glob(pattern) if path.is_file()}
        names = {path: str(path.relative_to(out)) for path in files}
        return {name: self._content(path) for path, name in names.items() if name in named}

    def logged(self, out: Path) -> object:
        """The log, at the end."""
        return self._content(out / self.log) if self.log else None

    def _content(self, path: Path) -> object:
        if path.suffix == ".json":
            return _steady(json.loads(path.read_text()))
        if path.suffix == ".jsonl":
            records = [_steady(json.loads(line)) for line in path.read_bytes().splitlines()]
            return records if self.kept is None else [[record[key] for key in self.kept] for record in records]
        return path.read_bytes()


def _steady(value: object) -> object:
    if isinstance(value, dict):
        return {key: _steady(one) for key, one in value.items() if key not in VOLATILE}
    return [_steady(one) for one in value] if isinstance(value, list) else value


class Slow:
    """An encoder by the lengths of texts."""

    card = EncoderCard("slow", "1", 64)

    def encode(self, texts: list[str], batch_size: int = 64) -> np.ndarray:
        time.sleep(STEP)
        return np.array([[len(text) * n % 13 for n in range(64)] for text in texts], np.float32)


def index(home: Path, out: Path) -> None:
    build.BLOCK_ROWS = 10
    passages = [Passage(str(n), "text " * (n % 17 + 1) + str(n)) for n in range(300)]
    index_passages(passages, out / "index", encoder=Slow())


def checkpoint(home: Path, out: Path) -> None:
    os.environ["SELFRAG_CACHE"] = str(out)
    demo_model.base_path = lambda: home / "base"
    demo_model.merged_path(home / "trained" / "adapter", "tiny")


def train(home: Path, out: Path) -> int:
    rows, base = str(home / "trained.jsonl"), str(home / "base")
    settings = ["--max-steps=30", "--epochs=60", "--max-length=300", "--seed=3"]
    return selfrag.cli.main.main(["train", "adapter", rows, "--base", base, "-o", str(out), *settings])


def label(home: Path, out: Path) -> int:
    arguments = ["--url", (home / "url").read_text(), "--model=judge", "--constraint=choice", "--concurrency=4"]
    return critic.cli.main.main(["label", str(home / "cases.jsonl"), "-o", str(out), *arguments])


def augment(home: Path, out: Path) -> None:
    small_run.run(home / "pairs.jsonl", out, STEP)


def pairs(home: Path, out: Path) -> int:
    return critic.cli.main.main(["pairs", f"flan_v2={home / 'flan.jsonl'}", "-o", str(out / "pairs.jsonl")])


def evaluate(home: Path, out: Path) -> int:
    model = [f"--model={home / 'model'}", "--engine=transformers", "--set=segment_tokens=12"]
    return selfrag.cli.main.main(["eval", "run", str(home / "short.jsonl"), f"--out={out}", "--system=selfrag", *model])


def sweep(home: Path, out: Path) -> int:
    options = [f"--model={home / 'model'}", "--engine=transformers", "--axis=threshold=0,0.5,1", "--best=none"]
    return selfrag.cli.main.main(["sweep", str(home / "short.jsonl"), f"--out={out}", "--answers", *options])


def interpret(home: Path, out: Path) -> int:
    options = [f"--model={home / 'model'}", "--engine=transformers", "--cutoff=2", "--order=ranked", "--max-tokens=8"]
    begin = ["interpret", "run", str(home / "rivers.jsonl"), "-o", str(out), *options, "--examples=0", "--prompt=basic"]
    return selfrag.cli.main.main(begin)


JOBS = {
    "index": Job(index, ("index/**/*",)),
    "checkpoint": Job(checkpoint, ("models/*/*",)),
    "train": Job(train, ("adapter/*.safetensors", "adapter/reflection.json"), "run/log.jsonl"),
    "label": Job(label, ("labelled.jsonl", "surplus.jsonl", "aside.jsonl")),
    "augment": Job(augment, ("*.jsonl", "manifest.json")),
    "pairs": Job(pairs, ("pairs.jsonl",)),
    "eval": Job(evaluate, ("selfrag/short.jsonl",), kept=("id", "error")),
    "sweep": Job(sweep, ("short/recording/short.jsonl", "settings/*/short.jsonl"), kept=("id", "error")),
    "interpret": Job(interpret, ("k2-ranked-0-basic.jsonl",), kept=("id", "error")),
}


def prepare(home: Path) -> None:
    """Models, rows and an adapter for all jobs."""
    tiny.save_llama(home / "base", reflection=False, tie=True)
    tiny.save_llama(home / "model", context=4096)
    tokenizer = tiny.byte_level_tokenizer()
    turns = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    tokenizer.chat_template = turns + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    tokenizer.save_pretrained(home / "model")
    trained.write(home / "trained.jsonl")
    assert train(home, home / "trained") == 0
    write_jsonl(home / "cases.jsonl", [row.as_dict() for row in teaching_server.questions(60)])
    small_run.write_pairs(home / "pairs.jsonl")
    write_jsonl(home / "flan.jsonl", [{"inputs": f"Say {n}." * 20, "targets": "yes"} for n in range(20_000)])
    passages = [{"id": f"p{n}", "title": "Book", "text": f"Text {n} by Ann."} for n in range(3)]
    given = {"task": "short_qa", "answers": ["Ann"], "passages": passages, "gold_passage_ids": ["p1"]}
    asked = [given | {"id": f"q{n}", "instruction": f"Who wrote book {n}?"} for n in range(8)]
    write_jsonl(home / "short.jsonl", asked)
    several = {"task": "list_qa", "answers": [["Ann"], ["Text"]], "gold_passage_ids": ["p0", "p1"], "split": "dev"}
    rivers = [one | several | {"type": ("simple", "composition")[n % 2]} for n, one in enumerate(asked)]
    write_jsonl(home / "rivers.jsonl", [one | {"question": one["instruction"]} for one in rivers])


def serve(home: Path) -> None:
    """A teacher that answers slowly, until it is killed."""
    server = teaching_server.TeachingServer()
    server.delay = 0.1
    (home / "url").write_text(server.url)
    signal.pause()


def child(work: Callable[[], int | None], words: Path) -> int:
    """Fork; the child works as a command does, and says what it says into a file."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        tqdm.tqdm.set_lock(threading.RLock())  # its own is shared by forks: the next would wait for a killed one
        said = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        code = work() or 0
    except KeyboardInterrupt:
        code = 130
    except UserError as error:
        print(error)  # noqa: T201
        code = 2
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def undisturbed(name: str, home: Path) -> tuple[dict[str, object], float]:
    """What a job makes, and how many seconds it takes."""
    job, out, began = JOBS[name], home / name / "whole", time.monotonic()
    code = ended(child(lambda: job.run(home, out), home / "words"))
    assert code == 0, (home / "words").read_text()
    whole = job.contents(out)
    assert whole, "no product"
    return whole, time.monotonic() - began


def disturb(name: str, home: Path, kills: int, seed: int) -> str:
    """Kill a job `kills` times and let it end; returns a line about it."""
    job, words, rng = JOBS[name], home / "words", random.Random(f"{seed} {name}")

    def attempt(out: Path) -> int:
        return child(lambda: job.run(home, out), words)

    (whole, lasts), out = undisturbed(name, home), home / name / "out"
    met, through = {signal.SIGKILL: 0, signal.SIGINT: 0}, 0
    while (done := sum(met.values())) < kills:
        number = (signal.SIGKILL, signal.SIGINT)[done % 2]
        pid = attempt(out)
        time.sleep(rng.uniform(0, lasts))
        os.kill(pid, number)
        code = ended(pid)
        assert code in (0, 130 if number == signal.SIGINT else -number), (name, number, code, words.read_text())
        found = job.contents(out)
        wrong = [file for file in found if found[file] != whole.get(file)]
        assert not wrong, (name, number, done, wrong)
        met[number] += code != 0
        if code == 0:
            assert found == whole, (name, sorted(whole), sorted(found))
            through += 1
            shutil.rmtree(out)
    code = ended(attempt(out))
    assert code == 0, words.read_text()
    assert job.contents(out) == whole, name
    assert job.logged(out) == job.logged(home / name / "whole"), name
    lost = sorted(visible(home / name / "whole") ^ visible(out))
    assert not lost, (name, lost)
    return f"{name}: {met[signal.SIGKILL]} kills, {met[signal.SIGINT]} interrupts, {through} got through; nothing lost"


def visible(out: Path) -> set[str]:
    """Names below a folder but those of drafts, which are hidden."""
    names = (path.relative_to(out) for path in out.rglob("*"))
    return {str(name) for name in names if not any(part.startswith(".") for part in name.parts)}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("jobs", nargs="*", default=list(JOBS))
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it from the start
    torch.set_num_threads(1)
    tqdm.tqdm.monitor_interval = 0  # a process that forks wants no thread that may hold a lock
    home = given.folder.absolute()
    if not (home / "short.jsonl").exists():
        home.mkdir(parents=True, exist_ok=True)
        code = ended(child(lambda: prepare(home), home / "words"))
        assert code == 0, (home / "words").read_text()
    server = child(lambda: serve(home), home / "served")
    try:
        for name in given.jobs:
            shutil.rmtree(home / name, ignore_errors=True)
            print(disturb(name, home, given.kills, given.seed), flush=True)  # noqa: T201
    finally:
        os.kill(server, signal.SIGKILL)
        ended(server)


if __name__ == "__main__":
    main()
