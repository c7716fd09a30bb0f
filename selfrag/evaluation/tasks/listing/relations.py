"""The relations that list questions ask for, as data: nouns for the subject, words before the object.

QAMPARI takes relations from Wikidata; here they are read from definitions such as `"Jaws" is a 1975 American thriller
film directed by Steven Spielberg`. Reads no passage.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation between the subject of a passage and a named thing.

    Attributes:
        name: `class.property`.
        nouns: what the subject is called; the class of the relation.
        links: words before the object's name.
        object: `person` or `artist` (two words, or one that a role introduces), `name`, `quoted` or `place`.
        question: asks for the subjects; `{}` stands for the object.
        clause: the same as a condition, for a question with two of them.
        plural: what several subjects are called in a question with two conditions.
    """

    name: str
    nouns: tuple[str, ...]
    links: tuple[str, ...]
    object: str
    question: str
    clause: str
    plural: str

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
