"""Adaptive retrieval as plain loops, written from the papers, and the random models that they and the guest run on."""

from __future__ import annotations

import math
import random
import re
import string
import tomllib
import zlib
from importlib.resources import files

import numpy as np
from reference_chat import WORDS, Talker, TalkingExecutor, first_sentence

from retrieval.passage import Passage
from selfrag.extensions.adaptive import words as word_lists
from selfrag.judges.external import FunctionJudge
from selfrag.reflection.labels import ISREL, Label, LabelSet, Role
from selfrag.reflection.requests import Internals

PROMPTS = tomllib.loads(
    (files("selfrag.extensions.adaptive") / "prompts.toml").read_text(encoding="utf-8")
)
PHRASES = (
    " So the answer is:",
    " the Answer is",
    "Yes.\n",
    " Follow up: Who",
    "\nFollow up: When\n",
    "\n",
    " So",
    " Thus",
    " Ann",
    " Faust.",
)


class Thinker(Talker):
    """A random model that also writes the words that methods look for."""

    def token(self, chat, prefix):
        draw = self.draw("token", chat, prefix)
        if draw.random() < 0.06:
            return "", -0.5
        words = PHRASES if draw.random() < 0.4 else WORDS
        if prefix.endswith("here:"):
            words = ("Yes.\n", " yes\n", " No.\n", "Yes")
        elif prefix.endswith("\n") and draw.random() < 0.6:
            words = ("Follow up: Who", "Follow-up: When\n", "So the final answer is:")
        return draw.choice(words), draw.choice((-0.05, -0.125, -1.5, -draw.random()))

    def drawn(self, seed):
        """The same model at temperature 1."""
        return Thinker((self.seed, seed))

    def inside(self, prompt, reply):
        """Entropies, attention and a state, on tokens of at most three signs."""
        texts = [re.findall(r"\s*\S{1,3}|\s+", text) for text in (prompt, reply)]
        rng = np.random.default_rng(zlib.crc32(repr((self.seed, reply)).encode()))
        count, every = len(texts[1]), len(texts[0]) + len(texts[1])
        attention = np.tril(rng.random((count, every)) ** 8, every - count)
        return Internals(
            rng.choice((0.1, 0.3, 0.9, 4.0), p=(0.4, 0.2, 0.2, 0.2), size=count),
            attention,
            rng.choice((0, 0, 0, 1e-3, 1)) * rng.standard_normal(8),
            (*texts[0], *texts[1]),
        )


class LoggingExecutor(TalkingExecutor):
    """Runs a model and notes what it is count_asked; without `stops` a sentence does not end a text."""

    def __init__(self, talker, *, stops=True):
        super().__init__(talker)
        self.stops, self.log = stops, []

    def complete(self, request):
        count_asked = request.prompt.messages[0].content
        if request.seed is not None:
            assert request.temperature == 1
            self.log.append(
                (
                    "draw",
                    count_asked,
                    request.prefill,
                    request.max_tokens,
                    request.seed,
                )
            )
            if not self.stops:
                object.__setattr__(request, "sentence", False)
            usual, self.talker = self.talker, self.talker.drawn(request.seed)
            completion = super().complete(request)
            self.talker = usual
            return completion
        if request.slots:
            self.log.append(("label", count_asked))
        elif self.stops:
            self.log.append(("write", count_asked))
        else:
            self.log.append(("write", count_asked, request.prefill, request.max_tokens))
            object.__setattr__(request, "sentence", False)
        return super().complete(request)

    def inspect_steps(self, requests):
        internals = []
        for request in requests:
            prompt = request.prompt.messages[0].content
            self.log.append(("inspect", prompt, request.prefill))
            internals.append(self.talker.inside(prompt, request.prefill))
        return internals
        yield []


def pool(query, k):
    """Up to `k` passages that a query finds, rarely none."""
    draw = random.Random(zlib.crc32(query.encode()))
    numbers = draw.sample(range(12), draw.choice((0, 2, 5, 5)))[:k]
    return [
        Passage(
            f"p{n}",
            f"Fact {n} is here. Ann saw {n}. It was so. Rome {n} fell.",
            f"T{n}",
        )
        for n in numbers
    ]


