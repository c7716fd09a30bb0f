"""Measure search: `bench_retrieval.py CORPUS [--what flat rabitq ivf hybrid rerank] [--cache DIR]`.

CORPUS is a folder with `wiki-mix.jsonl.gz`, `queries.jsonl` and `qrels.tsv`. Its passages are encoded once, into the
cache. Larger sets of vectors are made of the real ones: x + a (y - x) + (z - w) / 2 for near neighbours x, y, z, w. All
with one thread.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from retrieval import Passage, build_index, open_index
from retrieval.combining import RerankedRetriever
from retrieval.compressed import CompressedIndex, build_compressed
from retrieval.encoders import load_encoder
from retrieval.index import open_parts
from retrieval.search import Fusion
from retrieval.vectors import DenseCard, FlatIndex, Matrix, factory_of
from selfrag.api import SelfRAG
from selfrag.evaluation.intervals import DIFFERENCE, SHARE, Bounds, mean
from selfrag.judges.asking import JudgeScorer
from selfrag.judges.tokens import TokenJudge
from selfrag.loading import DEMO, resolve_encoder
from selfrag.reflection.labels import ISREL

K, NEIGHBOURS, RERANKED = 10, 20, 150
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass
class Data:
    """The corpus, its questions, and their vectors.

    Attributes:
        folder: of the corpus.
        cache: where the index of the corpus is kept.
        rows: number of vectors of the large sets.
        encoder_name: directory or name of the encoder.
        head: number of passages of the corpus that are used; None is all.
    """

    folder: Path
    cache: Path
    rows: int
    encoder_name: str = DEMO
    head: int | None = None

    @cached_property
    def encoder(self) -> Any:
        """The encoder, in bfloat16 where the CPU has it."""
        return load_encoder(resolve_encoder(self.encoder_name), precision="auto")

    @cached_property
    def index(self) -> Path:
        """The index of the corpus."""
        file = self.folder / "wiki-mix.jsonl.gz"
        if self.head is not None:
            with gzip.open(file) as whole:
                file = self.cache / "head.jsonl"
                file.write_bytes(b"".join(islice(whole, self.head)))
        build_index([file], self.cache / "index", encoder=self.encoder)
        return self.cache / "index"

    @cached_property
    def questions(self) -> list[dict[str, Any]]:
        """Those of the development split."""
        lines = (self.folder / "queries.jsonl").read_text(encoding="utf-8").splitlines()
        return [question for question in map(json.loads, lines) if question["split"] == "dev"]

    @cached_property
    def asked(self) -> Matrix:
        """Vectors of the questions."""
        vectors: Matrix = self.encoder.encode([question["text"] for question in self.questions])
        return vectors

    @cached_property
    def passages(self) -> list[Passage]:
        """All of the corpus."""
        return list(open_parts(self.index)[1].corpus)

    @cached_property
    def gold(self) -> list[set[int]]:
        """Rows of the gold passages of each question."""
        row = {passage.id: number for number, passage in enumerate(self.passages)}
        gold: dict[str, set[int]] = defaultdict(set)
        for line in (self.folder / "qrels.tsv").read_text(encoding="utf-8").splitlines():
            question, passage, score = line.split("\t")[:3]
            if passage in row and score.isdigit() and int(score) > 0:
                gold[question].add(row[passage])
        return [gold[question["id"]] for question in self.questions]

    def contains_answer(self, question: dict[str, Any], rows: Sequence[int]) -> float:
        """Whether one of the best 5 passages contains an answer."""
        texts = " ".join(self.passages[row].text.lower() for row in rows[:5] if row >= 0)
        return float(any(answer.lower() in texts for answer in question["answers"]))

    def extended(self, rows: int) -> Matrix:
        """Vectors [rows, d] like those of the corpus, of length 1."""
        real = np.load(self.index / "vectors.npy")
        random = np.random.default_rng(0)
        near = FlatIndex(real).search(real, NEIGHBOURS + 1).rows[:, 1:]
        found = np.empty((rows, real.shape[1]), np.float32)
        for start in range(0, rows, 16_384):
            i = random.integers(0, len(real), min(16_384, rows - start))
            h, j, other = (near[i, random.integers(0, NEIGHBOURS, len(i))] for _ in range(3))
            a = random.random((len(i), 1), dtype=np.float32)
            block = real[i] + a * (real[h] - real[i]) + 0.5 * (real[j] - real[other])
            found[start : start + len(i)] = block / np.linalg.norm(block, axis=1, keepdims=True)
        return found


def milliseconds(call: Callable[[], object], repeats: int = 5) -> float:
    """Processor time of a call, the best of several."""
    best = math.inf
    for _ in range(repeats):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return 1000 * best


def each(index: Any, queries: Matrix) -> float:
    """Milliseconds of a single query, the mean over some."""
    return milliseconds(lambda: [index.search(query[None], K) for query in queries], 3) / len(queries)


def interval(values: np.ndarray[Any, Any], bounds: Bounds = SHARE) -> str:
    """Format the mean and its 95% interval."""
    estimate = mean(values, bounds=bounds)
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def recall(found: Any, exact: Any) -> np.ndarray[Any, Any]:
    """Share of the exact rows that were found, by query."""
    pairs = zip(found.rows.tolist(), exact.rows.tolist(), strict=True)
    return np.array([len(set(rows) & set(wanted)) / max(1, len(wanted)) for rows, wanted in pairs])


def flat(data: Data) -> Iterator[tuple[str, str, str]]:
    """Batches of 64, as faiss scans them by default and as the library does."""
    import faiss

    vectors, queries = data.extended(100_000), data.asked[:64]
    faiss.cvar.distance_compute_blas_threshold = 128_000  # as faiss 1.15 sets it
    before = milliseconds(lambda: faiss.knn(queries, vectors, K + 16, metric=faiss.METRIC_INNER_PRODUCT))
    after = milliseconds(lambda: FlatIndex(vectors).search(queries, K))
    yield "batch of 64, 100k x 384, flat", f"{after:.0f} ms against {before:.0f}: {after / before:.2f}", "<= 0.2"


def compressed(data: Data, kind: str, rows: int, folder: Path) -> Iterator[tuple[str, str, str]]:
    """A compressed kind beside exact search: time, recall on questions and on held-aside vectors, memory, opening."""
    np.save(folder / "vectors.npy", data.extended(rows).astype(np.float16))
    vectors, name = FlatIndex.open(folder / "vectors.npy"), f"{kind} {rows:,} x {data.asked.shape[1]}"
    start = time.process_time()
    with Growth() as grown:
        card = build_compressed(vectors, factory_of(kind, rows, vectors.dim), folder / "dense.faiss", progress=False)
    yield f"{name}: build", f"{time.process_time() - start:.0f} s of one core", ""
    yield f"{name}: anonymous memory of the build", f"{grown.most / 1e6:.0f} MB", "<= 300 MB"
    yield f"{name}: settings", f"{card.factory}, {card.nprobe} lists, {card.candidates} candidates", ""
    yield f"{name}: recall@10 as the manifest states it", f"{card.recall:.3f}, lower bound {card.recall_low:.3f}", ""
    (seconds, held), _ = alone(opened, folder, card)
    yield f"{name}: opening", f"{seconds:.2f} s", "< 0.5 s"
    yield f"{name}: memory", f"{held / rows:.0f} bytes a vector", "<= 80"
    index = CompressedIndex.open(folder / "dense.faiss", vectors, card)
    queries = data.asked[:: max(1, len(data.asked) // 300)]
    exact = FlatIndex(data.extended(rows))
    truth = exact.search(queries, K)
    yield f"{name}: recall@10, questions", interval(recall(index.search(queries, K), truth)), ">= .95 or .98"
    slow, fast = each(exact, queries[:10]), each(index, queries)
    yield f"{name}: a query", f"{fast:.2f} ms against {slow:.1f} flat: 1/{slow / fast:.0f}", "<= 1/5 or 1/40"
    for share in (0.5, 0.05, 0.005):
        allowed = np.random.default_rng(1).random(rows) < share
        found = recall(index.search(queries, K, allowed), exact.search(queries, K, allowed))
        yield f"{name}: recall@10, filter of {share:.1%}", interval(found), ">= .95"


def opened(folder: Path, card: DenseCard) -> tuple[float, int]:
    """Seconds to open a compressed index, and the bytes of memory it takes."""
    import faiss  # noqa: F401 - the memory of libraries does not count

    vectors = FlatIndex.open(folder / "vectors.npy")
    vectors.block(0, 1)  # loads torch
    before, start = memory(), time.perf_counter()
    index = CompressedIndex.open(folder / "dense.faiss", vectors, card)
    seconds = time.perf_counter() - start
    index.search(vectors.block(0, 1), K)
    return seconds, memory() - before


def rabitq(data: Data) -> Iterator[tuple[str, str, str]]:
    """Codes of one bit a number, scanned, then rescored."""
    with tempfile.TemporaryDirectory() as folder:
        yield from compressed(data, "rabitq", min(200_000, data.rows), Path(folder))


def ivf(data: Data) -> Iterator[tuple[str, str, str]]:
    """Such codes in inverted lists."""
    with tempfile.TemporaryDirectory() as folder:
        yield from compressed(data, "ivf", data.rows, Path(folder))


def memory(field: str = "RssAnon") -> int:
    """Bytes of memory of this process; by default those that no file backs."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


