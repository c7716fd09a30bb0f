"""Rules, formulas and loops of the adaptive methods beside the functions that their authors released, unchanged.

SELFRAG_RELEASED_METHODS names a folder with clones of the repositories, each under its own name. Definitions are read
out of their files, since most of what the files import is not here. A random model and a search take the places of
models and services.
"""

import __future__

import ast
import copy
import difflib
import json
import math
import os
import random
import re
import string
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from plain_rivals import LoggingExecutor, complexity, relevance
from reference_chat import Talker
from written import Characters

from retrieval.passage import Passage
from selfrag.extensions.adaptive.adaptive_rag import AdaptiveRAG
from selfrag.extensions.adaptive.crag import CRAG
from selfrag.extensions.adaptive.dragin import Dragin
from selfrag.extensions.adaptive.flare import Flare
from selfrag.extensions.adaptive.ircot import _CONCLUDES, IRCoT
from selfrag.extensions.adaptive.iter_retgen import IterRetGen
from selfrag.extensions.adaptive.method import Always, Never
from selfrag.extensions.adaptive.reader import (
    QuestionWork,
    Reader,
    Written,
    answer_of,
)
from selfrag.extensions.adaptive.seakr import ALPHA, SeaKR, gram_uncertainty
from selfrag.extensions.adaptive.uncertainty import mean_entropy, sequence_probability
from selfrag.judges.chat_model import ChatModel
from selfrag.judges.reflection_prompts import reflection_wording
from selfrag.judges.wire import TokenLogprob
from selfrag.reflection.requests import Internals
from selfrag.runtime import drive, finish

CASES = 500
FOLDER = os.environ.get("SELFRAG_RELEASED_METHODS", "")
NAMES = ("Ann", "Ben", "Rome", "Faust", "Paris", "Oslo", "Wien", "Goethe")


PASSAGES = [
    Passage(
        f"p{n}", f"Fact {n} is here. Ann saw {n}. It was so. Rome {n} fell.", f"T{n}"
    )
    for n in range(12)
]
TITLES = {passage.title: passage for passage in PASSAGES}


def file_of(repository, path):
    """The text of a file in a clone."""
    if not FOLDER:
        pytest.skip("SELFRAG_RELEASED_METHODS names no folder of released repositories")
    file = Path(FOLDER, repository, path)
    if not file.exists():
        pytest.skip(f"no clone of {repository} in SELFRAG_RELEASED_METHODS")
    return file.read_text(encoding="utf-8")


def released(repository, path, *names, **scope):
    """Functions and classes of a file by name, also of a class; `scope` holds what else they use."""
    tree = ast.parse(file_of(repository, path))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    body = [n for n in ast.walk(tree) if isinstance(n, kinds) and n.name in names]
    assert {node.name for node in body} == set(names)
    module = ast.Module(body, [])
    flags = __future__.annotations.compiler_flag
    exec(compile(module, path, "exec", flags, dont_inherit=True), scope)
    return SimpleNamespace(**{name: scope[name] for name in names})


class Writer(Talker):
    """A random model that writes sentences, of which the last gives the answer."""

    def sentence(self, prompt, before):
        """The tokens of the next sentence and their probabilities; none after the answer."""
        draw = self.draw(prompt, before)
        if "answer is" in before:
            return []
        kind, name = draw.random(), draw.choice(NAMES)
        words = [f" {name}", " has", f" seen{draw.randrange(99)}"]
        if kind < 0.15:
            words = [" Thus", f" {name}", " left"]
        elif kind < 0.3:
            words = [" It", " is", " 3", " +", " 4", " =", " 7"]
        elif kind > 0.7:
            words = [" So", " the", " answer", " is", ":", f" {name}"]
        chances = (0.99, 0.95, 0.9, 0.8, 0.5, 0.4, 0.1)
        weights = (9, 9, 3, 1, 1, 1, 1)
        tokens = [*words, "."]
        return list(
            zip(tokens, draw.choices(chances, weights, k=len(tokens)), strict=True)
        )

    def reply(self, prompt, before):
        """All sentences from here on."""
        tokens = []
        while sentence := self.sentence(prompt, before + "".join(t for t, _ in tokens)):
            tokens += sentence
        return tokens

    def token(self, chat, begun):
        """The next token, as engines are asked."""
        done = begun.rfind(".") + 1
        place = done
        for text, probability in self.sentence(chat[0][1], begun[:done]):
            if place == len(begun):
                return text, math.log(probability)
            place += len(text)
        return "", -0.5


