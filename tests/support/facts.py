"""The right values for the shared traces, parsed out of their FACTS.md."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field
from pathlib import Path

_SIDE = re.compile(r"(?:[AB] )?`(?P<path>[^`]+)`")
_CLASSES = re.compile(r"Module classes (?P<side>[AB]): (?P<list>.*)")
_CLASS = re.compile(r"(?P<name>[\w.]+) (?P<ms>[\d.]+)(?:, |$)")
_OP = re.compile(r"(?P<name>.+?) (?P<ms>[\d.]+) \(x(?P<count>\d+)\)(?:, |$)")
_DIFFERENCE = re.compile(r"- [+-][\d.]+ `(?P<name>[^`]+)` (?P<a>[\d.]+) x(?P<na>\d+) -> (?P<b>[\d.]+) x(?P<nb>\d+)")
# Names in the facts are cut at 48 characters.
NAME_CHARS = 48


@dataclass
class Facts:
    """What is known of one trace: numbers as printed (text keeps the digits), times in ms."""

    path: str
    values: dict[str, str]
    module_ms: dict[str, str] = field(default_factory=dict)
    op_ms: dict[str, tuple[str, int]] = field(default_factory=dict)


def parse(shared: Path) -> list[Facts]:
    """Return the facts of every trace of the two-sided and single tables, by the file's place below ``traces/``."""
    places = _places(shared)
    found: list[Facts] = []
    for section in re.split(r"^## ", (shared / "traces" / "FACTS.md").read_text(), flags=re.MULTILINE)[1:]:
        sides: dict[str, Facts] = {}
        header: list[str] = []
        for line in section.splitlines():
            if line.startswith("| side |"):
                header = [c.strip() for c in line.strip("| \n").split("|")]
            elif header and line.startswith(("| A `", "| B `")):
                cells = [c.strip() for c in line.strip("| \n").split("|")]
                side = _SIDE.match(cells[0])
                assert side is not None
                facts = Facts(places[side["path"]], dict(zip(header[1:], cells[1:], strict=True)))
                sides[cells[0][0]] = facts
                found.append(facts)
            elif classes := _CLASSES.match(line):
                for c in _CLASS.finditer(classes["list"]):
                    sides[classes["side"]].module_ms[c["name"]] = c["ms"]
            elif line.startswith("Ops: "):
                for op in _OP.finditer(line.removeprefix("Ops: ")):
                    sides["A"].op_ms[op["name"]] = (op["ms"], int(op["count"]))
            elif difference := _DIFFERENCE.match(line):
                sides["A"].op_ms[difference["name"]] = (difference["a"], int(difference["na"]))
                sides["B"].op_ms[difference["name"]] = (difference["b"], int(difference["nb"]))
    return found


def ranks(shared: Path) -> dict[int, dict[str, str]]:
    """Return the facts of the eight ranks of the DLRM job."""
    text = (shared / "traces" / "FACTS.md").read_text()
    section = text[text.index("## DLRM") :].split("\n## ")[0]
    lines = [[c.strip() for c in line.strip("| ").split("|")] for line in section.splitlines() if line.startswith("|")]
    return {int(cells[0]): dict(zip(lines[0][1:], cells[1:], strict=True)) for cells in lines[2:]}


def _places(shared: Path) -> dict[str, str]:
    """Map the end of an upstream path, as the facts give it, to the file."""
    with (shared / "traces" / "MANIFEST.csv").open() as stream:
        upstream = {row["path"]: row["file"] for row in csv.DictReader(stream)}

    class Places(dict[str, str]):
        def __missing__(self, end: str) -> str:
            matches = {file for path, file in upstream.items() if path.endswith("/" + end)}
            assert len(matches) == 1, f"{end}: {matches}"
            return matches.pop()

    return Places()
