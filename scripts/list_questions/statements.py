"""What a passage says of its own subject in its first sentence, as statements of known relations."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from retrieval.passage import Passage

_ROLES = re.compile(
    r"^(?:band|duo|trio|quartet|quintet|group|ensemble|collective|singer|rapper|musician|artists?|songwriter|"
    r"singer-songwriter|producer|composer|comedian|DJ|author|writer|novelist|playwright|poet|director|filmmaker|"
    r"vocalist|guitarist|entertainer|screenwriter|actor|actress|dramatist|essayist)$"
)
_DEMONYM = re.compile(
    r"^(?:[A-Z][a-z]+(?:ish|ese|ian|can|ean|tch|nch)|Welsh|Greek|Irish|Thai|Swiss|German|Swede|Northern|Southern|New|"
    r"South|North|West|East|African|Latin|Christian|[A-Z][\w.]*-(?:based|born|[A-Z]\w+)|Grammy|Academy|Nobel|Pulitzer|R&B|EDM|Inc\.?|LLC)$"
)
_JOINING = frozenset(("of", "the", "de", "van", "von", "del", "della", "la", "le", "da", "di", "du", "&", "bin", "al"))
_AND = ("and",)
_BREAKING = ("at", "from")  # `Ready at Dawn`: perhaps half a name
_INITIAL = re.compile(r"^(?:[A-Z]\.)+$|^(?:Jr|Sr|Dr|St|Mr|Mrs|vs|Inc|Ltd)\.$")
LONGEST_DESCRIPTION = 14
"""Words before a name."""
LONGEST_NAME = 7
"""Words of one."""


def names(text: str, *, words: int) -> list[str]:
    """The names at the beginning of `text`: one, or several that are listed with commas and `and`.

    Args:
        text: what follows `directed by` or the like.
        words: fewest words of a name that no role (`singer`) introduces.
    """
    tokens = text.split()[:60]
    start, described = _after_description(tokens)
    found: list[str] = []
    at = start
    while True:
        name, end, more = _one(tokens, at)
        if len(name.split()) < (1 if described else words) or not name or _DEMONYM.match(name.split()[-1]):
            return found
        found.append(name)
        if not more:
            return found
        described = False
        at = end + (tokens[end] in _AND if end < len(tokens) else 0)


def _after_description(tokens: list[str]) -> tuple[int, bool]:
    """Where the name begins, and whether a role stands before it."""
    last = -1
    for i, token in enumerate(tokens[:LONGEST_DESCRIPTION]):
        word = token.rstrip(",")
        if _ROLES.match(word):
            last = i
        elif (word[:1].isupper() and not _DEMONYM.match(word)) or token[-1:] == "." or '"' in token:
            break
    if last >= 0:
        return last + 1, not tokens[last].endswith(",")
    return (1 if tokens[:1] == ["the"] else 0), False


def _one(tokens: list[str], at: int) -> tuple[str, int, bool]:
    """Name, place after it, and whether another may follow."""
    words: list[str] = []
    for i in range(at, min(len(tokens), at + LONGEST_NAME + 1)):
        token = tokens[i]
        if token in ("the", "The") and not words and i + 1 < len(tokens):
            words.append("The")
            continue
        if token in _JOINING and words and i + 1 < len(tokens) and tokens[i + 1][:1].isupper():
            words.append(token)
            continue
        bare = token if _INITIAL.match(token) else token.rstrip(',;:.!?)"”')
        if not bare[:1].isupper() and not (bare[:1].isdigit() and words):
            broken = token in _BREAKING and tokens[i + 1 : i + 2] and tokens[i + 1][:1].isupper()
            return "" if broken else _joined(words), i, token in _AND
        words.append(bare.removesuffix("'s").removesuffix("\u2019s"))
        if words[-1] != bare:
            return "", i, False
        if bare != token:
            more = token[len(bare) :] == "," and not token.endswith(".")
            return _joined(words), i + 1, more
    return _joined(words), min(len(tokens), at + LONGEST_NAME + 1), False


def _joined(words: list[str]) -> str:
    return " ".join(words) if words and words != ["The"] and len(words) <= LONGEST_NAME else ""


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation between the subject of a passage and a named thing."""

    name: str  # `class.property`
    nouns: tuple[str, ...]  # what the subject is called; the class of the relation
    links: tuple[str, ...]  # words before the object's name
    object: str  # `person` or `artist` (two words, or one that a role introduces), `name`, `quoted` or `place`
    question: str  # asks for the subjects; `{}` stands for the object
    clause: str  # the same as a condition, for a question with two of them
    plural: str  # what several subjects are called in a question with two conditions

    @property
    def kind(self) -> str:
        """Class of the subjects; two relations of one class can be asked for together."""
        return self.name.partition(".")[0]


