"""Pages at addresses as sources of an index, from a server on this machine."""

import json
import threading

import pytest
from loopback import Answering, loopback
from refusals import refused

from retrieval import add_files, build_index, open_index, remove_files, sync_index
from retrieval.watching import watch_files
from selfrag.serving.citations import url_of

PAGE = "<title>Tea</title><h1>Green tea</h1><p>{}</p><a href='/other'>More</a>"


class Handler(Answering):
    """Gives the pages of `server.pages`: status, headers and content by path."""

    def do_GET(self):
        self.server.asked.append(self.path)
        status, headers, content = self.server.pages[self.path]
        self.answer(status, content, **headers)


def page(text, kind="text/html; charset=utf-8"):
    return 200, {"Content_Type": kind}, text.encode()


@pytest.fixture
def web():
    server = loopback(Handler)
    server.asked = []
    server.pages = {
        "/tea": page(PAGE.format("Green tea is brewed at 80 degrees.")),
        "/notes.md": page("# Rome\n\nRome lies on the Tiber.", "text/plain"),
        "/people.csv": page("name,city\nAnn,Oslo\n", "text/csv"),
    }
    yield server
    server.stop()


def test_pages_are_built_added_and_synced_and_nothing_follows_links(
    web, tmp_path, encoder
):
    """Issue 61, section 2: a URL as a source; a page that has not changed is not encoded again."""
    index = tmp_path / "i"
    tea, notes = f"{web.url}/tea", f"{web.url}/notes.md"
    report = sync_index(index, [tea], encoder=encoder)
    assert report.added == [tea]
    assert report.passages_encoded == 1
    assert web.asked == ["/tea"]
    names = [tea, notes, f"{web.url}/people.csv"]
    assert add_files(index, names[1:], encoder=encoder).passages_added == 2
    again = sync_index(index, names, encoder=encoder)
    assert again.unchanged == 3
    assert again.passages_encoded == 0
    hits = open_index(index, encoder)(["green tea"], 3)[0]
    [hit] = [hit for hit in hits if hit.title == "Green tea"]
    assert hit.metadata["file"] == tea
    assert url_of(hit) == tea
    web.pages["/tea"] = page(PAGE.format("Green tea wants 75 degrees."))
    changed = sync_index(index, names, encoder=encoder)
    assert changed.changed == [tea]
    assert changed.unchanged == 2
    assert changed.passages_encoded == 1
    assert changed.passages == 3
    assert remove_files(index, [notes]) == 1
    assert set(web.asked) == {"/tea", "/notes.md", "/people.csv"}


def test_a_watch_fetches_pages_again_though_no_file_changes(web, tmp_path, monkeypatch):
    """Each time after the pause; a page that has not changed tells nothing."""
    pytest.importorskip("watchfiles")
    monkeypatch.setattr("retrieval.watching.PAGE_PAUSE", 0.01)
    index, address, stop = tmp_path / "i", f"{web.url}/tea", threading.Event()
    reports, syncs = [], []

    def sync():
        syncs.append(address)
        if len(syncs) == 3:
            web.pages["/tea"] = page(PAGE.format("Green tea wants 75 degrees."))
        return sync_index(index, [address], encoder="none")

    def done(report):
        reports.append((report.added, report.changed))
        if report.changed:
            stop.set()

    def failed(error):
        stop.set()

    watch_files([address], index, sync, done, failed, stop)
    assert reports == [([address], []), ([], [address])]
    assert len(syncs) == 3


@pytest.mark.parametrize("status", [404, 410, 500])
def test_a_page_that_is_gone_leaves_the_index_and_one_that_fails_stays(
    web, tmp_path, status
):
    index, names = tmp_path / "i", [f"{web.url}/tea", f"{web.url}/notes.md"]
    build_index(names, index, encoder="none")
    web.pages["/tea"] = (status, {}, b"")
    if status == 500:
        with refused(f"{names[0]}: the server answered 500"):
            sync_index(index, names)
        report = sync_index(index, names, skip_unreadable=True)
        assert [skipped.file for skipped in report.read.unreadable] == names[:1]
        assert report.removed == []
        assert report.passages == 2
        return
    report = sync_index(index, names)
    assert report.read.gone == report.removed == names[:1]
    assert report.passages == 1
    assert f"gone {names[0]}: the server has no such page" in report.read.lines()
    with refused("no such page any more"):
        sync_index(index, names[:1])


PAGES = {
    "/empty": (page(""), "the file is empty"),
    "/zip": (page("PK", "application/zip"), "no reader for '.zip'"),
    "/moved": (
        (302, {"Location": "http://other.example/x"}, b""),
        "it has moved; name http://other.example/x",
    ),
    "/loop": ((302, {"Location": "/loop"}, b""), "too many redirects"),
    "/bad.jsonl": (page("{", "text/plain"), ":1: "),
    "/broken": (
        (200, {"Content_Type": "text/html", "Content_Encoding": "gzip"}, b"no"),
        "not packed as it says",
    ),
}


@pytest.mark.parametrize("path", PAGES)
def test_a_page_that_cannot_be_read_is_one_line_with_its_address(web, tmp_path, path):
    web.pages[path], why = PAGES[path]
    with refused(f"^{web.url}{path}.*{why}"):
        build_index([f"{web.url}{path}"], tmp_path / "i", encoder="none")


def test_addresses_with_a_password_or_of_ftp_are_refused(tmp_path):
    for address, why in (
        ("http://me:secret@host/tea", "leave out the password"),
        ("ftp://host/x.txt", "nothing fetches addresses of ftp"),
    ):
        with refused(why):
            build_index([address], tmp_path / "i", encoder="none")


def test_the_command_line_takes_an_address(web, tmp_path, command):
    index, names = tmp_path / "i", [f"{web.url}/tea", f"{web.url}/people.csv"]
    column = "--text-column name --encoder none"
    out, _ = command(f"selfrag index build {names[1]} -o {index} {column} --json")
    assert json.loads(out)["passages"] == 1
    assert web.asked == ["/people.csv"]  # once
    out, _ = command(f"selfrag index sync {index} {names[0]} {names[1]} --json")
    assert json.loads(out)["added"] == names[:1]
    assert open_index(index).corpus[0].text == "Ann"
