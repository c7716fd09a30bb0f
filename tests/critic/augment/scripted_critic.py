"""A critic and a retriever that answer from rules of a test and remember every call. Not a test."""

from critic.judging import Critic
from critic.pairs import Pair
from retrieval.passage import Passage
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.requests import External

YES = {
    "Retrieve": "Retrieval",
    "IsRel": "Relevant",
    "IsSup": "Fully supported",
    "IsUse": "5",
}


def judgment(case, answer):
    """A label as all the mass but a little, or a distribution by label name."""
    if answer is None:
        return None
    names = case.labels.names
    rest = 0.1 / (len(names) - 1)
    shares = (
        {n: 0.9 if n == answer else rest for n in names}
        if isinstance(answer, str)
        else answer
    )
    assert set(shares) <= set(names), (shares, names)
    return Judgment(
        case.labels, case.group, tuple(shares.get(n, 0.0) for n in names), 1.0
    )


class ScriptedCritic(Critic):
    """`rule(case)` gives a label, a distribution, None, or ... for the most favourable label of the group."""

    def __init__(self, rule=None):
        super().__init__({})
        self._rule = rule or (lambda case: ...)
        self.calls = []

    @property
    def cases(self):
        return [case for call in self.calls for case in call]

    def of(self, group):
        return [case for case in self.cases if case.group == group]

    def steps(self, cases):
        if not cases:
            return []
        # those of all that wait come in one call
        results = yield [External(self.answer, case) for case in cases]
        return [result.value for result in results]

    def answer(self, cases):
        self.calls.append(list(cases))
        answers = [self._rule(case) for case in cases]
        return [
            judgment(c, YES[c.group] if a is ... else a)
            for c, a in zip(cases, answers, strict=True)
        ]


class CountingRetriever:
    """Passages by query from a function; remembers every call."""

    def __init__(self, find=None):
        self._find = find or (lambda query: [])
        self.calls = []

    @property
    def queries(self):
        return [query for call in self.calls for query in call]

    def __call__(self, queries, k, /):
        self.calls.append(list(queries))
        return [list(self._find(query))[:k] for query in queries]


def passages(*names, score=1.0):
    """Passages whose text is their name, scores falling."""
    return [
        Passage(name, f"text of {name}", name.title(), score / rank)
        for rank, name in enumerate(names, 1)
    ]


def pair(output="Paris. It lies on the Seine.", **changes):
    return Pair(
        **{
            "id": "q1",
            "dataset": "nq",
            "instruction": "Capital?",
            "output": output,
            "kind": "short_qa",
        }
        | changes
    )


def spans(text):
    """A sentence ends after a full stop: enough for tests that are not about sentences."""
    found, start = [], 0
    for end, character in enumerate(text, 1):
        if character == ".":
            found.append((start, end))
            start = end
    return [*found, (start, len(text))] if start < len(text) else found
