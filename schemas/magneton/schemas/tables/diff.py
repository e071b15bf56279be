"""The tables of a diff: regions, which operators they consist of, and what was found."""

from __future__ import annotations

from magneton.schemas.tables.columns import BOOL, FLOAT, INT, STRING, Column, Table

_DIFF = Column(
    "diff_id", STRING, "identity of the diff (`d` + 16 hex digits over both runs and the settings)", required=True
)


def _both(name: str, kind: object, doc: str, unit: str | None = None) -> tuple[Column, Column]:
    """Return the same column for side A and side B."""
    return (
        Column(f"{name}_a", kind, f"{doc}, side A", unit),
        Column(f"{name}_b", kind, f"{doc}, side B", unit),
    )


REGIONS = Table(
    "regions",
    "A set of operator calls of A and a set of operator calls of B that do the same work; one of the two may be empty. "
    "Times are per unit of the comparison (step, sample or token). On a CPU, Python between operators and waiting are regions too "
    "(kernel classes `python` and `host_wait`); they are no operator time and count in no share.",
    (
        _DIFF,
        Column("region_id", INT, "identity within the diff, from 0, in order of execution", required=True),
        Column("kind", STRING, "`paired`, `only_a` or `only_b`", required=True),
        Column(
            "group_id", INT, "number of the group: the same operators in the same kind of module, e.g. in every layer"
        ),
        Column("stratum", STRING, "kind of step it belongs to, e.g. `decode (8 decoding)`"),
        Column("label", STRING, "name to show: module path and operators"),
        *_both("module", STRING, "module path with instance numbers"),
        *_both("ops", STRING, "operators with counts, most time first"),
        *_both("n_ops", FLOAT, "operator calls per unit that carry `time_ns` or `transfer_ns`"),
        *_both("n_kernels", FLOAT, "kernels per unit; on a CPU, calls of operators that compute"),
        *_both(
            "time_ns",
            FLOAT,
            "time of the work per unit: kernels on a device; on a CPU, exclusive time of operators",
            "ns",
        ),
        *_both(
            "share_ns",
            FLOAT,
            "time of the device per unit; each instant is divided equally among overlapping kernels",
            "ns",
        ),
        *_both("transfer_ns", FLOAT, "sum of copies and memsets per unit", "ns"),
        *_both("median_ns", FLOAT, "median over the steps of the time of the work per unit", "ns"),
        *_both("low_ns", FLOAT, "shortest of these times, a tenth of the steps left out", "ns"),
        *_both("high_ns", FLOAT, "longest of these times, a tenth of the steps left out", "ns"),
        *_both("bytes", FLOAT, "bytes copied or set per unit", "bytes"),
        *_both("launches", FLOAT, "device activities (kernels, copies, memsets) per unit"),
        *_both("energy_j", FLOAT, "energy per unit; NULL where no power was recorded", "J"),
        *_both("energy_low_j", FLOAT, "lower bound of the energy per unit", "J"),
        *_both("energy_high_j", FLOAT, "upper bound of the energy per unit", "J"),
        *_both("kernel_class", STRING, "kernel class with most time"),
        *_both("kernels", STRING, "kernels with counts, most time first, short names; NULL on a CPU"),
        *_both("shapes", STRING, "input shapes of the operators with most time; NULL where none were recorded"),
        Column("delta_ns", FLOAT, "`time_ns_b - time_ns_a`, a missing side counting as no work", "ns"),
        Column(
            "evidence", STRING, "what the match rests on, strongest first, space separated, e.g. `values second_input`"
        ),
        Column("score", FLOAT, "similarity of the two sides, 0 to 1; NULL when one-sided"),
        Column(
            "coarse",
            BOOL,
            "it holds more than 10 % of a side's `time_ns` and several operators on both sides, so it does not count as aligned",
        ),
        Column(
            "missing_records",
            STRING,
            "sides (`a`, `b`) that lack device records of work they launched here: their time is a lower bound",
        ),
    ),
)

MATCHES = Table(
    "matches",
    "One operator call that belongs to a region.",
    (
        _DIFF,
        Column("region_id", INT, "row of `regions`", required=True),
        Column("side", STRING, "`a` or `b`", required=True),
        Column("run_id", STRING, "run the operator belongs to"),
        Column("op_id", INT, "row of that run's `ops`; NULL for device work without an operator"),
        Column("launch_id", INT, "row of that run's `launches`, for device work without an operator"),
    ),
)

REGION_STEPS = Table(
    "region_steps",
    "Time of a region in one step of one side. In every step the regions of a stratum add up to the work of the step; on a CPU, with "
    "dispatch and without what ran beside it (`host_steps` of the document), to its wall time.",
    (
        _DIFF,
        Column("region_id", INT, "row of `regions`", required=True),
        Column("side", STRING, "`a` or `b`", required=True),
        Column("step_number", INT, "number of the step among those compared of its stratum, from 0", required=True),
        Column("step_id", INT, "row of that run's `steps`; NULL where the recording marks none"),
        Column("time_ns", FLOAT, "time of the work per unit", "ns"),
        Column("transfer_ns", FLOAT, "time of copies and memsets per unit", "ns"),
    ),
)

FINDINGS = Table(
    "findings",
    "A group of regions whose time differs, with what may be concluded from these recordings.",
    (
        _DIFF,
        Column("finding_id", INT, "identity within the diff, largest difference first", required=True),
        Column("group_id", INT, "group of regions it is about: `regions.group_id`"),
        Column("verdict", STRING, "`waste`, `trade-off`, `equal`, `inconclusive` or `not comparable`"),
        Column("costly_side", STRING, "`a` or `b`"),
        Column("delta_ns", FLOAT, "difference of `time_ns` of the group's regions per unit, B minus A", "ns"),
        Column("reason", STRING, "why this verdict and not a stronger one"),
    ),
)

DIFF_TABLES: dict[str, Table] = {t.name: t for t in (REGIONS, REGION_STEPS, MATCHES, FINDINGS)}
