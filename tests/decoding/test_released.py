"""`Decoding.official` asks the model what the released code asks it, request by request, and gives its answer.

`Replay` is the control flow of `run_short_form.py` and `run_long_form_static.py` (AkariAsai/self-rag at 1fcdc42), from
its description in the case list of this project. With the folder of a checkout in SELFRAG_RELEASED, the unchanged
functions are asked too; vLLM's place is taken by the same scripted model.
"""

import importlib
import json
import math
import os
import random
import re
import sys
from collections import defaultdict
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace

import pytest
from scripted import ScriptedReply
from written import EOS, FIRST_CHARACTER, PROMPTING, SURFACE, VOCABULARY, passages, run

from selfrag.decoding.policy import Decoding
from selfrag.evaluation.items import output_of
from selfrag.evaluation.metrics.alce import cited_sentences, cites
from selfrag.evaluation.released import cited_as_released
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, RETRIEVE

TREES = int(os.environ.get("SELFRAG_RELEASED_TREES", "150"))
YES, NO, KEEP = VOCABULARY.retrieve
KEEP_TEXT = SURFACE[KEEP]
"""The one token that the released code leaves in an answer."""
BUDGET = 60
"""Tokens of a completion; some that are written are longer."""
EVIDENCE = passages("d1", "d2", "d3")
WORDS = ("Alpha.", "Beta.", "", "Alpha.", "Gamma.\n\nDelta.")


def surface(ids):
    """Ids as text, reflection tokens by their strings."""
    return "".join(
        SURFACE.get(i) or chr(i - FIRST_CHARACTER) for i in ids if i not in (EOS, 40)
    )


def without_tokens(text, kept=""):
    """A text without reflection tokens, but for one, and without new lines."""
    for token in VOCABULARY.ids:
        if token != kept:
            text = text.replace(token, "")
    return text.replace("\n", "")


def written(seed, prompt):
    """Ids, probabilities at each place and log-probabilities: one to four pieces with Retrieve tokens between them.

    Where the prompt offers A or B, one piece with either.
    """
    draw = random.Random(f"{seed} {prompt}")
    ids = []
    offered = "A or B?" in prompt
    for _ in range(1 if offered else draw.randint(1, 4)):
        ids += draw.sample(VOCABULARY.group(ISREL), draw.randint(0, 1))
        words = ("A", "B") if offered else (*WORDS, f"w{draw.random():.6f}.")
        word = draw.choice(words)
        ids += [FIRST_CHARACTER + ord(c) for c in word]
        ids += draw.sample(VOCABULARY.group(ISSUP), draw.randint(0, 1))
        ids += draw.sample(VOCABULARY.group(ISUSE), draw.randint(0, 1))
        ids.append(draw.choice((YES, YES, NO, KEEP)))
    if not prompt.endswith("\n") and draw.random() < 0.4:
        ids = [i for i in ids if i != YES]
    ids.append(EOS)
    rows = [{i: draw.uniform(0.001, 0.06) for i in VOCABULARY.watch} for _ in ids]
    return ids, rows, [-draw.random() for _ in ids]


