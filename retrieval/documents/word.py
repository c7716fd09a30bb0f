"""Reads Word files: headings, paragraphs, and tables row by row."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from retrieval.documents.document import MAX_BYTES, MAX_HEADING, Document, DocumentBuilder, check_size
from retrieval.errors import UserError, require


def read_word(path: Path, name: str) -> Document:
    """Text of a Word file; tables row by row."""
    docx = require("docx", extra="documents")
    check_size(path)
    try:
        with zipfile.ZipFile(path) as parts:
            if sum(part.file_size for part in parts.infolist()) > MAX_BYTES:
                raise UserError(f"{path}: unpacks to more than {MAX_BYTES:,} bytes; split it")
        document = docx.Document(str(path))
        title = " ".join((document.core_properties.title or "").split())[:MAX_HEADING]
        builder = DocumentBuilder(title or name)
        for block in document.iter_inner_content():
            if hasattr(block, "rows"):
                rows = (dict.fromkeys(cell.text.strip() for cell in row.cells) for row in block.rows)
                builder.add_paragraph("\n".join(" | ".join(filter(None, cells)) for cells in rows))
                continue
            style = str(getattr(block.style, "name", ""))
            level = re.fullmatch(r"Heading ([1-9])", style)
            if level or style == "Title":
                builder.add_heading(int(level[1]) if level else 0, block.text)
            else:
                builder.add_paragraph(block.text)
    except UserError:
        raise
    except Exception as error:  # whatever a damaged file makes of the parser
        raise UserError(f"{path}: cannot be read as Word file: {type(error).__name__}: {str(error)[:200]}") from error
    return builder.build()
