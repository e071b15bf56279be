"""What every report of a diff says, as headings and rows of text: numbers with units, names as data."""

from __future__ import annotations

from magneton.analysis.report.blocks import Block, count, duration, energy, percent
from magneton.schemas.documents.diff import (
    Amount,
    DiffDocument,
    Group,
    LedgerDoc,
    Note,
    RollupRow,
    SideDoc,
    StepTimes,
    work_name,
)
from magneton.schemas.kinds import EnergyBasis, Flag, Reason, evidence_text

# Notes that come before all numbers: the sides may not be the same work at all.
_FIRST = frozenset({"different_rank_counts", "low_coverage", "same_content"})


def blocks(document: DiffDocument, top: int = 15, *, detailed: bool = False) -> list[Block]:
    """Return the tables of a report.

    Args:
        document: the diff.
        top: rows shown of each list, largest difference first; 0 for all.
        detailed: name kernels and shapes too, for a page that may be wide.
    """
    found = [_sides(document), _totals(document)]
    if document.a.energy or document.b.energy:
        found.append(_energy(document))
    if document.a.ledgers or document.b.ledgers:
        found.append(_ledgers(document))
    if document.a.served or document.b.served:
        found.append(_served(document))
    if document.comparison.conditions:
        found.append(_conditions(document))
    if document.a.host_time or document.b.host_time:
        found.append(_host(document))
    found.append(_groups(document, top, detailed))
    for name, title in (("module", "By module"), ("op", "By operator"), ("kernel_class", "By kernel class")):
        rows = [row for row in document.rollups[name] if row.name_a or row.name_b]
        if rows and (name != "kernel_class" or document.a.on_device):
            found.append(_rollup(document, title, rows, top))
    return found


def statements(document: DiffDocument) -> list[str]:
    """Return the sentences beside the tables: first what puts all numbers in doubt, then coverage, findings, notes."""
    coverage = document.coverage
    notes = document.comparison.notes
    sides = (("A", document.a), ("B", document.b))
    lines = [_note(note) for note in notes if note.code in _FIRST]
    lines += [text for letter, side in sides if (text := _left_out(letter, side)) and _much(side)]
    lines += [
        f"Aligned: {_share(coverage.a)} of A's {work_name(document.a.on_device)} and {_share(coverage.b)} of B's lie in regions that have a "
        f"counterpart ({coverage.n_paired} pairs; only in A {coverage.n_only_a}, only in B {coverage.n_only_b}). Pairs with several "
        f"operators on both sides count only up to {100 * coverage.max_share:.0f} % of a side"
        + (f"; {coverage.n_coarse} larger pair(s) do not count." if coverage.n_coarse else ".")
    ]
    gate = (
        f"{document.settings['threshold_percent']:g} % or more and by at least "
        f"{document.settings['min_share_percent']:g} % of the cheaper side's {work_name(document.a.on_device)}"
    )
    if document.findings:
        verdicts = sorted({(f.verdict, f.reason) for f in document.findings})
        lines.append(
            f"Findings: {len(document.findings)} group(s) differ by {gate}. "
            + " ".join(f"Verdict: {verdict} ({reason})." for verdict, reason in verdicts)
        )
    elif document.a.run_id == document.b.run_id or any(note.code == "same_content" for note in notes):
        lines.append("Findings: none; both sides are the same recording.")
    else:
        lines.append(f"Findings: none; no group differs by {gate}.")
    lines += [_note(note) for note in notes if note.code not in _FIRST]
    lines += [text for letter, side in sides if (text := _left_out(letter, side)) and not _much(side)]
    return lines


# A larger part of the device time that is left out is said before all else.
_MUCH_LEFT_OUT = 0.01
_REASONS = {
    Reason.NO_LAUNCH: "without a launch in the recording",
    Reason.OUTSIDE_STEPS: "outside all steps",
    Reason.OTHER_STEPS: "in steps that are not compared",
}


def _unplaced(side: SideDoc) -> float:
    """Return the device time that belongs to no step, ns."""
    found = side.device_time.left_out if side.device_time else []
    return sum(one.time_ns for one in found if one.reason != Reason.OTHER_STEPS)


def _much(side: SideDoc) -> bool:
    return side.device_time is not None and _unplaced(side) > _MUCH_LEFT_OUT * side.device_time.device_ns


def _left_out(letter: str, side: SideDoc) -> str | None:
    """Return what of a side is in no row, and why; None where nothing is."""
    found = side.device_time
    if found is None:
        text = f"{duration(side.outside_steps_ns)} of operator time outside all steps is left out"
        return f"Note (outside_steps): side {letter}: {text}." if side.outside_steps_ns else None
    if not found.left_out:
        return None
    parts = [
        f"{duration(one.time_ns)} {_REASONS[Reason(one.reason)]} ({one.n_activities} activities{f': {one.names}' if one.names else ''})"
        for one in found.left_out
    ]
    return f"Left out of side {letter}, whose device time is {duration(found.device_ns)} in all: {'; '.join(parts)}."


