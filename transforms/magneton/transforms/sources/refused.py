"""Files that people give for traces and that are none we read: what they are, and how to get one that is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from magneton.schemas.errors import InputFormatError

_POWER = "a power log goes beside a trace: `magneton normalize TRACE --power FILE`"
_NVIDIA_SMI = (
    "record power with `magneton sensors`, or with `nvidia-smi --query-gpu=timestamp,uuid,power.draw.instant "
    "--format=csv -lms 100`, and give it with --power"
)
_START = 4096

Matches = Callable[[bytes, str], bool]


@dataclass(frozen=True)
class Refusal:
    """One kind of file.

    Attributes:
        what: what the file is.
        remedy: what to do.
        matches: tells a file by its first bytes and its name.
    """

    what: str
    remedy: str
    matches: Matches


def _suffix(*suffixes: str) -> Matches:
    return lambda head, name: name.endswith(suffixes)


def _begins(*starts: bytes) -> Matches:
    return lambda head, name: head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(starts)


def _has(*patterns: bytes) -> Matches:
    """Match files whose beginning holds all patterns."""
    compiled = [re.compile(pattern, re.IGNORECASE) for pattern in patterns]
    return lambda head, name: all(pattern.search(head[:_START]) for pattern in compiled)


def _perfetto(head: bytes, name: str) -> bool:
    """Match a Perfetto trace by its name, unless it is JSON under such a name."""
    return name.endswith((".pftrace", ".perfetto-trace", ".perfetto")) and not head.lstrip().startswith((b"{", b"["))


_hatchet = _has(rb"^\s*\[", rb'"frame"\s*:\s*\{', rb'"(?:metrics|children)"\s*:')

KINDS: tuple[Refusal, ...] = (
    Refusal(
        "is a report of Nsight Systems",
        "export it first: `nsys export --type sqlite REPORT.nsys-rep`",
        _suffix(".nsys-rep", ".qdrep", ".qdstrm"),
    ),
    Refusal(
        "is a report of Nsight Compute: counters of single kernels, not a time line",
        "record with Nsight Systems or torch.profiler",
        _suffix(".ncu-rep", ".nsight-cuprof-report"),
    ),
    Refusal(
        "is a Perfetto trace in its binary form",
        "convert it with Perfetto's `traceconv json FILE trace.json`, or record with `rocprofv3 --output-format rocpd`",
        _perfetto,
    ),
    Refusal(
        "is CSV of rocprofv3, which does not say what launched what",
        "record with `rocprofv3 --output-format rocpd`",
        _has(rb'^\W*"?(?:Kind|Domain)"?,.*"?(?:Agent_Id|Function|Correlation_Id|Start_Timestamp)"?'),
    ),
    Refusal(
        "is a table of nsys stats: sums, not a time line",
        "export the report itself: `nsys export --type sqlite REPORT.nsys-rep`",
        _has(rb"^\W*\"?Time \(%\)\"?,.*Total Time"),
    ),
    Refusal(
        "is output of `nvidia-smi dmon`, a power log",
        _NVIDIA_SMI,
        _has(rb"^\s*#\s*(?:date\s+time\s+)?gpu\s+\w+", rb"#\s*(?:YYYY\S*\s+\S+\s+)?Idx"),
    ),
    Refusal("is XML of `nvidia-smi -q -x`, a power log", _NVIDIA_SMI, _has(rb"<nvidia_smi_log>")),
    Refusal("is CSV of nvidia-smi, a power log", _POWER, _has(rb"^\W*[^\n]*\bpower\.draw")),
    Refusal(
        "is a table of CodeCarbon: energy of a whole run, without a time line",
        "record power with `magneton sensors` beside a trace",
        _has(rb"^\W*timestamp,.*(?:emissions|energy_consumed)"),
    ),
    Refusal(
        "is a profile for speedscope: samples of stacks, without operators",
        "record with torch.profiler, or with the profiler of the framework",
        _has(rb"speedscope\.app/file-format-schema"),
    ),
    Refusal(
        "is a Proton profile in hatchet form: sums over all calls, without times",
        'record a time line with `proton.start(..., data="trace")`',
        lambda head, name: name.endswith(".hatchet") or _hatchet(head, name),
    ),
    Refusal(
        "is a memory snapshot or another pickle of torch, which runs code when it is opened",
        "record with torch.profiler and `export_chrome_trace`",
        _begins(b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"),
    ),
    Refusal("is a table in Parquet", "give the folder of the recording that it lies in", _begins(b"PAR1")),
    Refusal(
        "is a web page", "give the trace itself, not a report of it", _begins(b"<!DOCTYPE", b"<!doctype", b"<html")
    ),
    Refusal("is a profile of perf", "record with torch.profiler, nsys or rocprofv3", _begins(b"PERFILE2")),
    Refusal(
        "is an event file of TensorBoard, which holds scalars",
        "give its folder: profiles lie in plugins/profile",
        lambda head, name: "tfevents" in name,
    ),
)


def refuse(head: bytes, path: Path) -> None:
    """Refuse a file of a kind that is known not to be read.

    Raises:
        InputFormatError: it is one.
    """
    name = path.name.lower()
    for codec in (".gz", ".zst"):
        name = name.removesuffix(codec)
    for kind in KINDS:
        if kind.matches(head, name):
            raise InputFormatError(kind.what, path=path, remedy=kind.remedy)
