"""Views of calls with the names around them, and of time by operator, kernel, module and runtime call."""

from __future__ import annotations

from magneton.schemas.tables.columns import FLOAT, INT, STRING, Column, Table
from magneton.schemas.views.columns import INSIDE, KEYS, SPAN, TIME_OF_WORK, WITH_DEVICE, View

OP_CALLS = View(
    Table(
        "op_calls",
        "One operator call with the names around it. Row of `ops` by `op_id`.",
        (
            *KEYS,
            Column("op_id", INT, "row of `ops`"),
            Column("name", STRING, "operator"),
            *SPAN,
            Column("self_ns", INT, "its length without the operators called inside it", "ns"),
            Column("depth", INT, "number of enclosing slices of the same thread"),
            Column("parent_name", STRING, "operator around it"),
            Column("module_id", INT, "row of `modules`"),
            Column("module_path", STRING, "innermost module around it"),
            Column("module_class", STRING, "class of that module"),
            Column("step_id", INT, "row of `steps`"),
            Column("step_index", INT, "number of that step"),
            Column("input_dims", STRING, "shapes of the inputs, JSON list"),
        ),
    ),
    f"""
    WITH {INSIDE}
    SELECT o.run, o.capture, o.rank, o.op_id, o.name, o.ts_ns, o.dur_ns,
           greatest(o.dur_ns - coalesce(i.dur_ns, 0), 0) AS self_ns,
           o.depth, p.name AS parent_name, o.module_id, m.path AS module_path, m.class_name AS module_class,
           o.step_id, s.index AS step_index, o.input_dims
    FROM ops o
    LEFT JOIN inside i ON i.run = o.run AND i.parent_id = o.op_id
    LEFT JOIN ops p ON p.run = o.run AND p.op_id = o.parent_id
    LEFT JOIN modules m ON m.run = o.run AND m.module_id = o.module_id
    LEFT JOIN steps s ON s.run = o.run AND s.step_id = o.step_id
    """,
)

KERNEL_CALLS = View(
    Table(
        "kernel_calls",
        "One device activity (kernel, copy or memset) with the names around it. Row of `kernels` by `kernel_id`.",
        (
            *KEYS,
            Column("kernel_id", INT, "row of `kernels`"),
            Column("name", STRING, "kernel, or kind of copy"),
            Column("category", STRING, "`kernel`, `gpu_memcpy` or `gpu_memset`"),
            Column("kernel_class", STRING, "what kind of work its name shows"),
            *SPAN,
            Column("device", INT, "device number as the system saw it"),
            Column("stream", INT, "stream or queue"),
            Column("bytes", INT, "bytes moved", "bytes"),
            Column("op_id", INT, "row of `ops`"),
            Column("op_name", STRING, "operator it belongs to; NULL when none is known"),
            Column("link", STRING, "how it was tied to that operator"),
            Column("module_id", INT, "row of `modules`"),
            Column("module_path", STRING, "innermost module around it"),
            Column("module_class", STRING, "class of that module"),
            Column("step_id", INT, "row of `steps`"),
            Column("step_index", INT, "number of that step"),
            Column("launch_name", STRING, "runtime call that launched it"),
            Column("launch_latency_ns", INT, "start minus start of its launch", "ns"),
        ),
    ),
    """
    SELECT k.run, k.capture, k.rank, k.kernel_id, k.name, k.category, k.kernel_class, k.ts_ns, k.dur_ns,
           k.device, k.stream, k.bytes, k.op_id, o.name AS op_name, k.link,
           k.module_id, m.path AS module_path, m.class_name AS module_class, k.step_id, s.index AS step_index,
           l.name AS launch_name, k.launch_latency_ns
    FROM kernels k
    LEFT JOIN ops o ON o.run = k.run AND o.op_id = k.op_id
    LEFT JOIN modules m ON m.run = k.run AND m.module_id = k.module_id
    LEFT JOIN steps s ON s.run = k.run AND s.step_id = k.step_id
    LEFT JOIN launches l ON l.run = k.run AND l.launch_id = k.launch_id
    """,
)

