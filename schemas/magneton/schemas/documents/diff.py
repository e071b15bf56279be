"""``diff.json``: everything about a diff. Reports are made from this document alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from magneton.schemas.errors import SchemaVersionError
from magneton.schemas.files.json import read_object
from magneton.schemas.versions.registry import DIFF_STEPS, SCHEMA_VERSION, upgrade_document

DIFF_NAME = "diff.json"


class Amount(msgspec.Struct):
    """A quantity on both sides per unit of the comparison; null where it is unknown. ``delta`` is B minus A."""

    a: float | None
    b: float | None
    delta: float | None = None
    delta_percent: float | None = None


class Spread(msgspec.Struct):
    """Mean, median and coefficient of variation over the steps used; null where there was one step."""

    n_steps: int
    mean_ns: float
    median_ns: float
    cv_percent: float | None = None


class StepTimes(msgspec.Struct):
    """Work time of a row in the single steps: median, and the range.

    The range leaves out a tenth of the steps at each end, of fewer than ten steps none.
    """

    n_steps: int
    median_ns: float
    low_ns: float
    high_ns: float


class EnergyDoc(msgspec.Struct):
    """Energy of the devices of one side, from its first step or device activity to the end of its last; null: unknown.

    ``attributed_j + idle_j + unattributed_j = total_j``. ``label`` is the weakest provenance of the numbers. ``covered_s`` is
    the time for which the power is known; of several devices, the shortest. ``basis`` is ``gross`` (all that the devices drew) or
    ``dynamic`` (above their power at rest) for all energies of the side.
    """

    label: str
    basis: str
    simulated: bool
    fields: list[str]
    window_s: float
    covered_s: float | None
    total_j: float | None
    attributed_j: float | None
    idle_j: float | None
    unattributed_j: float | None
    warnings: list[str]


class LedgerDoc(msgspec.Struct):
    """Energy of devices of one kind, from the first step to the end of the last; null: unknown.

    The time between steps is included. Kinds must not be added up, because some include others: ``part_of`` names the kinds
    of the same side that include this one. ``per_step_j`` is ``total_j`` over ``n_steps``. GPUs that the program did not use
    have a ledger of their own (``used`` is false). ``unread`` are devices of the kind that had no reading in that time: their
    energy is not in the total.
    """

    device_kind: str
    n_devices: int
    fields: list[str]
    n_steps: int
    window_s: float
    covered_s: float | None
    total_j: float | None
    per_step_j: float | None
    label: str
    simulated: bool
    warnings: list[str]
    devices: list[str] = []
    unread: list[str] = []
    part_of: list[str] = []
    used: bool = True


class ServedDoc(msgspec.Struct):
    """Energy of the GPUs that a program used over the window of a serving benchmark, with the totals of that window.

    ``prefill_j`` and ``decode_j`` are those of the steps of the trace that did only that; null where no step says so.
    """

    basis: str
    window_s: float
    covered_s: float | None
    total_j: float
    requests: int
    input_tokens: int | None
    output_tokens: int | None
    j_per_output_token: float | None
    j_per_request: float | None
    prefill_j: float | None
    decode_j: float | None
    label: str
    warnings: list[str]


class HostTimeDoc(msgspec.Struct):
    """Where the time of the host went in one step, ns per unit; ``step`` is null for the mean of the steps.

    ``operators_ns + dispatch_ns + python_ns + waiting_ns = wall_ns + beside_ns``. ``operators_ns`` is the own time of operators that compute
    (0 on a device, where kernels compute), ``dispatch_ns`` that of all others. In ``python_ns`` no operator ran. ``waiting_ns`` is the time
    of calls that wait: sleep, locks, synchronisation with a device. ``beside_ns`` is own time of operators that made the step no
    longer, because another thread worked at the same time, or because it lies after the step.
    """

    step: str | None
    wall_ns: float
    operators_ns: float
    dispatch_ns: float
    python_ns: float
    waiting_ns: float
    beside_ns: float


class LeftOutDoc(msgspec.Struct):
    """Device time of one side that is in no row, over the whole recording.

    ``reason`` is ``no_launch`` (the recording holds no launch of it, so that its operator and step are unknown: most often it
    was launched before the recording began), ``outside_steps``, or ``other_steps`` (steps that are not compared). ``kernel_ns`` is the part
    of ``time_ns`` that is no copy and no memset. ``names`` are those with most time.
    """

    reason: str
    n_activities: int
    time_ns: float
    kernel_ns: float
    names: str | None


class DeviceTimeDoc(msgspec.Struct):
    """What becomes of all device time of one side, over the whole recording, ns.

    ``kernels_ns + copies_ns + (time_ns of all that is left out) = device_ns``. The first two are in the steps that are compared.
    """

    device_ns: float
    kernels_ns: float
    copies_ns: float
    left_out: list[LeftOutDoc]


class SideDoc(msgspec.Struct):
    """One of the two recordings: its identity, the steps that were used, and the time that was not compared."""

    run_id: str
    label: str
    system: str | None
    versions: dict[str, str]
    devices: list[str]
    rank: int
    ranks: list[int]
    on_device: bool
    incomplete: bool
    n_steps_recorded: int
    steps_used: list[str]
    step_time: Spread
    inventory: dict[str, float]
    outside_steps_ns: float
    warnings: list[dict[str, Any]]
    energy: EnergyDoc | None = None
    ledgers: list[LedgerDoc] = []
    served: ServedDoc | None = None
    host_time: HostTimeDoc | None = None
    host_steps: list[HostTimeDoc] = []
    device_time: DeviceTimeDoc | None = None


class Note(msgspec.Struct):
    """Something that the reader must know before trusting a number: a stable code and one sentence."""

    code: str
    message: str


class StratumDoc(msgspec.Struct):
    """A kind of step that both sides ran, with the number of steps that were averaged."""

    name: str
    n_steps_a: int
    n_steps_b: int
    time_ns: Amount


class ConditionDoc(msgspec.Struct):
    """A condition that both sides read while they ran: mean power cap, clock or temperature of the GPUs used, throttle reasons, driver.

    ``comparable`` is false where the difference is past ``limit``. Throttle reasons are the bits that NVIDIA's driver gives.
    """

    name: str
    unit: str
    a: str
    b: str
    limit: str
    comparable: bool


class Comparison(msgspec.Struct):
    """What was compared: ``unit`` is ``step``, ``call``, ``capture``, ``repetition``, ``sample`` or ``token``."""

    unit: str
    units_a: float
    units_b: float
    strata: list[StratumDoc]
    same_devices: bool | None
    method: str
    notes: list[Note]
    conditions: list[ConditionDoc] = []


class Coverage(msgspec.Struct):
    """Share (0 to 1) of ``time_ns`` in regions that count as aligned, per side.

    A pair counts only if it holds at most ``max_share`` of a side's ``time_ns`` or is a single operator on one side. By value, up to
    eight operators on one side count too. ``same_a`` and ``same_b`` also count pairs by value that are coarse: their work is the same,
    but where in it the time goes is open. Kernels that belong to no step (``left_out``) count in the whole and not as aligned.
    ``unmatched_ns`` is what is not aligned, per unit.
    """

    a: float | None
    b: float | None
    max_share: float
    n_paired: int
    n_only_a: int
    n_only_b: int
    n_coarse: int
    same_a: float | None = None
    same_b: float | None = None
    unmatched_ns_a: float | None = None
    unmatched_ns_b: float | None = None


class Group(msgspec.Struct):
    """Regions that consist of the same operators in the same kind of module, summed (the layers of a model).

    ``missing_records`` are the sides (``a``, ``b``) that lack device records of work they launched here. The time of such a
    side is a lower bound. Energies have a lower and an upper bound. ``time_ns`` is the mean over the steps, ``median_ns`` the median
    of the group's time in the single steps. ``overlap`` says that the sides' ranges overlap, so that they cannot be told apart.
    ``kernels`` and ``shapes`` are the kernels and the input shapes of one of the regions.
    """

    group_id: int
    kind: str
    stratum: str
    module_a: str | None
    module_b: str | None
    ops_a: str | None
    ops_b: str | None
    n_regions: int
    time_ns: Amount
    transfer_ns: Amount
    launches: Amount
    kernel_class_a: str | None
    kernel_class_b: str | None
    evidence: list[str]
    score: float | None
    coarse: bool
    region_ids: list[int]
    missing_records: str | None = None
    median_ns: Amount = msgspec.field(default_factory=lambda: Amount(None, None))
    steps_a: StepTimes | None = None
    steps_b: StepTimes | None = None
    overlap: bool = False
    kernels_a: str | None = None
    kernels_b: str | None = None
    shapes_a: str | None = None
    shapes_b: str | None = None
    energy_j: Amount = msgspec.field(default_factory=lambda: Amount(None, None))
    energy_bounds_j_a: list[float] | None = None
    energy_bounds_j_b: list[float] | None = None


class RollupRow(msgspec.Struct):
    """Summed time of everything under one name. ``name_a`` and ``name_b`` differ where modules were matched by their work."""

    name_a: str | None
    name_b: str | None
    time_ns: Amount
    transfer_ns: Amount
    calls: Amount
    launches: Amount
    median_ns: Amount = msgspec.field(default_factory=lambda: Amount(None, None))
    energy_j: Amount = msgspec.field(default_factory=lambda: Amount(None, None))


class Region(msgspec.Struct):
    """A row of ``regions.parquet``."""

    region_id: int
    group_id: int
    kind: str
    stratum: str
    label: str
    module_a: str | None
    module_b: str | None
    ops_a: str | None
    ops_b: str | None
    n_ops_a: float | None
    n_ops_b: float | None
    n_kernels_a: float | None
    n_kernels_b: float | None
    time_ns_a: float | None
    time_ns_b: float | None
    share_ns_a: float | None
    share_ns_b: float | None
    transfer_ns_a: float | None
    transfer_ns_b: float | None
    bytes_a: float | None
    bytes_b: float | None
    launches_a: float | None
    launches_b: float | None
    kernel_class_a: str | None
    kernel_class_b: str | None
    delta_ns: float
    evidence: str | None
    score: float | None
    coarse: bool
    missing_records: str | None = None
    median_ns_a: float | None = None
    median_ns_b: float | None = None
    low_ns_a: float | None = None
    low_ns_b: float | None = None
    high_ns_a: float | None = None
    high_ns_b: float | None = None
    kernels_a: str | None = None
    kernels_b: str | None = None
    shapes_a: str | None = None
    shapes_b: str | None = None
    energy_j_a: float | None = None
    energy_j_b: float | None = None
    energy_low_j_a: float | None = None
    energy_low_j_b: float | None = None
    energy_high_j_a: float | None = None
    energy_high_j_b: float | None = None


class Finding(msgspec.Struct):
    """A group whose time differs, with the verdict that these recordings allow."""

    finding_id: int
    group_id: int
    verdict: str
    costly_side: str
    delta_ns: float
    delta_percent: float | None
    share_percent: float
    reason: str


def work_name(on_device: bool) -> str:
    """Return what ``time_ns`` is the time of, for people: ``kernel time``, or on a CPU ``operator time``."""
    return "kernel time" if on_device else "operator time"


class DiffDocument(msgspec.Struct):
    """The whole document. Times are in ns per unit of the comparison.

    ``time_ns`` is the time of the work itself everywhere: of kernels on a device; on a CPU, of operators without the operators
    inside them. It is the mean over the steps, so that rows add up. ``median_ns`` is the median over the steps, which one
    interrupted step does not change; findings rest on it. Copies and memsets are ``transfer_ns``.
    """

    diff_id: str
    tool: str
    settings: dict[str, Any]
    a: SideDoc
    b: SideDoc
    comparison: Comparison
    totals: dict[str, Amount]
    coverage: Coverage
    rollups: dict[str, list[RollupRow]]
    groups: list[Group]
    findings: list[Finding]
    regions: list[Region]
    schema_version: int = SCHEMA_VERSION


def read_diff(path: Path) -> DiffDocument:
    """Read ``diff.json`` (or the directory that holds it), of this schema version or an older one.

    Raises:
        InputNotFoundError: no such file.
        InputFormatError: not JSON.
        SchemaVersionError: no version, one this release does not read, or not a diff.
    """
    file = path / DIFF_NAME if path.is_dir() else path
    document = read_object(file)
    try:
        return msgspec.convert(upgrade_document(document, DIFF_STEPS, file), DiffDocument)
    except msgspec.ValidationError as error:
        raise SchemaVersionError(f"is not a diff: {error}", path=file) from error