_SONG = ("song", "single", "track")
_ALBUM = ("album", "EP", "mixtape")
_BOOK = ("novel", "novella", "book", "play", "memoir", "poem", "trilogy")
_GAME = ("game",)
_BY = ("by",)
_IN = ("in", "of")

RELATIONS = (
    Relation("film.director", ("film",), ("directed by",), "person",
             "Which films were directed by {}?", "were directed by {}", "films"),
    Relation("film.star", ("film",), ("starring", "stars"), "person",
             "Which films star {}?", "star {}", "films"),
    Relation("film.producer", ("film",), ("produced by",), "person",
             "Which films were produced by {}?", "were produced by {}", "films"),
    Relation("song.artist", _SONG, ("recorded by", "performed by", *_BY), "artist",
             "Which songs are by {}?", "are by {}", "songs"),
    Relation("album.artist", _ALBUM, _BY, "artist",
             "Which albums are by {}?", "are by {}", "albums"),
    Relation("book.author", _BOOK, ("written by", *_BY), "person",
             "Which books or plays were written by {}?", "were written by {}", "books or plays"),
    Relation("game.developer", _GAME, ("developed by",), "name",
             "Which games were developed by {}?", "were developed by {}", "games"),
    Relation("game.publisher", _GAME, ("published by",), "name",
             "Which games were published by {}?", "were published by {}", "games"),
    Relation("series.creator", ("series", "sitcom"), ("created by",), "person",
             "Which series were created by {}?", "were created by {}", "series"),
    Relation("episode.series", ("episode",), ("series", "sitcom", "show", "drama"), "quoted",
             'Which episodes belong to the series "{}"?', 'belong to the series "{}"', "episodes"),
    Relation("character.work", ("character",), ("series", "show", "opera", "drama", "sitcom", "film"), "quoted",
             'Which characters appear in "{}"?', 'appear in "{}"', "characters"),
    Relation("city.place", ("city", "town"), _IN, "place",
             "Which cities or towns are in {}?", "are in {}", "cities or towns"),
    Relation("river.place", ("river",), _IN, "place",
             "Which rivers are in {}?", "are in {}", "rivers"),
    Relation("island.place", ("island",), _IN, "place",
             "Which islands are in {}?", "are in {}", "islands"),
    Relation("mountain.place", ("mountain", "peak", "volcano"), _IN, "place",
             "Which mountains are in {}?", "are in {}", "mountains"),
    Relation("university.place", ("university", "college"), ("in",), "place",
             "Which universities or colleges are in {}?", "are in {}", "universities or colleges"),
    Relation("team.place", ("team", "club"), ("based in",), "place",
             "Which teams or clubs are based in {}?", "are based in {}", "teams or clubs"),
    Relation("company.place", ("company",), ("headquartered in", "based in"), "place",
             "Which companies are based in {}?", "are based in {}", "companies"),
    Relation("band.place", ("band", "duo", "trio"), ("from", "formed in", "based in"), "place",
             "Which bands come from {}?", "come from {}", "bands"),
)  # fmt: skip


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
    """One relation that a passage states."""

    relation: Relation  # which
    subject: str  # what the passage is about, without the disambiguation of its title
    names: tuple[str, ...]  # the subject and how else the passage writes it
    object: str  # the other thing
    passage: str  # id of the passage


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
