"""The report of a diff as Markdown (GitHub's tables). Names from traces are escaped: they cannot start markup or HTML."""

from __future__ import annotations

import re

from magneton.analysis.report.blocks import Block
from magneton.analysis.report.summary import blocks, statements
from magneton.schemas.documents.diff import DiffDocument
from magneton.schemas.errors import printable

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~<>&$@-])")
_TOP = 50


def escape(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(_entity, printable(text))


def _entity(match: re.Match[str]) -> str:
    char = match.group(1)
    html = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "|": "&#124;"}.get(char)
    # A sign in front of a number must stay readable as one, and cannot start anything inside a table cell.
    return html or (char if char in "+-()#!@" else "\\" + char)


def render(document: DiffDocument) -> str:
    """Return the report of a diff."""
    lines = [
        f"# {escape(document.a.label)} against {escape(document.b.label)}",
        "",
        f"Diff {document.diff_id}, made by {escape(document.tool)}; method: {document.comparison.method}. "
        f"Times are medians per {document.comparison.unit}, with the range over the steps in brackets.",
        "",
    ]
    lines += [line for text in statements(document) for line in (escape(text), "")]
    for block in blocks(document, _TOP, detailed=True):
        lines += _table(block)
    return "\n".join(lines).rstrip() + "\n"


def _table(block: Block) -> list[str]:
    rule = ["---:" if name in block.right else "---" for name in block.names]
    lines = [
        f"## {escape(block.title)}",
        "",
        "| " + " | ".join(map(escape, block.names)) + " |",
        "|" + "|".join(rule) + "|",
    ]
    lines += ["| " + " | ".join(map(escape, row)) + " |" for row in block.rows]
    if not block.rows:
        lines.append("| " + " | ".join(["(none)"] + [""] * (len(block.names) - 1)) + " |")
    lines.append("")
    if block.remark:
        lines += [escape(block.remark) + ".", ""]
    return lines
