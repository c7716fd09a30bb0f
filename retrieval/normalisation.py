"""One form for every way of writing a text: for search by words, for metrics, and for passages that repeat others.

- `fold_text`: compatibility forms (NFKC), case, quotes, dashes and digits become one form; invisible characters go.
  It keeps punctuation, accents and the order of all characters. Metrics and comparisons begin with it.
- `split_words`: the words of a text. Scripts without spaces between words give pairs of neighbouring characters, as
  Lucene's CJKAnalyzer does, since every word of two characters or more then shares a pair with a text that has it.
- `without_accents`: a word as people type it who leave accents, vowel points or variant letters out.

ASCII takes a fast path in each. All of it is linear in the length of the text.
"""

from __future__ import annotations

import re
import string
import unicodedata
from itertools import pairwise

_NON_ASCII = re.compile(r"([^\x00-\x7f]+)")
_SHORT_RUN = 4
_MOST_RUNS = 50_000  # characters of a run that is remembered, and how many are
# NFKC makes letters and digits of them, which join the word before
_JOINING = re.compile("[™℠®©]|(?=[¼½¾⅐-⅞])")
# between numbers it is a range, else it parts two words
_EM_DASH = re.compile(r"(?<=\d)[\u2014\u2015](?=\d)")
_QUOTES_AND_DASHES = {
    **dict.fromkeys(
        "\u2018\u2019\u201a\u201b\u2032\u2035\u02b9\u02bb\u02bc\u02bd\u02c8\u00b4\uff07\u05f3\ua78c",
        "'",
    ),
    **dict.fromkeys(
        "\u201c\u201d\u201e\u201f\u2033\u2036\u00ab\u00bb\u301d\u301e\u301f\uff02\u05f4",
        '"',
    ),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\u2043\u05be\u2e3a", "-"),
    # a zero width space parts words in Khmer, Thai and Burmese
    **dict.fromkeys("\u2014\u2015\u200b", " "),
    "\u2044": "/",
}
# Characters that change nothing but the look: Arabic tatweel, the combining grapheme joiner, variation selectors.
_LOOK_ONLY = frozenset(
    "\u0640\u034f\u180b\u180c\u180d" + "".join(map(chr, range(0xFE00, 0xFE10)))
)

# Thai and Lao: a tone mark before or after the ring of SARA AM looks the same.
_SARA_AM = re.compile(
    "(\u0e4d)([\u0e48-\u0e4b])(?=\u0e32)|(\u0ecd)([\u0ec8-\u0ecb])(?=\u0eb2)"
)

# A character of a script without spaces, with the marks that belong to it. Han, kana, bopomofo, Hangul, Yi; then Thai,
# Lao, Khmer, Burmese and their relatives, whose vowels before a consonant belong to it.
_IDEOGRAPHS = (
    "\u3005-\u3007\u3021-\u3029\u3031-\u3035\u303b\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff"
    "\u3105-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua48c\uf900-\ufaff"
    "\u1100-\u11ff\uac00-\ud7a3\U0001b000-\U0001b16f\U00020000-\U000323af"
)
_SOUTHEAST_ASIAN = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ebd\u0ec0-\u0ecd\u0edc-\u0edf\u1000-\u103f\u104e-\u109d\u1780-\u17d3\u17d7\u17dc"
    "\u1950-\u1974\u1980-\u19c9\u1a20-\u1a5e\u1a60-\u1a7c\ua9e0-\ua9ef\ua9fa-\ua9fe\uaa60-\uaac2"
)
UNSPACED = _IDEOGRAPHS + _SOUTHEAST_ASIAN
"""Characters of scripts that put no spaces between words, and of Hangul, which joins particles to words."""
_MARKS = "\u0e30-\u0e3a\u0e45\u0e47-\u0e4e\u0eb0-\u0ebc\u0ec8-\u0ecd\u102b-\u103e\u1056-\u1059\u17b4-\u17d3"
_LEADING_VOWELS = "\u0e40-\u0e44\u0ec0-\u0ec4"
_JOINED_CONSONANT = "(?:(?<=[\u1039\u17d2])[\u1000-\u1021\u1780-\u17a2])"  # stacked below the one before
_UNIT = re.compile(
    rf"[{_IDEOGRAPHS}][\u3099\u309a]*|[{_LEADING_VOWELS}]?[{_SOUTHEAST_ASIAN}](?:[{_MARKS}]|{_JOINED_CONSONANT})*"
)
_HAS_UNSPACED = re.compile(f"[{UNSPACED}]")
_RUN = re.compile(f"[{UNSPACED}\u3099\u309a]+|[^{UNSPACED}\u3099\u309a]+")

