"""A small real run. Not a test."""

import json
import time

from critic.augment.algorithm import AugmentOptions
from critic.augment.run import augment_locally, augment_pairs
from critic.baselines import lexical_critic, overlap
from critic.judging import Critic
from critic.pairs import PairSource
from retrieval.passage import Passage

OPTIONS = AugmentOptions(gold="join", seed=3)
SHARD = 3
FILES = ("rows.jsonl", "provenance.jsonl", "dropped.jsonl")

PLACES = (
    "Paris",
    "Rome",
    "Oslo",
    "Bern",
    "Kyiv",
    "Lima",
    "Riga",
    "Cairo",
    "Quito",
    "Seoul",
)
CORPUS = [
    Passage(f"c{n}-{m}", f"{place} is city number {n} of the list. {fact}", place)
    for n, place in enumerate(PLACES)
    for m, fact in enumerate(
        (
            f"Its river is called the {place}ina.",
            f"In {1900 + n} a bridge was built there.",
            "It rains a lot.",
        )
    )
]


class WordRetriever:
    """Passages by shared words."""

    def __call__(self, queries, k, /):
        return [
            sorted(
                (p.with_score(overlap(q, f"{p.title} {p.text}")) for p in CORPUS),
                key=_worst,
            )[:k]
            for q in queries
        ]


def _worst(passage):
    return -(passage.score or 0.0), passage.id


class SlowCritic(Critic):
    """Takes its time, so that a kill meets it at work."""

    def __init__(self, pause):
        super().__init__(lexical_critic().judges)
        self._pause = pause

    def steps(self, cases):
        time.sleep(self._pause if cases else 0)
        return (yield from super().steps(cases))


def write_pairs(path, count=40):
    """Questions, long answers and instructions, one line each."""
    with path.open("w") as stream:
        for n in range(count):
            place = PLACES[n % len(PLACES)]
            fact = f"{place} is a city. In {1900 + n % 10} a bridge was built there.\n\nI like it.  [Relevant] é"
            gold = [{"title": place, "text": f"The mayor of {place} is called Mo."}]
            record = (
                {
                    "instruction": f"What is the river of {place}?",
                    "output": f"{place}ina",
                },
                {
                    "instruction": f"Tell me about {place}.",
                    "output": fact,
                    "kind": "long_form",
                },
                {
                    "instruction": f"Rhyme on {place}",
                    "output": "No rhyme.",
                    "kind": "instruction",
                },
                {
                    "instruction": f"Who is the mayor of {place}?",
                    "output": "Mo",
                    "gold_passages": gold,
                },
            )[n % 4]
            stream.write(
                json.dumps(
                    {"id": f"p{n}", "dataset": "made", "kind": "short_qa", **record}
                )
                + "\n"
            )
    return path


def run(pairs, out, pause=0.0):
    """The run itself."""
    execute = augment_locally(SlowCritic(pause), WordRetriever(), OPTIONS)
    return augment_pairs(PairSource(pairs), out, execute, OPTIONS, shard=SHARD)


def contents(out):
    """Every byte of the output, and that nothing else is left."""
    assert sorted(path.name for path in out.iterdir()) == sorted(
        (*FILES, "manifest.json")
    )
    found = {name: (out / name).read_bytes() for name in FILES}
    manifest = json.loads((out / "manifest.json").read_text())
    manifest.pop("commit")  # of the checkout, which others may change meanwhile
    return {**found, "manifest.json": json.dumps(manifest).encode()}
