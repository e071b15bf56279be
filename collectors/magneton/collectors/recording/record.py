"""``record``: the way into the recorders for a program of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, overload

from magneton.collectors.marks import step
from magneton.collectors.recording.recorder import Recorder
from magneton.collectors.torch.profile import TorchProfile
from magneton.schemas.errors import UsageError
from magneton.schemas.manifest import Workload

if TYPE_CHECKING:
    from magneton.collectors.recording.program import ProgramRecorder


@overload
def record(
    path: str | PathLike[str],
    *,
    captures: None = None,
    label: str | None = None,
    system: str | None = None,
    workload: Workload | None = None,
    overwrite: bool = False,
    stacks: bool = True,
) -> Recorder: ...


@overload
def record(
    path: str | PathLike[str],
    *,
    captures: Sequence[str],
    label: str | None = None,
    system: str | None = None,
    workload: Workload | None = None,
    overwrite: bool = False,
    stacks: bool = True,
    seed: int = 1,
    sensors: Sequence[str] | None = None,
) -> ProgramRecorder: ...


def record(
    path: str | PathLike[str],
    *,
    captures: Sequence[str] | None = None,
    label: str | None = None,
    system: str | None = None,
    workload: Workload | None = None,
    overwrite: bool = False,
    stacks: bool = True,
    seed: int = 1,
    sensors: Sequence[str] | None = None,
) -> Recorder | ProgramRecorder:
    """Record a PyTorch program: its profile, and, where it can be run again, its values and its energy.

    A program that can be run again is handed over, and runs as often as the captures need::

        with record("runs/mine", captures=("energy", "profile", "values"), workload=Workload(model="gpt2", batch=4)) as rec:
            rec.run(model, (ids,))

    A loop that cannot is profiled as it runs; say where each step ends::

        with record("runs/mine", workload=Workload(model="gpt2", batch=4, steps=5, warmup_steps=2)) as recorder:
            for batch in batches:
                model(batch)
                recorder.step()

    The first ``workload.warmup_steps`` steps run but are not in the trace; ``workload.steps`` are recorded. Without
    ``workload.steps`` everything in the block is recorded, with no step marks (with ``captures``: 5 steps after 2). A profile
    with stacks slows the host down (``python -m benchmarks.record_overhead`` measures it), so its times are for comparing shares, not for stating
    speed. When the block raises, what was recorded until then is published and marked incomplete. In a job of several ranks
    give each its own path.

    Args:
        path: directory of the recording, which must not exist unless ``overwrite`` is given.
        captures: some of ``energy``, ``profile`` and ``values``, for a program that is run with ``rec.run``. None: a
            profile of what runs in the block.
        label: free text naming it (default: the directory's name).
        system: name of what runs, e.g. ``transformers``.
        workload: model, batch, tokens, steps, warm-up.
        overwrite: replace an earlier recording at ``path``.
        stacks: Python stacks and module calls in the profile.
        seed: of the second input, which the recorder draws.
        sensors: sensors to read beside the energy capture (see ``magneton.collectors.sensors.sample``).

    Returns:
        The recorder, to be entered.

    Raises:
        MissingDependencyError: torch is not installed.
        UsageError: a number of steps below 1, or of warm-up steps below 0; a capture that does not exist.
    """
    steps = workload.steps if workload is not None else None
    warmup_steps = (workload.warmup_steps if workload is not None else None) or 0
    if (steps is not None and steps < 1) or warmup_steps < 0:
        raise UsageError(
            f"cannot record {steps} steps after {warmup_steps} of warm-up", remedy="record at least 1 step"
        )
    if captures is not None:
        # A profile alone waits for no pyarrow, which the other captures write tables with.
        from magneton.collectors.recording.program import ProgramRecorder

        return ProgramRecorder(
            path,
            captures,
            label=label,
            system=system,
            workload=workload,
            overwrite=overwrite,
            seed=seed,
            sensors=sensors,
            stacks=stacks,
        )
    profile = TorchProfile(warmup_steps=warmup_steps, steps=steps, stacks=stacks)
    return Recorder(path, profile, label=label, system=system, workload=workload, overwrite=overwrite, settings=True)


record.step = step  # type: ignore[attr-defined]
