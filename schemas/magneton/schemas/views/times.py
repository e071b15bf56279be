"""Views along time: steps, devices and their gaps, all rows on one timeline, and what may limit trust in them."""

from __future__ import annotations

from magneton.schemas.tables.columns import FLOAT, INT, STRING, Column, Table
from magneton.schemas.views.columns import INSIDE, KEYS, SPAN, TIME_OF_WORK, WITH_DEVICE, View

# The time intervals cover: sorted by start, each adds what reaches beyond the furthest end before it.
STEP_TIME = View(
    Table(
        "step_time",
        "One row per step: how long it took and what the device did for it.",
        (
            *KEYS,
            Column("step_id", INT, "row of `steps`"),
            Column("kind", STRING, "`profiler_step`, `serving_step` or `capture`"),
            Column("index", INT, "number the system gave it"),
            Column("phase", STRING, "`prefill`, `decode`, `mixed` or NULL"),
            Column("tokens", INT, "tokens processed (prefill and decode), where the step says", "tokens"),
            *SPAN,
            Column("ops", INT, "operator calls"),
            Column("self_ns", INT, "host time in operators, each instant of a thread once", "ns"),
            Column("kernels", INT, "kernels"),
            Column("time_ns", INT, TIME_OF_WORK.format("of the step"), "ns"),
            Column("transfer_ns", INT, "sum of durations of copies and memsets", "ns"),
            Column("busy_ns", INT, "time a device did anything for it, each instant once, summed over devices", "ns"),
        ),
    ),
    f"""
    WITH {INSIDE}, {WITH_DEVICE}, spans AS (
        SELECT run, step_id, category, ts_ns, dur_ns,
               max(ts_ns + dur_ns) OVER (
                   PARTITION BY run, step_id, device ORDER BY ts_ns, kernel_id
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
               ) AS reached_ns
        FROM kernels WHERE step_id IS NOT NULL AND dur_ns IS NOT NULL
    ), device AS (
        SELECT run, step_id, count(*) FILTER (category = 'kernel') AS kernels,
               sum(dur_ns) FILTER (category = 'kernel')::BIGINT AS time_ns,
               sum(dur_ns) FILTER (category <> 'kernel')::BIGINT AS transfer_ns,
               sum(greatest(ts_ns + dur_ns - greatest(ts_ns, coalesce(reached_ns, ts_ns)), 0))::BIGINT AS busy_ns
        FROM spans GROUP BY ALL
    ), host AS (
        SELECT o.run, o.step_id, count(*) AS ops,
               sum(greatest(o.dur_ns - coalesce(i.dur_ns, 0), 0))::BIGINT AS self_ns
        FROM ops o LEFT JOIN inside i ON i.run = o.run AND i.parent_id = o.op_id
        WHERE o.step_id IS NOT NULL GROUP BY ALL
    )
    SELECT s.run, s.capture, s.rank, s.step_id, s.kind, s.index, s.phase,
           CASE WHEN s.context_tokens IS NULL AND s.generation_tokens IS NULL THEN NULL
                ELSE coalesce(s.context_tokens, 0) + coalesce(s.generation_tokens, 0) END AS tokens,
           s.ts_ns, s.dur_ns, coalesce(h.ops, 0) AS ops, h.self_ns,
           coalesce(d.kernels, 0) AS kernels,
           CASE WHEN w.run IS NULL THEN h.self_ns ELSE d.time_ns END AS time_ns, d.transfer_ns, d.busy_ns
    FROM steps s
    LEFT JOIN with_device w ON w.run = s.run AND w.rank IS NOT DISTINCT FROM s.rank
    LEFT JOIN host h ON h.run = s.run AND h.step_id = s.step_id
    LEFT JOIN device d ON d.run = s.run AND d.step_id = s.step_id
    """,
)

