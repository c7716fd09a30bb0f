"""A scripted model that searches by tags, shared by tests; `written` beside it must be importable."""

from __future__ import annotations

from scripted import ScriptedEngine, ScriptedReply
from written import EOS, FIRST_CHARACTER, LIMITS, Characters, passages

from selfrag.extensions.search_tags.decoder import PROFILES, Budget, Searcher
from selfrag.extensions.search_tags.model import SearchTagModel


class Surface(Characters):
    """Every character is an id, and its own surface."""

    def surface(self, ids):
        return self.decode([i for i in ids if i >= FIRST_CHARACTER])

    def encode_surface(self, text):
        return self.encode(text)

    def ending(self, characters):
        return tuple(self.encode("".join(sorted(characters))))


CODEC = Surface()
FOUND = passages("d1", "d2", "d3")


def model(turns, profile="search-r1", retriever="own", **options):
    """A scripted model: from all the text so far to the present turn, which may be written in part."""

    def reply(request):
        text = CODEC.surface(request.prompt_ids)
        turn = turns(text)
        written = next(n for n in range(len(turn), -1, -1) if text.endswith(turn[:n]))
        return ScriptedReply((*CODEC.encode(turn[written:]), EOS))

    searched = []

    def find(queries, k):
        searched.extend(queries)
        return [FOUND[:k] for _ in queries]

    engine = ScriptedEngine(reply, EOS, limits=LIMITS)
    searcher = Searcher(PROFILES[profile], CODEC, None, EOS, Budget(**options))
    searching_model = SearchTagModel(
        searcher, engine, find if retriever == "own" else retriever
    )
    return searching_model, searched, engine


def two_searches(text):
    """Two searches, and an answer."""
    script = (
        "<think>A > B</think><search> first </search>",
        "<search>second  one</search>",
        "<answer> Text of d2. </answer>",
    )
    return script[text.rpartition("Question: ")[2].count("</information>\n\n")]