class Growth:
    """Most bytes, backed by no file, that the process gains while the block runs."""

    def __enter__(self) -> Growth:
        self.most, self.before, self._ended = 0, memory(), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            self.most = max(self.most, memory() - self.before)

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def alone(call: Callable[..., Any], *given: Any) -> tuple[Any, int]:
    """What a call gives in a process of its own, and how many bytes the process grew."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result: tuple[Any, int] = pool.apply(_grown, (call, given))
    return result


def _grown(call: Callable[..., Any], given: tuple[Any, ...]) -> tuple[Any, int]:
    with Growth() as grown:
        found = call(*given)
    return found, grown.most


def gold_recall(ranked: Sequence[Any], gold: Sequence[set[int]], k: int) -> np.ndarray[Any, Any]:
    """Share of the gold rows among the first k, by question."""
    return np.array([len({*rows[:k]} & want) / len(want) for rows, want in zip(ranked, gold, strict=True)])


def hybrid(data: Data) -> Iterator[tuple[str, str, str]]:
    """Recall@5 of the gold passages of the development questions."""
    parts = open_parts(data.index)[1]
    dense = parts.index.search(data.asked, 100).rankings()
    words = [parts.words.search(question["text"], 100).rankings()[0] for question in data.questions if parts.words]
    rankings = {"dense": dense, "words": words}
    for method in ("min-max", "rrf"):
        rankings[method] = [Fusion(method)(*pair, 5) for pair in zip(dense, words, strict=True)]
    ways = {name: [[row for row, _ in ranking] for ranking in of] for name, of in rankings.items()}
    found = {name: gold_recall(way, data.gold, 5) for name, way in ways.items()}
    answered = {name: np.array(list(map(data.contains_answer, data.questions, way))) for name, way in ways.items()}
    nq = np.array([question["id"].startswith("nq-") for question in data.questions])
    for name, values in found.items():
        yield f"Recall@5 of {name}, {len(values)} questions", interval(values), ""
        if name in ("min-max", "rrf"):
            more, answers = values - found["dense"], answered[name] - answered["dense"]
            yield f"{name} minus dense, all", interval(more, DIFFERENCE), "lower bound > 0"
            yield f"{name} minus dense, {nq.sum()} of NQ", interval(more[nq], DIFFERENCE), "lower bound >= -.01"
            yield f"{name} minus dense, an answer in the 5 texts, NQ", interval(answers[nq]), ""


def rerank(data: Data) -> Iterator[tuple[str, str, str]]:
    """Recall of the gold passages of 150 NQ questions by hybrid search, without and with IsRel of the demo model."""
    numbers = [n for n, question in enumerate(data.questions) if question["id"].startswith("nq-")]
    numbers = numbers[:: max(1, len(numbers) // RERANKED)][:RERANKED]
    asked, gold = [data.questions[n]["text"] for n in numbers], [data.gold[n] for n in numbers]
    row = {passage.id: number for number, passage in enumerate(data.passages)}
    rag = SelfRAG.from_pretrained(DEMO, retriever=open_index(data.index, data.encoder), engine="transformers")
    assert rag.retriever is not None  # noqa: S101 - it was just given
    scorer, start = JudgeScorer(TokenJudge(rag.prompting, ISREL), rag.engine), time.process_time()
    ways = {"hybrid": rag.retriever, "IsRel": RerankedRetriever(rag.retriever, scorer)}
    found = {name: [[row[one.id] for one in passages] for passages in way(asked, 10)] for name, way in ways.items()}
    seconds = (time.process_time() - start) / len(asked)
    yield f"IsRel of 10 passages, {len(asked)} questions", f"{seconds:.1f} s of one core a question", ""
    for k in (1, 3, 5):
        without, reranked = (gold_recall(way, gold, k) for way in found.values())
        yield f"Recall@{k} of hybrid, {len(asked)} of NQ", interval(without), ""
        yield f"Recall@{k} with IsRel", interval(reranked), ""
        yield f"Recall@{k}, with minus without", interval(reranked - without, DIFFERENCE), ""


MEASURED = {way.__name__: way for way in (flat, rabitq, ivf, hybrid, rerank)}


def main() -> int:
    """Read the command line and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None, allow_abbrev=False)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--what", nargs="+", choices=MEASURED, default=list(MEASURED))
    parser.add_argument("--cache", type=Path, default=Path("build/bench-retrieval"))
    parser.add_argument("--rows", type=int, default=1_000_000, help="vectors of the large sets")
    parser.add_argument("--encoder", default=DEMO, help="directory or name of the encoder; default: the packaged one")
    parser.add_argument("--head", type=int, help="passages of the corpus, the first ones; default: all")
    given = parser.parse_args()
    if any(os.environ.get(name) != "1" for name in THREADS):  # BLAS reads them when it is loaded
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | dict.fromkeys(THREADS, "1"))  # noqa: S606
    given.cache.mkdir(parents=True, exist_ok=True)
    data = Data(given.corpus, given.cache, given.rows, given.encoder, given.head)
    print("| what | measured | bar |\n|---|---|---|")
    for what in given.what:
        for name, value, bar in MEASURED[what](data):
            print(f"| {name} | {value} | {bar} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