@dataclass
class Replay:
    """The released control flow on a scripted model; `prompts` are what it asked, level by level."""

    seed: int
    leaks: bool = True
    outvoted: bool = False
    prompts: list = field(default_factory=list)

    def complete(self, prompt, tokens=BUDGET):
        self.prompts[-1].append(prompt)
        ids, rows, logprobs = written(self.seed, prompt)
        return ids[:tokens], rows, logprobs[:tokens]

    def after(self, prompt, passage, *, short):
        """The completion after a passage and its score."""
        given = f"[Retrieval]<paragraph>{passage.title}\n{passage.text}</paragraph>"
        ids, rows, logprobs = self.complete(prompt + given)
        relevant, irrelevant = (rows[0][i] for i in VOCABULARY.group(ISREL))
        score = relevant / (relevant + irrelevant)
        row = self.first(ids, rows, ISSUP)
        if row:
            score += (row[0] + 0.5 * row[1]) / sum(row)
        if short:
            row = self.first(ids, rows, ISUSE)
            values = (-1, -0.5, 0, 0.5, 1)
            if row:
                score += sum(v * p for v, p in zip(values, row, strict=True)) / sum(row)
            score += math.exp(sum(logprobs) / len(logprobs))
        return ids, rows, score

    def first(self, ids, rows, labels):
        group = VOCABULARY.group(labels)
        for place, token in enumerate(ids):
            if token in group:
                return [rows[place][i] for i in group]
        return None

    def short(self, prompt, mode, threshold, votes=None):
        """The answer, its passage and its score.

        With `votes`, the token that stays in texts, passages vote, and text and score are those of all with this text.
        """
        retrieves = mode == "always"
        if mode == "adaptive":
            self.prompts.append([])
            _, rows, _ = self.complete(prompt)
            yes, no = math.log(rows[0][YES]), math.log(rows[0][NO])
            retrieves = yes / (yes + no) > threshold
        self.prompts.append([])
        if not retrieves:
            return surface(self.complete(f"{prompt}[No Retrieval]")[0]), None, None
        tried = []
        for passage in EVIDENCE:
            ids, _, score = self.after(prompt, passage, short=True)
            tried.append((surface(ids), passage.id, score))
        best = max(tried, key=lambda answer: answer[2])
        if votes is None:
            return best
        scores = defaultdict(float)
        for text, _, score in tried:
            scores[without_tokens(text, votes)] += score
        text, score = max(scores.items(), key=lambda total: total[1])
        self.outvoted = text != without_tokens(best[0], votes)
        return text, "", score

    def long(self, prompt, mode, threshold, beam, levels):
        """The segments of the answer, each with its passage and the score of its path."""
        if mode == "adaptive":
            self.prompts.append([])
            ids, rows, _ = self.complete(prompt, 25)
            yes, no = rows[0][YES], rows[0][NO]
            asks = "[Retrieval]" in surface(ids).split("\n\n")[0]
            if not asks or yes / (yes + no) <= threshold:
                self.prompts.append([])
                ids, _, _ = self.complete(f"{prompt}[No Retrieval]")
                return [(surface(ids).split("\n\n")[0], None, None)]
        level = [
            SimpleNamespace(prompt=prompt, text="", goes_on=True, score=1.0, path=[])
        ]
        for _ in range(levels):
            following = []
            if any(node.goes_on for node in level):
                self.prompts.append([])
            for node in level:
                before = node.text
                for passage in EVIDENCE if node.goes_on else ():
                    ids, rows, score = self.after(
                        node.prompt + node.text, passage, short=False
                    )
                    text = self.as_read(ids, rows, threshold)
                    head, asks, _ = text.partition("[Retrieval]")
                    score *= node.score
                    path = [*node.path, (head, passage.id, score)]
                    following.append(
                        SimpleNamespace(
                            prompt=node.prompt + before,
                            text=head,
                            goes_on=asks,
                            score=score,
                            path=path,
                        )
                    )
                    if self.leaks:
                        before = head
            if not following:
                break
            level = sorted(following, key=lambda node: -node.score)[:beam]
        return level[0].path

    def as_read(self, ids, rows, threshold):
        """The text with each `[No Retrieval]` turned where the ratio says so, and one more at the end."""
        pieces = [[]]
        turned = []
        for place, token in enumerate(ids):
            if token == NO:
                yes, no, keep = (rows[place][i] for i in VOCABULARY.group(RETRIEVE))
                turned.append((yes + keep) / (yes + no) > threshold)
                pieces.append([])
            else:
                pieces[-1].append(token)
        if not turned:
            return surface(ids)
        text = ""
        for piece, retrieves in zip(pieces, [*turned, False], strict=True):
            text += surface(piece) + ("[Retrieval]" if retrieves else "[No Retrieval]")
        return text


def ours(seed, policy, question="Q", choices=None):
    """The prompts that `decode` asks, in order, and its answer."""

    def reply(request):
        ids, rows, logprobs = written(seed, surface(request.prompt_ids))
        return ScriptedReply(tuple(ids), dict(enumerate(rows)), logprobs)

    done = run(
        reply, question=question, evidence=EVIDENCE, policy=policy, choices=choices
    )
    return [
        surface(request.prompt_ids) for request in done.engine.requests
    ], done.answer


def settings(seed):
    """Mode, threshold, beam and levels of a tree."""
    draw = random.Random(seed)
    mode = draw.choice(("adaptive", "always"))
    return mode, draw.choice((0.2, 0.5)), draw.randint(1, 3), draw.randint(2, 6)


def same_requests(levels, prompts):
    """Whether these are the prompts of all levels; within a level the order does not matter."""
    for level in levels:
        if sorted(level) != sorted(prompts[: len(level)]):
            return False
        prompts = prompts[len(level) :]
    return not prompts


QUESTION, CHOICE = (surface(PROMPTING.prompt(text)) for text in ("Q", "A or B?"))