OP_TIME = View(
    Table(
        "op_time",
        "Host and device time by operator name. Device time belongs to the innermost operator around its launch; what is "
        "called inside an operator is not in its row (see `op_total_time`). Device work without an operator has the name NULL.",
        (
            *KEYS,
            Column("name", STRING, "operator; NULL for device work that belongs to none"),
            Column("calls", INT, "how often it was called"),
            Column("host_ns", INT, "sum of its lengths on the host, nested calls of the same name counted again", "ns"),
            Column("self_ns", INT, "the same without operators called inside it", "ns"),
            Column("kernels", INT, "kernels it launched itself"),
            Column("time_ns", INT, TIME_OF_WORK.format("it launched itself"), "ns"),
            Column("transfer_ns", INT, "sum of durations of the copies and memsets it launched itself", "ns"),
            Column("time_share", FLOAT, "part of all `time_ns` of the same capture and rank", "1"),
            Column("self_share", FLOAT, "part of all `self_ns` of the same capture and rank", "1"),
        ),
    ),
    f"""
    WITH {INSIDE}, {WITH_DEVICE}, host AS (
        SELECT o.run, o.capture, o.rank, o.name, count(*) AS calls, sum(o.dur_ns)::BIGINT AS host_ns,
               sum(greatest(o.dur_ns - coalesce(i.dur_ns, 0), 0))::BIGINT AS self_ns
        FROM ops o LEFT JOIN inside i ON i.run = o.run AND i.parent_id = o.op_id
        GROUP BY ALL
    ), device AS (
        SELECT k.run, k.capture, k.rank, o.name,
               count(*) FILTER (k.category = 'kernel') AS kernels,
               sum(k.dur_ns) FILTER (k.category = 'kernel')::BIGINT AS time_ns,
               sum(k.dur_ns) FILTER (k.category <> 'kernel')::BIGINT AS transfer_ns
        FROM kernels k LEFT JOIN ops o ON o.run = k.run AND o.op_id = k.op_id
        GROUP BY ALL
    ), both_sides AS (
        SELECT coalesce(h.run, d.run) AS run, coalesce(h.capture, d.capture) AS capture, coalesce(h.rank, d.rank) AS rank,
               coalesce(h.name, d.name) AS name, h.calls, h.host_ns, h.self_ns,
               coalesce(d.kernels, 0) AS kernels, d.time_ns, d.transfer_ns
        FROM host h
        FULL JOIN device d ON h.run = d.run AND h.capture IS NOT DISTINCT FROM d.capture
            AND h.rank IS NOT DISTINCT FROM d.rank AND h.name IS NOT DISTINCT FROM d.name
    ), times AS (
        SELECT b.* REPLACE (CASE WHEN w.run IS NULL THEN b.self_ns ELSE b.time_ns END AS time_ns)
        FROM both_sides b LEFT JOIN with_device w ON w.run = b.run AND w.rank IS NOT DISTINCT FROM b.rank
    )
    SELECT *, time_ns::DOUBLE / nullif(sum(time_ns) OVER w, 0)::DOUBLE AS time_share,
           self_ns::DOUBLE / nullif(sum(self_ns) OVER w, 0)::DOUBLE AS self_share
    FROM times
    WINDOW w AS (PARTITION BY run, capture, rank)
    """,
)

OP_TOTAL_TIME = View(
    Table(
        "op_total_time",
        "Time of the work by operator name, with everything called inside (`total_`): rows overlap and do not add up. A kernel "
        "counts once per name however deep the operator calls itself.",
        (
            *KEYS,
            Column("name", STRING, "operator"),
            Column("total_kernels", INT, "kernels launched by it or inside it"),
            Column(
                "total_time_ns",
                INT,
                "on a device: sum of durations of the kernels launched by it or inside it; on a CPU: `self_ns` of it and of all "
                "operators inside it",
                "ns",
            ),
            Column(
                "total_transfer_ns", INT, "sum of durations of copies and memsets launched by it or inside it", "ns"
            ),
        ),
    ),
    f"""
    WITH RECURSIVE {INSIDE}, {WITH_DEVICE}, work AS (
        SELECT run, capture, rank, kernel_id AS id, op_id, category, dur_ns FROM kernels WHERE op_id IS NOT NULL
        UNION ALL
        SELECT o.run, o.capture, o.rank, o.op_id, o.op_id, 'operator', greatest(o.dur_ns - coalesce(i.dur_ns, 0), 0)
        FROM ops o
        LEFT JOIN inside i ON i.run = o.run AND i.parent_id = o.op_id
        LEFT JOIN with_device w ON w.run = o.run AND w.rank IS NOT DISTINCT FROM o.rank
        WHERE w.run IS NULL
    ), around AS (
        SELECT k.run, k.capture, k.rank, k.id, k.category, k.dur_ns, o.name, o.parent_id
        FROM work k JOIN ops o ON o.run = k.run AND o.op_id = k.op_id
        UNION ALL
        SELECT a.run, a.capture, a.rank, a.id, a.category, a.dur_ns, o.name, o.parent_id
        FROM around a JOIN ops o ON o.run = a.run AND o.op_id = a.parent_id
    ), once AS (
        SELECT DISTINCT run, capture, rank, id, category, dur_ns, name FROM around
    )
    SELECT run, capture, rank, name,
           count(*) FILTER (category = 'kernel') AS total_kernels,
           sum(dur_ns) FILTER (category IN ('kernel', 'operator'))::BIGINT AS total_time_ns,
           sum(dur_ns) FILTER (category NOT IN ('kernel', 'operator'))::BIGINT AS total_transfer_ns
    FROM once GROUP BY ALL
    """,
)

