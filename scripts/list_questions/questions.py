"""List questions from statements: one condition, two conditions, or through another entity, as QAMPARI composes them.

Pure. A question knows its answers and the passages that state them, and nothing of what a search will find.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from list_questions.statements import RELATIONS, Relation, Statement

Type = Literal["simple", "intersection", "composition"]
FEWEST_ANSWERS = 2


@dataclass(frozen=True, slots=True)
class ListAnswer:
    """One member of the list."""

    names: tuple[str, ...]  # ways to write it, the first as in the title
    passages: tuple[str, ...]  # ids of the passages that state it


@dataclass(frozen=True, slots=True)
class ListQuestion:
    """A question whose answer is a list."""

    type: Type  # `simple`, `intersection` (two conditions) or `composition` (asks for what belongs to the members)
    relations: tuple[str, ...]  # names of the relations, one a condition
    objects: tuple[str, ...]  # the named things of the conditions
    text: str  # the question
    answers: tuple[ListAnswer, ...]  # its members, at least two


COMPOSITIONS = (
    ("film.star", "film.director", "Who directed the films that star {}?"),
    ("film.director", "film.star", "Who stars in the films that were directed by {}?"),
    ("film.producer", "film.director", "Who directed the films that were produced by {}?"),
    ("game.publisher", "game.developer", "Who developed the games that were published by {}?"),
)
"""Condition, what is asked for, question."""

_Subjects = Mapping[tuple[str, str], Mapping[str, Statement]]
"""Relation and object to the statements by subject."""


def list_questions(statements: Iterable[Statement]) -> list[ListQuestion]:
    """All questions with two answers or more, over two passages or more; the simple ones first, else in order."""
    found: dict[tuple[str, str], dict[str, Statement]] = {}
    spellings: dict[str, str] = {}
    for said in statements:
        # `S. A. Chandrasekhar` is `S A Chandrasekhar`: the first spelling stands for all.
        folded = re.sub(r"\W", "", said.object).casefold()
        one = replace(said, object=spellings.setdefault(folded, said.object))
        # A second passage on the same subject states nothing new; the first is the evidence.
        found.setdefault((one.relation.name, one.object), {}).setdefault(one.subject, one)
    every = (*_simple(found), *_intersections(found), *_compositions(found))
    distinct: dict[object, ListQuestion] = {}
    for question in every:
        passages = {id_ for answer in question.answers for id_ in answer.passages}
        if len(passages) >= FEWEST_ANSWERS:
            # Partners who did everything together would be asked for twice.
            distinct.setdefault((question.relations, question.answers), question)
    return list(distinct.values())


def _simple(found: _Subjects) -> Iterator[ListQuestion]:
    relations = _by_name()
    for (name, thing), subjects in found.items():
        if len(subjects) >= FEWEST_ANSWERS:
            text = relations[name].question.format(thing)
            yield ListQuestion("simple", (name,), (thing,), text, tuple(map(_answer, subjects.values())))


def _intersections(found: _Subjects) -> Iterator[ListQuestion]:
    relations = _by_name()
    of_subject: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for (name, thing), subjects in found.items():
        for subject in subjects:
            of_subject.setdefault((relations[name].kind, subject), []).append((name, thing))
    pairs: dict[tuple[tuple[str, str], tuple[str, str]], list[Statement]] = {}
    for (_, subject), conditions in of_subject.items():
        for one, other in combinations(conditions, 2):
            if one[0] != other[0] and one[1] != other[1]:
                pairs.setdefault((one, other), []).append(found[one][subject])
    for ((first, thing), (second, further)), both in pairs.items():
        if len(both) >= FEWEST_ANSWERS:
            clauses = relations[first].clause.format(thing), relations[second].clause.format(further)
            text = f"Which {relations[first].plural} {clauses[0]} and {clauses[1]}?"
            yield ListQuestion("intersection", (first, second), (thing, further), text, tuple(map(_answer, both)))


def _compositions(found: _Subjects) -> Iterator[ListQuestion]:
    for condition, asked, question in COMPOSITIONS:
        of_subject: dict[str, list[Statement]] = {}
        for (name, _), subjects in found.items():
            if name == asked:
                for subject, statement in subjects.items():
                    of_subject.setdefault(subject, []).append(statement)
        for (name, thing), subjects in found.items():
            if name != condition:
                continue
            members: dict[str, list[str]] = {}
            for subject in subjects:
                for statement in of_subject.get(subject, []):
                    if statement.object != thing:
                        members.setdefault(statement.object, []).append(statement.passage)
            if len(members) >= FEWEST_ANSWERS:
                answers = tuple(ListAnswer((name,), tuple(dict.fromkeys(ids))) for name, ids in members.items())
                yield ListQuestion("composition", (condition, asked), (thing,), question.format(thing), answers)


def _answer(statement: Statement) -> ListAnswer:
    return ListAnswer(statement.names, (statement.passage,))


def _by_name(relations: Sequence[Relation] = RELATIONS) -> dict[str, Relation]:
    return {relation.name: relation for relation in relations}