@pytest.mark.parametrize("form", ["short", "vote", "long, leaked", "long, written"])
def test_the_released_control_flow_request_by_request(form):
    deep = turned = outvoted = 0
    for seed in range(TREES):
        mode, threshold, beam, levels = settings(seed)
        replay = Replay(seed, leaks="leaked" in form)
        changes = {
            "mode": mode,
            "threshold": threshold,
            "passages": 3,
            "segment_tokens": BUDGET,
        }
        question, choices = "Q", None
        if form == "short":
            policy = Decoding.official(max_segments=1, **changes)
            expected = [replay.short(QUESTION, mode, threshold)]
        elif form == "vote":
            policy = Decoding.official(max_segments=1, **changes)
            question, choices = "A or B?", ("A", "B")
            expected = [replay.short(CHOICE, mode, threshold, "")]
        else:
            policy = Decoding.official(max_segments=levels, beam=beam, **changes)
            policy = replace(policy, history=form.split()[1])
            expected = replay.long(QUESTION, mode, threshold, beam, levels)
        prompts, answer = ours(seed, policy, question, choices)
        assert same_requests(replay.prompts, prompts), (form, seed)
        path = answer.trace.path(answer.trace.best)
        for node, (text, passage, score) in zip(path, expected, strict=True):
            if passage != "":
                assert (node.passage and node.passage.id) == passage
            if not passage:
                assert re.sub(r"\s", "", node.text) == without_tokens(text)
            else:
                assert surface(node.token_ids) in (
                    text,
                    text.removesuffix("[No Retrieval]"),
                )
            assert score is None or node.path_score == pytest.approx(score, abs=1e-5)
        deep += len(path) > 2
        outvoted += replay.outvoted
        turned += any("[No Retrieval]" in prompt for prompt in prompts)
    assert turned > TREES / 20
    assert "long" not in form or deep > TREES / 4
    assert form != "vote" or outvoted > TREES / 10


# --- the unchanged functions ------------------------------------------------------------------------------------------


class VLLM:
    """What the released code takes for vLLM, on the scripted model."""

    def __init__(self, seed=0, **options):
        self.seed, self.prompts = seed, []

    def generate(self, prompts, params):
        self.prompts += prompts
        return [
            SimpleNamespace(outputs=[self.output(prompt, params)]) for prompt in prompts
        ]

    def output(self, prompt, params):
        ids, rows, logprobs = (
            part[: params.max_tokens] for part in written(self.seed, prompt)
        )
        distributions = [{i: math.log(p) for i, p in row.items()} for row in rows]
        return SimpleNamespace(
            token_ids=ids,
            text=surface(ids),
            logprobs=distributions,
            cumulative_logprob=sum(logprobs),
        )


