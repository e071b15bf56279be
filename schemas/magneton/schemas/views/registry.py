"""The SQL views every query may use beside the tables: the sums a performance engineer asks for first.

Each view is a SELECT over the tables of ``run_tables`` as ``magneton sql`` presents them: with a first column ``run``
that names the recording. Ids are unique within a recording, so joins go over ``run`` and the id. No view adds across captures
or ranks. So the kernels of a capture of kind ``graph_capture`` are not added to those of a profile.

``time_ns`` is the time of the work itself: of kernels where a rank has a device, of operators without the operators inside them
(``self_ns``) where it has none. Copies and memsets are ``transfer_ns``. A name that begins with ``total_`` includes what lies
inside. Sums of durations count overlapping work twice; ``busy_ns`` counts each instant once.
"""

from __future__ import annotations

from magneton.schemas.views import sums as sum_views
from magneton.schemas.views import times as time_views
from magneton.schemas.views.columns import RUNS, View

# In an order in which each view only uses tables and views before it.
VIEWS: dict[str, View] = {
    v.name: v
    for v in (
        sum_views.OP_CALLS,
        sum_views.KERNEL_CALLS,
        sum_views.OP_TIME,
        sum_views.OP_TOTAL_TIME,
        sum_views.KERNEL_TIME,
        sum_views.MODULE_TIME,
        time_views.STEP_TIME,
        time_views.DEVICE_TIME,
        time_views.DEVICE_GAPS,
        sum_views.LAUNCH_TIME,
        sum_views.TRANSFER_TIME,
        time_views.EVENTS,
        time_views.HEALTH,
    )
}

__all__ = ["RUNS", "VIEWS", "View"]
