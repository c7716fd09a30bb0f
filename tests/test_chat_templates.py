"""Chat templates are programs of strangers: honest ones give the text of transformers, hostile ones end in one line."""

import json
import time
from dataclasses import replace

import pytest
import tiny
from refusals import refused

from selfrag import chat_templates
from selfrag.chat_templates import render_chat
from selfrag.common.untrusted import UNSEEN

TURNS = [
    {"role": "system", "content": "Be <brief> & plain."},
    {"role": "user", "content": 'Why "x"?'},
]
HONEST = {
    "turns": "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}\n{% endfor %}{{ eos_token }}",
    "json": "{{ messages | tojson }}{{ documents | tojson(indent=2) }}",
    "controls": "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "generation": "{% generation %}{{ messages[0]['content'] }}{% endgeneration %}{{ strftime_now('%Y') }}",
    "namespace": "{% set n = namespace(k=0) %}{% for m in messages %}{% set n.k = n.k + 1 %}{% endfor %}{{ n.k }}",
    "prompt": "{% if add_generation_prompt %}<assistant>{% endif %}{{ extra }}",
}
LONG = "{% set x = namespace(s='ab') %}{% for i in range(60) %}{% set x.s = x.s ~ x.s %}{% endfor %}{{ x.s | length }}"
HOSTILE = {
    "one endless loop": "{% for i in range(10**12) %}{% endfor %}",
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "macros that call macros": "{% macro f(n) %}{% if n %}{{ f(n-1) ~ f(n-1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    "endless recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a large number": "{{ 10 ** (10 ** 10) }}",
    "a long text": "{{ 'a' * 10**10 }}",
    "a text that doubles": LONG,
    "a wide format": "{{ '%999999999d' | format(1) }}{{ 'a'.ljust(10**10) }}",
    "a long reply": "{% for i in range(9000) %}{{ 'a' * 10000 }}{% endfor %}",
    "a list that doubles": "{% set x = namespace(v=[1]) %}{% for i in range(60) %}{% set x.v = x.v * 2 %}{% endfor %}",
    "no template": "{% for %}",
    "control characters": "{{ raise_exception('\x1b[31m\u202e no\x00') }}",
}


def tokenizer_with(template):
    tokenizer = tiny.byte_level_tokenizer(reflection=False)
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_template_gives_the_text_of_transformers(name):
    tokenizer = tokenizer_with(HONEST[name])
    options = json.loads(
        '{"documents": [{"title": "T", "text": "é"}], "extra": "x", "add_generation_prompt": true}'
    )
    expected = tokenizer.apply_chat_template(TURNS, tokenize=False, **options)
    assert render_chat(tokenizer, TURNS, **options) == expected


@pytest.mark.parametrize("name", HOSTILE)
def test_issue_45_a_hostile_template_is_one_line_and_the_next_one_is_rendered(
    name, monkeypatch
):
    limits = replace(chat_templates._LIMITS, seconds=1)
    monkeypatch.setattr(chat_templates, "_LIMITS", limits)
    started = time.monotonic()
    with refused("chat template cannot be rendered") as raised:
        render_chat(tokenizer_with(HOSTILE[name]), TURNS)
    assert not UNSEEN.search(str(raised.value))
    assert time.monotonic() - started < 90
    assert render_chat(tokenizer_with("{{ messages[0].role }}"), TURNS) == "system"