def find(queries, k):
    """A retriever."""
    return [pool(query, k) for query in queries]


def relevance(question, text):
    """How relevant a text is to a question, from 0 to 1."""
    draw = random.Random(zlib.crc32(f"{question}|{text}".encode()))
    return draw.choice((0.0, 0.02, 0.3, 0.6, 0.9, draw.random()))


def score(inputs):
    """What a judge by `relevance` says."""
    rows = []
    for item in inputs:
        value = relevance(item.messages[0].content, item.passages[0].text)
        rows.append([value, 1 - value])
    return rows


def judge():
    """A judge by `relevance`."""
    return FunctionJudge("scripted", ISREL, score)


JUDGE = judge()


def complexity(question):
    """How sure a classifier is of A, B and C."""
    draw = random.Random(zlib.crc32(question.encode()))
    return [draw.random() for _ in "ABC"]


RELEVANT = FunctionJudge("relevant", ISREL, lambda inputs: [[1.0, 0.0]] * len(inputs))
CLASSIFIER = FunctionJudge(
    "complexity",
    LabelSet(Role.RETRIEVE, tuple(Label(name, 0.0, name) for name in "ABC")),
    lambda inputs: [complexity(item.messages[0].content) for item in inputs],
)
STOP_WORDS = set(word_lists.STOP_WORDS.split())


