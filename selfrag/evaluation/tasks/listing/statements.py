"""What a passage says of its own subject in its first sentence: `Statement`s of the known relations. Pure.

Only passages that begin with their title count, so that the subject is sure. Of a sentence that says something else
between the noun and the link, the first link after the noun is taken.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from retrieval.passage import Passage
from selfrag.evaluation.tasks.listing.names import names
from selfrag.evaluation.tasks.listing.relations import RELATIONS, Relation

LONGEST_SENTENCE = 400
"""Characters that are read."""
_BRACKETS = re.compile(r" ?\([^()]*\)")
_DISAMBIGUATION = re.compile(r" \([^()]*\)$")
_IS = re.compile(r"^.{2,120}? (?:is|was|are|were) (?:an?|the|one of the) ")
_END = re.compile(r"(?<!\b[A-Z])(?<!\b(?:Jr|Sr|Dr|St|Mr|vs))\.[\"”]? (?=[\"“A-Z])")
_PLACE = re.compile(
    r"^(?:(?:the )?(?:[\w.-]+ ){0,3}(?:state|province|region|county|district|prefecture|republic|territory) of )?"
    r"(?:the )?((?:St\. )?[A-Z][\w\u2019'-]+(?: (?:and )?[A-Z][\w\u2019'-]+){0,3})"
    r"(?=[,.;]| is\b| on\b| with\b| that\b| which\b| and\b| in\b|$)"
)


@dataclass(frozen=True, slots=True)
class Statement:
    """One relation that a passage states.

    Attributes:
        relation: which.
        subject: what the passage is about, without the disambiguation of its title.
        names: the subject and how else the passage writes it.
        object: the other thing.
        passage: id of the passage.
    """

    relation: Relation
    subject: str
    names: tuple[str, ...]
    object: str
    passage: str


def statements(passages: Iterable[Passage]) -> Iterator[Statement]:
    """All statements of all passages, in order."""
    for passage in passages:
        title = html.unescape(passage.title).strip()
        subject = _DISAMBIGUATION.sub("", title)
        sentence = _BRACKETS.sub("", _first_sentence(html.unescape(passage.text)))
        if len(subject) < 3 or not (written := _opening(sentence, subject)):
            continue
        defined = _IS.match(sentence)
        if defined is None:
            continue
        aliases = tuple(dict.fromkeys((subject, written)))
        for relation in RELATIONS:
            for found in _objects(sentence[defined.end() :], relation):
                name = _in_brackets(title, relation, found)
                if name.casefold() not in subject.casefold():
                    yield Statement(relation, subject, aliases, name, passage.id)


def _in_brackets(title: str, relation: Relation, name: str) -> str:
    """The name as the title has it, where its brackets give it in full: `Battlecry (Two Steps from Hell album)`."""
    full = re.search(rf"\((.+) (?:{'|'.join(relation.nouns)})\)$", title)
    return full[1] if full and full[1].startswith(name) else name


def _first_sentence(text: str) -> str:
    head = " ".join(text[: LONGEST_SENTENCE + 100].split())
    end = _END.search(head)
    return head[: end.start() + 1 if end else LONGEST_SENTENCE]


def _opening(sentence: str, subject: str) -> str:
    """The subject as the sentence writes it; empty if it begins with something else."""
    head = sentence.lstrip("\"'\u201c\u2018")
    article = re.match(r"(?:The|A|An) ", head)
    for text in (head, head[article.end() :] if article else head):
        for name in (subject, subject.partition(",")[0]):
            if text.casefold().startswith(name.casefold()) and not text[len(name) : len(name) + 1].isalnum():
                return name
    return ""


def _objects(predicate: str, relation: Relation) -> list[str]:
    noun = re.search(rf"\b(?:{'|'.join(relation.nouns)})\b", " ".join(predicate.split()[:12]))
    if noun is None:
        return []
    before, rest = predicate[: noun.start()], predicate[noun.end() :]
    if re.search(r"[,;]| (?:by|of|in|from|about|and) ", before):
        return []  # the noun belongs to something else: `the theme song of the film`
    if relation.object == "quoted":
        found = re.search(rf'\b(?:{"|".join(relation.links)})\b[^"“,]{{0,20}}["“]([^"”]{{2,60}})["”]', rest)
        return [found[1].rstrip(",.")] if found else []
    link = re.search(rf"\b(?:{'|'.join(relation.links)}) ", rest)
    if link is None or ";" in rest[: link.start()]:
        return []
    if relation.object == "place":
        place = _PLACE.match(rest[link.end() :]) if link.start() <= 1 or relation.links != ("in", "of") else None
        return [place[1]] if place else []
    return names(rest[link.end() :], words=1 if relation.object == "name" else 2)
