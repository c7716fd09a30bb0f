"""A random chat model, and how it is decoded by brute force: prompted judgments in place of reflection tokens.

Written from docs/guides/any-chat-model.md and the wording of this package, `reflection_prompts.toml`: which
conversation each segment and each judgment sees, what a sentence is, what is asked again. The search, the scores and
the rules of retrieval are those of `reference`.
"""

import math
import random
import tomllib
import zlib
from dataclasses import dataclass
from importlib.resources import files

from reference import DUE, Distribution, Reference, Step, Unanswerable, share

from selfrag.judges.wire import Completion, Executor, TokenLogprob
from selfrag.reflection.requests import Failed

WORDING = tomllib.loads(
    (files("selfrag.judges") / "reflection_prompts.toml").read_text(encoding="utf-8")
)
WORDS = (
    " One",
    " two",
    " Three",
    " Dr",
    " 3",
    "7",
    ".",
    ".",
    "!",
    "?",
    ".5",
    "\n\n",
    " one",
    " ",
)
ENDS = (".", "!", "?")


class Talker:
    """A chat model: the same conversation with the same beginning always goes on alike."""

    def __init__(self, seed, failures=0.0):
        self.seed, self.failures = seed, failures

    def draw(self, *parts):
        return random.Random(zlib.crc32(repr((self.seed, *parts)).encode()))

    def token(self, chat, begun):
        """Return the next token, empty at the end of the turn, and its log-probability."""
        draw = self.draw("token", chat, begun)
        if len(begun) > 12 and draw.random() < 0.15:
            return "", -0.5
        return draw.choice(WORDS), draw.choice((-0.125, -0.5, -draw.random()))

    def probability(self, chat, word):
        """Return how probable a label is; ties are common."""
        draw = self.draw("label", chat, word)
        return draw.choice((0.05, 0.1, 0.3, 0.1 + draw.random() / 4))

    def fails(self, *parts):
        return self.draw("fails", *parts).random() < self.failures


class TalkingExecutor(Executor):
    """Runs a `Talker` as engines run models: `sentence` ends a text after a token that may end one."""

    def __init__(self, talker, *, continues=True, logprobs=True):
        self.talker = talker
        self.continues = continues
        self.logprobs = logprobs
        self.count = 0

    def steps(self, requests):
        self.count += len(requests)
        return [self.complete(request) for request in requests]
        yield []

    def complete(self, request):
        chat = tuple((turn.role, turn.content) for turn in request.prompt.messages)
        if request.slots:
            (slot,) = request.slots
            if self.talker.fails(chat, "label"):
                return Failed("no memory")
            return Completion(
                scores=(
                    tuple(
                        math.log(self.talker.probability(chat, w))
                        for w in slot.surfaces
                    ),
                )
            )
        if self.talker.fails(chat, request.prefill):
            return Failed("no memory")
        text, finish, tokens = "", "length", []
        while len(tokens) < request.max_tokens:
            token, logprob = self.talker.token(chat, request.prefill + text)
            tokens.append(TokenLogprob(token, logprob))
            if not token:
                finish = "stop"
                break
            text += token
            if request.sentence and (token.endswith(ENDS) or "\n" in token):
                finish = "sentence"
                break
        written = [token for token in tokens if token.token]
        known = tuple(written) if self.logprobs else None
        return Completion(text, finish, known, generated_tokens=len(tokens))


def first_sentence(text):
    """Return the length of the first sentence, as a reader of English sees it; None if more may belong to it."""
    for place, character in enumerate(text):
        before, after = text[:place], text[place + 1 :]
        if character == "\n" and before.strip() and after.strip("\n"):
            return len(text) - len(after.lstrip("\n"))
        if character not in ENDS or not after or not after[0].isspace():
            continue
        following = after.lstrip()
        if following[:1].islower() or (not following and "\n" not in after):
            continue
        run = len(before) - len(before.rstrip("".join(ENDS)))
        word = before.split()[-1] if before.split() and not before[-1].isspace() else ""
        numbered = word.isdigit() and not before.removesuffix(word).strip()
        paragraph = "\n" in after[: len(after) - len(following)]
        if (
            character == "."
            and run == 0
            and (numbered or (word == "Dr" and not paragraph))
        ):
            continue
        spaces = after[: len(after) - len(following)]
        return place + 1 + (len(spaces) if "\n" in spaces else 0)
    return None


