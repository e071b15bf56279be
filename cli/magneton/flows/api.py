"""The functions of the Python API. The command line calls the same ones, so both refuse the same things in the same words.

Settings are the fields of a class (``DiffSettings``, ``NormalizeOptions``, ``Launch``) and are given by name, an object of
that class, or both: ``diff(a, b, per="token")`` is ``diff(a, b, DiffSettings(per="token"))``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from magneton.analysis.diff.one_side import MeasureSettings
from magneton.analysis.diff.one_side import measure as measure_side
from magneton.analysis.diff.settings import DiffSettings
from magneton.analysis.query import Recordings
from magneton.analysis.recording import Recording, same_content
from magneton.collectors.attach.launch import Launch, record_command
from magneton.collectors.recording.writer import tool_name
from magneton.flows import pairs, traces
from magneton.flows.extras import ExtraFiles
from magneton.flows.prepared import Report, with_tables
from magneton.flows.results import Diff, Measurement, Run, Runs
from magneton.schemas.checks import PathText, path_of, paths_of
from magneton.schemas.documents.diff import DIFF_NAME
from magneton.schemas.errors import UsageError
from magneton.schemas.manifest import Workload
from magneton.transforms.job import NormalizeOptions

__all__ = ["diff", "measure", "normalize", "open_runs", "record"]

S = TypeVar("S", DiffSettings, NormalizeOptions, Launch, MeasureSettings)


def record(
    command: Sequence[str],
    out: PathText,
    launch: Launch | None = None,
    *,
    tokens: int | None = None,
    batch: int | None = None,
    **settings: Any,
) -> Run:
    """Run a PyTorch program as it is and record it: its energy, its profile, and the values that flow through it.

    Args:
        command: the program and its arguments, e.g. ``["python", "serve.py"]``.
        out: directory to write.
        launch: how to record.
        tokens: input tokens of one step, so that recordings can be compared per token.
        batch: samples of one step, so that recordings can be compared per sample.
        settings: fields of ``Launch`` by name, e.g. ``steps=10``.

    Returns:
        The recording, with the command's exit code. Where the command failed before anything was recorded, ``exists`` of it
        is false.

    Raises:
        UsageError: no command, or a setting that makes no sense.
        OutputExistsError: ``out`` is taken, and ``overwrite=True`` was not given.
        MagnetonError: the command cannot be started, or left nothing to record.
    """
    if isinstance(command, str):
        raise UsageError("the command is one text", remedy='give its words: ["python", "serve.py"]')
    chosen = _settings(Launch(), launch, settings)
    stated = {name: value for name, value in (("input_tokens", tokens), ("batch", batch)) if value is not None}
    if stated:
        known = chosen.workload or Workload()
        merged = Workload(**{f: getattr(known, f) for f in Workload.__struct_fields__} | stated)
        chosen = dataclasses.replace(chosen, workload=merged)
    place = path_of("out", out)
    return Run(place, record_command([str(word) for word in command], place, chosen))


def normalize(
    inputs: PathText | Sequence[PathText],
    out: PathText | None = None,
    options: NormalizeOptions | None = None,
    *,
    capture_traces: PathText | Sequence[PathText] = (),
    extras: ExtraFiles | None = None,
    **settings: Any,
) -> Run:
    """Turn traces of one job into a recording with tables; or make the tables of a recording anew.

    Args:
        inputs: a trace; several, one per rank; a folder of them; or one recording.
        out: directory to write. A recording needs none: it is normalised where it lies.
        options: how to normalise.
        capture_traces: traces taken while GPU graphs were captured, or a folder of them.
        extras: power logs and benchmark results that join the recording.
        settings: fields of ``NormalizeOptions`` by name, e.g. ``label="eager"``.

    Raises:
        UsageError: no input, no output, or a setting that makes no sense.
        OutputExistsError: ``out`` is taken, and ``overwrite=True`` was not given.
        MagnetonError: an input is refused.
    """
    chosen = _settings(NormalizeOptions(), options, settings)
    found = paths_of("inputs", inputs)
    place = None if out is None else path_of("out", out)
    traces.normalize(
        found, place, chosen, capture_traces=paths_of("capture_traces", capture_traces), extras=extras or ExtraFiles()
    )
    return Run(found[0] if place is None else place)


def diff(
    a: PathText,
    b: PathText,
    settings: DiffSettings | None = None,
    *,
    out: PathText | None = None,
    progress: Callable[[str], None] | None = None,
    report: Report | None = None,
    **changes: Any,
) -> Diff:
    """Compare two recordings or traces and publish the result.

    Args:
        a: recording or trace of side A. What has no tables gets them on the way.
        b: the same of side B.
        settings: what to compare and how.
        out: directory to write (default: ``out/<a>-vs-<b>``); an earlier diff there is replaced.
        progress: told what is going on.
        report: told in one sentence of each input that got tables on the way.
        changes: fields of ``DiffSettings`` by name, e.g. ``per="token"``.

    Raises:
        UsageError: a setting makes no sense.
        NotComparableError: the recordings did not do the same work.
        MagnetonError: an input cannot be read.
    """
    chosen = _settings(DiffSettings(), settings, changes)
    place = None if out is None else path_of("out", out)
    found = pairs.compare(path_of("a", a), path_of("b", b), place, chosen, progress=progress, report=report)
    return Diff(found.directory, found.document)


def open_runs(*paths: PathText, memory_limit: str | None = None, report: Report | None = None) -> Runs:
    """Open recordings, traces and diffs for questions in SQL.

    Args:
        paths: recordings, traces and diffs. What has no tables gets them on the way.
        memory_limit: memory to use before spilling to disk, e.g. ``2GB``.
        report: told in one sentence of each input that got tables on the way, and of content that is there twice.

    Raises:
        UsageError: no path.
        MagnetonError: an input cannot be read.
    """
    found = [path_of("a path", path) for path in paths]
    places = [path if (path / DIFF_NAME).is_file() else with_tables(path, report) for path in found]
    opened = Recordings(places, memory_limit=memory_limit)
    if report is not None:
        for first, again in same_content([one.recording for one in opened.runs]):
            report(
                f"{opened.runs[again].run} holds the same content as {opened.runs[first].run}: sums over both count it twice"
            )
    return Runs(opened)


def measure(run: PathText, *, report: Report | None = None, **settings: Any) -> Measurement:
    """Return what a step of a recording takes: time and, where power was recorded, energy.

    Steps, energies and their refusals are those of ``diff``: warm-up is left out, and a power log has to cover the work.

    Args:
        run: recording or trace. What has no tables gets them on the way.
        report: told in one sentence of an input that got tables on the way.
        settings: ``skip_steps``, ``all_steps``, ``rank``, ``min_power_coverage``, ``idle_power`` (W).

    Raises:
        UsageError: a setting makes no sense.
        InsufficientPowerDataError: power samples cover less of the kernels' time than they must.
        MagnetonError: the input cannot be read, or holds no work.
    """
    chosen = _settings(MeasureSettings(), None, settings)
    place = with_tables(path_of("run", run), report)
    return Measurement(measure_side(Recording.open(place), chosen, tool_name()))


def _settings(default: S, given: S | None, changes: dict[str, Any]) -> S:
    """Return settings with some of them changed.

    Raises:
        UsageError: there is no setting of that name, or its value makes no sense.
    """
    names = [f.name for f in dataclasses.fields(default)]
    unknown = next((name for name in changes if name not in names), None)
    if unknown is not None:
        raise UsageError(f"there is no setting {unknown[:60]!r}", remedy=f"there are {', '.join(names)}")
    return dataclasses.replace(default if given is None else given, **changes)
