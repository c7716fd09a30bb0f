"""Parquet files that are made to take all memory: refused in one line, within the memory of an honest file and 512 MB.

Each file is read in a process of its own, whose memory and that of its child count together.
"""

import random
import subprocess
import sys
from functools import partial

import pyarrow as pa
import pytest
from pyarrow import parquet
from refusals import refused

from retrieval import UserError
from retrieval.parquet import read_vector_blocks, read_vector_size
from retrieval.tables import TableColumns, read_parquet

MEBIBYTE = 1 << 20
READ = """
import resource, sys
from pathlib import Path
from selfrag.common.errors import UserError
from retrieval.parquet import read_vector_size
from retrieval.tables import TableColumns, read_parquet

try:
    if sys.argv[2] == "rows":
        print(sum(len(row.passage.text) for row in read_parquet(Path(sys.argv[1]), TableColumns())))
    else:
        print(*read_vector_size(Path(sys.argv[1])))
except UserError as error:
    print(error)
who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
print(sum(resource.getrusage(kind).ru_maxrss for kind in who) >> 10)
print(sum(resource.getrusage(kind).ru_utime for kind in who))
"""


def outcome(file, work):
    """What is said of a file, the memory in MiB, and the seconds of computing that its reading took."""
    # By a shell: Linux counts the memory of who forks to the process that it makes.
    shell = ["sh", "-c", '"$@"; exit $?', "sh"]
    program = [*shell, sys.executable, "-c", READ, str(file), work]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300)
    said, memory, seconds = done.stdout.splitlines()
    return said, int(memory), float(seconds)


def write_groups(file, tables, **options):
    """Write each table as a group of rows, so that the test itself takes little memory."""
    writer = None
    for table in tables:
        writer = writer or parquet.ParquetWriter(
            file, table.schema, compression="zstd", **options
        )
        writer.write_table(table)
    assert writer is not None
    writer.close()


def long_rows(size, groups, rows=4):
    """Rows of which each has another text of a size."""
    for group in range(groups):
        texts = [f"{group} {row} {'x' * size}" for row in range(rows)]
        yield pa.table({"id": [f"{group}-{row}" for row in range(rows)], "text": texts})


def varint(number, length=0):
    """A number as Thrift's compact protocol writes it, in at least `length` bytes."""
    number <<= 1
    digits = []
    while number or len(digits) < length or not digits:
        digits.append(number & 127 | 128)
        number >>= 7
    digits[-1] &= 127
    return bytes(digits)


def lying_footer(file):
    """32 rows of 16 MiB, of which the footer says that they take 100 bytes."""
    write_groups(file, long_rows(16 * MEBIBYTE, 16, 2), use_dictionary=False)
    metadata = parquet.read_metadata(file)
    content = file.read_bytes()
    start = len(content) - 8 - metadata.serialized_size
    for group in range(metadata.num_row_groups):
        size = metadata.row_group(group).column(1).total_uncompressed_size
        true = varint(size)
        false = varint(100, len(true))
        content = content[:start] + content[start:].replace(true, false)
    file.write_bytes(content)
    column = parquet.read_metadata(file).row_group(0).column(1)
    assert column.total_uncompressed_size == 100


