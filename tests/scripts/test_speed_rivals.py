"""What ours is timed against: engines with a choice taken away, and the published loop, node by node."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "training"))

from lettered import Letters

from retrieval.passage import Passage
from selfrag.decoding.policy import Decoding
from selfrag.decoding.requests import Finish, Generate, Generated
from selfrag.engines.scripted import Reply, ScriptedEngine
from selfrag.errors import UserError
from selfrag.prompting import Prompting
from selfrag.reflection.labels import TOKENS
from selfrag.reflection.vocabulary import Vocabulary
from speed.official import Published
from speed.rivals import MISSING, CutAfterwards, OfficialLoop, Recording, cut, watched
from speed.timing import answer_all, least_tokens
from speed.workload import SHORT, Form, Item

EOS = 2
VOCABULARY = Vocabulary({token: 50_000 + i for i, token in enumerate(TOKENS)}, EOS)
ID = VOCABULARY.ids
POLICY = Decoding(mode="always", max_segments=2, segment_tokens=20)
ITEMS = [Item("q?", (Passage("a", "A text"), Passage("b", "B text"))), Item("r?", (Passage("a", "A text"),))]


PROMPTING = Prompting(Letters(), VOCABULARY)


def write(request: Generate) -> Reply:
    """`Hi.` and retrieval, with a hallucinated passage behind; after the second passage `Ho.` and the end."""
    first = request.prompt_ids.count(VOCABULARY.paragraph_open) == 1
    tail = (ID["[Retrieval]"], ord("x"), ord("y"), EOS) if first else (ID["[Utility:5]"], EOS)
    return Reply((ID["[Relevant]"], *map(ord, "Hi." if first else "Ho."), ID["[Fully supported]"], *tail))


def engine() -> ScriptedEngine:
    return ScriptedEngine(write, EOS)


def test_cutting_afterwards_gives_the_same_answers_for_more_tokens() -> None:
    recording, late = Recording(engine()), CutAfterwards(engine())
    ours = answer_all(ITEMS, PROMPTING, POLICY, recording)
    cut_late = answer_all(ITEMS, PROMPTING, POLICY, late)
    assert cut_late.texts == ours.texts == ("Hi. Ho.", "Hi. Ho.")
    assert cut_late.work == ours.work
    assert late.generated_tokens > ours.work.generated_tokens
    assert len(recording.requests) == ours.work.requests
    assert sum(len(request.prompt_ids) for request in recording.requests) == ours.work.prompt_tokens


def test_what_counts_by_hand() -> None:
    result = Generated((7, 9, 8, 9), (-0.1, -0.2, -0.3, -0.4), np.zeros((4, 1), np.float32), Finish.BUDGET)
    assert (cut(result, (9,)).token_ids, cut(result, (9,)).finish) == ((7, 9), Finish.STOP)
    assert cut(result, ()) == result
    assert watched({5: SimpleNamespace(logprob=-0.5)}, (5, 6)) == [-0.5, MISSING]
    # 1 2 3 is computed once, then 4, 5 and 6 behind it, and 9
    assert least_tokens([(1, 2, 3, 4), (9,), (1, 2, 3, 5, 6), (1, 2, 3)]) == 7


def completion(text: str, relevant: float, *, goes_on: bool):
    """`[Relevant]text[Fully supported]` and retrieval with text behind, or the end; 0 = log 1 for what is emitted."""
    tail = [ID["[Retrieval]"], ord("!"), EOS] if goes_on else [EOS]
    ids = [ID["[Relevant]"], *map(ord, text), ID["[Fully supported]"], *tail]
    rows = [{token: SimpleNamespace(logprob=0.0)} for token in ids]
    rows[0][ID["[Irrelevant]"]] = SimpleNamespace(logprob=relevant)
    return SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids, logprobs=rows, cumulative_logprob=0.0)])


@pytest.mark.engine
def test_the_published_loop_expands_one_node_a_call_and_cuts_at_the_first_retrieval() -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    replies = [
        [completion("a", -1.0, goes_on=True), completion("b", -9.0, goes_on=True)],
        [completion("c", -1.0, goes_on=False), completion("d", -1.5, goes_on=False)],
        [completion("e", -1.0, goes_on=False), completion("f", -9.0, goes_on=False)],
    ]
    calls = []

    def generate(prompts, params, use_tqdm):
        calls.append([prompt["prompt_token_ids"] for prompt in prompts])
        assert (params.stop_token_ids, params.logprobs) == ([], 9)
        return replies[len(calls) - 1]

    item = Item("q", (Passage("a", "A"), Passage("b", "B")))
    form = Form("form", Decoding(max_segments=3, passages=2), 9)
    run = OfficialLoop(SimpleNamespace(generate=generate), PROMPTING, form, 9).answer_all([item])
    assert run.texts == ("b d",)  # b, then d: 2.000 * 1.818; a, then f: 1.731 * 2.000
    assert [len(call) for call in calls] == [2, 2, 2]
    evidence = PROMPTING.evidence(item.passages[0], 256).ids
    # b is the better node, so it comes first; neither a nor what was cut is in its prompt
    assert calls[1][0] == [*PROMPTING.prompt("q"), ord("b"), ID["[Retrieval]"], *evidence]
    assert (run.work.requests, run.work.generated_tokens) == (6, 2 * 6 + 4 * 4)


def test_a_folder_without_the_published_code_is_refused(tmp_path) -> None:
    with pytest.raises(UserError, match="give a clone"):
        Published(tmp_path, "", None, SHORT)
