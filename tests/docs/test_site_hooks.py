"""What fails the documentation site, and what its copy buttons leave out."""

import pytest

from scripts.tools.site_hooks import on_page_content, on_post_build


@pytest.mark.parametrize(
    "tag, said",
    [
        ('<img alt="x" src="../there.svg">', None),
        ('<img src="../a%20b.png?v=1#x">', None),
        ('<img src="data:image/png;base64,AAAA">', None),
        ('<img alt="x" src="../gone.svg">', "page/index.html: no picture ../gone.svg"),
        ("<img src=gone.svg>", "no picture gone.svg"),
        ('<img src="/gone.svg">', "no picture /gone.svg"),
        ('<source src="https://example.org/a.png">', "is at another host"),
    ],
)
def test_issue_50_a_broken_picture_fails_the_site(tmp_path, tag, said):
    (tmp_path / "page").mkdir()
    for name in ("there.svg", "a b.png"):
        (tmp_path / name).touch()
    (tmp_path / "page" / "index.html").write_text(f"<p>{tag}</p>")
    if said is None:
        on_post_build({"site_dir": str(tmp_path)})
        return
    with pytest.raises(SystemExit, match=said):
        on_post_build({"site_dir": str(tmp_path)})


def test_a_table_head_that_begins_with_a_hash_is_output():
    page = '<span class="gp">$ </span>selfrag ask\n<span class="gp"> #  </span>cites'
    assert (
        on_page_content(page)
        == '<span class="gp">$ </span>selfrag ask\n<span class="go"> #  </span>cites'
    )
