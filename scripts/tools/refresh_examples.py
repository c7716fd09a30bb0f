"""Run the examples of Markdown pages and put what each prints into the page.

    python scripts/tools/refresh_examples.py docs/tutorials/first-answer.md

The blocks of a page run in order, in an empty folder, as a reader would run them:

- a block with `title="NAME"` is a file of that name;
- `python` blocks share one namespace; what one prints stands in the `text` block after it;
- in a `console` block each line that begins with `$ ` is a command, and what it prints follows;
- a block after `<!-- not run: REASON -->` is left alone.

A page is written only if all of its blocks ran. The tests of the documentation run the same blocks.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from pathlib import Path

from selfrag.common.atomic import write_text
from selfrag.common.untrusted import printable

ROOT = Path(__file__).parents[2]
RUNNABLE = ("python", "console", "bash", "sh")
BLOCK = re.compile(
    r'^(?P<mark><!-- not run: (?P<reason>[^>]+) -->\n+)?```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?[^\n]*\n'
    r"(?P<body>.*?)^```$(?P<output>\n\n```text\n.*?^```$)?",
    flags=re.M | re.S,
)
COMMAND = re.compile(r"^\$ (?P<line>(?:[^\n]*\\\n)*[^\n]*)\n", flags=re.M)


class ExampleError(Exception):
    """A command of a page ended with an error."""


def runnable(text: str) -> Iterator[re.Match[str]]:
    """Yield the blocks of a page that are run or written: with a title or a runnable language, without the mark."""
    for block in BLOCK.finditer(text):
        if not block["mark"] and (block["title"] or block["language"] in RUNNABLE):
            yield block


def commands(body: str) -> list[str]:
    """Return the commands of a `console` block, continued lines joined."""
    return [match["line"].replace("\\\n", " ") for match in COMMAND.finditer(body)]


def shown(said: str) -> str:
    """Return what a program printed, as a page shows it: without control characters and spaces at the ends of lines."""
    return re.sub(r"[ \t]+$", "", printable(said), flags=re.M)


def shell(
    command: str, folder: Path, programs: Path = Path(sys.executable).parent
) -> str:
    """Return what a command prints; its programs are those in `programs`, by default beside this Python.

    Raises:
        ExampleError: the command fails or takes more than ten minutes.
    """
    path = os.pathsep.join(
        [str(programs), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    )
    environment = {**os.environ, "PATH": path, "COLUMNS": "80", "NO_COLOR": "1"}
    try:
        words = ["bash", "-c", command]
        done = subprocess.run(  # noqa: S603 - the page is ours
            words,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        )
    except subprocess.SubprocessError as error:
        said = getattr(error, "stderr", None) or str(error)
        raise ExampleError(f"{command}: {said[-2000:]}") from error
    return shown(done.stdout)


def run_page(
    text: str, name: str, folder: Path, programs: Path = Path(sys.executable).parent
) -> str:
    """Run the blocks of a page in `folder`, with `shell`, and return the page with their outputs.

    Raises:
        ExampleError: a command fails. What a Python block raises passes through.
    """
    namespace: dict[str, object] = {"__name__": "__docs__"}

    def run(block: re.Match[str]) -> str:
        language = block["language"]
        body = block["body"]
        fence = block[0].partition("\n")[0]
        if block["mark"] or not (block["title"] or language in RUNNABLE):
            return block[0]
        if block["title"]:
            target = folder / block["title"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(body, encoding="utf-8")
            return block[0]
        if language == "python":
            out = io.StringIO()
            with chdir(folder), redirect_stdout(out):
                exec(compile(body, name, "exec", dont_inherit=True), namespace)  # noqa: S102 - the page is ours
            said = shown(out.getvalue()).rstrip()
            return f"{fence}\n{body}```" + (f"\n\n```text\n{said}\n```" if said else "")
        if language == "console":
            parts = [
                f"$ {match['line']}\n{shell(match['line'], folder, programs)}"
                for match in COMMAND.finditer(body)
            ]
            return f"{fence}\n{''.join(parts)}```{block['output'] or ''}"
        shell(body, folder, programs)
        return block[0]

    return BLOCK.sub(run, text)


def main() -> int:
    """Read the command line and rewrite the pages."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else None, allow_abbrev=False
    )
    parser.add_argument("pages", nargs="+", type=Path)
    for page in parser.parse_args().pages:
        text = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            write_text(page, run_page(text, str(page), Path(folder)))
        print(f"{page}: {len(list(runnable(text)))} blocks ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
