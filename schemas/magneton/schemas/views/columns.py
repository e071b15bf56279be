"""How a SQL view is described: its columns, like a table's, and the SELECT that makes it."""

from __future__ import annotations

from dataclasses import dataclass

from magneton.schemas.tables.columns import BOOL, INT, STRING, Column, Table

RUN_COLUMN = Column("run", STRING, "the recording: its label, made unique among those opened", required=True)
DIFF_COLUMN = Column("diff", STRING, "the diff: name of its directory, made unique among those opened", required=True)

KEYS = (
    RUN_COLUMN,
    Column("capture", STRING, "name of the capture"),
    Column("rank", INT, "rank of the process"),
)
SPAN = (
    Column("ts_ns", INT, "start, relative to `captures.base_unix_ns`", "ns"),
    Column("dur_ns", INT, "length; NULL when unknown", "ns"),
)
# What ``time_ns`` is, wherever it is: one name for the time of the work itself, on a device and on a CPU.
TIME_OF_WORK = "on a device: sum of durations of the kernels {}; on a CPU: `self_ns`"

# Parts of WITH clauses. The time of the operators called directly inside each operator:
INSIDE = """inside AS (
        SELECT run, parent_id, sum(dur_ns)::BIGINT AS dur_ns FROM ops WHERE parent_id IS NOT NULL GROUP BY ALL
    )"""
# The ranks that have work on a device. Elsewhere operators are the work:
WITH_DEVICE = """with_device AS (SELECT DISTINCT run, rank FROM kernels)"""


@dataclass(frozen=True)
class View:
    """A view: what it is and which columns it has (``table``), and the SELECT that makes it."""

    table: Table
    sql: str

    @property
    def name(self) -> str:
        """Name of the view."""
        return self.table.name


RUNS = Table(
    "runs",
    "One recording that was opened, from its manifest.",
    (
        RUN_COLUMN,
        Column("run_id", STRING, "identity of the run (`r` + 16 hex digits over its primary files)"),
        Column("label", STRING, "label as the manifest has it; need not be unique"),
        Column("directory", STRING, "where the recording lies, as given"),
        Column("system", STRING, "system that ran"),
        Column("model", STRING, "model that ran"),
        Column("batch", INT, "batch size, where somebody said"),
        Column("input_tokens", INT, "tokens put in, where somebody said", "tokens"),
        Column("output_tokens", INT, "tokens generated, where somebody said", "tokens"),
        Column("steps", INT, "steps recorded, where somebody said"),
        Column("created_unix_ns", INT, "when the manifest was written, Unix time", "ns"),
        Column("incomplete", BOOL, "an input was cut off, or ranks are missing: totals are lower bounds"),
    ),
)
