"""Recognises the text of scanned pages with tesseract, where it is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import closing
from typing import Any

from selfrag.extensions.pdf.layout import Fragment, Line
from selfrag.interface import UserError

_PROGRAM = "tesseract"
_LANGUAGES = re.compile(r"[A-Za-z_]{2,40}(\+[A-Za-z_]{2,40}){0,20}")
_RESOLUTION = 300  # dots an inch
_POINTS = 72  # of a PDF, an inch
_MAX_PIXELS = 25_000_000  # of a page; a larger one is scaled down
_TIMEOUT = 90  # seconds of a page


def check_languages(languages: str) -> None:
    """Raise UserError where tesseract or one of the languages is not installed."""
    if not _LANGUAGES.fullmatch(languages):
        raise UserError(
            f"ocr {languages!r:.80} names no languages of tesseract; give some, such as eng or eng+deu"
        )
    program = shutil.which(_PROGRAM)
    if program is None:
        raise UserError(
            "ocr needs tesseract, which is not installed; on Debian or Ubuntu: apt install tesseract-ocr"
        )
    try:
        listed = subprocess.run(  # noqa: S603
            [program, "--list-langs"],
            capture_output=True,
            timeout=_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{program} cannot be started: {error}") from error
    installed = listed.stdout.decode(errors="replace").split()
    for language in languages.split("+"):
        if language not in installed:
            package = f"tesseract-ocr-{language}"
            raise UserError(
                f"ocr: tesseract has no language {language!r}; on Debian or Ubuntu: apt install {package}"
            )


def recognise_page(page: Any, languages: str) -> list[Line]:
    """Return the lines that tesseract reads on a page of PDFium; a `UserError` tells that it fails or is slow."""
    try:
        run = subprocess.run(  # noqa: S603 - the languages were checked
            [shutil.which(_PROGRAM) or _PROGRAM, "stdin", "stdout", "-l", languages],
            input=_render(page),
            capture_output=True,
            timeout=_TIMEOUT,
            env={**os.environ, "OMP_THREAD_LIMIT": "1"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"text recognition failed ({type(error).__name__})") from error
    if run.returncode:
        raise UserError(f"text recognition failed (exit code {run.returncode})")
    lines: list[Line] = []
    starts_paragraph = False
    for text in run.stdout.decode("utf-8", "replace").replace("\f", "\n").splitlines():
        if text.strip():
            lines.append(
                Line(text.strip(), Fragment(text, 0, 0, 0, 0), starts_paragraph)
            )
            starts_paragraph = False
        else:
            starts_paragraph = True
    return lines


def _render(page: Any) -> bytes:
    """Return an image of a page in shades of grey, in the format PGM."""
    width, height = page.get_size()
    scale = _RESOLUTION / _POINTS
    pixels = width * height * scale**2
    if pixels > _MAX_PIXELS:
        scale *= (_MAX_PIXELS / pixels) ** 0.5
    with closing(page.render(scale=scale, grayscale=True)) as bitmap:
        content = bytes(bitmap.buffer)
        starts = range(0, bitmap.stride * bitmap.height, bitmap.stride)
        rows = [content[start : start + bitmap.width] for start in starts]
        return b"P5 %d %d 255\n" % (bitmap.width, bitmap.height) + b"".join(rows)