def own(method, seed, k=2):
    """The answer of a method of ours on a random model, its queries, and its work."""
    executor = LoggingExecutor(Writer(seed))
    model = ChatModel(executor, Characters(), reflection_wording(), knows_tokens=False)
    reader = Reader.of(model, passages=k, passage_tokens=10_000)
    work = QuestionWork(f"Who saw Faust {seed}?", reader, 30)
    queries = []

    def search(asked, count):
        queries.extend(asked)
        return [found(query, count) for query in asked]

    *_, end = drive([method.decoder(work)], None, search)
    return end.answer, queries, work


def found(query, k):
    """The passages of a query, always as many as are asked for."""
    return random.Random(query).sample(PASSAGES, k)


def prompt_of(work, name, passages):
    """A prompt of ours as text."""
    return work.fill(name, passages).messages[0].content


def test_flare_searches_for_the_same_words():
    use_as_query = released("FLARE", "src/templates.py", "use_as_query").use_as_query
    draw, method = random.Random(1), Flare()
    empty = 0
    for _ in range(CASES):
        words = [f" {draw.choice(NAMES)}" for _ in range(draw.randint(1, 6))]
        logprobs = [math.log(draw.choice((0.99, 0.81, 0.5, 0.3))) for _ in words]
        sentence = SimpleNamespace(
            text="".join(words),
            has_tokens=True,
            tokens=words,
            probs=[np.exp(logprob) for logprob in logprobs],
        )
        query = use_as_query(sentence, low_prob=method.threshold, mask_prob=method.mask)
        tokens = tuple(map(TokenLogprob, words, logprobs))
        assert (
            method.query(Written("".join(words), tokens, False)).split()
            == query.split()
        )
        empty += not query
    assert 0 < empty < CASES


def test_flare_has_the_numbers_of_the_released_configuration():
    config = json.loads(file_of("FLARE", "configs/2wikihop_flare_config.json"))
    method = Flare()
    assert config["look_ahead_filter_prob"] == method.threshold
    assert config["look_ahead_mask_prob"] == method.mask
    assert config["look_ahead_steps"] == config["frequency"] == method.sentence_tokens
    assert "max_generation_len=256" in file_of("FLARE", "openai.sh")
    assert method.tokens == 256
    assert not config["reinit_ctx"]  # the next test says what differs


