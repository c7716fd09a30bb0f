"""A run in a process of its own, to be killed: 60 items on the scripted engine, slowed down so that a kill hits it.

python scripted_run.py FOLDER SECONDS_PER_STEP
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "decoding"))
sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))

from scripted import ScriptedEngine, ScriptedReply
from written import EOS, FIRST_CHARACTER, LIMITS, PROMPTING

from selfrag.evaluation.items import Item
from selfrag.evaluation.runner import RunJob, run
from selfrag.evaluation.systems import Untuned
from selfrag.evaluation.task import SHORT
from selfrag.evaluation.task_files import TaskFile
from selfrag.prompting import Chat
from selfrag.reflection.requests import Failed

ITEMS = tuple(
    Item(
        f"q{i}",
        f"Question {i}",
        answers=("Paris",),
        references=("Paris",),
        task="short_qa",
    )
    for i in range(60)
)
FILE = TaskFile("set", Path("set.jsonl"), "0" * 64, SHORT, ITEMS, len(ITEMS))
BROKEN = "Question 5"


class Slow(ScriptedEngine):
    """Serves three requests a step, the newest first, and takes its time."""

    def __init__(self, reply, pause):
        super().__init__(reply, EOS, limits=LIMITS, batch=3)
        self.pause = pause

    def step(self):
        time.sleep(self.pause)
        self._waiting = dict(reversed(self._waiting.items()))
        return super().step()


def reply(request):
    """Paris for every third question; one question cannot be answered."""
    text = PROMPTING.codec.decode(
        [i for i in request.prompt_ids if i >= FIRST_CHARACTER]
    )
    number = int(text.split("Question ")[1].split()[0])
    if f"Question {number}" == BROKEN:
        return Failed("no memory\nleft")
    return ScriptedReply(
        (*PROMPTING.codec.encode("Paris" if number % 3 == 0 else "Röm\u2028"), EOS)
    )


def data_file(folder, *rows, name="set.jsonl"):
    """A file of rows."""
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def finetuned(passages):
    """A system of a model that was fine-tuned without reflection tokens."""
    before, after = (
        tuple(PROMPTING.codec.encode(text))
        for text in ("### Instruction:\n", "\n\n### Response:\n")
    )
    return Untuned(
        PROMPTING.codec, Chat(before, after, "selfrag"), EOS, passages, is_told=False
    )


def job(folder, **options):
    """The run that all tests repeat."""
    return RunJob(
        finetuned(0),
        {"name": "finetuned", "model": {"weights": "abc"}},
        folder,
        **options,
    )


def start(folder, pause=0.0, **options):
    """Run, or continue."""
    return run(job(folder, **options), [FILE], lambda: Slow(reply, pause))


if __name__ == "__main__":
    start(Path(sys.argv[1]), float(sys.argv[2]))
