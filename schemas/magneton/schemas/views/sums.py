"""Views of calls with the names around them, and of time by operator, kernel, module and runtime call."""

from __future__ import annotations

from magneton.schemas.columns import FLOAT, INT, STRING, Column, Table
from magneton.schemas.views.columns import KEYS, SPAN, View

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
    """
    WITH inside AS (
        SELECT run, parent_id, sum(dur_ns)::BIGINT AS dur_ns FROM ops WHERE parent_id IS NOT NULL GROUP BY ALL
    )
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
            Column("kernel_ns", INT, "sum of their durations", "ns"),
            Column("transfer_ns", INT, "sum of durations of the copies and memsets it launched itself", "ns"),
            Column("kernel_share", FLOAT, "part of all `kernel_ns` of the same capture and rank", "1"),
            Column("self_share", FLOAT, "part of all `self_ns` of the same capture and rank", "1"),
        ),
    ),
    """
    WITH inside AS (
        SELECT run, parent_id, sum(dur_ns)::BIGINT AS dur_ns FROM ops WHERE parent_id IS NOT NULL GROUP BY ALL
    ), host AS (
        SELECT o.run, o.capture, o.rank, o.name, count(*) AS calls, sum(o.dur_ns)::BIGINT AS host_ns,
               sum(greatest(o.dur_ns - coalesce(i.dur_ns, 0), 0))::BIGINT AS self_ns
        FROM ops o LEFT JOIN inside i ON i.run = o.run AND i.parent_id = o.op_id
        GROUP BY ALL
    ), device AS (
        SELECT k.run, k.capture, k.rank, o.name,
               count(*) FILTER (k.category = 'kernel') AS kernels,
               sum(k.dur_ns) FILTER (k.category = 'kernel')::BIGINT AS kernel_ns,
               sum(k.dur_ns) FILTER (k.category <> 'kernel')::BIGINT AS transfer_ns
        FROM kernels k LEFT JOIN ops o ON o.run = k.run AND o.op_id = k.op_id
        GROUP BY ALL
    )
    SELECT coalesce(h.run, d.run) AS run, coalesce(h.capture, d.capture) AS capture, coalesce(h.rank, d.rank) AS rank,
           coalesce(h.name, d.name) AS name, h.calls, h.host_ns, h.self_ns,
           coalesce(d.kernels, 0) AS kernels, d.kernel_ns, d.transfer_ns,
           d.kernel_ns::DOUBLE / nullif(sum(d.kernel_ns) OVER w, 0)::DOUBLE AS kernel_share,
           h.self_ns::DOUBLE / nullif(sum(h.self_ns) OVER w, 0)::DOUBLE AS self_share
    FROM host h
    FULL JOIN device d ON h.run = d.run AND h.capture IS NOT DISTINCT FROM d.capture
        AND h.rank IS NOT DISTINCT FROM d.rank AND h.name IS NOT DISTINCT FROM d.name
    WINDOW w AS (PARTITION BY coalesce(h.run, d.run), coalesce(h.capture, d.capture), coalesce(h.rank, d.rank))
    """,
)

OP_TOTAL_TIME = View(
    Table(
        "op_total_time",
        "Device time by operator name, with everything called inside: rows overlap and do not add up. A kernel counts once "
        "per name however deep the operator calls itself.",
        (
            *KEYS,
            Column("name", STRING, "operator"),
            Column("kernels", INT, "kernels launched by it or inside it"),
            Column("kernel_ns", INT, "sum of their durations", "ns"),
            Column("transfer_ns", INT, "sum of durations of copies and memsets launched by it or inside it", "ns"),
        ),
    ),
    """
    WITH RECURSIVE around AS (
        SELECT k.run, k.capture, k.rank, k.kernel_id, k.category, k.dur_ns, o.name, o.parent_id
        FROM kernels k JOIN ops o ON o.run = k.run AND o.op_id = k.op_id
        UNION ALL
        SELECT a.run, a.capture, a.rank, a.kernel_id, a.category, a.dur_ns, o.name, o.parent_id
        FROM around a JOIN ops o ON o.run = a.run AND o.op_id = a.parent_id
    ), once AS (
        SELECT DISTINCT run, capture, rank, kernel_id, category, dur_ns, name FROM around
    )
    SELECT run, capture, rank, name,
           count(*) FILTER (category = 'kernel') AS kernels,
           sum(dur_ns) FILTER (category = 'kernel')::BIGINT AS kernel_ns,
           sum(dur_ns) FILTER (category <> 'kernel')::BIGINT AS transfer_ns
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
            Column("total_ns", INT, "sum of its durations", "ns"),
            Column("mean_ns", FLOAT, "mean duration", "ns"),
            Column("min_ns", INT, "shortest", "ns"),
            Column("max_ns", INT, "longest", "ns"),
            Column("bytes", INT, "bytes moved in all", "bytes"),
            Column("share", FLOAT, "part of all durations of its category in the same capture and rank", "1"),
        ),
    ),
    """
    SELECT run, capture, rank, category, kernel_class, name, count(*) AS calls,
           sum(dur_ns)::BIGINT AS total_ns, avg(dur_ns) AS mean_ns, min(dur_ns) AS min_ns, max(dur_ns) AS max_ns,
           sum(bytes)::BIGINT AS bytes,
           sum(dur_ns)::DOUBLE / nullif(sum(sum(dur_ns)) OVER (PARTITION BY run, capture, rank, category), 0)::DOUBLE AS share
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
            Column("kernel_ns", INT, "sum of their durations", "ns"),
            Column("total_self_ns", INT, "host time of operators in it, modules inside included", "ns"),
            Column("total_kernels", INT, "kernels launched in it, modules inside included"),
            Column("total_kernel_ns", INT, "sum of their durations", "ns"),
            Column("total_kernel_share", FLOAT, "part of all kernel time of the same capture and rank", "1"),
        ),
    ),
    """
    WITH RECURSIVE device AS (
        SELECT run, module_id, count(*) AS kernels, sum(dur_ns)::BIGINT AS kernel_ns
        FROM kernels WHERE category = 'kernel' AND module_id IS NOT NULL GROUP BY ALL
    ), inside AS (
        SELECT run, parent_id, sum(dur_ns)::BIGINT AS dur_ns FROM ops WHERE parent_id IS NOT NULL GROUP BY ALL
    ), host AS (
        SELECT o.run, o.module_id, sum(greatest(o.dur_ns - coalesce(i.dur_ns, 0), 0))::BIGINT AS self_ns
        FROM ops o LEFT JOIN inside i ON i.run = o.run AND i.parent_id = o.op_id
        WHERE o.module_id IS NOT NULL GROUP BY ALL
    ), own AS (
        SELECT m.run, m.module_id, m.parent_id, h.self_ns, coalesce(d.kernels, 0) AS kernels, d.kernel_ns
        FROM modules m
        LEFT JOIN device d ON d.run = m.run AND d.module_id = m.module_id
        LEFT JOIN host h ON h.run = m.run AND h.module_id = m.module_id
    ), within AS (
        SELECT run, module_id AS root_id, module_id, self_ns, kernels, kernel_ns FROM own
        UNION ALL
        SELECT w.run, w.root_id, o.module_id, o.self_ns, o.kernels, o.kernel_ns
        FROM within w JOIN own o ON o.run = w.run AND o.parent_id = w.module_id
    ), total AS (
        SELECT run, root_id, sum(self_ns)::BIGINT AS self_ns, sum(kernels)::BIGINT AS kernels,
               sum(kernel_ns)::BIGINT AS kernel_ns
        FROM within GROUP BY ALL
    ), everything AS (
        SELECT run, capture, rank, sum(dur_ns) AS kernel_ns FROM kernels WHERE category = 'kernel' GROUP BY ALL
    )
    SELECT m.run, m.capture, m.rank, m.module_id, m.path, m.class_name, m.depth, m.n_calls AS calls,
           o.self_ns, o.kernels, o.kernel_ns,
           t.self_ns AS total_self_ns, t.kernels AS total_kernels, t.kernel_ns AS total_kernel_ns,
           t.kernel_ns::DOUBLE / nullif(e.kernel_ns, 0)::DOUBLE AS total_kernel_share
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
            Column("total_ns", INT, "sum of durations", "ns"),
            Column("bytes", INT, "bytes moved in all", "bytes"),
            Column(
                "bytes_per_second", FLOAT, "bytes over duration, of those where both are known and not 0", "bytes/s"
            ),
        ),
    ),
    """
    SELECT run, capture, rank, name, count(*) AS calls, sum(dur_ns)::BIGINT AS total_ns, sum(bytes)::BIGINT AS bytes,
           sum(bytes) FILTER (dur_ns > 0)::DOUBLE * 1e9
               / nullif(sum(dur_ns) FILTER (bytes IS NOT NULL), 0)::DOUBLE AS bytes_per_second
    FROM kernels WHERE category IN ('gpu_memcpy', 'gpu_memset')
    GROUP BY run, capture, rank, name
    """,
)