class Plain:
    """A question, a model and a search, and the methods as loops."""

    def __init__(self, seed, question, *, stops, tokens=30, count=5):
        self.talker, self.question = Thinker(seed), question
        self.stops, self.tokens, self.count = stops, tokens, count
        self.log = []

    # --- the model and the search

    def reply(self, prompt, prefix, tokens):
        """Text, tokens with their log-probabilities, and whether the model ended its turn."""
        chat, text, written = (("user", prompt),), "", []
        for _ in range(tokens):
            token, logprob = self.talker.token(chat, prefix + text)
            if not token:
                return text, written, True
            text += token
            written.append((token, logprob))
        return text, written, False

    def write(self, prompt, tokens, prefix=""):
        self.log.append(("write", prompt, prefix, tokens))
        return self.reply(prompt, prefix, tokens)

    def part(self, prompt, tokens, prefix, end_of):
        """Write on to the end of a sentence or line, token by token where the engine stops, else read off the whole."""
        self.log.append(("write", prompt, prefix, tokens))
        text, written, ended = self.reply(prompt, prefix, tokens)
        lengths = range(1, len(written) + 1) if self.stops else [len(written)]
        for length in lengths:
            so_far = "".join(token for token, _ in written[:length])
            end = end_of(so_far)
            if end is not None:
                return so_far[:end], before(written, end), False
        return text, written, ended

    def search(self, query):
        self.log.append(("search", query, self.count))
        return pool(query, self.count)

    def prompt(self, name, passages=(), question=None):
        shown = "".join(
            f"[{n}] {p.title}\n{p.text}\n\n" for n, p in enumerate(passages, 1)
        )
        form = PROMPTS[name]["user" if passages else "alone"].strip()
        return form.replace("{documents}", shown).replace(
            "{question}", question or self.question
        )

    # --- the methods

    def never(self):
        return self.write(self.prompt("read"), self.tokens)[0].strip()

    def always(self):
        passages = self.search(self.question)
        return self.write(self.prompt("read", passages), self.tokens)[0].strip()

    def flare(self, theta=0.8, beta=0.4, length=64, most=256):
        """Section 3.2: a temporary sentence; if a token has p <= theta, search for it masked by beta; write again."""
        y, used, documents = "", 0, self.search(self.question)
        while used < most:
            room = min(length, most - used)
            s, tokens, ended = self.part(
                self.prompt("chain", documents), room, y, first_sentence
            )
            if min([math.exp(lp) for _, lp in tokens], default=1.0) <= theta:
                masked = [t if math.exp(lp) > beta else " " for t, lp in tokens]
                q = " ".join("".join(masked).split())
                if q:
                    documents = self.search(q)
                    s, tokens, ended = self.part(
                        self.prompt("chain", documents), room, y, first_sentence
                    )
            y += s
            used += max(1, len(tokens))
            documents = []
            if ended or re.search("answer is", y, re.I):
                break
        return final(y)

    def ircot(self, steps=8, cap=15, length=64, most=256):
        """Section 3: extend the chain by a sentence, search for it; then a reader answers from all paragraphs."""
        paragraphs, chain, q = [], "", self.question
        for _ in range(steps):
            for p in self.search(q):
                if p not in paragraphs and len(paragraphs) < cap:
                    paragraphs.append(p)
            s, _, ended = self.part(
                self.prompt("chain", paragraphs), length, chain, first_sentence
            )
            chain += s
            if ended or re.search("answer is", chain, re.I):
                break
            starts = ("thus ", "thus,", "so ", "so,", "that is,", "therefore", "hence")
            concluding = s.strip().lower().startswith(starts) or " = " in s
            if s.strip() and not concluding:
                q = s.strip()
        return final(self.write(self.prompt("chain", paragraphs), most)[0])

    def self_ask(self, most=4, length=64):
        """Figure 3: follow-up questions and intermediate answers, each from a search, up to the final answer."""
        prompt, text = self.prompt("self-ask"), "Are follow up questions needed here:"
        line = self.part(prompt, length, text, one_line)[0]
        text += line
        count_asked = 0
        while count_asked < most and re.match(
            r"\s*yes", text.split("here:", 1)[1], re.I
        ):
            line = self.part(prompt, length, text, one_line)[0]
            question = re.match(r"\s*follow[ -]?up\s*:\s*(.+)", line, re.I)
            if not question:
                break
            count_asked += 1
            passages = self.search(question[1].strip())
            reading = self.prompt("read", passages, question[1].strip())
            answer = self.write(reading, self.tokens)[0].strip()
            text = f"{text.rstrip()}\n{line.strip()}\nIntermediate answer: {answer}\n"
        if re.search("answer is", line, re.I):
            return final(line)
        text = f"{text.rstrip()}\nSo the final answer is:"
        return final(self.part(prompt, length, text, one_line)[0])

    def iter_retgen(self, iterations=2, most=256):
        """Section 3: the query is the last generation and the question."""
        y = ""
        for t in range(iterations):
            query = f"{y.strip()} {self.question}" if t else self.question
            y = self.write(self.prompt("chain", self.search(query)), most)[0]
        return final(y)

    def unsure(self, y, s, theta, n):
        """Equations 1 to 4 on the words of `s` behind `y`: where the first unsure word begins, and its query."""
        prompt = self.prompt("chain")
        self.log.append(("inspect", prompt, y + s))
        inside = self.talker.inside(prompt, y + s)
        characters, spans = prompt + y + s, []
        for text in inside.texts:
            begin = spans[-1][1] if spans else 0
            spans.append((begin, begin + len(text)))
        rows = len(inside.texts) - len(inside.entropies)

        def grouped(tokens):
            groups = []
            for token in tokens:
                if not groups or characters[spans[token][0]].isspace():
                    groups.append([])
                groups[-1].append(token)
            return groups

        def bare(group):
            text = characters[spans[group[0]][0] : spans[group[-1]][1]].strip()
            return text.strip(string.punctuation)

        def means_something(group):
            return bare(group) != "" and bare(group).lower() not in STOP_WORDS

        sentence = [
            t for t in range(rows, len(spans)) if spans[t][0] >= len(prompt + y)
        ]
        peak = {
            j: max(
                (inside.attention[i - rows, j] for i in sentence if i > j), default=0
            )
            for j in sentence
        }
        total = sum(peak.values())
        for group in grouped(sentence):
            share = sum(peak[j] for j in group) / total if total else 0
            entropy = sum(inside.entropies[j - rows] for j in group) / len(group)
            if share * len(grouped(sentence)) * entropy <= theta:
                continue
            if not means_something(group):
                continue
            start = prompt.rindex(self.question)
            ends = start + len(self.question)
            of_question = [
                t for t in range(rows) if spans[t][1] > start and spans[t][0] < ends
            ]
            scored = []
            for words in (of_question, range(rows, group[0])):
                for word in filter(means_something, grouped(words)):
                    weight = sum(
                        inside.attention[i - rows, j] for i in group for j in word
                    )
                    scored.append((weight / len(group), word))
            top = sorted(scored, key=lambda pair: -pair[0])[:n]
            query = " ".join(bare(word) for _, word in sorted(top, key=lambda p: p[1]))
            cut = spans[group[0]][0] - len(prompt + y)
            return cut, query or self.question
        return None

    def dragin(self, theta=1.2, n=40, length=64, most=256):
        """Section 3: generate, cut before the first unsure word, search, and generate on from there."""
        y, used = "", 0
        while used < most:
            room = min(length, most - used)
            s, tokens, ended = self.part(self.prompt("chain"), room, y, first_sentence)
            if s.strip() and not re.search("answer is", s, re.I):
                hit = self.unsure(y, s, theta, n)
                if hit:
                    cut, query = hit
                    y += s[:cut]
                    prompt = self.prompt("chain", self.search(query))
                    s, tokens, ended = self.part(prompt, room, y, first_sentence)
            y += s
            used += max(1, len(tokens))
            if ended or re.search("answer is", y, re.I):
                break
        return final(y)

    def uncertainty(self, prompt, prefix, tokens, by_sentence, samples):
        """Equation 3: the mean logarithm of the eigenvalues of the Gram matrix of states at the ends of samples."""
        texts = []
        for seed in range(samples):
            self.log.append(("draw", prompt, prefix, tokens, seed))
            usual, self.talker = self.talker, self.talker.drawn(seed)
            text, written, _ = self.reply(prompt, prefix, tokens)
            self.talker = usual
            if by_sentence and self.stops:
                text = ""
                for token, _ in written:
                    text += token
                    if token.endswith((".", "!", "?")) or "\n" in token:
                        break
            if text.strip():
                texts.append(text)
        states = []
        for text in texts:
            self.log.append(("inspect", prompt, prefix + text))
            state = self.talker.inside(prompt, prefix + text).state
            states.append(state - sum(state) / len(state))
        if not states:
            return math.inf
        gram = [[float(a @ b) for b in states] for a in states]
        values = np.linalg.eigvalsh(np.array(gram) + 1e-3 * np.eye(len(gram)))
        return sum(map(math.log, values)) / len(gram)

    def sure_words(self, tokens, last, sure):
        """The words of a sentence that are sure, or were there before."""
        parts = []
        for token, logprob in tokens:
            if not parts or token[:1].isspace():
                parts.append(["", 1.0])
            parts[-1][0] += token
            parts[-1][1] = min(parts[-1][1], math.exp(logprob))
        words = []
        for text, probability in parts:
            word = text.strip().strip(string.punctuation)
            seen = word in self.question or word in last
            if word and word.lower() not in STOP_WORDS:
                words += [word] * (seen or probability >= sure)
        return " ".join(words) or self.question

    def seakr(
        self, delta=-6.0, samples=3, sure=0.9, steps=7, cap=5, length=64, most=30
    ):
        """Section 3: search where unsure, keep the passage that leaves least doubt, answer in the surer way."""
        docs, chain, last, queries = [], "", "", set()

        def step(passages):
            prompt = self.prompt("chain", passages)
            s, tokens, ended = self.part(prompt, length, chain, first_sentence)
            doubt = math.inf
            if s.strip():
                doubt = self.uncertainty(prompt, chain, length, True, samples)
            return doubt, s, tokens, ended

        for _ in range(steps):
            doubt, s, tokens, ended = step(docs)
            if re.search("answer is", s, re.I):
                break
            if doubt > delta:
                query = self.sure_words(tokens, last, sure)
                if query in queries:
                    break
                queries.add(query)
                fresh = [p for p in self.search(query) if p not in docs]
                drafts = [(step([*docs, p]), p) for p in fresh]
                if not drafts:
                    break
                (doubt, s, tokens, ended), best = min(drafts, key=lambda d: d[0][0])
                docs.append(best)
                if re.search("answer is", s, re.I):
                    break
            chain, last = chain + s, s
            if ended or len(docs) >= cap:
                break
        answers = []
        for passages in (docs, [Passage("", chain.strip())] if chain.strip() else []):
            prompt = self.prompt("chain", passages)
            text = self.write(prompt, most)[0]
            doubt = math.inf
            if text.strip():
                doubt = self.uncertainty(prompt, "", most, False, samples)
            answers.append((doubt, text))
        return final(min(answers, key=lambda pair: pair[0])[1])

    def max_probability(self, threshold=0.5):
        self.log.append(("write", self.prompt("read"), "", self.tokens))
        text, tokens, _ = self.reply(self.prompt("read"), "", self.tokens)
        probability = 1.0
        for _, logprob in tokens:
            probability *= math.exp(logprob)
        return text.strip() if probability >= threshold else self.always()

    def adaptive_rag(self):
        """Section 3.2: A answers alone, B after one search, C by several."""
        prompt = self.prompt("complexity")
        self.log.append(("label", prompt))
        chat = (("user", prompt),)
        masses = [self.talker.probability(chat, label) for label in "ABC"]
        label = "ABC"[masses.index(max(masses))]
        return {"A": self.never, "B": self.always, "C": self.ircot}[label]()

    def adaptive_rag_trained(self):
        """The same with the classifier of section 3.2."""
        values = complexity(self.question)
        label = "ABC"[values.index(max(values))]
        return {"A": self.never, "B": self.always, "C": self.ircot}[label]()

    def knowledge(self, upper=0.8, lower=0.05, least=0.25, most=5):
        """Algorithm 1: correct if one passage is above `upper`, incorrect if all are below `lower`, else ambiguous."""

        def refined(passages):
            strips = []
            for p in passages:
                parts = p.text.split(". ")
                sentences = [f"{part}." for part in parts[:-1]] + parts[-1:]
                for first in range(0, len(sentences), 3):
                    text = " ".join(sentences[first : first + 3])
                    strips.append((p, text, relevance(self.question, text)))
            ranked = sorted(range(len(strips)), key=lambda i: (-strips[i][2], i))
            chosen = [i for i in sorted(ranked[:most]) if strips[i][2] >= least]
            texts = {}
            for i in chosen:
                p, text, _ = strips[i]
                texts.setdefault(p.id, (p, []))[1].append(text)
            return [Passage(p.id, " ".join(ts), p.title) for p, ts in texts.values()]

        hits = self.search(self.question)
        values = [relevance(self.question, p.text) for p in hits]
        correct = max(values, default=0.0) > upper
        incorrect = max(values, default=0.0) < lower
        internal = [] if incorrect else refined(hits)
        if correct:
            return internal
        keywords = self.write(self.prompt("keywords"), 32)[0].strip()
        return internal + refined(self.search(keywords or self.question))

    def crag(self):
        passages = self.knowledge()
        return self.write(self.prompt("read", passages), self.tokens)[0].strip()


def before(tokens, end):
    """The tokens that begin before a character."""
    kept, place = [], 0
    for token, logprob in tokens:
        if place < end:
            kept.append((token, logprob))
        place += len(token)
    return kept


def one_line(text):
    """The length of the first line with something on it; None while it is open."""
    place = 0
    for line in text.splitlines(keepends=True):
        place += len(line)
        if line.strip() and line.endswith("\n"):
            return place
    return None


def final(chain):
    """The answer at the end of a chain."""
    hits = list(re.finditer(r"answer is\s*:?", chain, re.I))
    text = chain.strip()
    if hits:
        text = chain[hits[-1].end() :].strip().split("\n")[0].strip()
    return (text[:-1] if text.endswith(".") else text).strip()
