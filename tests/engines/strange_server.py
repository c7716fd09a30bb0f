"""A server that sends bytes as a test wants them, and the grammar of the replies of strange servers."""

import asyncio
import copy
import json
import math
import threading
from dataclasses import dataclass, field

from hypothesis import strategies as st


@dataclass(frozen=True)
class Reply:
    """What is sent for one request; `raw` in place of a response where it is given."""

    body: bytes
    status: int = 200
    headers: dict = field(default_factory=dict)
    raw: bytes | None = None

    def wire(self):
        if self.raw is not None:
            return self.raw
        headers = {"Content-Length": str(len(self.body)), **self.headers}
        lines = [f"HTTP/1.1 {self.status} Word"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body

    @property
    def ends(self):
        """Whether the connection ends with it."""
        return self.raw is not None or bool(self.headers)


class StrangeServer:
    """Answers each request with `reply(path, body)`, over real sockets; use as a context manager."""

    def __init__(self, reply):
        self.reply = reply
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        starting = asyncio.start_server(self._serve, "127.0.0.1", 0)
        server = asyncio.run_coroutine_threadsafe(starting, self.loop).result()
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        asyncio.run_coroutine_threadsafe(self._end(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    async def _end(self):
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().lower().split("\r\n")
                lengths = [line[15:] for line in lines if "content-length" in line]
                body = await reader.readexactly(int(lengths[0]) if lengths else 0)
                reply = self.reply(head.split()[1].decode(), json.loads(body or b"{}"))
                writer.write(reply.wire())
                await writer.drain()
                if reply.ends:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


THOUGHT = "Hmm, is it 120 SECRET degrees?"
MARKUP = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
]
HUGE = 10**400
DEEP = json.loads("[" * 400 + "]" * 400)
HOSTILE = st.sampled_from(
    [
        *(HUGE, -HUGE, -1e308, 1e308, math.nan, math.inf, -math.inf, 2**63, -1, 0),
        *(0.5, None, True, "", " ", "x", "\ud800", "\x1b[31m\x00\u202e", "9" * 400),
        *([], {}, [None], [[]], DEEP, {"text": "x"}, [{"text": DEEP}], "eos_token"),
    ]
)


@st.composite
def messages(draw, text):
    """Return a message of a chat reply, in one of the shapes that servers have."""
    open_, close = draw(st.sampled_from(MARKUP))
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]}
    shapes = [
        {"content": text},
        {"content": f"{open_}\n{THOUGHT}\n{close}\n\n{text}"},
        {"content": f"{open_}\n{THOUGHT}"},
        {"content": f"{THOUGHT}\n{close}\n\n{text}"},
        {"content": [{"type": "text", "text": text}]},
        {"content": [thinking, {"type": "text", "text": text}]},
        {"content": [thinking]},
        {"content": text, "reasoning_content": THOUGHT},
        {"content": None, "reasoning": THOUGHT},
        {"content": "", "thinking": THOUGHT},
        {"content": None, "refusal": "I cannot help with that."},
        {"content": [{"type": "refusal", "refusal": "I cannot."}]},
        {"content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
        {"content": None},
        {"role": "assistant"},
    ]
    return draw(st.sampled_from(shapes))


@st.composite
def chat_replies(draw, text):
    """Return the JSON value of a chat reply."""
    value = draw(st.one_of(st.just(-0.1), HOSTILE))
    token = {"token": text, "logprob": value}
    token["top_logprobs"] = [dict(token), {"token": "no", "logprob": -3.0}]
    rows = draw(st.sampled_from([None, [], [token], [token] * 3]))
    finishes = ["stop", "length", "content_filter", "tool_calls", "eos_token", None]
    choice = {
        "message": draw(messages(text)),
        "finish_reason": draw(st.sampled_from(finishes)),
        "logprobs": draw(st.sampled_from([None, {"content": rows}])),
    }
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    return {"choices": [choice], "usage": draw(st.sampled_from([usage, None, "many"]))}


def paths(value, path=()):
    """Yield the place of every value in a JSON value."""
    yield path
    items = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list) and value is not DEEP:
        items = enumerate(value)
    for key, item in items:
        yield from paths(item, (*path, key))


@st.composite
def mutated(draw, values):
    """Return a JSON value with up to three places changed: replaced, deleted, or wrapped."""
    value = json.loads(json.dumps(draw(values)))
    for _ in range(draw(st.integers(0, 3))):
        *where, last = draw(st.sampled_from(list(paths([value]))[1:]))
        root = [value]
        holder = root
        for key in where:
            holder = holder[key]
        change = draw(st.sampled_from(["replace", "replace", "delete", "wrap"]))
        if change == "replace":
            holder[last] = copy.deepcopy(draw(HOSTILE))
        elif change == "wrap":
            holder[last] = [holder[last]]
        elif holder is not root:
            del holder[last]
        value = root[0]
    return value


REFUSALS = [
    "top_logprobs must be less than or equal to 5",
    "Requested sample logprobs of 20, which is greater than max allowed: 5",
    "Unsupported parameter: 'logprobs' is not supported with this model.",
    "Invalid top_logprobs",
    "bad request",
    "max_tokens",
]
WAITS = ["Mon, 01 Jan 99999999999999999999 00:00:00 GMT", "1e400", "-1", "nan", "x", ""]


@st.composite
def replies(draw, text="yes"):
    """Return a reply that a strange server may send."""
    kind = draw(st.integers(0, 9))
    if kind < 6:
        value = draw(mutated(chat_replies(text)))
        return Reply(json.dumps(value).encode())
    content = json.dumps(draw(chat_replies(text))).encode()
    if kind == 6:
        error = draw(mutated(st.sampled_from(REFUSALS).map(error_of)))
        status = draw(st.sampled_from([200, 400, 404, 413, 422, 500, 302, 204, 599]))
        return Reply(json.dumps(error).encode(), status)
    if kind == 7:
        headers = {"Retry-After": draw(st.sampled_from(WAITS))}
        return Reply(content, draw(st.sampled_from([429, 503, 200])), headers)
    if kind == 8:
        cut = draw(st.integers(0, len(content)))
        bodies = [
            content[:cut],
            b"data: " + content,
            b"\xef\xbb\xbf" + content,
            b"\xff",
        ]
        bodies += [b"<html>\x1b[31m</html>", b"", b"[" * 5000, b"9" * 5000, b"null"]
        return Reply(draw(st.sampled_from(bodies)))
    sent = Reply(content).wire()
    cut = draw(st.integers(0, len(sent) - 1))
    encoded = Reply(content, headers={"Content-Encoding": "gzip"}).wire()
    raws = [sent[:cut], b"", b"HTTP/1.1 200\r\n\r\n", b"\x00" * 9, encoded]
    raws.append(Reply(content, headers={"Content-Length": "9" * 20}).wire())
    return Reply(b"", raw=draw(st.sampled_from(raws)))


def error_of(message):
    return {"error": {"message": message}}