@pytest.fixture
def released(monkeypatch):
    """The modules of the checkout, with empty ones where they import what is not here."""
    folder = os.environ.get("SELFRAG_RELEASED")
    if not folder:
        pytest.skip("SELFRAG_RELEASED names no checkout of AkariAsai/self-rag")
    stand_in = ModuleType("vllm")
    stand_in.LLM, stand_in.SamplingParams = VLLM, SimpleNamespace
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    for name in ("spacy", "jsonlines", "openai"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.syspath_prepend(f"{folder}/retrieval_lm")
    tokenizer = SimpleNamespace(convert_tokens_to_ids=VOCABULARY.ids.get)
    for name in ("metrics", "utils", "run_short_form", "run_long_form_static"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    modules = {
        name: importlib.import_module(name)
        for name in ("utils", "run_short_form", "run_long_form_static")
    }
    modules["run_long_form_static"].AutoTokenizer = SimpleNamespace(
        from_pretrained=lambda *a, **k: tokenizer
    )
    names = ("ret_tokens", "rel_tokens", "grd_tokens", "ut_tokens")
    tokens = modules["utils"].load_special_tokens(
        tokenizer, use_grounding=True, use_utility=True
    )
    return SimpleNamespace(**modules, tokens=dict(zip(names, tokens, strict=True)))


DOCUMENTS = [{"title": p.title, "text": p.text} for p in EVIDENCE]


@pytest.mark.parametrize("form", ["short", "vote", "long"])
def test_the_replay_is_the_released_code(form, released):
    for seed in range(TREES):
        mode, threshold, beam, levels = settings(seed)
        replay, model = Replay(seed), VLLM(seed)
        how = {
            "mode": "always_retrieve" if mode == "always" else "adaptive_retrieval",
            "threshold": threshold,
        }
        how |= {"max_new_tokens": BUDGET, **released.tokens}
        if form != "long":
            prompt, votes = QUESTION, None
            if form == "vote":
                prompt, votes = CHOICE, KEEP_TEXT
            call = released.run_short_form.call_model_rerank_w_scores_batch
            how |= {"use_seqscore": True, "w_use": 1.0, "closed": form == "vote"}
            text, _, _ = call(prompt, DOCUMENTS, model, **how)
            expected, passage, _ = replay.short(prompt, mode, threshold, votes)
            if not passage:
                expected = without_tokens(expected, KEEP_TEXT)
            assert text == expected
        else:
            call = released.run_long_form_static.call_model_beam_batch
            text, result = call(
                QUESTION,
                model,
                ctxs=DOCUMENTS,
                query="Q",
                max_depth=levels + 1,
                beam_width=beam,
                **how,
            )
            expected = replay.long(QUESTION, mode, threshold, beam, levels)
            if result:
                assert result["splitted_sentences"][0] == [
                    "",
                    *(text for text, _, _ in expected),
                ]
                text = text[0].removeprefix(" ")
            assert text == " ".join(text for text, _, _ in expected)
        assert model.prompts == [
            prompt for level in replay.prompts for prompt in level
        ], seed


def test_the_text_for_alce_is_the_released_one(released, tmp_path, monkeypatch):
    """Numbers apart: ours are those of passages, and that code's count segments."""
    module = released.run_long_form_static
    items = [{"question": f"Q{number}", "docs": DOCUMENTS} for number in range(TREES)]
    (tmp_path / "in.json").write_text(json.dumps(items))
    words = f"long --model_name m --task asqa --max_new_tokens {BUDGET} --threshold 0.2 --use_grounding --use_utility"
    words += f" --mode always_retrieve --max_depth 7 --ndocs 3 --input_file {tmp_path}/in.json"
    monkeypatch.setattr(
        sys, "argv", [*words.split(), "--output_file", f"{tmp_path}/out.json"]
    )
    module.main()
    outputs = json.loads((tmp_path / "out.json").read_text())["data"]
    policy = Decoding.official(
        mode="always", passages=3, segment_tokens=BUDGET, max_segments=6
    )
    compared = 0
    for item, output in zip(items, outputs, strict=True):
        question = f"{released.utils.TASK_INST['asqa']}## Input:\n\n{item['question']}"
        _, answer = ours(0, policy, question)
        marked = cited_as_released(answer, PROMPTING).text
        if not answer.text.strip():
            continue  # that code takes the second-best path
        assert re.sub(r"\[\d\]", "[]", marked) == re.sub(
            r"\[\d\]", "[]", output["output"]
        )
        numbers = [int(number) for number in re.findall(r"\[(\d)\]", output["output"])]
        if (
            max(numbers)
            <= len(output["docs"])
            == len(answer.trace.path(answer.trace.best))
        ):
            compared += 1
            theirs = [output["docs"][number - 1]["title"] for number in numbers]
            assert [
                EVIDENCE[int(n) - 1].title for n in re.findall(r"\[(\d)\]", marked)
            ] == theirs
    assert compared > TREES / 3


def test_one_number_a_segment_halves_the_recall_of_alce():
    """Three sentences of d1 and one of d2, with a judge that says yes: two of four cite."""
    first = "[Relevant]Paris is big. It has a river. It is old."
    tree = {
        "[Retrieval]<d1>": f"{first}[Retrieval]</s>",
        "[Retrieval]<d2>": "[Irrelevant]No.</s>",
    }
    tree |= {f"{first}[Retrieval]<d1>": "[Irrelevant]No.</s>"}
    tree |= {f"{first}[Retrieval]<d2>": "[Relevant]Rome is old.</s>"}
    answer = run(
        tree,
        evidence=EVIDENCE[:2],
        policy=Decoding.official(mode="always", max_segments=2),
    ).answer
    marked = cited_as_released(answer, PROMPTING)
    assert (
        marked.text == "Paris is big. It has a river. It is old [1]. Rome is old [2]."
    )
    known = {passage.id: passage for passage in EVIDENCE}
    recalls = []
    for cited in (answer, marked):
        claims = cited_sentences(output_of(cited, marked=True), known, marked=True)
        (figures,) = cites([claims], lambda pairs: [True] * len(pairs))
        recalls.append(figures.recall)
    assert recalls == [1.0, 0.5]