DEVICE_TIME = View(
    Table(
        "device_time",
        "One row per device of a capture and rank: how much of its time it was busy.",
        (
            *KEYS,
            Column("device", INT, "device number as the system saw it"),
            Column("ts_ns", INT, "start of its first activity", "ns"),
            Column("span_ns", INT, "from there to the end of its last", "ns"),
            Column("busy_ns", INT, "time it did anything, each instant once", "ns"),
            Column("idle_ns", INT, "the rest of the span", "ns"),
            Column("busy_share", FLOAT, "`busy_ns / span_ns`", "1"),
            Column("kernels", INT, "kernels"),
            Column("time_ns", INT, "sum of durations of the kernels", "ns"),
            Column("transfer_ns", INT, "sum of durations of copies and memsets", "ns"),
        ),
    ),
    """
    WITH spans AS (
        SELECT run, capture, rank, device, category, ts_ns, dur_ns,
               max(ts_ns + dur_ns) OVER (
                   PARTITION BY run, capture, rank, device ORDER BY ts_ns, kernel_id
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
               ) AS reached_ns
        FROM kernels WHERE dur_ns IS NOT NULL
    ), sums AS (
        SELECT run, capture, rank, device, min(ts_ns) AS ts_ns, max(ts_ns + dur_ns) - min(ts_ns) AS span_ns,
               sum(greatest(ts_ns + dur_ns - greatest(ts_ns, coalesce(reached_ns, ts_ns)), 0))::BIGINT AS busy_ns,
               count(*) FILTER (category = 'kernel') AS kernels,
               sum(dur_ns) FILTER (category = 'kernel')::BIGINT AS time_ns,
               sum(dur_ns) FILTER (category <> 'kernel')::BIGINT AS transfer_ns
        FROM spans GROUP BY ALL
    )
    SELECT run, capture, rank, device, ts_ns, span_ns, busy_ns, span_ns - busy_ns AS idle_ns,
           busy_ns::DOUBLE / nullif(span_ns, 0)::DOUBLE AS busy_share, kernels, time_ns, transfer_ns
    FROM sums
    """,
)

DEVICE_GAPS = View(
    Table(
        "device_gaps",
        "One stretch between two activities in which a device did nothing on any stream, and how late the next launch was.",
        (
            *KEYS,
            Column("device", INT, "device number as the system saw it"),
            Column("ts_ns", INT, "start of the gap", "ns"),
            Column("dur_ns", INT, "length of the gap", "ns"),
            Column("next_kernel_id", INT, "activity that ends it: row of `kernels`"),
            Column("next_name", STRING, "name of that activity"),
            Column("next_op_name", STRING, "operator it belongs to"),
            Column(
                "launch_late_ns",
                INT,
                "time from the start of the gap to the start of the next launch; 0 if the launch was queued before the gap",
                "ns",
            ),
        ),
    ),
    """
    WITH spans AS (
        SELECT run, capture, rank, device, kernel_id, name, ts_ns, op_id, launch_id,
               max(ts_ns + dur_ns) OVER (
                   PARTITION BY run, capture, rank, device ORDER BY ts_ns, kernel_id
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
               ) AS reached_ns
        FROM kernels WHERE dur_ns IS NOT NULL
    )
    SELECT g.run, g.capture, g.rank, g.device, g.reached_ns AS ts_ns, g.ts_ns - g.reached_ns AS dur_ns,
           g.kernel_id AS next_kernel_id, g.name AS next_name, o.name AS next_op_name,
           CASE WHEN l.ts_ns IS NULL THEN NULL
                ELSE least(greatest(l.ts_ns - g.reached_ns, 0), g.ts_ns - g.reached_ns) END AS launch_late_ns
    FROM spans g
    LEFT JOIN ops o ON o.run = g.run AND o.op_id = g.op_id
    LEFT JOIN launches l ON l.run = g.run AND l.launch_id = g.launch_id
    WHERE g.ts_ns > g.reached_ns
    """,
)

EVENTS = View(
    Table(
        "events",
        "Every timed row of the event tables on one timeline, to see what happened when.",
        (
            *KEYS,
            Column("kind", STRING, "table it comes from: `ops`, `launches`, `kernels`, `frames` or `annotations`"),
            Column("id", INT, "its id in that table"),
            Column("name", STRING, "name"),
            Column("pid", STRING, "process as the input names it"),
            Column("tid", STRING, "thread (or track) as the input names it"),
            *SPAN,
        ),
    ),
    """
    SELECT run, capture, rank, 'ops' AS kind, op_id AS id, name, pid, tid, ts_ns, dur_ns FROM ops
    UNION ALL SELECT run, capture, rank, 'launches', launch_id, name, pid, tid, ts_ns, dur_ns FROM launches
    UNION ALL SELECT run, capture, rank, 'kernels', kernel_id, name, pid, tid, ts_ns, dur_ns FROM kernels
    UNION ALL SELECT run, capture, rank, 'frames', frame_id, name, pid, tid, ts_ns, dur_ns FROM frames
    UNION ALL SELECT run, capture, rank, 'annotations', annotation_id, name, pid, tid, ts_ns, dur_ns FROM annotations
    """,
)

HEALTH = View(
    Table(
        "health",
        "What may limit the trust in the numbers of a capture: its warnings, and quarantined events by reason.",
        (
            *KEYS,
            Column("kind", STRING, "`warning` or `quarantine`"),
            Column("code", STRING, "stable code, see `docs/formats.md`"),
            Column("count", INT, "how often"),
            Column("message", STRING, "one sentence; NULL for quarantined events"),
        ),
    ),
    """
    SELECT run, capture, rank, 'warning' AS kind, code, count, message FROM warnings
    UNION ALL
    SELECT run, capture, rank, 'quarantine', reason, count(*), NULL FROM quarantine GROUP BY run, capture, rank, reason
    """,
)
