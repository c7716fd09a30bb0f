"""Search by words in every language, from read-only places, and from files that were tampered with."""

import os
import shutil
import stat
import sys
import tempfile
import time
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from json_files import read_json, write_json
from refusals import refused
from tables import each

from retrieval import Passage, UserError, add_passages, index_passages, open_index
from retrieval.build import compact_index
from retrieval.index import load_manifest
from retrieval.language_detection import detect_language
from retrieval.normalisation import (
    comparison_key,
    fold_text,
    spaced_words,
    split_words,
    without_accents,
)
from retrieval.word_writing import add_words
from retrieval.words import LANGUAGES, WordAnalyzer, WordIndex, language_name


def search(texts, query, language="english"):
    passages = [Passage(str(row), text) for row, text in enumerate(texts)]
    add_words(Path("w"), passages, 0, language)
    return WordIndex(Path("w"), language).search(query, 5).rows[0].tolist()


OTHER = "Something else is written here."
FOUND = """
绿茶应当用八十度的水冲泡。 → 冲泡
绿茶应当用八十度的水冲泡。 → 茶
緑茶は八十度のお湯で淹れます。 → 緑茶
コンピュータを使います。 → ｺﾝﾋﾟｭｰﾀ
ชาเขียวควรชงด้วยน้ำแปดสิบองศา → ชาเขียว
ดื่มนํ้าชา → น้ำ
서울은 대한민국의 수도이며 한강이 흐른다. → 서울 수도
물은 맑다. → 물
ភ្នំពេញជារាជធានី → ភ្នំពេញ
ရန်ကုန်မြို့ → ရန်ကုန်
हिन्दी में लिखना → हिन्दी
Here's to the misﬁts, the rebels → misfits
Visit Málaga for café and crème brûlée → Malaga cafe creme brulee
Malaga → Málaga
Ｆｕｌｌ ｗｉｄｔｈ １２３ → full width 123
O’Neal scored → O'Neal
co\u00adoperation → cooperation
İstanbul → istanbul
Đặng Nguyễn → dang nguyen
ёлка → елка
ὁ λόγος ΛΌΓΟΣ → λογοσ
שָׁלוֹם → שלום
كِتَابٌ → كتاب
كـــتاب → كتاب
أحمد في المدرسة → احمد
می\u200cخواهم → میخواهم
٢٠٢٤ سنة → 2024
Python™ code → python
2½ cups → 2 cups
Café\u0301 → café
Ａ wide letter and ⅷ chapters → viii
"""


@each("text, query", FOUND)
def test_every_way_of_writing_is_found(text, query):
    """Field audit D8, D9 and D10: scripts without spaces, ligatures, full width and accents."""
    assert search([OTHER, text, OTHER], query) == [1]


