"""The model behind a server: how many questions run and wait, whether the engine works, and its recovery.

Answers are kept for a while, with their traces: in memory, or in a SQLite file.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import threading
import time
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, Literal, Protocol

from retrieval.passage import Passage, Retriever
from retrieval.search import LocalRetriever
from selfrag.api import SelfRAG
from selfrag.common.errors import (
    ContextLengthError,
    EngineError,
    UserError,
    count_of,
)
from selfrag.common.reading import user_path
from selfrag.decoding.answer import Answer, Segment
from selfrag.decoding.policy import Decoding
from selfrag.reflection.findings import Reflection
from selfrag.runtime.batching import SharedRetriever
from selfrag.serving.client_tasks import answer_task
from selfrag.serving.requests import LONGEST, Fault, ServedQuestion
from selfrag.serving.settings import MOST_BYTES, ServiceSettings

MOST = 1_000
"""Answers that are kept, unless told otherwise; the oldest go first."""
_DROP_OLDEST = """
DELETE FROM answers WHERE number <= (
  SELECT number FROM (
    SELECT number,
           SUM(LENGTH(content)) OVER (ORDER BY number DESC) AS total,
           ROW_NUMBER() OVER (ORDER BY number DESC) AS place
    FROM answers
  )
  WHERE total > ? OR place > ? ORDER BY number DESC LIMIT 1
)
"""


@dataclass(frozen=True, slots=True)
class StoreSize:
    """How much a store holds."""

    answers: int
    bytes: int


class AnswerStore:
    """The last answers, by names that cannot be guessed. Safe to call from many threads.

    Without a path of a SQLite file they stay in memory. A `UserError` tells that the file cannot be used.

    Args:
        path: SQLite file.
        most: answers that are kept; the oldest go first.
        most_bytes: bytes that their compressed records may take together; the oldest go first.
    """

    def __init__(
        self, path: Path | None = None, most: int = MOST, most_bytes: int = MOST_BYTES
    ) -> None:
        self._most, self._most_bytes, self._lock = most, most_bytes, threading.Lock()
        try:
            self._rows = sqlite3.connect(
                ":memory:" if path is None else user_path(path),
                check_same_thread=False,
                isolation_level=None,
            )
            self._rows.execute("PRAGMA journal_mode=WAL")
            self._rows.execute(
                "CREATE TABLE IF NOT EXISTS answers (number INTEGER PRIMARY KEY, name TEXT UNIQUE, content BLOB)"
            )
        except sqlite3.Error as error:
            raise UserError(
                f"answers cannot be kept in {path}: {error}; name another file"
            ) from error

    def keep(self, answer: Answer) -> str | None:
        """Store an answer and return its name; None, and a warning, where it cannot be stored, as on a full disk."""
        name = f"ans_{token_urlsafe(16)}"
        values = {
            "answer": answer.as_dict(),
            "trace": answer.trace.as_dict(),
            "final": answer.final,
        }
        content = zlib.compress(json.dumps(values, ensure_ascii=False).encode(), 1)
        try:
            with self._lock:
                self._rows.execute(
                    "INSERT INTO answers (name, content) VALUES (?, ?)", (name, content)
                )
                self._rows.execute(_DROP_OLDEST, (self._most_bytes, self._most))
        except sqlite3.Error as error:
            LOG.warning("an answer is sent without being kept: %s", error)
            return None
        return name

    def size(self) -> StoreSize:
        """Return how many answers are kept, and their bytes."""
        with self._lock:
            row = self._rows.execute(
                "SELECT COUNT(*), COALESCE(SUM(LENGTH(content)), 0) FROM answers"
            ).fetchone()
        return StoreSize(*row)

    def find(self, name: str) -> dict[str, Any] | None:
        """Return `answer` and `trace` as plain values, and `final`: no stage saw the text. None if unknown."""
        try:
            with self._lock:
                row = self._rows.execute(
                    "SELECT content FROM answers WHERE name = ?", (name,)
                ).fetchone()
            if row is None:
                return None
            record: dict[str, Any] = json.loads(zlib.decompress(row[0]))
        except (sqlite3.Error, zlib.error, ValueError, TypeError) as error:
            raise UserError(f"the kept answer cannot be read: {error}") from error
        return record

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._rows.close()


LOG = logging.getLogger("selfrag.serving")
RELIEF = 10
"""Seconds for which new questions are refused after one has waited too long."""
PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds before each try to load a dead engine again; the last is repeated."""
State = Literal["ok", "recovering", "stopped"]


