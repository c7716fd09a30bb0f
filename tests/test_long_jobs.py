"""Labelling, augmentation and training, killed at random by SIGKILL and Ctrl-C in turn.

Once each, from job to job in turn; `SELFRAG_KILLS=20` for 20 times.

After every kill each product is absent or what an undisturbed run makes of it; at the end all are there, and nothing
else is. This file is also the program that does it: it imports everything once and forks a child for each attempt.
Indexing and evaluation have kills in tests of their own.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

PLACE = Path(__file__).parent
VOLATILE = set("seconds time commit started ended".split())
"""Keys of JSON records that differ between two undisturbed runs."""

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and fork"),
]


def test_killed_or_interrupted_at_random_nothing_is_lost_or_doubled(tmp_path):
    command = [
        sys.executable,
        __file__,
        str(tmp_path),
        os.environ.get("SELFRAG_KILLS", "1"),
    ]
    there = os.environ | {"PYTHONPATH": str(PLACE.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=there, capture_output=True, text=True, timeout=3600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "".join(f"{name}: nothing lost\n" for name in JOBS)


def label(home, out):
    from critic.cli.main import main

    arguments = [
        "--url",
        (home / "url").read_text(),
        "--model=judge",
        "--constraint=choice",
        "--concurrency=4",
    ]
    return main(["label", str(home / "cases.jsonl"), "-o", str(out), *arguments])


def augment(home, out):
    import small_run

    small_run.run(home / "pairs.jsonl", out, 0.01)


def train(home, out):
    from trained import config

    from selfrag.training.job import TrainingJob, run

    settings = config(epochs=12, checkpoint_steps=3)
    run(TrainingJob(home / "rows.jsonl", home / "base", out, settings))


def save_base(folder):
    import tiny

    tiny.save_llama(folder, reflection=False, tie=True)


LOG = "run/log.jsonl"
JOBS = {
    "label": (label, {"labelled.jsonl", "surplus.jsonl", "aside.jsonl"}),
    "augment": (
        augment,
        set("rows.jsonl provenance.jsonl dropped.jsonl manifest.json".split()),
    ),
    "train": (
        train,
        {"adapter/adapter_model.safetensors", "adapter/adapter_config.json"},
    ),
}
"""What is done, and the files that it is for."""


def contents(out, names):
    """What is there of the products, without what differs from run to run."""

    def content(path):
        if path.suffix == ".safetensors":
            return path.read_bytes()
        text = path.read_text()
        return _steady(
            [
                json.loads(part)
                for part in ([text] if path.suffix == ".json" else text.splitlines())
            ]
        )

    return {name: content(out / name) for name in names if (out / name).is_file()}


def _steady(value):
    if isinstance(value, dict):
        return {key: _steady(one) for key, one in value.items() if key not in VOLATILE}
    return [_steady(one) for one in value] if isinstance(value, list) else value


def visible(out):
    """Names below a folder but those of drafts, which are hidden."""
    names = (path.relative_to(out) for path in out.rglob("*"))
    return {
        str(name)
        for name in names
        if not any(part.startswith(".") for part in name.parts)
    }


def serve(home):
    """A teacher that answers slowly, until it is killed."""
    import teaching_server

    server = teaching_server.TeachingServer()
    server.delay = 0.1
    (home / "url").write_text(server.url)
    signal.pause()


def child(work, words):
    """Fork; the child works as a command does, and says what it says into a file."""
    import tqdm

    if pid := os.fork():
        return pid
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # its own is shared by forks: the next would wait for a killed one
        tqdm.tqdm.set_lock(threading.RLock())
        said = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        code = work() or 0
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def disturb(name, home, kills):
    """Kill a job so many times, beginning again whenever it got through, and let it end."""
    (work, products), words, rng = JOBS[name], home / "words", random.Random(name)
    began, whole_out, out = time.monotonic(), home / name / "whole", home / name / "out"
    assert ended(child(lambda: work(home, whole_out), words)) == 0, words.read_text()
    lasts, whole, met = time.monotonic() - began, contents(whole_out, products), 0
    assert whole, "no product"
    while met < kills:
        number = (signal.SIGKILL, signal.SIGINT)[(met + list(JOBS).index(name)) % 2]
        pid = child(lambda: work(home, out), words)
        time.sleep(rng.uniform(0, lasts))
        os.kill(pid, number)
        code = ended(pid)
        assert code in (0, 130 if number == signal.SIGINT else -number), (
            name,
            number,
            code,
            words.read_text(),
        )
        found = contents(out, products)
        assert found.items() <= whole.items() if code else found == whole, (
            name,
            number,
            met,
        )
        met += code != 0
        if code == 0:
            shutil.rmtree(out)
    assert ended(child(lambda: work(home, out), words)) == 0, words.read_text()
    products |= {LOG}  # of a training, in which an unfinished one has fewer lines
    assert contents(out, products) == contents(whole_out, products), name
    assert visible(out) == visible(whole_out), name


def main(home, kills):
    sys.path.extend(
        str(PLACE / name)
        for name in "engines critic/teacher critic/augment training".split()
    )
    # Everything is imported once, not in every child.
    import matplotlib.figure  # noqa: F401
    import peft  # noqa: F401
    import small_run
    import teaching_server
    import tqdm
    import trained
    from json_files import write_records

    import selfrag.training.job  # noqa: F401

    # a shell's background job ignores it from the start
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # a process that forks wants no thread that may hold a lock
    tqdm.tqdm.monitor_interval = 0
    write_records(home / "cases.jsonl", teaching_server.questions(60))
    small_run.write_pairs(home / "pairs.jsonl")
    trained.write(home / "rows.jsonl")
    # In a child: torch makes its threads at the first operation, and no fork would have them.
    assert ended(child(lambda: save_base(home / "base"), home / "words")) == 0
    server = child(lambda: serve(home), home / "served")
    try:
        while not ((home / "url").is_file() and (home / "url").read_text()):
            time.sleep(0.01)
        for name in JOBS:
            (home / name).mkdir()
            disturb(name, home, kills)
            print(f"{name}: nothing lost", flush=True)  # noqa: T201
    finally:
        os.kill(server, signal.SIGKILL)
        ended(server)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
