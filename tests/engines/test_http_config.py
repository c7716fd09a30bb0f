"""Settings of the HTTP engine and what it learns from `/v1/models`."""

import json

import pytest

from selfrag.engines.http import HTTPConfig, served
from selfrag.errors import EngineError, UserError

URL = "http://127.0.0.1:8000"
ONE = {"data": [{"id": "m", "root": "/models/m", "max_model_len": 99}]}


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://[bad", ""])
def test_urls_that_are_none(url):
    with pytest.raises(UserError, match="is not a web address"):
        HTTPConfig(url)


@pytest.mark.parametrize("bad", [{"max_concurrency": 0}, {"retries": -1}, {"read_timeout": 0}, {"connect_timeout": -1}])
def test_senseless_settings(bad):
    with pytest.raises(UserError, match=next(iter(bad))):
        HTTPConfig(URL, **bad)


def test_vocabulary_from_a_checkpoint(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 123}))
    name, limits = served(ONE, HTTPConfig(URL, model_dir=str(tmp_path)))
    assert (name, limits.max_model_len, limits.vocab_size) == ("m", 99, 123)
    assert served(ONE, HTTPConfig(URL, model_dir=str(tmp_path), vocab_size=7))[1].vocab_size == 7
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 55}}))
    assert served(ONE, HTTPConfig(URL, model_dir=str(tmp_path)))[1].vocab_size == 55
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EngineError, match="pass vocab_size="):
        served(ONE, HTTPConfig(URL, model_dir=str(tmp_path)))
    with pytest.raises(EngineError, match="pass vocab_size= or model_dir="):
        served(ONE, HTTPConfig(URL))


def test_which_model_among_several():
    both = {"data": [*ONE["data"], {"id": "n", "max_model_len": 5}, {"id": "a", "parent": "/models/m"}]}
    with pytest.raises(EngineError, match="it serves: m, n"):
        served(both, HTTPConfig(URL, vocab_size=1))
    assert served(both, HTTPConfig(URL, vocab_size=1, model="n"))[1].adapters == frozenset()
    assert served(both, HTTPConfig(URL, vocab_size=1, model="m"))[1].adapters == {"a"}
    alias = {"data": [*ONE["data"], {"id": "m2", "root": "/models/m", "max_model_len": 99}]}
    assert served(alias, HTTPConfig(URL, vocab_size=1))[0] == "m"
    with pytest.raises(EngineError, match="serves: none"):
        served({}, HTTPConfig(URL, vocab_size=1))


def test_a_length_that_is_not_told():
    with pytest.raises(EngineError, match="max_model_len of m"):
        served({"data": [{"id": "m"}]}, HTTPConfig(URL, vocab_size=1))