def _share(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.1f} %"


def _note(note: Note) -> str:
    return f"Note ({note.code}): {note.message}."


def _sides(document: DiffDocument) -> Block:
    rows = [_side("A", document.a), _side("B", document.b)]
    return Block(
        "Recordings", ["", "recording", "run", "system", "device", "steps used"], rows, wrap={"system", "device"}
    )


def _side(letter: str, side: SideDoc) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(side.versions.items())[:4])
    system = side.system or versions or "-"
    if side.system and versions:
        system = f"{side.system} ({versions})"
    device = ", ".join(side.devices) or ("-" if side.on_device else "cpu")
    steps = f"{len(side.steps_used)} of {side.n_steps_recorded}"
    return [letter, side.label, side.run_id, system, device, steps]


def _totals(document: DiffDocument) -> Block:
    unit = document.comparison.unit
    names = {
        "device_ns": "device time, all",
        "left_out_ns": "- left out",
        "median_ns": f"{work_name(document.a.on_device)}{_median_word(document)}",
        "share_ns": "device busy",
        "transfer_ns": "copies and memsets",
        "median_host_ns": f"host, per {unit}{_median_word(document)}",
        "kernels": "kernels" if document.a.on_device else "computing operators",
        "transfers": "transfers",
        "ops": "operator calls",
        "energy_j": f"energy of kernels and copies{_energy_label(document)}",
    }
    rows = []
    for key, name in names.items():
        value = document.totals.get(key, Amount(None, None))
        on_device_only = key in ("share_ns", "transfer_ns", "transfers", "ops")
        if (value.a is None and value.b is None) or (on_device_only and not document.a.on_device):
            continue
        show = duration if key.endswith("_ns") else energy if key.endswith("_j") else None
        a, b = (show(value.a), show(value.b)) if show else (count(value.a), count(value.b))
        delta = show(value.delta, signed=True) if show else count(value.delta)
        if key != "left_out_ns" or value.a or value.b:
            rows.append([name, a, b, delta, percent(value.delta_percent)])
    rows += _unmatched(document)
    return Block(f"Per {unit}", ["", "A", "B", "B - A", "B - A %"], rows, right={"A", "B", "B - A", "B - A %"})


def _host(document: DiffDocument) -> Block:
    """Return where the time of the host goes: means, because medians do not add up."""
    a, b = document.a.host_time, document.b.host_time
    names = {
        "operators_ns": "operators",
        "dispatch_ns": "dispatch",
        "python_ns": "Python and other host code",
        "waiting_ns": "waiting",
        "beside_ns": "- beside (other threads at the same time)",
        "wall_ns": "= wall time",
    }
    rows = []
    for key, name in names.items():
        left, right = (getattr(side, key) if side else None for side in (a, b))
        if key in ("operators_ns", "beside_ns") and not left and not right:
            continue
        delta = right - left if left is not None and right is not None else None
        change = 100.0 * delta / left if delta is not None and left else None
        rows.append([name, duration(left), duration(right), duration(delta, signed=True), percent(change)])
    several = any(len(side.host_steps) > 1 for side in (document.a, document.b))
    unit = document.comparison.unit
    return Block(
        f"Time of the host per {unit}{', mean' if several else ''}",
        ["", "A", "B", "B - A", "B - A %"],
        rows,
        right={"A", "B", "B - A", "B - A %"},
    )


def _unmatched(document: DiffDocument) -> list[list[str]]:
    """Return the row of what has no counterpart, where there is something."""
    a, b = document.coverage.unmatched_ns_a, document.coverage.unmatched_ns_b
    if not a and not b:
        return []
    delta = b - a if a is not None and b is not None else None
    change = 100.0 * delta / a if delta is not None and a else None
    name = f"{work_name(document.a.on_device)} without a counterpart"
    return [[name, duration(a), duration(b), duration(delta, signed=True), percent(change)]]


def _median_word(document: DiffDocument) -> str:
    """Return the word that says how one number was made of several steps."""
    several = any(stratum.n_steps_a > 1 or stratum.n_steps_b > 1 for stratum in document.comparison.strata)
    return ", median" if several else ""


def _energy_label(document: DiffDocument) -> str:
    """Return the provenance of the energies. It is always shown beside them."""
    found = [one.energy for one in (document.a, document.b) if one.energy]
    words = sorted({e.label for e in found} | {Flag.SIMULATED for e in found if e.simulated})
    words += sorted({e.basis for e in found} - {EnergyBasis.GROSS})
    return f" ({', '.join(words)})" if words else ""