def _has_more_tokens(
    texts: Sequence[str], most: int, encode: Callable[[str], Sequence[int]]
) -> bool:
    """Return whether texts have more than `most` tokens, without reading on when that is clear."""
    tokens = 0
    for text in texts:
        for start in range(0, len(text), LONGEST):
            part = text[start : start + LONGEST]
            tokens += len(encode(part)) - 1  # a cut may make two tokens of one
            if tokens > most:
                return True
    return False


async def _only(answer: Answer) -> AsyncGenerator[Segment | Answer, None]:
    yield answer


class Answering(Protocol):
    """What answers: a `SelfRAG`, or a model of another format that an entry point of `selfrag.formats` loads."""

    retriever: Retriever | None

    @property
    def defaults(self) -> Decoding:
        """Return the settings of a request that names none."""

    def search(self, queries: Sequence[str], k: int) -> Sequence[Sequence[Passage]]:
        """Return up to `k` passages for each query, best first."""

    def astream(
        self,
        question: Any,
        *,
        evidence: Sequence[Passage] | None = None,
        decoding: Decoding,
        flow: str | None = None,
        rewrite_scope: Any = "retrieval",
    ) -> AsyncGenerator[Segment | Answer, None]:
        """Yield the pieces of an answer."""

    def close(self) -> None:
        """Free the engine."""