class Draft:
    """A segment while it is written, request after request."""

    def __init__(self, talker, chat, begun, by_sentence):
        self.talker = talker
        self.chat = chat
        self.begun = begun
        self.by_sentence = by_sentence
        self.text, self.spent, self.ended = "", 0, ""
        self.tokens = []
        self.end = None  # characters of the segment

    def write(self, most):
        """Ask until a sentence has surely ended: after each mark for one token more."""
        stopped = False
        while not self.ended:
            if self.talker.fails(self.chat, self.begun + self.text):
                self.ended = "context" if self.text.strip() else "failed"
                return
            before = len(self.text)
            at_mark = self.ask(1 if stopped else most - self.spent)
            stopped = at_mark or (stopped and not self.text[before:].strip())
            self.end = first_sentence(self.text) if self.by_sentence else None
            if self.end is not None:
                self.ended = "stop"
            elif not self.ended and self.spent >= most:
                self.ended = "stop" if stopped else "budget"

    def ask(self, most):
        """Add up to so many tokens; whether the last one may end a sentence."""
        for _ in range(most):
            token, logprob = self.talker.token(self.chat, self.begun + self.text)
            self.spent += 1
            if not token:
                self.ended = "eos"
                return False
            self.tokens.append((token, logprob))
            self.text += token
            if self.by_sentence and (token.endswith(ENDS) or "\n" in token):
                return True
        return False


@dataclass(eq=False)
class ChatStep(Step):
    """A candidate segment; `ids` are those of its text without white space around it."""

    raw: str = ""  # the text as it was written

    @property
    def text(self):
        return self.raw


