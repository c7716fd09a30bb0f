"""What an HTML page is made of, by the standard library's parser. Importable from the tests beside it."""

import re
from html.parser import HTMLParser
from itertools import pairwise

VOID = {"meta", "input", "br", "img"}
UNSEEN = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b\ufeff\ud800-\udfff]"
)
"""Characters that may not be on a page: a reader could not see them, or they turn the writing direction."""


class Structure(HTMLParser):
    """Tags with their attributes in order, texts by the tag they stand in, and whether every tag was closed."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags = []
        self.texts = []
        self.open = []
        self.wrong = []
        self.other = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, tuple(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, tuple(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def handle_comment(self, data):
        self.other.append(data)

    handle_pi = unknown_decl = handle_comment

    def skeleton(self):
        """Tags and names of attributes: what may not depend on any text."""
        return [(tag, tuple(name for name, _ in attrs)) for tag, attrs in self.tags]

    def values(self, name):
        """Values of an attribute, wherever it stands."""
        return [value for _, attrs in self.tags for key, value in attrs if key == name]

    def text(self, tag=None):
        return "".join(
            data for where, data in self.texts if tag is None or where == tag
        )

    def check_inert(self, tags, attributes):
        """Nothing but these tags and attributes, all closed; links stay on the page; the style asks for nothing."""
        assert not self.wrong
        assert not self.open
        assert not self.other  # no comment, no processing instruction
        assert {tag for tag, _ in self.tags} <= set(tags.split())
        assert {name for _, attrs in self.tags for name, _ in attrs} <= set(
            attributes.split()
        )
        ids = self.values("id")
        assert len(ids) == len(set(ids))
        assert all(
            value.startswith("#") and value[1:] in ids for value in self.values("href")
        )
        assert not re.search(r"url|@import|expression|http|//", self.text("style"))

    def check_heard(self):
        """A page for the ear: captions, summaries and labels, scopes, names of pictures, and headings in steps."""
        tags = [tag for tag, _ in self.tags]
        for one, other in map(
            str.split, ("table caption", "details summary", "input label")
        ):
            assert tags.count(one) == tags.count(other)
        for tag, attributes in self.tags:
            known = dict(attributes)
            assert tag != "th" or known["scope"] in ("row", "col")
            assert tag != "img" or known["alt"]
            assert tag != "html" or known["lang"] == "en"
        levels = [int(tag[1]) for tag in tags if re.fullmatch("h[1-6]", tag)]
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))

    def unseen(self):
        """What a reader could not see, in texts and spoken names."""
        spoken = [*self.values("aria-label"), *self.values("alt")]
        return re.findall(
            UNSEEN, "".join([*(data for _, data in self.texts), *map(str, spoken)])
        )
