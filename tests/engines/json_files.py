"""Files of JSON, and of a value a line. Importable from every test, like `tiny`."""

import json


def read_json(path):
    """Return the value of a file."""
    return json.loads(path.read_bytes())


def write_json(path, value):
    """Write one value, and return the file."""
    path.write_text(json.dumps(value))
    return path


def read_lines(path):
    """Return the value of each line."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def write_lines(path, values):
    """Write a value a line, and return the file."""
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def table(text):
    """Return the cells of a table: a row a line, and ` | ` between cells."""
    return [line.split(" | ") for line in text.strip("\n").split("\n")]


def parse_table(text):
    """Return the rows of a `table` as values: of their JSON, or else as they stand. An indented line goes on."""
    rows = table(text.replace("\n    ", " "))
    return [tuple(_value(cell.strip()) for cell in row) for row in rows]


def _value(cell):
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def write_records(path, records):
    """Write the dictionary of each record a line, and return the file."""
    return write_lines(path, (record.as_dict() for record in records))