def test_queries_in_20_languages_find_their_passage(tmp_path):
    """Issue 61, section 4: e-mail, U.S.A., RFC 2119, compounds, emoji and stop words alone found nothing."""
    lines = Path(__file__).with_name("queries.tsv").read_text("utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    passages = [Passage(str(row), text) for row, (_, _, text) in enumerate(rows)]
    indexes = {}
    for language in {language for language, _, _ in rows}:
        add_words(tmp_path / language, passages, 0, language)
        indexes[language] = WordIndex(tmp_path / language, language)
    missed = []
    for row, (language, query, _) in enumerate(rows):
        if row not in indexes[language].search(query, 5).rows[0]:
            missed.append(query)
    assert len(indexes) == 20
    assert len(rows) >= 110
    assert 1 - len(missed) / len(rows) >= 0.95, missed


@pytest.mark.parametrize("query", ["steuer", "Erklärung", "Erklärungen zur Steuer"])
def test_a_compound_comes_after_its_parts_as_words(query):
    texts = ["Die Steuererklärung liegt bei.", "Eine Erklärung der Steuer liegt bei."]
    assert search(texts, query, "german") == [1, 0]
    assert search(texts, "Steuererklärungen", "german") == [0, 1]
    assert search(texts, "S" * 99, "german") == []


def test_the_spelling_of_the_query_comes_first():
    texts = ["Malaga in Spain", "Málaga in Spain"]
    assert search(texts, "Málaga") == [1, 0]
    assert search(texts, "malaga") == [0, 1]


RULES = """
german → Die Häuser in der Straße von München → Muenchen haus strasse munchen
de → Muenchner Straßen → Münchner
turkish → ISPARTA ve İZMİR → ısparta
turkish → Diyarbakır → DIYARBAKIR
french → L’été à Évreux → evreux
arabic → ذهب إلى المدرسة → مدرسه
russian → Ёлки и дома → елка дом
korean → 모델을 쓰는 models → model 모델
polish → Łódź i Kraków → lodz krakow
"""


@each("language, text, words", RULES)
def test_a_language_has_its_own_rules(language, text, words):
    for word in words.split():
        assert search([OTHER, text], word, language) == [1]


@given(st.text(st.characters(max_codepoint=127), max_size=80))
def test_folding_ascii_is_lower_case(text):
    assert fold_text(text) == text.lower()


@given(st.text(st.characters(exclude_categories=["N"]), max_size=60))
def test_folding_is_stable_and_a_text_holds_its_own_words(text):
    assert fold_text(fold_text(text)) == fold_text(text)
    assert spaced_words(spaced_words(text)) == spaced_words(text)
    analyzer = WordAnalyzer("english")
    terms = set(analyzer.terms(text.encode("utf-8", "replace").decode()))
    for forms in analyzer.query_terms(text.encode("utf-8", "replace").decode()):
        assert terms & set(forms)


def test_words_and_keys_by_hand():
    words = split_words("Green tea: 绿茶应 iPhone手机 12")
    assert " ".join(words) == "green tea 绿茶 茶应 iphone 手机 12"
    folded = fold_text("“O’Neal” ﬁrst １９３９–１９４５ 1939—1945 a—b")
    assert folded == '"o\'neal" first 1939-1945 1939-1945 a b'
    assert without_accents("ñandú йод ガ smørrebrød") == "nandu йод ガ smorrebrod"
    assert comparison_key("A  “B”\n") == comparison_key('a "b"')


RUNS = "茶 น้ำ é e\u0301 \u0301 ué — 1— ™ ｶﾞ 가 a\u00ad \u0e4d\u0e48"


@pytest.mark.parametrize("piece", RUNS.split(" "))
def test_long_runs_take_linear_time(piece):
    """Issue 45, section 3: runs of brackets, quotes and full stops took quadratic time."""
    start = time.process_time()
    WordAnalyzer("german").terms(piece * (200_000 // len(piece)))
    assert time.process_time() - start < 5


CODES = "de DE-at German zh_CN chinese nb ja ko th"
NAMES = "german german german chinese chinese norwegian japanese korean thai"


def test_languages_have_names_and_codes():
    assert [language_name(code) for code in CODES.split()] == NAMES.split()
    assert all(language_name(code) == name for name, code in LANGUAGES.items())
    for wrong in ("klingon", "", "xx", "x" * 1000):
        with refused(r"one of arabic \(ar\)"):
            language_name(wrong)


CORPORA = """
english → The cat is on the mat and it sleeps for most of the day.
german → Die Katze liegt auf der Matte und schläft den ganzen Tag.
french → Le chat dort sur le tapis et il ne boit pas de lait.
spanish → El gato duerme en la casa y no come los peces.
swedish → Katten ligger på mattan och vilar hela dagen för att den är trött.
russian → Кот лежит на ковре и спит весь день, так как он устал.
ukrainian → Кіт лежить на килимі та спить, що було для нього добре.
chinese → 绿茶应当用八十度的水冲泡。
japanese → 緑茶は八十度のお湯で淹れます。
korean → 서울은 대한민국의 수도이다.
thai → กรุงเทพเป็นเมืองหลวงของประเทศไทย
arabic → ذهب الولد إلى المدرسة في الصباح
persian → این کتاب را برای پدرم گرفتم
greek → Η γάτα είναι στο σπίτι και κοιμάται.
other → Kot śpi na dywanie, ponieważ jest bardzo zmęczony po długim dniu.
english → Widget 20 cm; Bolt M8; Nut
english →
"""
"""The last but one is a table of names."""


@each("language, text", CORPORA)
def test_the_language_of_a_corpus_is_told(language, text):
    assert detect_language([text]) == language


def test_the_language_is_chosen_once_recorded_and_kept(encoder):
    text = "Die Häuser in der Stadt sind alt und das Haus {} ist neu.".format
    german = [Passage(f"d{row}", text(row)) for row in range(3)]
    index_passages(german, "i", encoder=encoder)
    assert load_manifest("i").language == "german"
    english = "The houses of the town are old and the house is new."
    add_passages("i", [Passage("e", english)], encoder=encoder)
    assert load_manifest("i").language == "german"
    assert len(open_index("i", mode="words")(["haus"], 5)[0]) == 3
    compact_index("i", language="en")
    assert load_manifest("i").language == "english"
    compact_index("i", language="auto")
    assert load_manifest("i").language == "german"


def older_index(folder, encoder, monkeypatch):
    """An index as version 0.2 named it, which had one language and one analyzer."""
    passages = [
        Passage("tea", "Green teas: 绿茶。 Málaga"),
        Passage("cat", "A cat sleeps."),
    ]
    with monkeypatch.context() as patch:
        for module in ("retrieval.build", "retrieval.index_writing"):
            patch.setattr(f"{module}.ANALYZER", 1)
        patch.setattr("retrieval.build.open_index", lambda *_: None)
        index_passages(passages, folder, encoder=encoder, language="english")


def test_the_words_of_an_older_index_are_renewed_before_they_are_searched(
    encoder, monkeypatch, command
):
    older_index("i", encoder, monkeypatch)
    manifest = Path("i/manifest.json")
    values = read_json(manifest)
    assert values.pop("analyzer") == 1  # older manifests do not name it
    write_json(manifest, values)
    new = [Passage("new", "More tea, and Málaga")]
    for needs_words in (
        lambda: open_index("i", encoder),
        lambda: open_index("i", mode="words"),
        lambda: add_passages("i", new, encoder=encoder),
    ):
        with refused("renew them with: selfrag index compact"):
            needs_words()
    assert len(open_index("i", encoder, mode="dense")(["tea"], 5)[0]) == 2
    out, _ = command("selfrag index info i")
    assert "by an older version; selfrag index compact" in out
    compact_index("i")
    add_passages("i", new, encoder=encoder)
    hits = open_index("i", mode="words")(["绿茶", "malaga"], 5)
    assert [len(passages) for passages in hits] == [1, 2]


@pytest.mark.parametrize(
    "query, reason",
    [
        ("?!", "the query has no word to search for: signs do not count"),
        ("volcano", "no passage matches the query"),
    ],
)
def test_a_search_that_finds_nothing_says_why(index, command, query, reason):
    """Field audit D8: a search by words that found nothing said nothing."""
    out, err = command(f"selfrag index search {index} '{query}' --search-mode words")
    assert out == ""
    assert err.startswith(reason)
    assert err.count("\n") == 1


def test_a_build_leaves_no_lock_and_a_search_writes_nothing(index):
    """Issue 45, section 5: each build left `.tantivy-meta.lock`."""

    def files():
        return sorted((str(file), file.stat().st_mtime_ns) for file in index.rglob("*"))

    before = files()
    assert open_index(index, mode="words")(["honey"], 1)[0]
    assert files() == before
    assert not any(name.endswith(".lock") for name, _ in before)


UNPRIVILEGED = """
import sys
from pathlib import Path
from retrieval import open_index
from retrieval.build import verify_index
try:
    Path(sys.argv[1], "parts", "x").write_text("x")
    sys.exit("it can be written")
except OSError:
    pass
verify_index(sys.argv[1])
print(open_index(sys.argv[1], mode="words")(["honey"], 1)[0][0].text)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="folders have no modes")
def test_an_index_in_a_read_only_folder_of_somebody_else_is_searched_and_checked(
    index, process
):
    """Issue 45, section 5. As root without capabilities where the tests run as root, which ignores modes otherwise."""
    program = [sys.executable, "-c", UNPRIVILEGED]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("the tests run as root, and setpriv is not installed")
        program = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", *program]
    # A lock of another user, as older versions left it, is in nobody's way.
    next(index.glob("parts/*-words"), index).joinpath(".tantivy-meta.lock").touch()
    with tempfile.TemporaryDirectory() as place:
        target = Path(place, "index")
        shutil.copytree(index, target)
        for file in (*target.rglob("*"), target):
            if os.geteuid() == 0:
                os.chown(file, 65534, 65534)
            file.chmod(stat.S_IMODE(file.stat().st_mode) & 0o555)
        done = process(*program, target)
        for file in (target, *target.rglob("*")):
            file.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert "honey" in done.stdout


def test_a_crafted_index_whose_manifest_agrees_is_refused_in_one_line(index, encoder):
    """Issue 45, section 5. Each piece of the index, damaged in many ways; in every second case its checksum fits."""
    names = [name for name in load_manifest(index).files if "-words/" in name]
    manifest, refusals = index / "manifest.json", 0
    for number in range(40 * len(names)):
        name = names[number % len(names)]
        file = index / name
        good = file.read_bytes()
        bad, place = bytearray(good), (number * 7919) % len(good)
        if number % 4 < 2:
            bad[place] ^= 1 << number % 8
        else:
            bad[place : place + 4] = b"\xff" * (number % 5)
        if number % 2 and file.suffix != ".json":
            footer = good.rindex(b'{"version"')
            before, after = (b'"crc":%d' % zlib.crc32(c[:footer]) for c in (good, bad))
            ending = good[footer:-8].replace(before, after)
            bad[footer:] = ending + len(ending).to_bytes(4, "little") + good[-4:]
        file.write_bytes(bad)
        values = read_json(manifest)
        values["files"][name], values["checksums"], values["digest"] = len(bad), {}, ""
        write_json(manifest, values)
        try:
            open_index(index, mode="words")(["honey bees", "the dark forest"], 3)
        except UserError:  # one line, whatever its message is
            refusals += 1
        file.write_bytes(good)
    assert refusals > 100