def test_the_loop_of_flare_searches_and_answers_the_same():
    """With `reinit_ctx`: without it, a sentence is looked ahead with the passages of the search before."""
    nltk = pytest.importorskip("nltk.tokenize.punkt")
    templates = released(
        "FLARE",
        "src/templates.py",
        *("CtxPrompt", "ApiReturn"),
        spacy=SimpleNamespace(load=lambda name: None),
        PunktSentenceTokenizer=nltk.PunktSentenceTokenizer,
        Sentence=lambda text, start, end: SimpleNamespace(
            text=text, start_char=start, end_char=end
        ),
        itemgetter=itemgetter,
        copy=copy,
        Utils=None,
    )
    agents = released(
        "FLARE",
        "src/openai_api.py",
        "QueryAgent",
        np=np,
        itemgetter=itemgetter,
        re=re,
        retry=lambda **options: lambda function: function,
        wait_fixed=lambda seconds: None,
        stop_after_attempt=lambda count: None,
    )
    config = json.loads(file_of("FLARE", "configs/2wikihop_flare_config.json"))

    class Agent(agents.QueryAgent):
        """Asks a random model."""

        def complete(self, queries, params, is_lookahead=False, api_key=None):
            returns = []
            for query in queries:
                begun = query.case[len(query.case) - query.gen_len :]
                shown = [TITLES[t] for t in re.findall(r"\bT\d+\b", query.ctx or "")]
                prompt = prompt_of(self.work, "chain", shown)
                tokens = self.writer.reply(prompt, begun)
                tokens = tokens[: params["max_tokens"]]
                texts = [text for text, _ in tokens]
                probabilities = [np.exp(math.log(p)) for _, p in tokens]
                offsets = [len("".join(texts[:n])) for n in range(len(texts))]
                returns.append(
                    templates.ApiReturn(
                        "", "".join(texts), texts, probabilities, offsets
                    )
                )
            return returns

    class Search:
        """Finds the same as ours."""

        def retrieve(self, queries, topk, max_query_length):
            hits = [found(" ".join(query.split()), topk) for query in queries]
            ids = np.array([[p.title for p in rows] for rows in hits])
            return ids, ids

    searches = 0
    for seed in range(CASES):
        answer, queries, work = own(Flare(), seed)
        settings = {**config, "reinit_ctx": True, "retriever": Search()}
        agent = Agent(retrieval_kwargs=settings, max_generation_len=256)
        agent.work, agent.writer = work, Writer(seed)
        question = templates.CtxPrompt(case=work.question)
        outputs, _, retrievals, _ = agent.ret_prompt([question])
        assert queries == [" ".join(query.split()) for query, _ in retrievals[0]]
        assert answer.text == answer_of(outputs[0])
        searches += len(queries) - 1
    assert searches > CASES


def test_ircot_knows_the_same_sentences_that_conclude():
    rules = released(
        "ircot", "commaqa/inference/ircot.py", "is_reasoning_sentence", re=re
    )
    draw = random.Random(2)
    starts = ("Thus", "So", "That is", "Therefore", "Hence", "Sofia", "Thusly", "Ann")
    parts = ("3", "4,000", "1.5", "+", "-", "=", "x", "7.", ",", "is", "10")
    conclusions = 0
    for _ in range(20 * CASES):
        sentence = draw.choice(starts) + draw.choice((" ", ",", ", "))
        sentence += " ".join(draw.choices(parts, k=draw.randint(1, 7)))
        concludes = rules.is_reasoning_sentence(sentence)
        assert bool(_CONCLUDES.match(sentence)) == concludes, sentence
        conclusions += concludes
    assert CASES < conclusions < 19 * CASES


class State:
    """What the participants of IRCoT pass on."""

    class Data(dict):
        """The facts of a question."""

        def add_answer(self, step):
            """Keep nothing of it."""

    def __init__(self, data, then):
        self.data, self.next = self.Data(data), then

    def copy(self):
        """An independent state."""
        return copy.deepcopy(self)


