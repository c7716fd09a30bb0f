"""Slides, sheets, books, mails and notebooks as documents, read by kreuzberg (the extra `office`)."""
