"""Repeat operators of a program in place: names from a recording, windows from the collectors, energies from the analysis."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from magneton.analysis.energy.in_place import DeviceRepeat, RepeatedWindow, energies_of, time_of
from magneton.analysis.energy.regions import find_regions, times_for
from magneton.analysis.energy.repeat import RepeatEstimate
from magneton.analysis.energy.totals import AVERAGE, AVERAGE_WINDOW_S, COUNTER, INSTANT, PLAIN, PREFERENCE
from magneton.analysis.recording import Recording
from magneton.collectors.attach.order import Region, RegionRepeats, RepeatOrder, Window
from magneton.collectors.attach.repeat_launch import RepeatedRun, check_sensors, repeat_command
from magneton.collectors.copies import NotRepeatableError
from magneton.collectors.sensors.survey import survey
from magneton.flows.normalize import normalize
from magneton.schemas.errors import InputNotFoundError, InsufficientRepeatsError, MagnetonError, UsageError
from magneton.schemas.files import publish_file
from magneton.schemas.manifest import MANIFEST_NAME, encode_json
from magneton.schemas.parquet import read_table

__all__ = ["RepeatSettings", "repeat_program"]

# Long enough for a sensor of 20 updates a second to be seen; without any, times settle sooner.
_LEAST_WINDOW_S, _WINDOW_WITHOUT_SENSOR_S = 1.0, 0.5
_PERIODS_IN_WINDOW, _REACHES_IN_WINDOW = 20, 5
# Of a sensor that showed no change while it was watched.
_ASSUMED_PERIOD_S = 0.1
_WATCH_S = 1.0


@dataclass(frozen=True)
class RepeatSettings:
    """How operators are repeated.

    Attributes:
        times: r; None: from the recording's times and the sensor's update period, for each region.
        window_s: least length of a window, s; None: from the sensor.
        rounds: pairs of windows.
        copies: sets of arguments that take turns; None: so many that none is still in a cache.
        warmup_steps: steps before the first that is repeated.
        sensors: sensors to read; None: all there are.
        output_to_stderr: send what the command writes to stdout to stderr.
        report: told what is done.
    """

    times: int | None = None
    window_s: float | None = None
    rounds: int = 3
    copies: int | None = None
    warmup_steps: int = 2
    sensors: Sequence[str] | None = None
    output_to_stderr: bool = False
    report: Callable[[str], None] = lambda _: None


def repeat_program(
    run: Path,
    names: Sequence[str],
    command: Sequence[str],
    settings: RepeatSettings,
    *,
    out: Path | None = None,
    overwrite: bool = False,
) -> tuple[int, dict[str, Any] | None]:
    """Run a command once with regions of it repeated, and return what one of their calls takes.

    Args:
        run: recording that names the regions; one without tables is normalised on the way.
        names: operators or paths of modules.
        command: the program and its arguments, as the user typed them.
        settings: how.
        out: JSON file to write.
        overwrite: replace an earlier one.

    Returns:
        The command's exit code, and the document; NULL where the command failed before anything was repeated.

    Raises:
        UsageError: a name that the recording does not have, or settings that make no sense.
        MagnetonError: the recording cannot be read, the output is taken, or the command left nothing.
    """
    if not command:
        raise UsageError("there is no command to run", remedy="give one after --")
    check_sensors(settings.sensors)
    with (
        tempfile.TemporaryDirectory(prefix="magneton-") as scratch,
        publish_file(out, overwrite=overwrite) if out is not None else nullcontext() as target,
    ):
        regions = find_regions(_opened(run, Path(scratch) / "run"), names)
        period_s, reach_s = _sensor(settings)
        chosen = [times_for(region, period_s, reach_s) for region in regions]
        if settings.times is not None:
            chosen = [(settings.times, "given")] * len(regions)
        plan = RepeatOrder(
            [Region(r.name, r.module, times) for r, (times, _) in zip(regions, chosen, strict=True)],
            settings.window_s or _window_s(period_s, reach_s),
            settings.rounds,
            settings.copies,
        )
        for region in plan.regions:
            settings.report(f"{region.name}: r = {region.times}, {2 * plan.rounds} windows of {plan.window_s:g} s or more")
        done = repeat_command(
            command,
            plan,
            Path(scratch),
            warmup_steps=settings.warmup_steps,
            sensors=settings.sensors,
            output_to_stderr=settings.output_to_stderr,
        )
        if done.answer is None:
            # An earlier file stays as it was.
            raise _CommandFailedError(done.code) if target is not None else _CommandFailedError(done.code)
        document = _document(done, plan, [why for _, why in chosen])
        if target is not None:
            target.write_bytes(encode_json(document))
    return done.code, document
