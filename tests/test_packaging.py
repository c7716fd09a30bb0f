"""The wheel and the source distribution: what is in them, and that the wheel works where only it was installed."""

import json
import os
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pyarrow
import pytest
import yaml
from packaging.metadata import Metadata
from pyarrow import parquet
from typer.testing import CliRunner

from selfrag.cli.main import app

ROOT = Path(__file__).parent.parent
PACKAGES = ("selfrag", "critic", "retrieval")


@pytest.fixture(scope="module")
def wheel(process, tmp_path_factory):
    """The wheel of this checkout, built without a network."""
    pytest.importorskip(
        "hatchling", reason="hatchling builds the wheel; it is in the extra dev"
    )
    out = tmp_path_factory.mktemp("wheel")
    options = "wheel --no-deps --no-build-isolation --quiet"
    done = process(sys.executable, "-m", "pip", *options.split(), "-w", out, ROOT)
    assert done.returncode == 0, done.stderr
    (file,) = out.glob("selfrag-*.whl")
    return file


@pytest.fixture(scope="module")
def clean(wheel, process, tmp_path_factory):
    """`bin` of a new environment with the wheel; its dependencies are read from this one to save gigabytes."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    # A path in a .pth file comes after the environment's own packages, and .pth files in it (an editable checkout) are
    # not followed: our code can only come from the wheel.
    script = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = process(python, "-c", script, check=True).stdout.strip()
    (Path(site) / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    options = f"--python {python} install --no-deps --no-index --quiet"
    process(sys.executable, "-m", "pip", *options.split(), wheel, check=True)
    return folder / "bin"


def test_every_file_of_the_packages_is_in_the_wheel(wheel, process):
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = process("git", "ls-files", *PACKAGES, cwd=ROOT)
    if tracked.returncode != 0:
        pytest.skip("not a git checkout: no list of files to compare with")
    assert sorted(set(tracked.stdout.split()) - names) == []
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == set(
        PACKAGES
    )


def test_the_container_starts_this_version_with_options_that_there_are():
    folder = ROOT / "docs/container"
    dockerfile = (folder / "Dockerfile").read_text()
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"selfrag=={version}\n" in dockerfile
    entrypoint = json.loads(dockerfile.partition("ENTRYPOINT ")[2])
    options = [*entrypoint, *services["selfrag"]["command"]]
    offered = (
        CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).output
    )
    for option in options:
        if option.startswith("--"):
            assert f" {option.partition('=')[0]} " in offered


@pytest.mark.slow
def test_the_source_distribution_builds_the_same_wheel(wheel, process, tmp_path):
    pytest.importorskip(
        "build", reason="build makes the source distribution; it is in the extra dev"
    )
    options = f"-m build --no-isolation --outdir {tmp_path} {ROOT}"
    done = process(sys.executable, *options.split())
    assert done.returncode == 0, done.stderr
    (again,) = tmp_path.glob("*.whl")
    (source,) = tmp_path.glob("*.tar.gz")
    assert set(zipfile.ZipFile(again).namelist()) == set(
        zipfile.ZipFile(wheel).namelist()
    )
    with tarfile.open(source) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    assert set("README.md LICENSE CHANGELOG.md tests/test_packaging.py".split()) < names
    assert max(path.stat().st_size for path in (again, source)) < 60e6


def test_the_metadata_is_what_an_index_wants(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = [
        name for name in archive.namelist() if name.endswith(".dist-info/METADATA")
    ]
    metadata = Metadata.from_email(archive.read(name), validate=True)
    assert (
        str(metadata.version)
        == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    )
    assert metadata.description_content_type == "text/markdown"
    assert any(
        one.endswith("LICENSE") and ".dist-info/" in one for one in archive.namelist()
    )
    assert (ROOT / "CHANGELOG.md").read_text().partition(f"## {metadata.version} - ")[1]
    assert f"\nversion: {metadata.version}\n" in (ROOT / "CITATION.cff").read_text()


def alone():
    """This environment without a path to the checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


USE = """\
from selfrag import Answer, Decoding, Passage, SelfRAG, Weights
from selfrag.intrinsics import Answerability, Library

def main() -> None:
    with SelfRAG.from_pretrained(retriever=lambda queries, k: [[Passage("1", "Text")] for _ in queries]) as rag:
        one: Answer = rag.generate("Who was first?", weights=Weights(issup=2.0))
        many: list[Answer] = rag.generate(["Who?", "When?"], decoding=Decoding(beam=1))
        titles: list[str] = [segment.citation.title for segment in one.segments if segment.citation]
        print(one.text, [answer.exact for answer in many], titles)
    with Library.from_pretrained("demo") as library:
        chance: float | None = library.get(Answerability)("Who?", ["Ann was first."]).answerable
        print(chance)
"""