class ChatReference(Reference):
    """Decodes one question with a chat model."""

    def __init__(
        self,
        talker,
        search,
        policy,
        evidence=None,
    ):
        self.talker = talker
        self.search = search
        self.policy = policy
        self.evidence = evidence
        self.kept = None
        self.count, self.failed, self.close = 0, 0, False
        self.forbidden, self.nothing, self.reason = False, False, ""
        self.question, self.known = "", dict[tuple[str, str], Distribution | None]()

    # --- what the model is shown

    def shown(self, passage, task):
        """Return the one user turn."""
        parts = [f"Question: {self.question}"]
        if passage is not None:
            title, _, body = f"{passage.title}\n{passage.text}"[
                : self.policy.passage_tokens
            ].partition("\n")
            parts.append(f"Passage: {' '.join(title.split())}\n  {body.strip()}")
        return (("user", "\n\n".join([*parts, task])),)

    def writing(self, passage):
        return self.shown(
            passage, WORDING["write" if passage is None else "write_from_passage"]
        )

    def judged(self, name, passage, text=""):
        """Return the probability of each label of a group; None where the request fails."""
        entry = WORDING[name]
        reply = entry["replies"][0]
        task = f"{entry['task']} {reply['say']}"
        after = (*self.writing(passage), ("assistant", text), ("user", task))
        chat = after if text else self.shown(passage, task)
        if self.talker.fails(chat, "label"):
            self.reason = self.reason or "no memory"
            return None
        masses = []
        for word in reply["words"]:
            spellings = dict.fromkeys((word, word.capitalize()))
            masses.append(
                math.fsum(
                    self.talker.probability(chat, spelling) for spelling in spellings
                )
            )
        return tuple(masses)

    def critique_of(self, name, passage, text=""):
        masses = self.judged(name, passage, text)
        return None if masses is None else share(masses)

    def relevance(self, passage):
        """Return IsRel, asked once for a passage of a question."""
        if passage.key not in self.known:
            self.known[passage.key] = self.critique_of("isrel", passage)
        return self.known[passage.key]

    # --- deciding and searching

    def decode(self, question):
        self.question = question.strip()
        return super().decode(question)

    def start(self, question):
        root = Step(None, -1)
        if self.policy.mode == "adaptive":
            retrieve = self.judged("retrieve", None)
            if retrieve is None:
                raise Unanswerable("the model could not read the question: no memory")
            root.boundary = (*retrieve, 0.0)
        return root

    def action(self, step):
        if step.before is not None and self.policy.mode == "adaptive":
            answer = self.answer(step).strip()
            if step.boundary is None and answer:
                step.boundary = self.judged("retrieve_later", step.evidence, answer)
            if step.boundary is None:
                return "write"
        return super().action(step)

    def answer(self, step):
        """Return all that was written so far, as it was written."""
        return "".join(one.text for one in step.path)

    def shortlisted(self, step, passages):
        if self.policy.shortlist is None:
            return passages
        scores = {}
        for number, passage in enumerate(passages):
            relevance = self.relevance(passage)
            scores[number] = -1.0 if relevance is None else relevance[0]
        order = self.sorted_by(range(len(passages)), scores.__getitem__)
        return [passages[number] for number in order[: self.policy.passages]]

    # --- writing and judging

    def candidate(self, before, branch, passage):
        policy = self.policy
        step = ChatStep(before, self.count, branch, passage)
        self.count += 1
        draft = Draft(
            self.talker,
            self.writing(passage),
            self.answer(before),
            policy.segment_end == "retrieve",
        )
        draft.write(
            max(1, min(policy.segment_tokens, policy.answer_tokens - before.spent))
        )
        if draft.ended == "failed":
            self.failed += 1
            self.reason = self.reason or "no memory"
            step.branch = "failed"
            return step
        step.raw = draft.text[: draft.end]
        step.ids = tuple(100 + ord(character) for character in step.raw.strip())
        step.spent = before.spent + draft.spent
        step.ended_itself = draft.ended == "eos"
        logs, position = [], 0
        for token, logprob in draft.tokens:
            if position < len(step.raw):
                logs.append(logprob)
            position += len(token)
        if logs and policy.likelihood != "none":
            product = math.prod(map(math.exp, logs))
            step.likelihood = (
                product
                if policy.likelihood == "product"
                else product ** (1 / len(logs))
            )
        last = len(before.path) + 1 == policy.max_segments
        spent_all = step.spent >= policy.answer_tokens
        goes_on = (
            policy.after_cut == "go_on"
            and draft.ended == "budget"
            and not last
            and not spent_all
        )
        step.over = (draft.ended != "stop" and not goes_on) or spent_all
        repeated = step.written in [one.written for one in step.path[:-1]]
        if not step.bare and (self.deepest or not repeated):
            self.criticise_by_prompts(step)
        return step

    def criticise_by_prompts(self, step):
        """IsRel of the passage; IsSup of the segment, IsUse of the answer where weights or constraints ask for them."""
        weights = self.policy.weights
        weight = {
            "isrel": weights.isrel,
            "issup": weights.issup,
            "isuse": weights.isuse,
        }
        constrained = {*map(str, self.policy.require), *map(str, self.policy.forbid)}
        for name in DUE[step.branch]:
            if name != "isrel" and not weight[name] and name not in constrained:
                continue
            if name == "isrel":
                assert step.passage is not None
                step.critiques[name] = self.relevance(step.passage)
            elif name == "issup":
                step.critiques[name] = self.critique_of(
                    name, step.passage, step.text.strip()
                )
            else:
                step.critiques[name] = self.critique_of(
                    name, step.passage, self.so_far(step)
                )

    def so_far(self, step):
        """Return the answer up to a segment, white space around that left out."""
        earlier = step.before if step.before is not None and step.before.path else None
        before, text = self.said(earlier).text, step.text.strip()
        glued = not before or before[-1].isspace() or text[0] in ".,;:!?)]}%"
        return before + text if glued else f"{before} {text}"
