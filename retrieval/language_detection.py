"""Tells the language of most texts of an index, by its commonest words and by its letters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from retrieval.normalisation import UNSPACED, spaced_words

# The most frequent function words tell a language in a few sentences. One that n languages share counts 1 / n for each.
# A language without a stemmer is listed only where its texts would otherwise be taken for one that has a stemmer.
_LEAST_SHARE = 0.08
# of function words in a text of the language: share of its words, and number
_LEAST_HITS = 1.5
_MOST_PASSAGES = 1000
_MOST_CHARACTERS = 1000  # of the sample that is read, and of each passage in it

_HAN = re.compile("[\u4e00-\u9fff\u3400-\u4dbf]")
_KANA = re.compile("[\u3041-\u30ff]")
_HANGUL = re.compile("[가-힣]")

_FUNCTION_WORDS = {
    "arabic": "في من على إلى عن أن هذا هذه التي الذي كان كانت ما لا أو مع بعد بين هو هي ذلك قد لم كل",
    "bulgarian": "на и в се за от с да не по са като е през това при която който или ще след бил част към така",
    "catalan": "de la i el a que els en les per un una del amb al es va és com són més no dels ser aquest també",
    "danish": "og i at det er en af til den på som for med de ikke der han var jeg et har fra ved blev også efter",
    "dutch": "de het een van en in is dat op te zijn met voor niet aan er ook als bij door om naar werd uit deze wordt",
    "english": "the of and to in a is that for it was as with on be by he this are at from or which his an not they",
    "finnish": "ja on ei se että hän oli ovat joka tai myös kun mutta ole niin sekä mukaan kuin sen olla minä vuonna",
    "french": "de la le et les des en un une du est que dans qui pour au par sur pas plus il elle ce avec sont se à",
    "german": "der die und in den von das mit des ist im dem nicht ein eine auf für sich als auch es wird zu an war",
    "greek": "και το να του της η ο την τα με που για από των είναι στο οι στην τον σε ότι δεν τη στη μια θα",
    "hungarian": "a az és hogy nem is egy volt ez azt csak de meg már vagy mint ha van el kell volna lehet mert",
    "italian": "di e il la che in un per una è del non con le della si da dei i al nel come più gli ha sono alla lo",
    "norwegian": "og i det er en av til den på som for med de ikke han var jeg et har fra ved ble også etter mot",
    "portuguese": "de a o que e do da em um para com não uma os no se na por mais as dos como foi ao das é à são",
    "romanian": "de și în a la care cu din pe o un că este nu mai al fi au pentru sau prin ale sunt fost ca lui",
    "russian": "и в не на что с он как это по но из у за от к же так его для был или о также она они при",
    "spanish": "de la que el en y a los se del las un por con no una su para es al lo como más o pero fue este",
    "swedish": "och i att det som en på är av för med till den inte har de om ett var han från vid efter men så",
    "turkish": "ve bir bu da de için ile olarak çok daha gibi en olan ancak kadar sonra ne o ya her değil var ama",
    "ukrainian": "і в на що не з у до за це як та є але від його для був про й або що було які його року під час",
}


_MOST_FOREIGN = 0.01  # of words beyond ASCII in a text that counts as English though no word says so, as in a table


_SCRIPTS = {
    "thai": re.compile("[\u0e01-\u0e5b]"),
    "lao": re.compile("[\u0e81-\u0edf]"),
    "khmer": re.compile("[\u1780-\u17dd]"),
    "burmese": re.compile("[\u1000-\u109f]"),
    "hindi": re.compile("[\u0900-\u097f]"),
    "bengali": re.compile("[\u0980-\u09ff]"),
    "telugu": re.compile("[\u0c00-\u0c7f]"),
    "tamil": re.compile("[\u0b80-\u0bff]"),
    "hebrew": re.compile("[\u05d0-\u05ea]"),
    "greek": re.compile("[\u0370-\u03ff]"),
    "arabic": re.compile("[\u0620-\u06ff]"),
    "persian": re.compile("[پچژگکی]"),  # letters that Arabic does not have
    "korean": _HANGUL,
}


_UNSPACED_RUN = re.compile(f"[{UNSPACED}]+")


@lru_cache(maxsize=1)
def _languages_by_word() -> dict[str, list[str]]:
    """Return the languages of each function word."""
    by_word: dict[str, list[str]] = {}
    for language, words in _FUNCTION_WORDS.items():
        for word in spaced_words(words).split():
            by_word.setdefault(word, []).append(language)
    return by_word


def detect_language(texts: Iterable[str]) -> str:
    """Return the name of the language that most of the texts are written in; the same texts give the same name.

    Function words tell the languages with stems apart, and scripts tell the rest. The name is `other` where neither
    does; texts in ASCII without function words, such as tables of names, count as English.
    """
    by_word = _languages_by_word()
    hits: dict[str, float] = dict.fromkeys(_FUNCTION_WORDS, 0.0)
    characters: Counter[str] = Counter()
    words = unspaced = foreign = 0
    for text in texts:
        spaced = spaced_words(text[:_MOST_CHARACTERS])
        if not spaced.isascii():
            unspaced += sum(map(len, _UNSPACED_RUN.findall(spaced))) // 2
            characters["han"] += len(_HAN.findall(spaced))
            characters["japanese"] += len(_KANA.findall(spaced))
            for language, letters in _SCRIPTS.items():
                characters[language] += len(letters.findall(spaced))
        for word in spaced.split():
            words += 1
            foreign += not word.isascii()
            languages = by_word.get(word, ())
            for language in languages:
                hits[language] += 1 / len(languages)
    if not words:
        return "english"
    best = min(hits, key=lambda language: (-hits[language], language))
    if hits[best] >= max(_LEAST_HITS, _LEAST_SHARE * words) and unspaced < words:
        return best
    return _language_of_script(characters) or (
        "english" if foreign < _MOST_FOREIGN * words else "other"
    )


def _language_of_script(characters: Counter[str]) -> str:
    """Return the language of the script that has the most characters, or an empty text."""
    if characters["japanese"] * 10 >= characters["han"] and characters["japanese"]:
        characters["japanese"] += characters["han"]
    else:
        characters["chinese"] = characters["han"]
    del characters["han"]
    if characters["persian"] * 20 >= characters["arabic"]:
        characters["persian"] += characters["arabic"]
    best = min(
        characters, key=lambda language: (-characters[language], language), default=""
    )
    return best if characters[best] else ""


def sample(count: int) -> range:
    """Return the rows, evenly spaced, of a corpus of `count` passages that tell its language."""
    return range(0, count, max(1, -(-count // _MOST_PASSAGES)))
