"""What results say of the code that made them."""

import subprocess

from selfrag.common import provenance


def test_the_commit_is_that_of_this_code_and_git_is_left_alone(tmp_path, monkeypatch):
    """An environment within a checkout had the commit of that, and git a lock that stayed where a disk is full."""
    sent = []
    run = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda line, **how: sent.append(line) or run(line, **how)
    )
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    run([*git, "init", "-q"], check=True)
    run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    file = tmp_path / "provenance.py"
    file.write_text("")
    monkeypatch.setattr(provenance, "__file__", str(file))
    assert provenance.commit() is None
    run([*git, "add", "provenance.py"], check=True)
    assert len(provenance.commit().removesuffix("+changes")) == 40
    assert all("--no-optional-locks" in line for line in sent)
