"""A document as Markdown, and as one HTML page that needs no other file."""

from __future__ import annotations

import base64
import html
from pathlib import Path

from infsa_deploy.report.document import Document, Figure, Section, Table

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #111; background: #fff; max-width: 84rem; margin: 2rem auto;
  padding: 0 1.5rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #999; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { padding: .25rem .5rem; font-size: .9rem; text-align: right; border-bottom: 1px solid #ccc; }
th { border-bottom: 2px solid #333; } th:first-child, td:first-child { text-align: left; }
tbody tr:nth-child(even) { background: #f4f4f4; }
ul.notes { font-size: .85rem; color: #333; margin: 0 0 1.5rem; }
pre { background: #f4f4f4; border: 1px solid #ccc; padding: .6rem .8rem; overflow-x: auto; white-space: pre-wrap; }
figure { margin: 1.5rem 0; } img { max-width: 100%; min-width: 40rem; } figcaption { font-size: .85rem; color: #333; }
@media print { body { max-width: none; margin: 0; } img { min-width: 0; } figure, table { break-inside: avoid; } }
"""


def to_markdown(document: Document) -> str:
    """GitHub's Markdown; figures are linked, not held."""
    parts = [f"# {document.title}"]
    for section in document.sections:
        parts.append(f"## {section.title}")
        parts += section.paragraphs
        parts += [f"```\n{command}\n```" for command in section.commands]
        parts += [_markdown_table(table) for table in section.tables]
        parts += [
            f"![{figure.caption}]({figure.file})\n\n{figure.caption}. {figure.origin}" for figure in section.figures
        ]
    return "\n\n".join(parts) + "\n"


def to_html(document: Document, folder: Path) -> str:
    """One page; the figures are read from `folder` and held in it."""
    body = "\n".join(_html_section(section, folder) for section in document.sections)
    title = html.escape(document.title)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
    )


def _markdown_table(table: Table) -> str:
    rule = ["---", *["---:"] * (len(table.headings) - 1)]
    lines = [_bars(table.headings), _bars(rule), *(_bars(row) for row in table.rows)]
    notes = "\n".join(f"- {note}" for note in table.notes)
    return "\n".join(lines) + (f"\n\n{notes}" if notes else "")


def _bars(values: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"


def _html_section(section: Section, folder: Path) -> str:
    parts = [f"<h2>{html.escape(section.title)}</h2>"]
    parts += [f"<p>{html.escape(paragraph)}</p>" for paragraph in section.paragraphs]
    parts += [f"<pre>{html.escape(command)}</pre>" for command in section.commands]
    parts += [_html_table(table) for table in section.tables]
    parts += [_html_figure(figure, folder) for figure in section.figures]
    return "\n".join(parts)


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in table.headings)
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(value)}</td>" for value in row) + "</tr>" for row in table.rows
    )
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in table.notes)
    listed = f'<ul class="notes">{notes}</ul>' if notes else ""
    grid = f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>"
    return f'<div class="scroll">{grid}</div>{listed}'


def _html_figure(figure: Figure, folder: Path) -> str:
    data = base64.b64encode((folder / figure.file).read_bytes()).decode()
    caption = html.escape(f"{figure.caption}. {figure.origin}")
    alternative = html.escape(figure.caption, quote=True)
    return (
        f'<figure><div class="scroll"><img alt="{alternative}" src="data:image/png;base64,{data}"></div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )
