"""Text that exporters serve: Prometheus 0.0.4 (times in ms), OpenMetrics (times in s), with or without times.

A scrape of dcgm-exporter has no times at all: each sample then stands for the moment of the scrape, which the user can
give (``PowerOptions.at_unix_ns``).
"""

from __future__ import annotations

import re
from pathlib import Path

from magneton.schemas.kinds import Flag
from magneton.transforms.power.builder import LogBuilder
from magneton.transforms.power.log import PowerLog, PowerOptions, realtime_only
from magneton.transforms.power.prometheus.metrics import MetricReader
from magneton.transforms.power.textrows import TextRows
from magneton.transforms.reading.decimals import time_ns
from magneton.transforms.reading.textfile import TextFile

NAME = "prometheus-text"
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:.]*", re.ASCII)
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,?)', re.ASCII)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", '"': '"', "\\": "\\"}
_COMMENT = re.compile(r"#\s*(TYPE|UNIT|HELP)\s+(\S+)\s*(.*)")
# Milliseconds since 1970 reach this in 1973, seconds in the year 5138: what lies above can only be milliseconds.
_MILLISECONDS_FROM = 100_000_000_000

Sample = tuple[str, dict[str, str], str, str | None]


def sniff(head: str) -> bool:
    """Say whether the start of a file is this format."""
    lines = [line for line in head.split("\n")[:200] if line.strip()]
    if any(line.startswith(("# TYPE ", "# HELP ", "# UNIT ")) for line in lines):
        return True
    plain = [line for line in lines if not line.startswith("#")]
    return bool(plain) and all("{" in line and parse_sample(line) is not None for line in plain[:5])


def parse_sample(line: str) -> Sample | None:
    """Return (name, labels, value, time or None) of one line, or None when it is not a sample."""
    match = _NAME.match(line)
    if match is None:
        return None
    at, labels = match.end(), {}
    if line[at:].lstrip().startswith("{"):
        at = line.index("{", at) + 1
        while label := _LABEL.match(line, at):
            labels[label.group(1)] = _ESCAPE.sub(lambda m: _ESCAPED.get(m.group(1), m.group(0)), label.group(2))
            at = label.end()
            if not label.group(3):
                break
        closing = re.compile(r"\s*\}").match(line, at)
        if closing is None:
            return None
        at = closing.end()
    elif at < len(line) and not line[at].isspace():
        return None
    rest = line[at:].split("#", 1)[0].split()  # what follows # is an exemplar
    if not 1 <= len(rest) <= 2:
        return None
    return match.group(), labels, rest[0], rest[1] if len(rest) == 2 else None


def read(path: Path, options: PowerOptions) -> PowerLog:
    """Read exposition text."""
    builder = LogBuilder(path, NAME, options)
    realtime_only(options, path)
    exponent, is_open, ended = _time_exponent(path, builder)
    builder.report.format = "openmetrics" if is_open else NAME
    if is_open and not ended:
        builder.warn("truncated", "OpenMetrics text without its last line # EOF")
        builder.report.truncated = True
    metrics = MetricReader(builder)
    rows = TextRows(path, builder)
    for position, line, last in rows:
        text = line.strip()
        if text.startswith("#"):
            if comment := _COMMENT.match(text):
                word, name, rest = comment.groups()
                if word == "TYPE":
                    metrics.types[name] = rest.strip()
                elif word == "UNIT":
                    metrics.units[name] = rest.strip()
            continue
        sample = parse_sample(text)
        if sample is None or (last and not rows.final_newline):
            builder.drop(position, Flag.ROW_CUT if last and not rows.final_newline else Flag.ROW_MALFORMED, line)
            continue
        name, labels, value, stamp = sample
        metrics.sample(name, labels, value, None if stamp is None else time_ns(stamp, exponent), line)
    return builder.finish(rows.raw)


def _time_exponent(path: Path, builder: LogBuilder) -> tuple[int, bool, bool]:
    """Return the unit of the time stamps as an exponent, whether this is OpenMetrics, and whether it has an end.

    The times of the two formats differ by a factor of 1000. OpenMetrics is recognised by ``# EOF``, ``# UNIT`` or fractions of a
    second. Without these, the size of the first time stamp decides.
    """
    is_open = ended = False
    first: str | None = None
    for line in TextFile(path):
        if line.startswith("#"):
            ended = ended or line.strip() == "# EOF"
            is_open = is_open or ended or line.startswith("# UNIT ")
        elif line.strip() and first is None:
            sample = parse_sample(line.strip())
            first = sample[3] if sample else None
            is_open = is_open or (first is not None and "." in first)
    if is_open or first is None:
        return (9 if is_open else 6), is_open, ended
    digits = first.lstrip("+-")
    if digits.isdigit() and int(digits) < _MILLISECONDS_FROM:
        builder.warn("time_stamp_unit_assumed", f"{first[:20]} taken as seconds, not milliseconds, since 1970")
        return 9, False, True
    return 6, False, True