def test_the_participants_of_ircot_search_and_collect_the_same():
    spacy = pytest.importorskip("spacy")
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    asked = []

    def post(url, params):
        asked.append(params["query_text"])
        hits = found(sent[params["query_text"]], params["max_hits_count"])
        rows = [
            {"title": p.title, "paragraph_text": p.text, "corpus_name": "wiki"}
            for p in hits
        ]
        return SimpleNamespace(ok=True, json=lambda: {"retrieval": rows})

    ircot = released(
        "ircot",
        "commaqa/inference/ircot.py",
        *("is_reasoning_sentence", "remove_reasoning_sentences", "remove_wh_words"),
        *("is_para_closely_matching", "add_and_reorder_if_pinned", "para_to_text"),
        *("assert_unique_titles_paras", "RetrieveAndResetParagraphsParticipant"),
        *("StepByStepCOTGenParticipant", "StepByStepExitControllerParticipant"),
        re=re,
        json=json,
        copy=copy,
        random=random,
        ParticipantModel=object,
        safe_post_request=post,
        QuestionAnsweringStep=lambda **fields: fields,
        get_pid_for_title_paragraph_text=lambda title, text: title,
        fuzz=SimpleNamespace(
            ratio=lambda a, b: 100 * difflib.SequenceMatcher(None, a, b).ratio()
        ),
    )
    steps = {
        "search": ircot.RetrieveAndResetParagraphsParticipant(
            "bm25",
            retriever_host="http://none",
            retriever_port=1,
            retrieval_count=2,
            query_source="question_or_last_generated_sentence",
            cumulate_titles=True,
            document_type="title_paragraph_text",
            source_corpus_name="wiki",
            global_max_num_paras=15,
            next_model="write",
        ),
        "exit": ircot.StepByStepExitControllerParticipant(
            answer_extractor_regex=r".* answer is:? (.*)\.?",
            terminal_return_type="pids",
            max_num_sentences=8,
            global_max_num_paras=15,
            next_model="search",
        ),
    }
    write = ircot.StepByStepCOTGenParticipant
    settings = {
        "generation_type": "sentences",
        "max_num_sentences": 10,
        "disable_exit": True,
        "shuffle_paras": False,
        "max_para_num_words": 350,
        "question_prefix": "",
        "add_context": True,
        "prompt": "",
        "spacy_object": nlp,
        "answer_extractor_regex": re.compile(r".* answer is:? (.*)\.?"),
        "answer_extractor_remove_last_fullstop": True,
        "reset_queries_as_sentences": False,
        "next_model": "exit",
        "num_calls": 0,
    }
    searches = 0
    for seed in range(CASES):
        asked.clear()
        _, queries, work = own(IRCoT(), seed)
        # its queries are without `who` and the like, and find here what ours find
        sent = {ircot.remove_wh_words(query): query for query in queries}

        def generate(prompt, work=work, seed=seed):
            shown = [TITLES[t] for t in re.findall(r"Wikipedia Title: (\w+)", prompt)]
            chain = prompt.rpartition("\nA:")[2].rstrip()
            tokens = Writer(seed).reply(prompt_of(work, "chain", shown), chain)
            return [("".join(text for text, _ in tokens), 0)]

        steps["write"] = SimpleNamespace(
            **settings, generator=SimpleNamespace(generate_text_sequence=generate)
        )
        data = {"question": work.question, "titles": [], "paras": [], "metadata": {}}
        state = State(data, "search")
        while state.next != "[EOQ]":
            step = steps[state.next]
            query = write.query if state.next == "write" else type(step).query
            state = query(step, state)
        assert asked == [ircot.remove_wh_words(query) for query in queries]
        assert state.data["titles"] == [p.title for p in work.shown.values()][:15]
        searches += len(asked)
    assert searches > 2 * CASES


def test_iter_retgen_asks_the_same_in_turns():
    """In FlashRAG, since the authors released none; its queries have the question first."""
    path = "flashrag/pipeline/active_pipeline.py"
    run = released("FlashRAG", path, "IterativePipeline", BasicPipeline=object)
    for seed in range(CASES):
        answer, queries, work = own(IterRetGen(), seed)
        writer, asked = Writer(seed), []

        def search(texts, work=work, asked=asked):
            (text,) = texts
            reply = text.removeprefix(work.question).strip()
            asked.append(f"{reply} {work.question}" if reply else work.question)
            return [found(asked[-1], 2)]

        def write(prompts, writer=writer):
            return ["".join(text for text, _ in writer.reply(prompts[0], ""))]

        def prompt(question, retrieval_result, work=work):
            return prompt_of(work, "chain", retrieval_result)

        outputs = {}
        pipeline = SimpleNamespace(
            iter_num=2,
            retriever=SimpleNamespace(batch_search=search),
            generator=SimpleNamespace(generate=write),
            prompt_template=SimpleNamespace(get_string=prompt),
            evaluate=lambda dataset, **options: dataset,
        )
        data = SimpleNamespace(
            question=[work.question], update_output=outputs.__setitem__
        )
        run.IterativePipeline.run(pipeline, data)
        assert queries == asked
        assert answer.text == answer_of(outputs["pred"][0])


