"""Tables for people: in a terminal and in a notebook. Names from recordings are data and never become markup."""

from __future__ import annotations

import base64
import datetime
import decimal
import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from magneton.analysis.report.blocks import Block
from magneton.schemas.errors import printable


def plain(value: Any) -> Any:
    """Return a value as JSON has it: whole decimals as integers, bytes in base64, NaN and infinity as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, decimal.Decimal):
        # Raw, because JSON numbers have no size and Python's encoder stops at 64 bits.
        return msgspec.Raw(format(value, "f").encode())
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, msgspec.Struct):
        return plain(msgspec.to_builtins(value))
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple) and not isinstance(value, pa.MonthDayNano):
        return [plain(v) for v in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    return str(value)


def text_of(value: Any) -> str | None:
    """Return a value that is no number, truth value or text as CSV has it."""
    if value is None:
        return None
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    simple = plain(value)
    return simple if isinstance(simple, str) else msgspec.json.encode(simple).decode()


def shown(value: Any) -> str | None:
    """Return a cell as a person reads it, control characters escaped; NULL stays NULL."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    return printable(value if isinstance(value, str) else text_of(value))


def rich_table(
    names: Sequence[str], records: Iterable[Sequence[Any]], *, right: Iterable[str] = (), wrap: Iterable[str] = ()
) -> Table:
    """Return records as a table for a terminal.

    Args:
        names: column headings; no heading is shown when all are empty.
        records: one sequence of values a row.
        right: headings of the columns to align right.
        wrap: headings of the columns that run over several lines where the terminal is narrow; others are cut.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold", show_header=any(names))
    numbers, texts = set(right), set(wrap)
    for name in names:
        justify: Any = "right" if name in numbers else "left"
        # A long name without a blank is broken rather than cut: its end tells it from its neighbours.
        how: Any = "fold" if name in texts else "ellipsis"
        table.add_column(Text(printable(name)), justify=justify, overflow=how, no_wrap=name not in texts)
    for record in records:
        cells = [shown(value) for value in record]
        table.add_row(*(Text("NULL", style="dim") if cell is None else Text(cell) for cell in cells))
    return table


def rich_blocks(blocks: Iterable[Block]) -> Group:
    """Return tables with their titles, for a terminal."""
    parts: list[Any] = []
    for block in blocks:
        if block.title:
            parts.append(Text(printable(block.title), style="bold"))
        if block.names:
            parts.append(rich_table(block.names, block.rows, right=block.right, wrap=block.wrap))
        if block.remark:
            parts.append(Text(printable(block.remark)))
    return Group(*parts)


def html_blocks(blocks: Iterable[Block]) -> str:
    """Return tables with their titles, for a notebook."""
    return "<div>" + "".join(map(_html, blocks)) + "</div>"


def _html(block: Block) -> str:
    parts = [f"<p><b>{_escaped(block.title)}</b></p>"] if block.title else []
    if block.names:
        head = "".join(_cell("th", name, name in block.right) for name in block.names) if any(block.names) else ""
        rows = [
            "<tr>" + "".join(_cell("td", v, n in block.right) for n, v in zip(block.names, row, strict=True)) + "</tr>"
            for row in block.rows
        ]
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>")
    if block.remark:
        parts.append(f"<p>{_escaped(block.remark)}</p>")
    return "".join(parts)


def _cell(tag: str, value: Any, right: bool) -> str:
    text = shown(value)
    inside = "<i>NULL</i>" if text is None else _escaped(text)
    return f'<{tag} style="text-align: {"right" if right else "left"}">{inside}</{tag}>'


def _escaped(text: str) -> str:
    return html.escape(printable(text))
