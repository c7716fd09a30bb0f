"""A directory appears complete or not at all."""

import pytest

from selfrag.errors import UserError
from selfrag.training.export import published


def test_the_name_exists_only_after_the_block(tmp_path):
    target = tmp_path / "deep" / "model"
    with published(target) as draft:
        (draft / "file").write_text("content")
        assert not target.exists()
    assert (target / "file").read_text() == "content"
    assert [path.name for path in target.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_interrupted_block_leaves_nothing(tmp_path, error):
    def interrupted():
        with published(tmp_path / "model") as draft:
            (draft / "file").write_text("half")
            raise error

    with pytest.raises(error):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_an_empty_directory_is_taken_over_and_a_full_one_refused(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    with published(target) as draft:
        (draft / "file").write_text("mine")
    with pytest.raises(UserError, match="exists already"), published(target):
        pass
    assert (target / "file").read_text() == "mine"
