"""The rival follows the published loop: nodes one by one, cut afterwards, best path of the deepest level."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from retrieval.passage import Passage
from selfrag.decoding.policy import Decoding
from selfrag.errors import UserError
from selfrag.prompting import Prompting
from selfrag.reflection.labels import TOKENS
from selfrag.reflection.vocabulary import Vocabulary
from speed.official import Published
from speed.rivals import OfficialLoop
from speed.workload import SHORT, Form, Item

pytestmark = pytest.mark.engine
pytest.importorskip("vllm", reason="vLLM is not installed")

EOS = 2
VOCABULARY = Vocabulary({token: 50_000 + i for i, token in enumerate(TOKENS)}, EOS)
ID = VOCABULARY.ids


class Characters:
    bos_ids = (1,)

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, ids) -> str:
        return "".join(map(chr, ids))


PROMPTING = Prompting(Characters(), VOCABULARY)


def completion(text: str, relevant: float, *, goes_on: bool):
    """`[Relevant]text[Fully supported]` and retrieval with text behind, or the end; 0 = log 1 for what is emitted."""
    tail = [ID["[Retrieval]"], ord("!"), EOS] if goes_on else [EOS]
    ids = [ID["[Relevant]"], *map(ord, text), ID["[Fully supported]"], *tail]
    rows = [{token: SimpleNamespace(logprob=0.0)} for token in ids]
    rows[0][ID["[Irrelevant]"]] = SimpleNamespace(logprob=relevant)
    output = SimpleNamespace(token_ids=ids, logprobs=rows, cumulative_logprob=0.0)
    return SimpleNamespace(outputs=[output])


class Scripted:
    """Replies of successive calls; remembers the prompts."""

    def __init__(self, *replies):
        self.replies, self.calls = list(replies), []

    def generate(self, prompts, params, use_tqdm):
        self.calls.append([prompt["prompt_token_ids"] for prompt in prompts])
        assert params.stop_token_ids == []
        assert params.logprobs == 9
        return self.replies.pop(0)


ITEM = Item("q", (Passage("a", "A"), Passage("b", "B")))


def loop(llm, segments: int) -> OfficialLoop:
    return OfficialLoop(llm, PROMPTING, Form("form", Decoding(max_segments=segments, passages=2), 9), 9)


def test_long_form_expands_one_node_a_call_and_cuts_at_the_first_retrieval():
    llm = Scripted(
        [completion("a", -1.0, goes_on=True), completion("b", -9.0, goes_on=True)],
        [completion("c", -1.0, goes_on=False), completion("d", -1.5, goes_on=False)],
        [completion("e", -1.0, goes_on=False), completion("f", -9.0, goes_on=False)],
    )
    run = loop(llm, 3).answer_all([ITEM])
    assert run.texts == ("b d",)  # b, then d: 2.000 * 1.818; a, then f: 1.731 * 2.000
    assert [len(call) for call in llm.calls] == [2, 2, 2]
    assert run.work.requests == 6
    prompt = list(PROMPTING.prompt("q"))  # b is the better node, so it comes first
    evidence = list(PROMPTING.evidence(ITEM.passages[0], 256).ids)
    assert llm.calls[1][0] == [*prompt, ord("b"), ID["[Retrieval]"], *evidence]  # neither a nor what was cut
    assert run.work.generated_tokens == 2 * 6 + 4 * 4


def test_short_form_takes_the_best_passage():
    llm = Scripted([completion("a", -9.0, goes_on=False), completion("b", -1.0, goes_on=True)])
    assert loop(llm, 1).answer_all([ITEM]).texts == ("a",)


def test_a_folder_without_the_published_code_is_refused(tmp_path):
    with pytest.raises(UserError, match="give a clone"):
        Published(tmp_path, "", None, SHORT)
