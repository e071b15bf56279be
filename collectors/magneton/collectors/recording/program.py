"""Record a program that can be run again: captures of energy, profile and values of the same work on the same inputs."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from magneton.collectors.observed import Capture, Device
from magneton.collectors.recording import step_times
from magneton.collectors.recording.knobs import FILE, write_knobs
from magneton.collectors.recording.recorder import described_workload, no_operators
from magneton.collectors.recording.remarks import NO_SECOND, SCRUBBED
from magneton.collectors.recording.versions import versions
from magneton.collectors.recording.writer import CAPTURES, RecordingWriter, check_request, cpu
from magneton.collectors.sensors import anchors_now, sample
from magneton.collectors.torch.profile import TorchProfile, import_torch
from magneton.schemas.errors import UsageError
from magneton.schemas.kinds import CaptureKind, OwnFormat
from magneton.schemas.manifest import System, Workload

if TYPE_CHECKING:
    from magneton.collectors.torch.values_capture import ValuesCapture

DEFAULT_STEPS = 5
DEFAULT_WARMUP_STEPS = 2


class _Perturbed:
    """Stands for inputs that the recorder changes itself."""


PERTURBED = _Perturbed()


class ProgramRecorder:
    """Runs a program as often as the wanted captures need; see ``record``, which makes one.

    Attributes:
        inputs: arguments of the runs: the given ones, and those of the second input once it is drawn.
        seed: seed of the second input.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        captures: Sequence[str],
        *,
        label: str | None = None,
        system: str | None = None,
        workload: Workload | None = None,
        overwrite: bool = False,
        seed: int = 1,
        sensors: Sequence[str] | None = None,
        stacks: bool = True,
    ) -> None:
        check_request(captures, sensors)
        import_torch()
        self.path = Path(path)
        self.inputs: list[Any] = []
        self.seed = seed
        self._wanted = frozenset(captures)
        self._label = label or self.path.name
        self._system = system
        self._workload = described_workload(workload)
        if self._workload.steps is None:
            self._workload.steps = DEFAULT_STEPS
        if self._workload.warmup_steps is None:
            self._workload.warmup_steps = DEFAULT_WARMUP_STEPS
        self._overwrite = overwrite
        self._sensors, self._stacks = sensors, stacks
        self._captures: list[Capture] = []
        self._notes: list[str] = []
        self._found_sensors: list[dict[str, Any]] = []
        self._devices: list[Device] = []
        self._running: str | None = None
        self._rank = 0
        # Operators in the captures that hold some.
        self._operators: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._writer = RecordingWriter(self.path, label=self._label, overwrite=self._overwrite)
        return self

    def run(
        self,
        fn: Callable[..., Any],
        inputs: Sequence[Any] | Mapping[str, Any] = (),
        *,
        parameters: Iterable[Any] = (),
        second_inputs: Any = PERTURBED,
    ) -> Any:
        """Run the program and record it.

        ``fn(*inputs)`` (``fn(**inputs)`` for a mapping) is one step. It runs once for the values, once more on a second
        input, and ``warmup_steps + steps`` times for each of the other captures. Parameters, their gradients and the random
        generators are restored after the captures of values. Other state is not restored, so a step should not depend on how
        often it ran before.

        Args:
            fn: a module or a function.
            inputs: its arguments.
            parameters: tensors that count as parameters; those of modules that ``fn`` is or holds are found.
            second_inputs: arguments of the second input. By default the recorder perturbs ``inputs`` with ``seed``. None:
                there is no second input.

        Returns:
            What the last run on ``inputs`` returned.

        Raises:
            UsageError: it was called before.
            Exception: whatever the program raises; what was recorded until then is published, marked incomplete.
        """
        if self.inputs:
            raise UsageError(
                "run was called twice, and a recording holds one program", remedy="make one recording per program"
            )
        self.inputs.append(inputs)
        models = modules_in(fn)
        known = [*parameters, *(p for m in models for p in (*m.parameters(), *m.buffers()))]
        self._profile = TorchProfile(
            warmup_steps=self._workload.warmup_steps or 0, steps=self._workload.steps, stacks=self._stacks
        )
        self._rank = self._profile.rank()
        self._write_knobs(models)
        call = functools.partial(fn, **inputs) if isinstance(inputs, Mapping) else functools.partial(fn, *inputs)
        result = None
        if CaptureKind.VALUES in self._wanted:
            result = self._run_values(fn, inputs, known, second_inputs)
        if CaptureKind.ENERGY in self._wanted:
            result = self._run_energy(call)
        if CaptureKind.PROFILE in self._wanted:
            result = self._run_profile(call)
        self._running = None
        return result

    def _write_knobs(self, models: Sequence[Any]) -> None:
        """Write the settings, before anything is changed by measuring."""
        capture = next(
            name for name in (CaptureKind.VALUES, CaptureKind.PROFILE, CaptureKind.ENERGY) if name in self._wanted
        )
        keys = {"capture": capture, "rank": self._rank}
        if capture == CaptureKind.VALUES:
            keys["input_id"] = "0"
        write_knobs(self._directory(capture, "0") / FILE, models, keys)

    def _directory(self, capture: str, input_id: str | None = None) -> Path:
        directory = self._writer.raw_directory(capture, self._rank)
        if capture == CaptureKind.VALUES and input_id is not None:
            directory = directory / input_id
            directory.mkdir(exist_ok=True)
        return directory

    # -- values

    def _run_values(self, fn: Callable[..., Any], inputs: Any, known: Sequence[Any], second: Any) -> Any:
        from magneton.collectors.torch.perturb import perturbed
        from magneton.collectors.torch.values_capture import ProgramState, capture_call

        self._running = CaptureKind.VALUES
        before = ProgramState(known)
        first = capture_call(fn, inputs, known, "0", rank=self._rank)
        self._keep_values(first)
        if second is PERTURBED:
            second = perturbed(inputs, self.seed)
        if second is None:
            self._notes.append(NO_SECOND)
        else:
            self.inputs.append(second)
            before.restore()
            self._keep_values(capture_call(fn, second, known, "1", rank=self._rank))
        before.restore()
        return first.outputs

    def _keep_values(self, capture: ValuesCapture) -> None:
        from magneton.collectors.torch.values_tables import write_tables

        directory = self._directory(CaptureKind.VALUES, capture.input_id)
        write_tables(directory, capture.tables)
        known = self._operators.get(CaptureKind.VALUES, 0)
        self._operators[CaptureKind.VALUES] = known + capture.tables["ops"].num_rows
        self._notes += [note for note in capture.notes if note not in self._notes]
        self._captures.append(
            Capture(
                name=CaptureKind.VALUES,
                kind=CaptureKind.VALUES,
                rank=self._rank,
                input_id=capture.input_id,
                source_format=OwnFormat.VALUES,
                file=str(directory / "ops.parquet"),
                incomplete=capture.error is not None,
            )
        )
        if capture.error is not None:
            raise capture.error

    # -- energy

    def _run_energy(self, call: Callable[[], Any]) -> Any:
        """Run the bare program while sensors are read."""
        self._running = CaptureKind.ENERGY
        torch = import_torch()
        cuda = torch.cuda if torch.cuda.is_initialized() else None
        spans: list[tuple[int, int]] = []
        result = None
        for _ in range(self._workload.warmup_steps or 0):
            result = call()
        if cuda is not None:
            cuda.synchronize()
        anchors = anchors_now()
        sampler = sample(self._directory(CaptureKind.ENERGY), self._sensors, rank=self._rank)
        complete = False
        try:
            with sampler:
                for _ in range(self._workload.steps or 0):
                    begin = time.monotonic_ns()
                    result = call()
                    spans.append((begin, time.monotonic_ns()))
                if cuda is not None:
                    cuda.synchronize()
                    spans[-1] = (spans[-1][0], time.monotonic_ns())
            complete = True
        finally:
            keys = {"capture": CaptureKind.ENERGY, "rank": self._rank}
            times = self._directory(CaptureKind.ENERGY) / step_times.FILE
            step_times.write_steps(times, spans, keys)
            measured = sampler.captures()
            for capture in measured:
                capture.incomplete = capture.incomplete or not complete
            self._captures += measured or [
                Capture(
                    name=CaptureKind.ENERGY,
                    kind=CaptureKind.ENERGY,
                    rank=self._rank,
                    source_format=OwnFormat.STEPS,
                    file=str(times),
                    incomplete=not complete,
                    anchors=[*anchors, *anchors_now()],
                )
            ]
            self._found_sensors += sampler.result.sensors
            self._notes += sampler.result.notes
        return result

    # -- profile

    def _run_profile(self, call: Callable[[], Any]) -> Any:
        self._running = CaptureKind.PROFILE
        anchors = anchors_now()
        profile = self._profile
        complete, result = False, None
        profile.start()
        try:
            for _ in range((self._workload.warmup_steps or 0) + (self._workload.steps or 0)):
                result = call()
                profile.step()
            complete = True
        finally:
            profile.stop()
            file = profile.export(self._directory(CaptureKind.PROFILE))
            self._operators[CaptureKind.PROFILE] = profile.operators or 0
            self._captures.append(
                Capture(
                    name=CaptureKind.PROFILE,
                    kind=CaptureKind.PROFILE,
                    rank=self._rank,
                    source_format=profile.source_format,
                    file=str(file),
                    incomplete=not complete,
                    anchors=[*anchors, *anchors_now()],
                )
            )
            self._notes.append(SCRUBBED)
        return result

    # -- the end

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if not self._captures:
                if error is None:
                    raise UsageError("nothing was run", remedy="call run(fn, inputs) within the block")
                raise UsageError("the program ended before anything was recorded")
            if error is None and self._operators and not any(self._operators.values()):
                raise no_operators(*self._operators)
            self._publish(error)
        except BaseException as failure:
            self._writer.discard()
            if error is None:
                raise
            # The error of the program is more important to its author than this one.
            error.add_note(f"magneton: nothing was recorded: {failure}")

    def _publish(self, error: BaseException | None) -> None:
        if error is not None:
            during = f" during the {self._running} capture" if self._running else ""
            self._notes.append(f"Stopped by {type(error).__name__}{during}.")
        missing = [name for name in CAPTURES if name in self._wanted and name not in {c.kind for c in self._captures}]
        if missing:
            self._notes.append(f"Captures that were wanted and are missing: {', '.join(missing)}.")
        self._writer.publish(
            self._captures,
            system=System(name=self._system, versions=versions()),
            workload=self._workload,
            devices=[cpu(), *self._profile.devices()],
            notes=self._notes,
            sensors=self._found_sensors,
            incomplete=bool(missing) or (error is not None and self._running is not None),
        )


def modules_in(fn: Callable[..., Any]) -> list[Any]:
    """Return the modules that a function is, is bound to, or holds in its closure, defaults or partial arguments."""
    torch = import_torch()
    found: list[Any] = []
    queue: list[Any] = [fn]
    seen: set[int] = set()
    while queue:
        item = queue.pop(0)
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, torch.nn.Module):
            found.append(item)
        elif isinstance(item, functools.partial):
            queue += [item.func, *item.args, *item.keywords.values()]
        elif callable(item):
            queue.append(getattr(item, "__self__", None))
            queue.append(getattr(item, "__wrapped__", None))
            queue += getattr(item, "__defaults__", None) or ()
            for cell in getattr(item, "__closure__", None) or ():
                try:
                    queue.append(cell.cell_contents)
                except ValueError:  # a variable that is not assigned yet
                    continue
            code = getattr(item, "__code__", None)
            if code is not None:
                names = getattr(item, "__globals__", {})
                queue += [names[n] for n in code.co_names if isinstance(names.get(n), torch.nn.Module)]
    return found
