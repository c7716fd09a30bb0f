"""Examples in docstrings run and print what they say; public names and protocols of judges and engines have one."""

import doctest
import importlib
from pathlib import Path

import pytest

import selfrag
from retrieval.passage import Retriever
from selfrag.decoding.writer import SegmentWriter, WritingModel
from selfrag.engines.base import Engine
from selfrag.intrinsics.families import AdapterFamily
from selfrag.intrinsics.flows.progress import AnswerWriter
from selfrag.judges.wire import Codec, Executor, Teachable
from selfrag.reflection.judge import Judge
from selfrag.runtime.sessions import Serving
from selfrag.tokenization import TextCodec

ROOT = Path(selfrag.__file__).parents[1]
WITH_DEMO = {"selfrag", "selfrag.api", "selfrag.decoding.answer"}
"""Modules whose examples ask the demo model."""


def modules():
    """Return the modules that have an example."""
    files = [
        file
        for room in ("selfrag", "retrieval", "critic")
        for file in (ROOT / room).rglob("*.py")
    ]
    with_example = [
        file.relative_to(ROOT) for file in files if ">>> " in file.read_text()
    ]
    return sorted(
        ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        for file in with_example
    )


def check(module):
    results = doctest.testmod(
        importlib.import_module(module), optionflags=doctest.ELLIPSIS
    )
    assert results.attempted
    assert not results.failed


@pytest.mark.parametrize(
    "module", [name for name in modules() if name not in WITH_DEMO]
)
def test_examples_print_what_they_say(module):
    check(module)


@pytest.mark.demo
@pytest.mark.parametrize("module", sorted(WITH_DEMO))
def test_examples_of_the_demo_model_print_what_they_say(module):
    check(module)


@pytest.mark.parametrize("name", selfrag.__all__)
def test_public_names_have_an_example(name):
    assert ">>> " in getattr(selfrag, name).__doc__


PROTOCOLS = [
    Judge,
    Engine,
    Serving,
    TextCodec,
    Retriever,
    Codec,
    Teachable,
    Executor,
    AnswerWriter,
    SegmentWriter,
    WritingModel,
    AdapterFamily,
]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_protocols_have_an_example(protocol):
    assert ">>> " in str(protocol.__doc__)
