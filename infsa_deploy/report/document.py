"""What a report says, apart from how it is written down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Rows of text under headings; the first column names the row, the others are figures."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figure:
    """A PNG file beside the report, what it shows, and the machine and command it comes from."""

    file: str
    caption: str
    origin: str


@dataclass(frozen=True)
class Section:
    """A heading and what is under it, in this order."""

    title: str
    paragraphs: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True)
class Document:
    """A report."""

    title: str
    sections: tuple[Section, ...]
