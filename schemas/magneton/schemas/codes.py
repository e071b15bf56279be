"""The stable codes: why an event was set aside, and what was noticed about a capture. Documented in docs/formats.md."""

from __future__ import annotations

QUARANTINE_REASONS: dict[str, str] = {
    "dur_implausible": "longer than the limit for one event (7 days unless set otherwise)",
    "dur_negative": "negative length",
    "end_without_begin": "an end (`ph: E`) with no open begin on its thread",
    "event_too_large": "larger than the limit for one event",
    "kernel_ts_zero": "a device record of time 0: the profiler never filled it",
    "not_an_object": "not a JSON object",
    "phase_missing": "no `ph`",
    "phase_unknown": "a `ph` that the trace format does not define",
    "ts_missing": "no time stamp, or null",
    "ts_not_finite": "time stamp NaN or infinite",
    "ts_not_numeric": "time stamp that is not a decimal number",
    "ts_out_of_range": "time stamp outside what 64 bits of nanoseconds hold",
}

WARNING_CODES: dict[str, str] = {
    "array_not_terminated": "the event array has no closing bracket; allowed, but a killed writer looks the same",
    "args_not_finite": "NaN or infinity among an event's arguments; stored as NULL",
    "correlation_as_external_id": "`External id` of device events only repeats the correlation and is not used to link",
    "dangling_flow": "flow arrows with a start or an end only",
    "device_order_assumed": "the order of devices was assumed, not read",
    "dur_missing": "events without a length",
    "end_name_mismatch": "an end names another slice than the one it closes",
    "end_without_begin": "ends with no open begin",
    "events_quarantined": "events were set aside; see the quarantine table",
    "gpu_records_missing": "launches whose device activity is not in the file",
    "graph_replay_no_op": "kernels of a graph replay that belong to no operator of this capture",
    "graph_replay_placed": "kernels of a graph replay were placed by a capture trace",
    "invalid_utf8": "names with bytes that are not UTF-8; replaced by U+FFFD",
    "kernel_before_launch": "device activities that start before their launch: clock skew",
    "kernel_ts_zero": "device records of time 0",
    "kernel_without_launch": "device activities whose launch is not in the file",
    "lone_surrogate": "names with lone UTF-16 surrogates; replaced by U+FFFD",
    "maybe_incomplete": "the input may have been cut off",
    "missing_ranks": "ranks of the job that were not given",
    "no_events": "the input holds no events",
    "overlapping_slices": "slices of one thread that overlap without nesting",
    "rank_unknown": "the input names no rank; 0 is used",
    "trailing_garbage": "bytes after the end of the compressed stream were left out",
    "truncated": "the input ends in the middle; read as far as it goes",
    "unterminated_async": "async spans without an end",
    "unterminated_slice": "begins without an end",
}
