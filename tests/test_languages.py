"""The language of a question: another one than English is named, English with foreign names is not."""

import pytest

from selfrag.languages import foreign_language

FOREIGN = {
    "Qui est Marie Curie ?": "French",
    "Wer war Marie Curie?": "German",
    "\u00bfQui\u00e9n fue Marie Curie?": "Spanish",
    "Qual \u00e9 a capital do Brasil?": "Portuguese",
    "Chi era Marie Curie?": "Italian",
    "\u8c01\u662f\u5c45\u91cc\u592b\u4eba\uff1f": "Chinese",
    "\u7d05\u8336\u306e\u6e29\u5ea6\u306f\u4f55\u5ea6\u3067\u3059\u304b": "Japanese",
    "\ub9c8\ub9ac \ud034\ub9ac\ub294 \ub204\uad6c\uc785\ub2c8\uae4c?": "Korean",
    "\u041a\u0442\u043e \u0442\u0430\u043a\u0430\u044f \u042d\u043c\u043c\u0430?": "Cyrillic script",
    "\u0645\u0646 \u0647\u064a \u0645\u0627\u0631\u064a \u0643\u0648\u0631\u064a\u061f": "Arabic script",
}
ENGLISH = [
    "At what temperature is green tea brewed?",
    "Who wrote Les Mis\u00e9rables?",
    "What is La Ni\u00f1a?",
    "Der Spiegel circulation",
    "What does 'c'est la vie' mean?",
    "Tell me about the film Das Boot.",
    "Is \u4e8c a number in Chinese?",
    "Marie Curie",
    "",
    "123",
]


@pytest.mark.parametrize("text, language", FOREIGN.items())
def test_other_languages_are_named(text, language):
    assert foreign_language(text) == language


@pytest.mark.parametrize("text", ENGLISH)
def test_english_is_not_taken_for_another(text):
    assert foreign_language(text) is None