def _energy(document: DiffDocument) -> Block:
    rows = []
    for letter, side in (("A", document.a), ("B", document.b)):
        found = side.energy
        if found is None:
            continue
        covered = "-" if found.covered_s is None else f"{found.covered_s:.4g} of {found.window_s:.4g} s"
        joules = [energy(v) for v in (found.total_j, found.attributed_j, found.idle_j, found.unattributed_j)]
        label = f"{found.basis}, {found.label}{', simulated' if found.simulated else ''}"
        rows.append([letter, *joules, covered, ", ".join(found.fields), label, " ".join(found.warnings)])
    return Block(
        "Energy of the devices, from the first step or device activity to the end of the last",
        [
            "",
            "total",
            "to kernels",
            "idle",
            "unattributed",
            "power known for",
            "sensor field",
            "provenance",
            "warnings",
        ],
        rows,
        right={"total", "to kernels", "idle", "unattributed", "power known for"},
        wrap={"warnings"},
    )


def _ledgers(document: DiffDocument) -> Block:
    rows = []
    for letter, side in (("A", document.a), ("B", document.b)):
        for one in side.ledgers:
            covered = "-" if one.covered_s is None else f"{one.covered_s:.4g} of {one.window_s:.4g} s"
            kind = _ledger_kind(one)
            label = f"gross, {one.label}{', simulated' if one.simulated else ''}"
            joules = [energy(one.per_step_j), energy(one.total_j)]
            rows.append(
                [letter, kind, *joules, str(one.n_steps), covered, ", ".join(one.fields), label, " ".join(one.warnings)]
            )
    return Block(
        "Energy by kind of device, from the first step compared to the last, time between them included (kinds do not add up)",
        ["", "kind", "per step", "total", "steps", "power known for", "sensor field", "provenance", "warnings"],
        rows,
        right={"per step", "total", "steps", "power known for"},
        wrap={"warnings"},
    )


def _served(document: DiffDocument) -> Block:
    rows = []
    for letter, side in (("A", document.a), ("B", document.b)):
        one = side.served
        if one is not None:
            joules = [one.j_per_output_token, one.j_per_request, one.prefill_j, one.decode_j, one.total_j]
            label = f"gross, {one.label}; {one.basis}"
            rows.append(
                [letter, *(energy(value) for value in joules), count(one.output_tokens), count(one.requests), label]
            )
    return Block(
        "Energy of the serving benchmark (GPUs used, over its whole window)",
        [
            "",
            "per output token",
            "per request",
            "prefill steps",
            "decode steps",
            "total",
            "output tokens",
            "requests",
            "provenance",
        ],
        rows,
        right={
            "per output token",
            "per request",
            "prefill steps",
            "decode steps",
            "total",
            "output tokens",
            "requests",
        },
    )


def _conditions(document: DiffDocument) -> Block:
    rows = [
        [one.name, one.a, one.b, one.unit, one.limit, "yes" if one.comparable else "no: not comparable"]
        for one in document.comparison.conditions
    ]
    return Block(
        "Conditions of the GPUs while the steps ran",
        ["", "A", "B", "unit", "limit", "comparable"],
        rows,
        right={"A", "B"},
    )


def _ledger_kind(one: LedgerDoc) -> str:
    """Return what a ledger is of. Example: ``cpu x1 of 2`` where one of two packages was not read, ``core, part of cpu``."""
    if one.unread and one.devices:
        text = (
            f"{one.device_kind} x{one.n_devices} of {one.n_devices + len(one.unread)} (without {', '.join(one.unread)})"
        )
    else:
        text = one.device_kind if one.n_devices == 1 else f"{one.device_kind} x{one.n_devices}"
    if one.part_of:
        text += f", part of {one.part_of[0]}"
    return text if one.used else f"{text}, not used by the program"


def _size(amount: Amount, other: Amount) -> float:
    return abs(amount.delta or 0.0) + abs(other.delta or 0.0)


