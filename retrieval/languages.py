"""Languages of search by words: their names and codes, which have stems, and which one a corpus is written in."""

from __future__ import annotations

from selfrag.common.errors import UserError

LANGUAGES = {
    **{"arabic": "ar", "bengali": "bn", "bulgarian": "bg", "burmese": "my", "catalan": "ca", "chinese": "zh"},
    **{"croatian": "hr", "czech": "cs", "danish": "da", "dutch": "nl", "english": "en", "estonian": "et"},
    **{"finnish": "fi", "french": "fr", "german": "de", "greek": "el", "hebrew": "he", "hindi": "hi"},
    **{"hungarian": "hu", "indonesian": "id", "italian": "it", "japanese": "ja", "khmer": "km", "korean": "ko"},
    **{"lao": "lo", "latvian": "lv", "lithuanian": "lt", "malay": "ms", "marathi": "mr", "nepali": "ne"},
    **{"norwegian": "no", "persian": "fa", "polish": "pl", "portuguese": "pt", "romanian": "ro", "russian": "ru"},
    **{"serbian": "sr", "slovak": "sk", "slovenian": "sl", "spanish": "es", "swahili": "sw", "swedish": "sv"},
    **{"tamil": "ta", "telugu": "te", "thai": "th", "turkish": "tr", "ukrainian": "uk", "urdu": "ur"},
    **{"vietnamese": "vi", "other": "und"},
}
"""Names and ISO 639-1 codes. `other` stands for any other language: its words are compared without stems."""
STEMMED = frozenset(
    [
        *["arabic", "danish", "dutch", "english", "finnish", "french", "german", "greek", "hungarian", "italian"],
        *["norwegian", "portuguese", "romanian", "russian", "spanish", "swedish", "tamil", "turkish"],
    ]
)
"""Languages whose words are compared by their stems."""
_WITHOUT_LATIN = frozenset(
    [
        *["bengali", "burmese", "chinese", "hebrew", "hindi", "japanese", "khmer", "korean", "lao", "marathi"],
        *["nepali", "persian", "telugu", "thai", "urdu"],
    ]
)
_NAMES = {code: name for name, code in LANGUAGES.items()} | {"nb": "norwegian", "nn": "norwegian", "iw": "hebrew"}


def language_name(language: str) -> str:
    """Return the name of a language that is given by name or code, in any case: `german` for `de`, `DE` or `de-AT`.

    Raises:
        UserError: no such language.
    """
    name = language.strip().casefold()
    if name in LANGUAGES:
        return name
    code = name.replace("_", "-").partition("-")[0]
    if code in _NAMES:
        return _NAMES[code]
    known = ", ".join(f"{name} ({code})" for name, code in LANGUAGES.items())
    raise UserError(f"language={language!r:.80}: choose auto, none, or one of {known}")


def stemmer_name(language: str) -> str | None:
    """Return the language whose stems and stop words a language uses, or None for words as they are.

    Where no word of a language is written in Latin letters, the Latin ones in its texts are stemmed as English.
    """
    if language in STEMMED:
        return language
    return "english" if language in _WITHOUT_LATIN else None