_ACCENTS = re.compile(
    "(?<!\u0438)\u0306"  # not of Cyrillic short i, which is a letter of its own
    "|[\u0300-\u0305\u0307-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"
    "\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed\u093c\u09bc\u0a3c\u0abc\u0b3c]"
)
_PLAIN_LETTERS = str.maketrans(
    {
        "ø": "o",
        "đ": "d",
        "ð": "d",
        "ł": "l",
        "ħ": "h",
        "ı": "i",
        "æ": "ae",
        "œ": "oe",
        "þ": "th",
        "ŧ": "t",
        "ى": "ي",
        "ة": "ه",
        "ٱ": "ا",
        "ی": "ي",
        "ک": "ك",
        "ہ": "ه",
        "ھ": "ه",
        "ँ": "ं",
    }
)
_ASCII = "".join(map(chr, range(128)))
_UTF8_WORDS = re.sub("[^a-z0-9]", " ", _ASCII.lower()).encode() + bytes(range(128, 256))
_LETTER = f"[^\\W_{UNSPACED}]"
_HYPHENATED = rf"(?<!{_LETTER}){_LETTER}++(?:-{_LETTER}++)+"
_TOGETHER = re.compile(rf"{_HYPHENATED}|(?<!\w){_LETTER}(?:\.{_LETTER})++(?!\w)")
_ABBREVIATION = re.compile(r"\.[^\W\d_](?!\w)")


