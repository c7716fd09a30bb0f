"""Benchmarks measure what they say: the same work, the same answers, counted right. Speeds are not judged here."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
from refusals import refused

sys.path.append(str(Path(__file__).parents[1] / "training"))

from lettered import Letters
from scripted import ScriptedEngine, ScriptedReply
from trained import ROWS, config, write

from retrieval.passage import Passage
from scripts.benchmarks import bench_training, gpu
from scripts.benchmarks.bench_decoding import Recording
from scripts.benchmarks.measure import Run, answer_all, race, ratio
from scripts.benchmarks.rivals import MISSING, complete_on_transformers, watched
from scripts.benchmarks.workload import Item, read_items
from selfrag.common.jsonl import write_jsonl
from selfrag.decoding.policy import Decoding
from selfrag.engines.transformers import TransformersConfig, TransformersEngine
from selfrag.engines.transformers_model import load
from selfrag.loading import load_training_tokenizer
from selfrag.prompting import Prompting
from selfrag.reflection.labels import TOKENS
from selfrag.reflection.requests import Finish, Generate, Usage, ask
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.runtime import finish

EOS = 2
VOCABULARY = Vocabulary({token: 50_000 + i for i, token in enumerate(TOKENS)}, EOS)
ID, PROMPTING = VOCABULARY.ids, Prompting(Letters(), VOCABULARY)


def test_ways_run_in_turn_and_every_second_round_backwards():
    order = []

    def way(name, seconds):
        def run():
            order.append(name)
            return Run(seconds, 1, Usage())

        return run

    ways = {"a": way("a", 1.0), "b": way("b", 2.0)}
    slow, fast = reversed(race(ways, 3, lambda: order.append("-")))
    assert "".join(order) == "-a-b-b-a-a-b"
    assert slow.per_question == [2.0, 2.0, 2.0]
    assert ratio(slow, fast) == "2.00 (2.00-2.00)"


def item(number, count):
    passages = [Passage(f"p{k}", f"Sand {k}. To the sea.", "T") for k in range(count)]
    return Item(f"What is {number}?", tuple(passages))


def test_items_are_the_first_rows_with_their_first_passages(tmp_path):
    rows = [{**asdict(item(0, count)), "task": "short_qa"} for count in (3, 3, 1)]
    write_jsonl(tmp_path / "q.jsonl", [*rows, {"passages": []}])
    file = tmp_path / "q.jsonl"
    assert read_items(file, 2, 2) == [item(0, 2)] * 2
    for count, message in ((3, "at least 1 passages"), (4, r"q\.jsonl:4: .*missing")):
        with refused(message):
            read_items(file, count, 2)


def reply(request):
    """`Hi.` and retrieval, with a hallucinated passage behind; after the second passage `Ho.` and the end."""
    first = request.prompt_ids.count(VOCABULARY.paragraph_open) == 1
    tail = (ID["[Retrieval]"], ord("x"), EOS) if first else (ID["[Utility:5]"], EOS)
    text = map(ord, "Hi." if first else "Ho.")
    return ScriptedReply((ID["[Relevant]"], *text, ID["[Fully supported]"], *tail))


def test_a_recording_changes_nothing_and_holds_every_request():
    recording = Recording(ScriptedEngine(reply, EOS))
    policy = Decoding(mode="always", max_segments=2, segment_tokens=20)
    ours = answer_all([item(0, 2), item(1, 1)], PROMPTING, policy, recording)
    assert [answer.text for answer in ours.answers] == ["Hi. Ho.", "Hi. Ho."]
    assert len(recording.requests) == ours.usage.requests
    prompts = sum(len(request.prompt_ids) for request in recording.requests)
    assert prompts == ours.usage.prompt_tokens


def test_a_fixed_length_ends_nowhere_but_at_its_budget():
    scripted = ScriptedEngine(lambda request: ScriptedReply((7, 9, 8, 7, 6)), 2)
    engine = Recording(scripted, ending=99)
    ticket = engine.submit(Generate((1, 2), 3, stop_ids=(9,)))
    [(done, result)] = engine.step()
    assert done == ticket
    assert result.token_ids == (7, 9, 99)
    assert result.finish == Finish.STOP


def test_what_an_engine_does_not_return_is_missing():
    row = {5: SimpleNamespace(logprob=-0.5), 7: -1.5}
    assert watched(row, (5, 6, 7)) == [-0.5, MISSING, -1.5]


@pytest.mark.engine
def test_the_rival_on_transformers_writes_what_the_engine_writes(tiny_llama):
    tokenizer = load_training_tokenizer(tiny_llama)
    prompts = [tokenizer(text)["input_ids"] for text in ("Who?", "Paris is big, and")]
    model = load(TransformersConfig(str(tiny_llama), dtype="float32", device="cpu"))
    engine = TransformersEngine(model, TransformersConfig(str(tiny_llama)))
    requests = [Generate(tuple(ids), 8, watch_ids=(5, 300)) for ids in prompts]
    completions = complete_on_transformers(model, prompts, 8, 10_000)
    for completion, result in zip(
        completions, finish(ask(requests), engine), strict=True
    ):
        assert completion.ids == result.token_ids
        assert completion.total == pytest.approx(sum(result.token_logprobs), abs=1e-4)
        row = watched(completion.logprobs[-1], (5, 300))
        assert row == pytest.approx(result.watched[-1].tolist(), abs=1e-4)


@pytest.mark.slow
def test_every_trainer_sees_the_same_rows_and_has_the_same_losses(tmp_path):
    made = [replace(row, id=f"{row.id}{n}") for n in range(3) for row in ROWS]
    rows = write(tmp_path / "rows.jsonl", made[:8])
    base = tiny.save_llama(tmp_path / "base", reflection=False, tie=True)
    settings = config(epochs=1, learning_rate=2e-3, precision="fp32", step_rows=2)
    settings = replace(
        settings, max_steps=4, weighting=bench_training.Weighting.uniform()
    )
    lines = [
        bench_training.train(system, rows, base, settings)
        for system in bench_training.SYSTEMS
    ]
    for name in ("tokens/step", "first loss", "last loss"):
        assert lines[0][name] == pytest.approx(lines[1][name], rel=1e-4)
    with refused("8 rows"):
        uneven = replace(settings, step_rows=3, max_steps=3)
        bench_training.train("plain Trainer, padded rows", rows, base, uneven)


def test_a_step_that_fails_or_takes_too_long_stops_no_other(
    tmp_path, run_script, monkeypatch
):
    items = tmp_path / "items.jsonl"
    write_jsonl(items, map(asdict, [item(number, 5) for number in range(8)]))
    steps = {
        "bad": (60, "bench_parity --questions none"),
        "slow": (0.2, "bench_parity"),
        "late": (0, ""),
    }
    monkeypatch.setattr(gpu, "TINY", steps)
    where = ["--items", items, "--out", tmp_path / "out", "--tiny"]
    code, page, _ = run_script("gpu", "run", *where)
    assert code == 1
    assert "| bad | failed with code 2: " in page
    assert "| slow | stopped after 0 s | " in page
    assert "| late | no time was left for it | 0 |" in page
    assert page == (tmp_path / "out/gpu.md").read_text() + "\n"
    for words, said in ((["--step", "x"], "--step"), (["--items", "no"], "no")):
        code, _, error = run_script("gpu", "run", *where, *words)
        assert code == 2
        assert error.count("\n") == 1
        assert said in error


@pytest.mark.slow
@pytest.mark.demo
def test_all_steps_of_a_gpu_run_on_a_cpu(tmp_path, run_script):
    items = tmp_path / "items.jsonl"
    write_jsonl(items, map(asdict, [item(number, 5) for number in range(8)]))
    words = ["run", "--tiny", "--items", items, "--out", tmp_path]
    code, page, error = run_script("gpu", *words)
    assert code == 0, page + error
    # 5 requests, and twice 5 for each of the two kept
    assert "| long | floor | 2 | " in page
    assert page.count("| 25 | ") == 7
