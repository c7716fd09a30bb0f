"""Hooks of the documentation site.

A line `::: command PROGRAM` becomes the help of all commands of the program, `::: routes` the routes of the server.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).parents[2]
OUTPUT = re.compile(r'<span class="gp">(\s*#[^<]*)</span>')
MARK = re.compile(r"^::: command (\w+)$", flags=re.M)


def help_of(program: str) -> str:
    """Return the commands and options of `selfrag` or `critic` as Markdown, by typer; headings a level lower."""
    words = [
        sys.executable,
        "-m",
        "typer",
        f"{program}.cli.main",
        "utils",
        "docs",
        "--name",
        program,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(  # noqa: S603
        words, capture_output=True, text=True, check=True, cwd=ROOT, env=environment
    )
    return re.sub(r"^#", "##", done.stdout, flags=re.M)


def routes() -> str:
    """Return the routes of `selfrag serve` with the fields of their requests, as Markdown."""
    sys.path.insert(0, str(ROOT))
    from selfrag.serving.app import create_app
    from selfrag.serving.service import Service

    document = create_app(Service(cast(Any, None))).openapi()
    schemas, parts = document["components"]["schemas"], list[str]()
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            parts.append(f"## {method.upper()} {path}\n\n{route['description']}")
            if body := route.get("requestBody"):
                name = body["content"]["application/json"]["schema"]["$ref"].rpartition(
                    "/"
                )[2]
                parts.append(_fields(schemas[name]))
    for name, title in (
        ("Controls", "The `selfrag` object"),
        ("EvidencePassage", "A passage as evidence"),
    ):
        parts.append(f"## {title}\n\n{_fields(schemas[name])}")
    return "\n\n".join(parts)


def _fields(schema: dict[str, Any]) -> str:
    rows = ["| field | type | meaning |", "|---|---|---|"]
    for name, field in schema["properties"].items():
        said = field.get("description", "").replace("|", "\\|")
        rows.append(f"| `{name}` | {_kind(field)} | {said} |")
    return "\n".join(rows)


def _kind(field: dict[str, Any]) -> str:
    """Return the type of a field in a few words, with its largest value."""
    if "enum" in field or "const" in field:
        return ", ".join(
            f"`{value}`" for value in field.get("enum", [field.get("const")])
        )
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(map(_kind, field["anyOf"])))
    if "$ref" in field:
        return "object"
    most = f" up to {int(field['maximum']):,}" if "maximum" in field else ""
    items = f" of {_kind(field['items'])}" if field.get("items") else ""
    return f"{field.get('type', 'any')}{items}{most}"


def on_page_content(content: str, **_: Any) -> str:
    """Mark up each page for MkDocs: a line of output that begins with `#` is no prompt."""
    return OUTPUT.sub(r'<span class="go">\1</span>', content)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in what a page of MkDocs asks for."""
    filled = MARK.sub(lambda match: help_of(match[1]), markdown)
    return filled.replace("::: routes", routes()) if "::: routes" in filled else filled