def test_answers_are_read_off_a_chain_alike():
    draw = random.Random(3)
    dragin = released("DRAGIN", "src/data.py", "WikiMultiHopQA", BaseDataset=object)
    seakr = released("SeaKR", "SEAKR/reasoner.py", "_check_final_answer", re=re)
    flashrag = released(
        "FlashRAG",
        "flashrag/utils/pred_parse.py",
        *("selfask_pred_parse", "ircot_pred_parse"),
    )
    ircot = re.compile(r".* answer is:? (.*)\.?")
    for _ in range(CASES):
        sentences = [
            f"{draw.choice(NAMES)} saw {draw.choice(NAMES)}."
            for _ in range(draw.randint(0, 3))
        ]
        gold = " ".join(draw.choices(NAMES, k=draw.randint(1, 3)))
        chain = " ".join([*sentences, f"So the answer is: {gold}."])
        plain = chain.replace("is:", "is")
        assert answer_of(chain) == answer_of(plain) == gold
        read = dragin.WikiMultiHopQA.get_real_prediction(None, plain)
        assert read == gold
        assert seakr._check_final_answer(None, chain) == gold.lower()
        assert ircot.match(f" {chain}")[1].removesuffix(".") == gold
        follow_up = f"Follow up: Who?\nSo the final answer is: {gold}\n"
        for parse, text in (
            (flashrag.ircot_pred_parse, chain.removesuffix(".")),
            (flashrag.selfask_pred_parse, follow_up),
        ):
            kept = {}
            item = SimpleNamespace(pred=text, update_output=kept.__setitem__)
            parse([item])
            assert kept["pred"] == gold == answer_of(text)


def test_dragin_finds_the_same_word_that_needs_a_search():
    """From equal attention; its own code takes the most of each head, with the token's own, and then the mean."""
    path = "src/generate.py"
    modifier = released(
        "DRAGIN",
        path,
        "modifier",
        np=np,
        exp=math.exp,
        nlp=lambda text: SimpleNamespace(sents=[SimpleNamespace(text=text)]),
    ).modifier
    method, hits = Dragin(), 0
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        words = [NAMES[n] for n in rng.integers(len(NAMES), size=rng.integers(2, 9))]
        texts = [piece for word in words for piece in (f" {word[:2]}", word[2:])]
        count = len(texts)
        entropies = rng.choice((0.1, 0.3, 0.9, 3.0), size=count)
        attention = np.tril(rng.random((count, count + 1)) ** 4, 1)
        _, _, work = own(Never(), seed)
        internals = Internals(entropies, attention, np.ones(4), ("Who?", *texts))
        work.reader.executor.inspect_steps = lambda requests, one=internals: ready(
            [one]
        )
        sentence = "".join(texts)
        need = finish(method.need(work, work.fill("chain"), "", sentence))
        peaks = [attention[j + 1 :, j + 1].max(initial=0) for j in range(count)]
        per_word = [peaks[n] + peaks[n + 1] for n in range(0, count, 2)]
        means = [entropies[n : n + 2].mean() for n in range(0, count, 2)]
        rule = SimpleNamespace(hallucination_threshold=method.threshold)
        searches, _, _, flags = modifier(rule, sentence, words, per_word, means)
        assert searches == (need is not None)
        if searches:
            assert len(need[0].split()) == flags.index(1)
            hits += 1
    assert CASES // 4 < hits < CASES


def ready(results):
    """Steps that ask for nothing."""
    return results
    yield []


def test_dragin_has_the_numbers_of_the_example_of_its_readme():
    blocks = file_of("DRAGIN", "README.md").split("```json")[1:]
    (text,) = [block for block in blocks if "real_words" in block]
    example = json.loads(text.partition("```")[0])
    method = Dragin()
    assert example["hallucination_threshold"] == method.threshold
    assert example["retrieve_keep_top_k"] == method.query_words
    assert example["generate_max_length"] == method.sentence_tokens