def repeated(text, count):
    """A column of rows that all have the same text, a single entry of a dictionary."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), [text])


def one_long_value(file):
    """A file of over 80 kB in which 200 rows have the same text of 17 MiB, a single entry of a dictionary."""
    noise = random.Random(0).randbytes(100_000).hex()
    text = repeated("x" * 17 * MEBIBYTE, 200)
    ids = list(map(str, range(200)))
    table = pa.table({"id": ids, "text": text, "noise": [noise] * 200})
    parquet.write_table(
        table, file, compression="zstd", dictionary_pagesize_limit=1 << 30
    )


def growing_values(file):
    """Texts of which each repeats the one before: a few bytes a row."""
    options = {
        "use_dictionary": False,
        "column_encoding": {"id": "PLAIN", "text": "DELTA_BYTE_ARRAY"},
    }
    table = pa.table({"id": ["a", "b"], "text": ["x" * 15 * MEBIBYTE] * 2})
    write_groups(file, [table] * 40, store_schema=False, **options)


def many_columns(file):
    """900 columns of text, each with a dictionary."""
    texts = {f"c{number}": ["x" * 16_000, "y" * 16_000] * 50 for number in range(900)}
    table = {"id": list(map(str, range(100))), "text": ["t"] * 100}
    parquet.write_table(pa.table(table | texts), file)


def repeated_value(file, encoding):
    """Rows that all have the same text of 1 MB: with a dictionary, 3 KB would give 4 GB."""
    count = 4000 if encoding == "dictionary" else 40
    text = repeated("x" * 1_000_000, count)
    options = {"compression": "zstd", "dictionary_pagesize_limit": 1 << 30}
    if encoding != "dictionary":
        options |= {"use_dictionary": ["id"], "store_schema": False}
        options |= {"column_encoding": {"text": encoding}}
        text = text.cast(pa.string())
    table = pa.table({"id": pa.array([0] * count, pa.int8()), "text": text})
    parquet.write_table(table, file, **options)


ROWS = {
    "d20 dictionary": partial(repeated_value, encoding="dictionary"),
    "d20 delta": partial(repeated_value, encoding="DELTA_BYTE_ARRAY"),
    "d20 plain": partial(repeated_value, encoding="PLAIN"),
    "a footer that lies": lying_footer,
    "one long value": one_long_value,
    "growing values": growing_values,
    "many columns": many_columns,
}


@pytest.fixture(scope="module")
def usual(honest):
    """The memory that an honest file takes."""
    return outcome(honest, "rows")[1]


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    file = tmp_path_factory.mktemp("honest") / "honest.parquet"
    noise = random.Random(1)
    rows = [
        {"id": str(number), "text": noise.randbytes(500).hex()} for number in range(400)
    ]
    parquet.write_table(pa.Table.from_pylist(rows), file)
    return file


@pytest.mark.skipif(
    sys.platform != "linux", reason="memory of processes is limited as Linux states it"
)
@pytest.mark.parametrize("name", ROWS)
def test_issue_45_hostile_parquet_rows_take_little_memory_and_time(
    name, tmp_path, usual
):
    file = tmp_path / "hostile.parquet"
    ROWS[name](file)
    said, memory, seconds = outcome(file, "rows")
    assert said.startswith(f"{file}: ") or name == "many columns"
    assert memory - usual <= 512
    assert seconds < 30


def repeated_lists(file):
    """1,024 vectors of half a million equal numbers: 2 GB in a block."""
    lists = pa.FixedSizeListArray.from_arrays(
        pa.array([0.5], pa.float32()).take(pa.array([0] * (16 << 19))), 1 << 19
    )
    ragged = lists.cast(pa.list_(pa.float32()))
    write_groups(file, (pa.table({"vector": ragged}) for _ in range(64)))


@pytest.mark.skipif(
    sys.platform != "linux", reason="memory of processes is limited as Linux states it"
)
def test_issue_45_hostile_parquet_vectors_take_little_memory(tmp_path, usual):
    file = tmp_path / "hostile.parquet"
    repeated_lists(file)
    said, memory, seconds = outcome(file, "vectors")
    assert said.startswith(f"{file}: ")
    assert memory - usual <= 512
    assert seconds < 30


def test_damaged_parquet_files_are_one_line(tmp_path, honest):
    """Every outcome is a line, or rows: a byte of the text may change without a trace."""
    content, file = honest.read_bytes(), tmp_path / "damaged.parquet"
    rng = random.Random(2)
    lines = []
    ends = [len(content), 600] * 5  # anywhere, and in the footer
    for end in ends:
        damaged = bytearray(content)
        damaged[-1 - rng.randrange(end)] ^= rng.randrange(1, 256)
        file.write_bytes(damaged)
        try:
            assert sum(1 for _ in read_parquet(file, TableColumns())) <= 400
        except UserError as error:
            lines.append(str(error))
    assert len(lines) > 3
    assert all(line.startswith(str(file)) and "\n" not in line for line in lines)


def test_vectors_are_read_from_a_row_on_and_unequal_ones_refused(tmp_path):
    file = tmp_path / "v.parquet"
    values = [[float(number), 0.5] for number in range(2_500)]
    parquet.write_table(
        pa.table({"id": list(map(str, range(2_500))), "vector": values}), file
    )
    assert read_vector_size(file) == (2_500, 2)
    blocks = list(read_vector_blocks(file, 1_500))
    assert [len(block.vectors) for block in blocks] == [548, 452]
    assert (blocks[0].ids or [])[0] == "1500"
    assert blocks[0].vectors[0].tolist() == [1500.0, 0.5]
    for vectors in (
        [[1.0], [1.0, 2.0, 3.0]],
        [[1.0], None],
        [["a"], ["b"]],
        [1.0, 2.0],
    ):
        parquet.write_table(pa.table({"vector": vectors}), file)
        with refused("lists of floats, all of one length"):
            read_vector_size(file)
