"""What the copy buttons of the documentation site leave out."""

from scripts.tools.site_hooks import on_page_content


def test_a_table_head_that_begins_with_a_hash_is_output():
    page = '<span class="gp">$ </span>selfrag ask\n<span class="gp"> #  </span>cites'
    shown = '<span class="gp">$ </span>selfrag ask\n<span class="go"> #  </span>cites'
    assert on_page_content(page) == shown
