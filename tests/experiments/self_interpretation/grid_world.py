"""Questions about rivers and a model that can be computed by hand: it answers with the first context, and cites it."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from retrieval.passage import Passage
from selfrag.evaluation.items import Item
from selfrag.experiments.self_interpretation.generators import Generator, PromptWriter
from selfrag.experiments.self_interpretation.questions import Questions, choose
from selfrag.experiments.self_interpretation.run import run_grid
from selfrag.judges.wire import Completion
from selfrag.reflection.requests import Failed

RIVERS = (
    "Aare",
    "Brenta",
    "Cher",
    "Drau",
    "Elbe",
    "Fulda",
    "Garonne",
    "Havel",
    "Inn",
    "Jizera",
)


def item(number, passages=5):
    """A question whose answers are the rivers of the first two passages; the gold ones are these two."""
    shown = tuple(
        Passage(f"p{number}{letter}", f"{name} is a river in land {number}.", name)
        for letter, name in list(zip("abcdefghij", RIVERS, strict=True))[:passages]
    )
    sets = tuple((name, f"{name} River") for name in RIVERS[:2])
    gold = frozenset(passage.id for passage in shown[:2])
    question = f"{'Which' if number % 2 else 'What'} rivers are in land {number}?"
    return Item(
        f"q{number}", question, shown, gold=gold, answer_sets=sets, query=question
    )


def questions(count=6, passages=5, **showing):
    """`count` questions to ask, two more as demonstrations."""
    items = [item(number, passages) for number in range(count + 2)]
    kinds = {drawn_item.id: drawn_item.query.split()[0] for drawn_item in items}
    return Questions(
        Path("rivers.jsonl"), {"top": 3}, *choose(items, limit=None), kinds, **showing
    )


def prompt_of(request):
    """The prompt as text."""
    return (
        request.prompt.messages[0].content
        if hasattr(request.prompt, "messages")
        else request.prompt.text
    )


def shown(prompt):
    """Context ids and texts of the actual question."""
    lines = prompt.rpartition("CONTEXTS:\n")[2].splitlines()
    ids, texts = (
        [line[len(label) :] for line in lines if line.startswith(label)]
        for label in LABELS
    )
    return list(zip(ids, texts, strict=True))


LABELS = ("Context ID: ", "Context: ")


def first_context(prompt):
    """What the model writes."""
    name, text = shown(prompt)[0]
    said = f"{text.split()[0]} [{name}]."
    if "Why do you think" in prompt:
        return f"{said} I think so because context {name} says it."
    return (
        f"{said} I would have given the same answer."
        if "if the order" in prompt
        else said
    )


@dataclass
class Hand:
    """An executor whose text is computed from the prompt."""

    say: Callable[[str], str | Failed] = first_context
    prompts: list[str] = field(default_factory=list)

    def run(self, requests):
        replies = []
        for request in requests:
            self.prompts.append(prompt_of(request))
            said = self.say(self.prompts[-1])
            replies.append(
                said
                if isinstance(said, Failed)
                else Completion(said, "stop", prompt_tokens=9)
            )
        return replies


@dataclass(frozen=True)
class ByHand(Generator):
    """A generator that is a hand."""

    hand: Hand = field(default_factory=Hand)
    batch: int = 64

    def identity(self):
        template = asdict(self.template)
        return {
            "model": "hand",
            "engine": "hand",
            "layout": "chat",
            "max_tokens": 50,
            "template": template,
        }

    def load(self):
        return PromptWriter(self.hand)


def start(folder, questions, cells, hand, batch=64, **options):
    """Run cells, or continue them."""
    return run_grid(
        ByHand("first-context", hand=hand, batch=batch),
        questions,
        cells,
        folder,
        **options,
    )