@pytest.mark.slow
def test_a_type_checker_sees_the_types_of_the_installed_wheel(clean, process, tmp_path):
    pytest.importorskip("mypy", reason="mypy checks types; it is in the extra dev")
    (tmp_path / "use.py").write_text(USE)
    (tmp_path / "wrong.py").write_text(
        'from selfrag import Weights\nWeights(issup="much")\n'
    )
    options = f"-m mypy --strict --python-executable {clean}/python use.py wrong.py"
    done = process(sys.executable, *options.split(), cwd=tmp_path)
    (error, _) = done.stdout.splitlines()
    assert error.startswith("wrong.py:2: error: ")
    assert 'incompatible type "str"' in error


OWN_FILES = {
    "critic.py": "grade = 5",
    "retrieval.py": "from selfrag import Passage, generate\ndef search(queries, k): return [[Passage('1', 'mine')]]",
    "script.py": """
import critic, retrieval, sys
from importlib.metadata import entry_points
from selfrag import Passage
from selfrag.common.plugins import load_point
from selfrag.retrieval import open_index
from selfrag.retrieval.parquet import read_vector_size
import selfrag.api, selfrag.serving.app, selfrag.cli.index, selfrag.training.packing
assert critic.grade == 5 and "script" in sys.argv[0]
assert isinstance(retrieval.search(["?"], 1)[0][0], Passage)
assert open_index.__module__ == "selfrag.retrieval.index"
for point in entry_points(group="selfrag.judges", name="critic"):
    print(load_point(point).__module__, read_vector_size("v.parquet"))
""",
}


@pytest.fixture
def project(tmp_path):
    """A folder with files of the user's that are called as our packages are."""
    for name, text in OWN_FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("install", ["editable", "wheel"])
def test_issue_50_modules_called_retrieval_and_critic_stay_the_users(
    install, process, project, request
):
    """At 2d68d6f3: ImportError, "uninstall it and reinstall selfrag"."""
    python = (
        sys.executable
        if install == "editable"
        else request.getfixturevalue("clean") / "python"
    )
    environment = dict(os.environ) if install == "editable" else alone()
    options = {"cwd": project, "env": environment}
    # A child process reads the table, and `-m` puts the folder first on the path.
    parquet.write_table(
        pyarrow.table({"id": ["1"], "vector": [[1.0, 2.0]]}), project / "v.parquet"
    )
    script = process(python, "script.py", **options)
    assert script.returncode == 0, script.stderr
    assert script.stdout == "selfrag.critic.student.judge (1, 2)\n"
    searched = process(python, *"-m selfrag index search nowhere Q".split(), **options)
    assert searched.returncode == 2
    assert searched.stderr.startswith("selfrag: no index at nowhere")


def test_files_of_another_distribution_in_our_place_are_refused(
    clean, process, project
):
    site = next((clean.parent / "lib").glob("python*/site-packages"))
    door = site / "retrieval/__init__.py"
    text = door.read_text()
    try:
        door.write_text("def search(): ...\n")
        done = process(clean / "python", "script.py", cwd=project, env=alone())
    finally:
        door.write_text(text)
    assert done.returncode == 1
    assert done.stderr.strip().endswith(
        "uninstall it and reinstall selfrag, or use a new environment."
    )


@pytest.mark.slow
def test_the_doctor_names_another_distribution_of_a_name(clean, process, tmp_path):
    info = tmp_path / "retrieval-0.0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: retrieval\nVersion: 0.0.1\n"
    )
    (info / "top_level.txt").write_text("retrieval\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = process(clean / "selfrag", "doctor", env=environment)
    assert done.returncode == 1
    assert (
        "broken  retrieval: retrieval installs a package of this name too"
        in done.stdout
    )


@pytest.mark.demo
def test_the_wheel_answers_a_question_beside_a_module_called_retrieval(
    clean, process, project
):
    python, options = clean / "python", {"cwd": project, "env": alone()}
    script = "import selfrag; print(selfrag.__file__)"
    place = process(python, "-c", script, **options).stdout.strip()
    assert Path(place).is_relative_to(clean.parent)
    line = "-m selfrag ask radium? --segments 1 --json"
    done = process(python, *line.split(), **options)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["text"]
    assert answer["usage"]["generated_tokens"] > 0