class _FoldedCharacters(dict[int, str]):
    """What each character beyond ASCII becomes in `fold_text`; computed at its first use."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: dict[
            str, str
        ] = {}  # short runs of characters that were folded before: most repeat

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        if character in _QUOTES_AND_DASHES:
            folded = _QUOTES_AND_DASHES[character]
        elif category == "Cf" or character in _LOOK_ONLY:
            folded = ""
        elif category == "Nd":
            folded = str(unicodedata.digit(character))
        elif category[0] == "Z":
            folded = " "
        else:
            folded = character
        self[code] = folded
        return folded

    def fold(self, text: str) -> str:
        """Return the text with its characters beyond ASCII folded; the others keep their case."""
        pieces = _NON_ASCII.split(text)  # every second one is a run
        runs = self.runs
        for place in range(1, len(pieces), 2):
            run = pieces[place]
            # a mark belongs to the character before
            if unicodedata.category(run[0])[0] == "M":
                before = pieces[place - 1]
                pieces[place - 1], run = before[:-1], before[-1:] + run
            pieces[place] = runs[run] if run in runs else self._fold_run(run)
        return "".join(pieces)

    def _fold_run(self, run: str) -> str:
        # The second NFKC joins what folding the case took apart; a Turkish capital I with a dot becomes i.
        folded = (
            unicodedata.normalize("NFKC", _JOINING.sub(" ", run))
            .casefold()
            .replace("i\u0307", "i")
        )
        folded = _SARA_AM.sub(
            r"\2\4\1\3", unicodedata.normalize("NFKC", folded)
        ).translate(self)
        if len(run) <= _SHORT_RUN and len(self.runs) < _MOST_RUNS:
            self.runs[run] = folded
        return folded


class _WordCharacters(_FoldedCharacters):
    """What each character beyond ASCII becomes in `spaced_words`: whatever is no letter, mark or number parts words."""

    def __init__(self, *, symbols: bool) -> None:
        super().__init__()
        self._symbols = (
            symbols  # whether emoji, signs of currencies and the like are words
        )

    def __missing__(self, code: int) -> str:
        folded = super().__missing__(code)
        category = unicodedata.category(folded) if folded else "L"
        if category[0] not in "LMN":
            is_symbol = self._symbols and category in ("So", "Sc")
            folded = f" {folded} " if is_symbol else " "
        self[code] = folded
        return folded


_FOLDED = _FoldedCharacters()
_WORD_PARTS = _WordCharacters(symbols=False)
_WORDS_AND_SYMBOLS = _WordCharacters(symbols=True)


def fold_text(text: str) -> str:
    """Return the text with one form for each character: case, width, ligatures, quotes, dashes and digits are folded.

    Accents and punctuation stay. Characters that cannot be seen, such as soft hyphens and joiners, are left out.

    Example:
        >>> fold_text("O’Neal’s ﬁrst １９３９–１９４５")
        "o'neal's first 1939-1945"
    """
    if text.isascii():
        return text.lower()
    return _FOLDED.fold(_EM_DASH.sub("-", text)).lower()


def spaced_words(text: str, *, symbols: bool = False) -> str:
    """Return the folded words of a text with spaces between them; words of unspaced scripts stay together.

    Emoji and other symbols beyond ASCII part words, and are words too where `symbols` are asked for.

    Example:
        >>> spaced_words("Well-known: Café")
        'well known  café'
    """
    if not text.isascii():
        text = (_WORDS_AND_SYMBOLS if symbols else _WORD_PARTS).fold(text)
    # a table of bytes is many times as fast as one of characters
    encoded = text.encode("utf-8", "surrogatepass").translate(_UTF8_WORDS)
    return encoded.decode("utf-8", "surrogatepass").lower()


def written_together(text: str) -> str:
    """Return the words that hyphens part and the abbreviations of a text, without their hyphens and full stops.

    Example:
        >>> written_together("An e-mail from the U.S.A.")
        'email USA'
    """
    if not text.isascii():
        for (
            sign
        ) in "\u2010\u2011\u05f4":  # two hyphens, and the sign of Hebrew abbreviations
            text = text.replace(sign, "-")
    words: list[str] = []
    end, hyphen = 0, text.find("-")
    while hyphen >= 0:  # to split every text would take longer
        start = max(end, text.rfind(" ", end, hyphen))
        end = text.find(" ", hyphen)
        if end < 0:
            end = len(text)
        words += [word for word in text[start:end].split() if "-" in word]
        hyphen = text.find("-", end)
    if _ABBREVIATION.search(text) is not None:
        words += [word for word in text.split() if "." in word and "-" not in word]
    if not words:
        return ""
    together = " ".join(_TOGETHER.findall(" ".join(words)))
    return together.replace("-", "").replace(".", "")


def split_words(text: str, *, singles: bool = False) -> list[str]:
    """Return the folded words in order, without accents; see `word_terms` for scripts without spaces.

    Example:
        >>> split_words("Green tea: 绿茶应")
        ['green', 'tea', '绿茶', '茶应']
    """
    words = spaced_words(text).split()
    if text.isascii():
        return words
    return [
        without_accents(term)
        for word in words
        for term in word_terms(word, singles=singles)
    ]


def word_terms(word: str, *, singles: bool) -> list[str]:
    """Return the terms of a word of `spaced_words`: itself, or the pairs of characters of an unspaced script.

    Args:
        word: without spaces.
        singles: also give every single character of an unspaced script. An index needs them, so that a search for one
            character finds it.
    """
    if word.isascii() or not _HAS_UNSPACED.search(word):
        return [word]
    terms: list[str] = []
    for run in _RUN.findall(word):
        units = _UNIT.findall(run)
        if not units:
            terms.append(run)
            continue
        if singles or len(units) == 1:
            terms += units
        terms += map("".join, pairwise(units))
    return terms


def split_units(text: str) -> str:
    """Return the text with spaces around every character of an unspaced script, for metrics that compare words."""
    if text.isascii() or not _HAS_UNSPACED.search(text):
        return text
    return _UNIT.sub(r" \g<0> ", text)


def without_accents(word: str) -> str:
    """Return a folded word without accents and vowel points, and with plain letters for variants such as `ø` or `ة`.

    Marks that make another letter stay: those of kana, Thai and Devanagari, and Cyrillic short i.
    """
    if word.isascii():
        return word
    bare = _ACCENTS.sub("", unicodedata.normalize("NFD", word)).translate(
        _PLAIN_LETTERS
    )
    return unicodedata.normalize("NFC", bare)


_PUNCTUATION = frozenset(string.punctuation)


class _Unpunctuated(dict[int, str]):
    """What each character becomes in `without_punctuation`; computed at its first use."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        is_punctuation = (
            character in _PUNCTUATION or unicodedata.category(character)[0] == "P"
        )
        self[code] = "" if is_punctuation else character
        return self[code]


_UNPUNCTUATED = _Unpunctuated()


def without_punctuation(text: str) -> str:
    """Return the text without ASCII punctuation and without the punctuation of other scripts."""
    return text.translate(_UNPUNCTUATED)


def comparison_key(text: str) -> str:
    """Return what two texts share that differ in white space and in what `fold_text` folds only."""
    return " ".join(fold_text(text).split())