def test_seakr_has_the_same_uncertainty_of_states():
    torch = pytest.importorskip("torch")
    path = "vllm_uncertainty/vllm/engine/llm_engine.py"
    score = released("SeaKR", path, "_compute_eigen_score", torch=torch)
    rule = SimpleNamespace(eigen_alpha=ALPHA)
    for seed in range(CASES // 5):
        rng = np.random.default_rng(seed)
        shape = (rng.integers(1, 21), rng.integers(30, 200))
        states = rng.standard_normal(shape).astype(np.float32)
        theirs = score._compute_eigen_score(rule, torch.tensor(states))
        assert gram_uncertainty(list(states)) == pytest.approx(theirs, abs=1e-3)


def test_seakr_searches_for_the_same_words():
    spacy = pytest.importorskip("spacy")
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    path = "SEAKR/reasoner.py"
    rules = released(
        "SeaKR", path, "_restruct_tokens", "_build_query", nlp=nlp, np=np, re=re
    )
    draw, method, queries = random.Random(5), SeaKR(), 0
    for _ in range(CASES):
        tokens = []
        for _ in range(draw.randint(1, 6)):
            word = draw.choice(NAMES)
            cut = draw.choice((2, len(word)))
            texts = filter(None, (f" {word[:cut]}", word[cut:]))
            chances = (0.99, 0.91, 0.8, 0.3)
            tokens += [(text, math.log(draw.choice(chances))) for text in texts]
        content = "".join(text for text, _ in tokens) + "."
        last = draw.choice(NAMES)
        step = SimpleNamespace(
            content=content,
            logprobs=[
                {0: SimpleNamespace(decoded_token=text, logprob=logprob)}
                for text, logprob in tokens
            ],
        )
        rule = SimpleNamespace(
            question="Whose?",
            running_steps=[SimpleNamespace(content=last)],
            prob_threshold=0.1,
        )
        rule._restruct_tokens = lambda step, rule=rule: rules._restruct_tokens(
            rule, step
        )
        query = rules._build_query(rule, step)
        tokens.append((".", math.log(0.9)))
        sentence = Written(content, tuple(TokenLogprob(*t) for t in tokens), False)
        assert method.query(sentence, "Whose?", last) == (query or "Whose?")
        queries += bool(query)
    assert CASES // 4 < queries < CASES


def test_seakr_has_the_numbers_of_the_released_commands():
    text, method = file_of("SeaKR", "README.md"), SeaKR()
    assert f"--eigen_threshold {method.threshold}" in text
    assert f"--max_reasoning_steps {method.steps}" in text
    assert f"--max_docs {method.collected}" in text
    source = file_of("SeaKR", "SEAKR/reasoner.py")
    assert "prob_threshold: float=0.1" in source
    assert method.sure == 0.9
    assert f'"n": {method.samples}' in source
    assert f'"max_tokens": {method.tokens}' in source


class Noting(CRAG):
    """Notes which passages it refines."""

    noted = []  # noqa: RUF012 - cleared for each question

    def _refined(self, work, passages):
        self.noted.append(list(passages))
        return (yield from super()._refined(work, passages))


def test_crag_takes_the_same_action():
    path = "scripts/CRAG_Inference.py"
    process_flag = released("CRAG", path, "process_flag").process_flag
    method, actions = Noting(judge="plain_rivals:JUDGE"), set()
    for seed in range(CASES):
        method.noted.clear()
        _, queries, work = own(method, seed, k=5)
        hits = [found(query, 5) for query in queries]
        scores = [relevance(work.question, passage.text) for passage in hits[0]]
        (action,) = process_flag(scores, len(scores), method.upper, method.lower)
        # 0 reads what a further search finds, 1 both, 2 what the first has found
        assert method.noted == {0: hits[1:], 1: hits, 2: hits[:1]}[action]
        assert len(hits) == (1 if action == 2 else 2)
        actions.add(action)
    assert actions == {0, 1, 2}


def test_crag_cuts_passages_into_the_same_strips():
    path = "scripts/internal_knowledge_preparation.py"
    extract = released("CRAG", path, "extract_strips_from_psg").extract_strips_from_psg
    draw = random.Random(6)

    def bare(strips):
        table = str.maketrans("", "", string.punctuation)
        return [" ".join(strip.translate(table).split()) for strip in strips]

    for _ in range(CASES):
        sentences = []
        for number in range(draw.randint(1, 9)):
            words = draw.choices(NAMES, k=draw.randint(6, 12))
            sentences.append(f"Fact {number} {' '.join(words)}{draw.choice('.?')}")
        # the released code cuts at each of `?`, and at `.` only before a space
        text = " ".join(sentences)
        assert bare(CRAG().split(text)) == bare(extract(text))


class Evaluator:
    """The tokenizer and the model of an evaluator at once: it gives a random relevance."""

    def __init__(self, torch):
        self.torch = torch

    def __call__(self, text, **options):
        if isinstance(text, str):
            self.pair = text.split(" [SEP] ", 1)
            return dict.fromkeys(("input_ids", "attention_mask"), self.torch.ones(1))
        score = self.torch.tensor([[relevance(*self.pair)]], dtype=self.torch.float64)
        return {"logits": score}

    def to(self, device):
        return self


def test_crag_keeps_the_same_strips():
    """Of four words or more: shorter ones are never relevant in the released code."""
    torch = pytest.importorskip("torch")
    select = released("CRAG", "scripts/utils.py", "select_relevants", torch=torch)
    method, evaluator = CRAG(least=0.0, judge="plain_rivals:JUDGE"), Evaluator(torch)
    for seed in range(CASES):
        _, _, work = own(Never(), seed)
        strips = [f"Strip {seed} {n} tells of Rome." for n in range(8)]
        passages = [Passage(strip, strip, strip) for strip in strips]
        joined, _ = select.select_relevants(
            strips, work.question, evaluator, evaluator, "cpu", top_n=method.strips
        )
        kept = finish(method._refined(work, passages))
        assert sorted(p.text for p in kept) == sorted(joined.split("; "))


def test_adaptive_rag_answers_by_the_method_of_the_class(tmp_path, capsys):
    path = "classifier/postprocess/postprocess_utils.py"
    names = ("load_json", "save_json", "save_prediction_with_classified_label")
    code = released("Adaptive-RAG", path, *names, json=json, os=os)
    predictions, answers, methods = {}, {}, {"A": Never(), "B": Always(), "C": IRCoT()}
    by_label = {label: {} for label in methods}
    for seed in range(CASES // 5):
        answer, _, work = own(AdaptiveRAG(judge="plain_rivals:CLASSIFIER"), seed)
        answers[f"{seed}"] = answer.text
        values = complexity(work.question)
        label = "ABC"[values.index(max(values))]
        predictions[f"{seed}"] = {"dataset_name": "nq", "prediction": label}
        for name, method in methods.items():
            by_label[name][f"{seed}"] = own(method, seed)[0].text
    files = {label: str(tmp_path / f"{label}.json") for label in methods}
    for label, file in files.items():
        Path(file).write_text(json.dumps(by_label[label]))
    steps = tmp_path / "steps.json"
    steps.write_text(json.dumps(dict.fromkeys(answers, 2)))
    code.save_prediction_with_classified_label(
        predictions, "nq", str(steps), {"nq": files}, str(tmp_path / "out")
    )
    assert json.loads((tmp_path / "out/nq/nq.json").read_text()) == answers


def test_uncertainty_of_an_answer_has_the_same_formulas():
    folder = "UC/lm-polygraph/src/lm_polygraph/"
    bases = {"Estimator": object, "StatCalculator": object, "np": np}

    def made(path, name):
        cls = getattr(released("AdaRAGUE", folder + path, name, **bases), name)
        return cls.__new__(cls)

    probability = made("estimators/max_probability.py", "MaximumSequenceProbability")
    entropy = made("stat_calculators/entropy.py", "EntropyCalculator")
    mean = made("estimators/token_entropy.py", "MeanTokenEntropy")
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        rows = np.log(rng.dirichlet(np.ones(20), size=rng.integers(1, 9)))
        tokens = tuple(
            TokenLogprob("a", row[0], tuple((f"{n}", v) for n, v in enumerate(row)))
            for row in rows
        )
        written = Written("a" * len(tokens), tokens, True)
        (doubt,) = probability({"greedy_log_likelihoods": [rows[:, 0]]})
        assert sequence_probability(written) == pytest.approx(math.exp(-doubt))
        stats = entropy({"greedy_log_probs": [list(rows)]})
        assert mean_entropy(written) == pytest.approx(mean(stats)[0])
