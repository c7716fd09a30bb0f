"""Commands in the documents are understood by the program they name, files that they name are there; the README runs.

Other pages are run by docs/test_pages_run.py.
"""

import os
import re
import shlex
import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import typer

from scripts.tools import refresh_examples

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "selfrag/demo/adapter/README.md",
]
BLOCK = re.compile(r"^```(?:bash|console|sh)\n(.*?)^```", flags=re.M | re.S)
INLINE = re.compile(r"`((?:selfrag|critic|python|scripts/)[^`\n]* [^`\n]*)`")
SCRIPT = re.compile(r"(?:python (?:-m )?)?(scripts[\w./]+)( |$)")
CODE = re.compile(r"(?<!/)\b(?:scripts|selfrag|critic|retrieval)/[\w/]+\.py")
GONE = re.compile(r"`([a-z_]+\.py)[^`]*`")


def commands(page):
    """Lines of the page's shell blocks, and code within its sentences, that call our programs or scripts."""
    text = page.read_text()
    lines = INLINE.findall(BLOCK.sub("", text))
    for block in BLOCK.findall(text):
        lines += block.replace("\\\n", " ").splitlines()
    for line in lines:
        command = re.split(r" [|>] ", line.removeprefix("$ "))[0].strip()
        if "COMMAND" in command:
            continue
        if command.startswith(("selfrag ", "critic ")) or SCRIPT.match(command):
            yield command


CASES = [
    pytest.param(command, id=f"{page.parent.name}-{page.stem}: {command[:60]}")
    for page in PAGES
    for command in dict.fromkeys(commands(page))
]


def parser_of(command):
    """The parser of a command line, its name, and the words behind it."""
    if script := SCRIPT.match(command):
        module = script[1].removesuffix(".py").replace("/", ".")
        main = import_module(module).main
        if "make_program" not in vars(main):
            pytest.skip("a script that reads its words itself")
        words = shlex.split(command[script.end() :])
        return typer.main.get_command(main.make_program()), module, words
    program, *words = shlex.split(command, comments=True)
    return command_of(program), program, words


@cache
def command_of(program):
    """All commands of a program; to build them takes a tenth of a second."""
    return typer.main.get_command(import_module(f"{program}.cli.main").app)


@pytest.mark.parametrize("command", CASES)
def test_a_command_in_a_document_is_understood(command):
    """Nothing is run. A sentence may leave out what a command needs, but it names no option that is not there."""
    node, program, words = parser_of(command)
    try:
        context = node.make_context(program, list(words), resilient_parsing=True)
        while hasattr(node, "get_command") and words and not words[0].startswith("-"):
            name, *words = words
            node = node.get_command(context, name)
            assert node is not None, f"no command {name!r}"
            group = hasattr(node, "get_command")
            context = node.make_context(
                name, list(words), parent=context, resilient_parsing=group
            )
    except Exception as error:
        if type(error).__name__ not in ("MissingParameter", "BadOptionUsage"):
            raise


@pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}"
)
def test_a_script_that_is_gone_stands_at_the_commit_that_the_page_names(page, process):
    tracked = process("git", "ls-files", cwd=ROOT).stdout.split()
    names = {Path(file).name for file in tracked}
    if not names:
        pytest.skip("no checkout")
    text = page.read_text()
    made = set(re.findall(r"title=\"([^\"]+)\"", text))
    for script in set(GONE.findall(text)) - names - made:
        commit = re.search(rf"`{script}[^`]*`\s+of\s+commit\s+([0-9a-f]{{8}})", text)
        assert commit, f"{script} is gone; name the commit at which it stands"
        listed = process("git", "ls-tree", "-r", "--name-only", commit[1], cwd=ROOT)
        assert not listed.stdout or f"/{script}\n" in listed.stdout, script


def test_commits_that_a_page_names_are_in_the_history(process):
    shallow = process("git", "rev-parse", "--is-shallow-repository", cwd=ROOT).stdout
    if shallow.strip() != "false":
        pytest.skip("no checkout with its history")
    history = process("git", "log", "--format=%h", "--abbrev=8", cwd=ROOT).stdout
    known = {commit[:8] for commit in history.split()}
    for page in PAGES:
        words = re.findall(r"\b[0-9a-f]{8}\b", page.read_text())
        named = {
            word for word in words if re.search(r"\d", word) and not word.isdigit()
        }
        assert named <= known, page


@pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}"
)
def test_files_of_code_that_a_document_names_exist(page):
    for file in CODE.findall(page.read_text()):
        assert (ROOT / file).is_file(), file


def test_the_front_page_leads_to_every_guide():
    front = (ROOT / "docs/index.md").read_text()
    guides = (ROOT / "docs/guides").rglob("*.md")
    paths = [page.relative_to(ROOT / "docs").as_posix() for page in guides]
    assert [path for path in paths if f"({path})" not in front] == []


def test_the_rooms_of_the_page_are_those_of_the_contract():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    [rooms] = [contract for contract in contracts if contract.get("exhaustive")]
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    shown = page.partition("```text\n")[2].partition("```")[0]
    assert shown.splitlines() == rooms["layers"][1:]  # without __main__


# --- the README: in an empty folder, and as a newcomer would, from a clone, in a test marked slow -----------------

TEXT = (ROOT / "README.md").read_text()


@pytest.mark.demo
def test_the_examples_run(tmp_path, programs):
    shown = refresh_examples.run_page(TEXT, "README.md", tmp_path, programs)
    assert "80 degrees [1]" in shown
    # what `rescore` says
    assert re.search(r"^(True|False) (True|False)$", shown, flags=re.M)


@pytest.mark.slow
def test_the_way_of_a_newcomer_from_the_readme_alone(tmp_path, process):
    """Clone, `make demo`, a question, own documents, steering: the README's blocks in an environment of their own."""
    clone = tmp_path / "clone"
    process("git", "clone", "-q", ROOT, clone, check=True)
    made = re.search(r"```bash\n(make demo\n.*?)```", TEXT, flags=re.S)
    assert made
    ours = {"PYTHONPATH", "SELFRAG_CACHE", "VIRTUAL_ENV"}
    clean = {name: value for name, value in os.environ.items() if name not in ours}
    where = 'python -c "import selfrag, sys; print(selfrag.__file__, sys.prefix)"'
    script = f"set -e\n{made[1]}python scripts/tools/refresh_examples.py README.md\n{where}\n"
    done = process("bash", "-c", script, cwd=clone, env=clean, timeout=3000)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "80 degrees [1]" in (clone / "README.md").read_text()
    assert done.stdout.splitlines()[-1] == f"{clone}/selfrag/__init__.py {clone}/.venv"


def test_it_has_at_most_212_lines():
    assert len(TEXT.splitlines()) <= 212


def test_files_that_it_links_to_exist():
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)|src=\"([^\":]+)\"", TEXT):
        assert (ROOT / (target[0] or target[1])).exists(), target


def test_the_tests_that_the_security_page_names_are_there():
    promises = (ROOT / "SECURITY.md").read_text().partition("## How it is tested")[2]
    files = re.findall(r"`(tests/[\w/]+\.py)`", promises)
    assert len(files) > 20
    assert [name for name in files if not (ROOT / name).exists()] == []


def test_no_paths_of_a_machine():
    assert not re.search(r"(?<![\w.])/(?:root|home|tmp)/", TEXT)
