"""A client in a thread of its own: errors, closing while it works, and owners that forget it."""

import asyncio
import gc
import multiprocessing
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial

import pytest

from selfrag.engines.client import Client
from selfrag.engines.client_thread import ClientThread, run_together
from selfrag.engines.server_config import ServerConfig

CONFIG = ServerConfig("http://127.0.0.1:9")


def client_thread():
    return ClientThread(partial(Client, CONFIG))


async def identify(client):
    return id(client)


def threads():
    return [thread.name for thread in threading.enumerate()].count("selfrag-http")


def test_the_first_error_ends_the_other_works():
    ended = []

    async def wait():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    async def fail():
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(run_together([wait(), fail(), wait()]))
    assert ended == ["cancelled"] * 2


def test_all_calls_share_a_client_until_it_is_closed():
    before = threads()
    client = client_thread()
    client.close()
    with ThreadPoolExecutor(8) as callers:
        assert len(set(callers.map(client.call, [identify] * 32))) == 1
    assert threads() == before + 1
    client.close()
    client.close()
    assert threads() == before
    client.call(identify)
    del client
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "selfrag-http" and threads() > before:
            thread.join(5)
    assert threads() == before


def test_closing_ends_what_still_runs():
    client = client_thread()
    started = threading.Event()

    async def wait(_):
        started.set()
        await asyncio.sleep(60)

    with ThreadPoolExecutor(1) as caller:
        future = caller.submit(client.call, wait)
        assert started.wait(5)
        client.close()
        with pytest.raises(CancelledError):
            future.result(5)


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_child_process_has_a_client_of_its_own():
    client = client_thread()
    client.call(identify)
    child = multiprocessing.get_context("fork").Process(
        target=client.call, args=(identify,)
    )
    child.start()
    child.join(10)
    assert child.exitcode == 0
    client.close()
