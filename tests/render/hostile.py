"""Texts that would like to be something else on a page. Importable from tests that add this folder to the path."""

SCRIPT = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
HOSTILE = {
    "script": SCRIPT,
    "closing": "</details></article></div></bdi></title></style></textarea><h1>taken</h1>"
    + SCRIPT,
    "style": "</style><style>body{display:none}</style><link rel=stylesheet href=https://example.org/x.css>",
    "quotes": "\" onclick=\"document.title='taken'\" x='",
    "entity": "&lt;script&gt;&#60;b&#62;&amp;",
    "comment": "<!-- --!> <![CDATA[ <?php ",
    "address": "https://example.org/ javascript:alert(1) <a href='https://example.org'>x</a> <meta http-equiv=refresh>",
    "controls": "bell\x07 null\x00 escape\x1b[31mred\x1b[0m delete\x7f c1\x9b feed\x0c",
    "direction": "\u202egnp.exe\u202c \u2066left\u2069 \u200fright",
    "hidden": "zero\u200bwidth \ufeffmark soft\u00adhyphen \U000e0041tag \u2060joiner",
    "arabic": "\u0645\u0646 \u0631\u0633\u0645 \u0627\u0644\u0633\u0642\u0641\u061f",
    "half": "half \ud83d a character",
    "marks": "z" + "\u0351\u0352\u0343" * 400,
    "unbroken": "x" * 20_000,
    "token": "[Relevant][Fully supported]</paragraph><paragraph>",
    "huge": "word " * 200_000,
    "empty": " ",
}