@dataclass(slots=True)
class Service(ServiceSettings):
    """One model for all requests of a server.

    Attributes:
        rag: answers; replaced if its engine dies.
        reload: loads it again; None where that is not possible.
        store: keeps answers.
        state: of the engine.
        open: questions that run or wait.
        turn: of running questions.
    """

    rag: Answering
    reload: Callable[[], Answering] | None = None
    store: AnswerStore = field(default_factory=AnswerStore)
    state: State = "ok"
    open: int = 0
    turn: asyncio.Semaphore = field(init=False)
    _recovery: asyncio.Task[None] | None = None
    _relief_until: float = 0.0  # when new questions are taken again

    def __post_init__(self) -> None:
        self.turn = asyncio.Semaphore(self.capacity.live)

    @property
    def index(self) -> LocalRetriever | None:
        """Return the index on this machine that is searched; None where another retriever is."""
        retriever = self.rag.retriever
        if isinstance(retriever, SharedRetriever):
            retriever = retriever.retriever
        return retriever if isinstance(retriever, LocalRetriever) else None

    def index_version(self) -> dict[str, Any] | None:
        """Return which state of its index the next question is answered from."""
        version = None if self.index is None else self.index.version
        return None if version is None else version._asdict()

    def use_retriever(self, retriever: Retriever) -> None:
        """Search with another retriever from the next question on; to be called on the event loop."""
        self.rag.retriever = retriever

    def admit(self) -> ExitStack:
        """Return a place for one question, which its owner closes.

        Raises:
            Fault: the engine is down, or too many questions wait.
        """
        if self.state != "ok":
            again = 5 if self.state == "recovering" else None
            raise Fault(
                503,
                "the engine has stopped and is not answering; try again later",
                "engine_down",
                again,
            )
        most = self.capacity.live + self.capacity.queue
        if self.open >= most:
            raise Fault(
                429,
                f"{count_of(most, 'questions', form=',')} run or wait already; try again later",
                "queue_full",
                1,
            )
        if time.monotonic() < self._relief_until:
            raise Fault(
                429,
                f"a question waited {self._patience()}; try again later",
                "queue_full",
                RELIEF,
            )
        self.open += 1
        place = ExitStack()
        place.callback(self._leave)
        return place

    def _leave(self) -> None:
        self.open -= 1

    def _patience(self) -> str:
        return count_of(self.capacity.wait, "seconds")

    def _too_long(self) -> Fault:
        """Refuse new questions for a while, and return what one gets that has waited too long."""
        self._relief_until = time.monotonic() + RELIEF
        LOG.warning("a question waited %s and was refused", self._patience())
        return Fault(
            503,
            f"no answer within {self._patience()} beside {count_of(self.open - 1, 'others', form=',')};"
            " try again later, or start the server with a longer --wait",
            "too_slow",
            RELIEF,
        )

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None, None]:
        """Wait for a turn, no longer than a question may, and give it back."""
        try:
            async with asyncio.timeout(self.capacity.wait):
                await self.turn.acquire()
        except TimeoutError:
            raise self._too_long() from None
        try:
            yield
        finally:
            self.turn.release()

    async def fit_conversation(self, question: ServedQuestion) -> ServedQuestion:
        """Refuse a conversation that is longer than the model's context, or leave its oldest turns out.

        A long one is tokenised in a thread, part by part, and no further than it must be.
        """
        rag = self.rag
        turns = question.question
        if isinstance(turns, str) or not isinstance(rag, SelfRAG):
            return question
        if self.drop_old_turns:
            recent = await asyncio.to_thread(rag.recent_turns, turns, question.decoding)
            return replace(question, question=recent)
        contents = [turn["content"] for turn in turns]
        if sum(map(len, contents)) <= LONGEST:
            return question
        most = rag.engine.limits.max_model_len
        if await asyncio.to_thread(
            _has_more_tokens, contents, most, rag.prompting.codec.encode
        ):
            raise ContextLengthError(
                f"the conversation is longer than the context of"
                f" {count_of(most, 'tokens', form=',')}; leave out old turns"
            )
        return question

    def begin(
        self, question: ServedQuestion, *, streamed: bool = False
    ) -> AsyncGenerator[Segment | Answer, None]:
        """Yield the pieces of an answer.

        Nothing runs before the first is asked for; leaving early aborts what still runs. While other questions run,
        the answer must come within `Capacity.wait` seconds; `streamed`, its first piece.

        Raises:
            Fault: the engine dies.
            UserError: the question cannot be answered.
        """
        rag = self.rag
        task = answer_task(question.question, question.decoding)
        if task is not None:
            return _only(task)
        stream = rag.astream(
            question.question,
            decoding=question.decoding,
            evidence=question.evidence,
            flow=question.flow,
            rewrite_scope=question.rewrite_scope,
        )
        return self._pieces(rag, stream, streamed)

    async def answer(self, question: str, decoding: Decoding) -> Answer:
        """Return the whole answer to a question, which has a place in the queue."""
        question_served = ServedQuestion(
            question, decoding, None, None, "retrieval", "brackets", False
        )
        with self.admit():
            async with aclosing(self.begin(question_served)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Answer):
                        return piece
        raise RuntimeError("the pieces of an answer ended without it")

    async def _pieces(
        self,
        rag: Answering,
        stream: AsyncGenerator[Segment | Answer, None],
        streamed: bool,
    ) -> AsyncGenerator[Segment | Answer, None]:
        until = asyncio.get_running_loop().time() + self.capacity.wait
        limit = None if self.open == 1 else until
        try:
            async with self._turn(), aclosing(stream) as pieces:
                while True:
                    async with asyncio.timeout_at(limit):
                        piece = await anext(pieces, None)
                    if piece is None:
                        return
                    yield piece
                    if streamed:
                        limit = None
        except TimeoutError:
            raise self._too_long() from None
        except EngineError as error:
            raise self._broke(rag, error) from error

    async def search(
        self, queries: Sequence[str], k: int
    ) -> Sequence[Sequence[Passage]]:
        """Return passages for each query; a search has a place in the queue as a question has."""
        if self.rag.retriever is None:
            raise Fault(
                404, "this server has no index; start it with --index", "no_index"
            )
        try:
            with self.admit():
                async with self._turn():
                    return await asyncio.to_thread(self.rag.search, queries, k)
        except UserError as error:
            raise Fault(502, f"the search failed: {error}", "search_failed") from error

    async def judge(
        self,
        name: str,
        turns: Sequence[Mapping[str, str]],
        passages: Sequence[Passage],
        arguments: Mapping[str, str],
    ) -> Reflection:
        """Return what a judge says about a conversation; it has a place in the queue as a question has."""
        rag = self.rag
        if not isinstance(rag, SelfRAG):
            raise Fault(404, "this model has no judges", "no_judges")
        ask = partial(rag.judge, name, turns, passages, arguments)
        try:
            with self.admit():
                async with self._turn():
                    return await asyncio.to_thread(ask)
        except EngineError as error:
            raise self._broke(rag, error) from error

    def _broke(self, rag: Answering, error: EngineError) -> Fault:
        """Load the engine again, unless that has begun, and return what the client gets."""
        fault = Fault(503, f"the engine stopped: {error}", "engine_down", 5)
        if rag is not self.rag or self.state != "ok":
            return fault
        LOG.error("the engine stopped: %s", error)
        self.state = "stopped" if self.reload is None else "recovering"
        if self.reload is not None:
            self._recovery = asyncio.get_running_loop().create_task(
                self._recover(self.reload)
            )
        return fault

    async def _recover(self, reload: Callable[[], Answering]) -> None:
        tries = 0
        while True:
            await asyncio.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
            tries += 1
            try:
                if tries == 1:
                    await asyncio.to_thread(self.rag.close)
                self.rag = await asyncio.to_thread(reload)
            except Exception as error:
                # Whatever a library raises, the next try may work.
                LOG.error(
                    "the engine could not be loaded again (try %d): %s",
                    tries,
                    " ".join(str(error).split()),
                )
                continue
            self.state = "ok"
            LOG.warning("the engine answers again")
            return

    async def close(self) -> None:
        """Free the engine and the store."""
        if self._recovery is not None:
            self._recovery.cancel()
        await asyncio.to_thread(self.rag.close)
        self.store.close()