def _groups(document: DiffDocument, top: int, detailed: bool) -> Block:
    differing = [g for g in document.groups if _size(g.median_ns, g.transfer_ns)]
    ranked = sorted(differing, key=lambda g: (-_size(g.median_ns, g.transfer_ns), g.group_id))
    shown = ranked[:top] if top else ranked
    joules = bool(document.a.energy or document.b.energy)
    rows = [
        [
            _where(group),
            group.ops_a or _nothing(group, "a"),
            group.ops_b or _nothing(group, "b"),
            str(group.n_regions),
            _steps_text(group.median_ns.a, group.transfer_ns.a, group.steps_a),
            _steps_text(group.median_ns.b, group.transfer_ns.b, group.steps_b),
            duration((group.median_ns.delta or 0.0) + (group.transfer_ns.delta or 0.0), signed=True),
            *_joules(group, joules),
            "; ".join(_remarks(group)) or "-",
            *(
                [_sides_text(group.shapes_a, group.shapes_b), _sides_text(group.kernels_a, group.kernels_b)]
                if detailed
                else []
            ),
        ]
        for group in shown
    ]
    remark = None if len(rows) == len(ranked) else f"{len(ranked) - len(rows)} more groups differ; see regions.parquet"
    return Block(
        "Where they differ, largest first",
        [
            "where",
            "A runs",
            "B runs",
            "times",
            "A",
            "B",
            "B - A",
            *(["energy A", "energy B"] if joules else []),
            "evidence",
            *(["shapes", "kernels"] if detailed else []),
        ],
        rows,
        right={"times", "A", "B", "B - A", "energy A", "energy B"},
        wrap={"where", "A runs", "B runs", "evidence"},
        remark=remark,
    )


def _sides_text(a: str | None, b: str | None) -> str:
    """Return what both sides have, once where it is the same."""
    return (a or "-") if a == b else f"A: {a or '-'}; B: {b or '-'}"


def _steps_text(median: float | None, transfer: float | None, steps: StepTimes | None) -> str:
    """Return the median time of a row, copies included, and the range over the steps where there are several: ``9.5 ms [9.1-9.9]``."""
    text = duration(_both(median, transfer))
    if steps is None or steps.n_steps < 2:
        return text
    unit = 1e6 if text.endswith("ms") else 1e3
    return f"{text} [{(steps.low_ns + (transfer or 0.0)) / unit:.4g}-{(steps.high_ns + (transfer or 0.0)) / unit:.4g}]"


def _joules(group: Group, wanted: bool) -> list[str]:
    """Return the energies of both sides with their bounds."""
    if not wanted:
        return []
    sides = ((group.energy_j.a, group.energy_bounds_j_a), (group.energy_j.b, group.energy_bounds_j_b))
    return [energy(v) if b is None else f"{energy(v)} ({energy(b[0])} to {energy(b[1])})" for v, b in sides]


def _remarks(group: Group) -> list[str]:
    missing = [f"records missing in {group.missing_records.upper()}"] if group.missing_records else []
    evidence = [evidence_text(group.evidence)] if group.evidence else []
    overlap = ["steps overlap"] if group.overlap and group.median_ns.delta and _several(group) else []
    return [*evidence, *overlap, *(["coarse: not counted as aligned"] if group.coarse else []), *missing]


def _several(group: Group) -> bool:
    return any(steps is not None and steps.n_steps > 1 for steps in (group.steps_a, group.steps_b))


def _nothing(group: Group, side: str) -> str:
    return "(no records)" if side in (group.missing_records or "").split() else "(nothing)"


def _both(kernel: float | None, transfer: float | None) -> float | None:
    return None if kernel is None and not transfer else (kernel or 0.0) + (transfer or 0.0)


def _where(group: Group) -> str:
    a, b = _tail(group.module_a), _tail(group.module_b)
    if a == b or not b:
        return a or "-"
    return b if not a else f"{a} | {b}"


def _tail(path: str | None, parts: int = 2) -> str | None:
    """Return the last parts of a module path, enough to recognise the place."""
    return None if path is None else "/".join(path.split("/")[-parts:])


def _rollup(document: DiffDocument, title: str, rows: list[RollupRow], top: int) -> Block:
    shown = rows[:top] if top else rows
    text = [
        [
            row.name_a or "-" if row.name_a == row.name_b or not row.name_b else f"{row.name_a or '-'} | {row.name_b}",
            duration(row.median_ns.a),
            duration(row.median_ns.b),
            duration(row.median_ns.delta, signed=True),
            percent(row.median_ns.delta_percent),
            duration(row.transfer_ns.a) if row.transfer_ns.a or row.transfer_ns.b else "",
            duration(row.transfer_ns.b) if row.transfer_ns.a or row.transfer_ns.b else "",
        ]
        for row in shown
    ]
    names = ["name", "A", "B", "B - A", "B - A %", "copies A", "copies B"]
    if not any(line[5] for line in text):
        names, text = names[:5], [line[:5] for line in text]
    remark = None if len(shown) == len(rows) else f"{len(rows) - len(shown)} more in diff.json"
    return Block(
        f"{title} ({work_name(document.a.on_device)}{_median_word(document)})",
        names,
        text,
        right=set(names[1:]),
        wrap={"name"},
        remark=remark,
    )