KERNEL_TIME = View(
    Table(
        "kernel_time",
        "Device time by kernel name.",
        (
            *KEYS,
            Column("category", STRING, "`kernel`, `gpu_memcpy` or `gpu_memset`"),
            Column("kernel_class", STRING, "what kind of work its name shows"),
            Column("name", STRING, "kernel, or kind of copy"),
            Column("calls", INT, "how often it ran"),
            Column("time_ns", INT, "sum of its durations", "ns"),
            Column("mean_ns", FLOAT, "mean duration", "ns"),
            Column("min_ns", INT, "shortest", "ns"),
            Column("max_ns", INT, "longest", "ns"),
            Column("bytes", INT, "bytes moved in all", "bytes"),
            Column("time_share", FLOAT, "part of all `time_ns` of its category in the same capture and rank", "1"),
        ),
    ),
    """
    SELECT run, capture, rank, category, kernel_class, name, count(*) AS calls,
           sum(dur_ns)::BIGINT AS time_ns, avg(dur_ns) AS mean_ns, min(dur_ns) AS min_ns, max(dur_ns) AS max_ns,
           sum(bytes)::BIGINT AS bytes,
           sum(dur_ns)::DOUBLE / nullif(sum(sum(dur_ns)) OVER (PARTITION BY run, capture, rank, category), 0)::DOUBLE AS time_share
    FROM kernels
    GROUP BY run, capture, rank, category, kernel_class, name
    """,
)

MODULE_TIME = View(
    Table(
        "module_time",
        "Host and device time by `nn.Module` instance: its own, and with the modules inside it (`total_`).",
        (
            *KEYS,
            Column("module_id", INT, "row of `modules`"),
            Column("path", STRING, "names from the root, joined by `/`"),
            Column("class_name", STRING, "class, e.g. `Linear`"),
            Column("depth", INT, "number of enclosing modules"),
            Column("calls", INT, "how often it was called"),
            Column("self_ns", INT, "host time of operators in it and in no module inside it", "ns"),
            Column("kernels", INT, "kernels launched in it and in no module inside it"),
            Column("time_ns", INT, TIME_OF_WORK.format("launched in it and in no module inside it"), "ns"),
            Column("total_self_ns", INT, "host time of operators in it, modules inside included", "ns"),
            Column("total_kernels", INT, "kernels launched in it, modules inside included"),
            Column("total_time_ns", INT, "the same as `time_ns`, modules inside included", "ns"),
            Column("total_time_share", FLOAT, "part of all `time_ns` of the same capture and rank", "1"),
        ),
    ),
    f"""
    WITH RECURSIVE {INSIDE}, {WITH_DEVICE}, device AS (
        SELECT run, module_id, count(*) AS kernels, sum(dur_ns)::BIGINT AS time_ns
        FROM kernels WHERE category = 'kernel' AND module_id IS NOT NULL GROUP BY ALL
    ), calls AS (
        SELECT o.run, o.capture, o.rank, o.module_id, greatest(o.dur_ns - coalesce(i.dur_ns, 0), 0) AS self_ns
        FROM ops o LEFT JOIN inside i ON i.run = o.run AND i.parent_id = o.op_id
    ), host AS (
        SELECT run, module_id, sum(self_ns)::BIGINT AS self_ns FROM calls WHERE module_id IS NOT NULL GROUP BY ALL
    ), own AS (
        SELECT m.run, m.module_id, m.parent_id, h.self_ns, coalesce(d.kernels, 0) AS kernels,
               CASE WHEN w.run IS NULL THEN h.self_ns ELSE d.time_ns END AS time_ns
        FROM modules m
        LEFT JOIN device d ON d.run = m.run AND d.module_id = m.module_id
        LEFT JOIN host h ON h.run = m.run AND h.module_id = m.module_id
        LEFT JOIN with_device w ON w.run = m.run AND w.rank IS NOT DISTINCT FROM m.rank
    ), within AS (
        SELECT run, module_id AS root_id, module_id, self_ns, kernels, time_ns FROM own
        UNION ALL
        SELECT w.run, w.root_id, o.module_id, o.self_ns, o.kernels, o.time_ns
        FROM within w JOIN own o ON o.run = w.run AND o.parent_id = w.module_id
    ), total AS (
        SELECT run, root_id, sum(self_ns)::BIGINT AS self_ns, sum(kernels)::BIGINT AS kernels,
               sum(time_ns)::BIGINT AS time_ns
        FROM within GROUP BY ALL
    ), everything AS (
        SELECT run, capture, rank, sum(dur_ns) AS time_ns FROM kernels WHERE category = 'kernel' GROUP BY ALL
        UNION ALL
        SELECT c.run, c.capture, c.rank, sum(c.self_ns)
        FROM calls c LEFT JOIN with_device w ON w.run = c.run AND w.rank IS NOT DISTINCT FROM c.rank
        WHERE w.run IS NULL GROUP BY ALL
    )
    SELECT m.run, m.capture, m.rank, m.module_id, m.path, m.class_name, m.depth, m.n_calls AS calls,
           o.self_ns, o.kernels, o.time_ns,
           t.self_ns AS total_self_ns, t.kernels AS total_kernels, t.time_ns AS total_time_ns,
           t.time_ns::DOUBLE / nullif(e.time_ns, 0)::DOUBLE AS total_time_share
    FROM modules m
    JOIN own o ON o.run = m.run AND o.module_id = m.module_id
    JOIN total t ON t.run = m.run AND t.root_id = m.module_id
    LEFT JOIN everything e ON e.run = m.run AND e.capture IS NOT DISTINCT FROM m.capture
        AND e.rank IS NOT DISTINCT FROM m.rank
    """,
)

LAUNCH_TIME = View(
    Table(
        "launch_time",
        "Host time in runtime and driver calls by name: launches, synchronisations, allocations.",
        (
            *KEYS,
            Column("name", STRING, "runtime or driver call"),
            Column("calls", INT, "how often it was called"),
            Column("host_ns", INT, "sum of its lengths on the host", "ns"),
            Column("mean_ns", FLOAT, "mean length", "ns"),
            Column("device_activities", INT, "kernels, copies and memsets it launched"),
            Column("mean_latency_ns", FLOAT, "mean time from the call's start to the start of what it launched", "ns"),
        ),
    ),
    """
    WITH started AS (
        SELECT run, launch_id, count(*) AS activities, sum(launch_latency_ns) AS latency_ns,
               count(launch_latency_ns) AS known
        FROM kernels WHERE launch_id IS NOT NULL GROUP BY ALL
    )
    SELECT l.run, l.capture, l.rank, l.name, count(*) AS calls, sum(l.dur_ns)::BIGINT AS host_ns,
           avg(l.dur_ns) AS mean_ns, coalesce(sum(s.activities), 0)::BIGINT AS device_activities,
           sum(s.latency_ns)::DOUBLE / nullif(sum(s.known), 0)::DOUBLE AS mean_latency_ns
    FROM launches l LEFT JOIN started s ON s.run = l.run AND s.launch_id = l.launch_id
    GROUP BY l.run, l.capture, l.rank, l.name
    """,
)

TRANSFER_TIME = View(
    Table(
        "transfer_time",
        "Copies and memsets by kind, with their rate.",
        (
            *KEYS,
            Column("name", STRING, "kind, e.g. `Memcpy HtoD (Pageable -> Device)`"),
            Column("calls", INT, "how often"),
            Column("transfer_ns", INT, "sum of durations", "ns"),
            Column("bytes", INT, "bytes moved in all", "bytes"),
            Column(
                "bytes_per_second", FLOAT, "bytes over duration, of those where both are known and not 0", "bytes/s"
            ),
        ),
    ),
    """
    SELECT run, capture, rank, name, count(*) AS calls, sum(dur_ns)::BIGINT AS transfer_ns, sum(bytes)::BIGINT AS bytes,
           sum(bytes) FILTER (dur_ns > 0)::DOUBLE * 1e9
               / nullif(sum(dur_ns) FILTER (bytes IS NOT NULL), 0)::DOUBLE AS bytes_per_second
    FROM kernels WHERE category IN ('gpu_memcpy', 'gpu_memset')
    GROUP BY run, capture, rank, name
    """,
)
