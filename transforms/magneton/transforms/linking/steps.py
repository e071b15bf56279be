"""Steps: which annotations mark an iteration, what their names say about the work, and which events lie in them.

Each system names its steps in its own way (a dialect). If a capture has marks of several dialects, only those of the first in this
list count, since all of them mark the same iterations:

* ``vllm``: ``execute_context_1(11)_generation_0(0)`` (requests and tokens of both phases, sometimes with a sum of squares
  behind an underscore), ``execute_8192_context_9(sq8155sk8430...)_generation_37(sq37sk34489...)`` (``sq`` are tokens), and
  ``execute_new_1_cached_0``. One with no request at all closes the run and is no step.
* ``sglang``: ``step[EXTEND bs=1 toks=16]``, ``step[DECODE bs=1]``; a decode step makes one token per request. With speculative
  decoding ``step[TARGET_VERIFY bs=4]`` is the decode step of 4 requests; how many tokens were accepted is not in the name. A
  ``DRAFT_EXTEND`` step serves the same requests, which are not counted twice.
* ``profiler``: ``ProfilerStep#12``.
* ``step_num``: annotations with a ``step_num`` argument, or of which the format says the number of the step.
* ``device_step``: the line ``Steps`` that XLA writes beside the streams of a device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from magneton.schemas.kinds import StepKind
from magneton.transforms.sources.rows import int64
from magneton.transforms.staging.stage import NONE, Stage
from magneton.transforms.staging.windows import FOREVER

_VLLM = re.compile(
    r"execute(?:_(?P<padded>\d+))?_context_(?P<cr>\d{1,18})\((?P<ct>[^()]*)\)_generation_(?P<gr>\d{1,18})\((?P<gt>[^()]*)\)"
)
_VLLM_TOKENS = re.compile(r"(?:sq)?(?P<tokens>\d{1,18})(?:sk|_|$)")
_VLLM_OLD = re.compile(r"execute_new_(?P<cr>\d{1,18})_cached_(?P<gr>\d{1,18})")
_SGLANG = re.compile(r"step\[(?P<mode>[A-Z_]+)(?P<fields>[^\]]*)\]")
_SGLANG_FIELD = re.compile(r"(?P<key>\w+)=(?P<value>\d{1,18})\b")
_PROFILER = re.compile(r"ProfilerStep#(?P<index>\d{1,18})")

DIALECTS = ("vllm", "sglang", "profiler", "step_num", "device_step")
DEVICE_STEPS = "Steps"
_DEVICE_SIDE = "gpu_user_annotation"

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Mark:
    """What the name of a step says."""

    kind: str
    dialect: str
    index: int | None = None
    phase: str | None = None
    context_requests: int | None = None
    context_tokens: int | None = None
    generation_requests: int | None = None
    generation_tokens: int | None = None


def parse(name: str, args: str | None = None) -> Mark | None:
    """Return what an annotation says of a step, or None if it marks none."""
    if found := _VLLM.fullmatch(name):
        tokens = [_VLLM_TOKENS.match(found[g]) for g in ("ct", "gt")]
        counts = [None if t is None else int(t["tokens"]) for t in tokens]
        return _serving("vllm", int(found["cr"]), counts[0], int(found["gr"]), counts[1])
    if found := _VLLM_OLD.fullmatch(name):
        return _serving("vllm", int(found["cr"]), None, int(found["gr"]), None)
    if found := _SGLANG.fullmatch(name):
        return _sglang(found["mode"], {f["key"]: int(f["value"]) for f in _SGLANG_FIELD.finditer(found["fields"])})
    if found := _PROFILER.match(name):
        return Mark(StepKind.PROFILER_STEP, "profiler", index=int(found["index"]))
    if args is not None and '"step_num"' in args:
        try:
            number = int64(msgspec.json.decode(args).get("step_num"))
        except (msgspec.DecodeError, AttributeError):
            return None
        return None if number is None else Mark(StepKind.PROFILER_STEP, "step_num", index=number)
    return None


def _serving(
    dialect: str, context: int | None, context_tokens: int | None, generation: int | None, generation_tokens: int | None
) -> Mark | None:
    if not context and not generation:
        return None
    phase = "mixed" if context and generation else "prefill" if context else "decode"
    return Mark(StepKind.SERVING_STEP, dialect, None, phase, context, context_tokens, generation, generation_tokens)


def _sglang(mode: str, fields: dict[str, int]) -> Mark | None:
    batch, tokens = fields.get("bs"), fields.get("toks")
    if mode == "DECODE":
        return _serving("sglang", 0, 0, batch, batch if tokens is None else tokens)
    if mode == "TARGET_VERIFY":
        return _serving("sglang", 0, 0, batch, None)
    if mode.startswith("DRAFT_EXTEND"):
        return Mark(StepKind.SERVING_STEP, "sglang", phase="decode")
    if mode in ("EXTEND", "SPLIT_PREFILL"):
        return _serving("sglang", batch, tokens, 0, 0)
    if mode == "IDLE" or not batch:
        return None
    return Mark(StepKind.SERVING_STEP, "sglang", phase="mixed" if mode == "MIXED" else None)


@dataclass(frozen=True)
class Step:
    """One step of a capture."""

    step_id: int
    name: str
    track: int
    ts_ns: int
    dur_ns: int
    mark: Mark


class Steps:
    """The steps of one capture, and which of them an instant falls into."""

    def __init__(self, stage: Stage, first_id: int) -> None:
        self._stage = stage
        self.steps = _find(stage, first_id)
        self._by_track = _spans((s.track, s) for s in self.steps)
        self._by_pid = _spans((self._pid(s.track), s) for s in self.steps)

    def lookup(self, track: NDArray[np.int32], ts: Ints) -> Ints:
        """Return the step of each event: on its own thread where that has steps, else on its process; ``NONE`` if none."""
        out = np.full(len(ts), NONE, np.int64)
        if not self.steps:
            return out
        for number in np.unique(track).tolist():
            spans = self._by_track.get(number) or self._by_pid.get(self._pid(number))
            if spans is not None:
                mine = track == number
                out[mine] = spans.lookup(ts[mine])
        return out

    def on_device(self, ts: Ints) -> Ints:
        """Return the step of activities that no launch places: where the steps are those of the device itself."""
        if not self.steps or self.steps[0].mark.dialect != "device_step":
            return np.full(len(ts), NONE, np.int64)
        return _Spans(self.steps).lookup(ts)

    def _pid(self, track: int) -> str | None:
        return self._stage.tracks.names[track][0]


class _Spans:
    def __init__(self, steps: list[Step]) -> None:
        steps = sorted(steps, key=lambda s: (s.ts_ns, s.step_id))
        self._start = np.array([s.ts_ns for s in steps], np.int64)
        self._end = np.array([FOREVER if s.dur_ns < 0 else s.ts_ns + s.dur_ns for s in steps], np.int64)
        self._ident = np.array([s.step_id for s in steps], np.int64)
        self._reach = np.maximum.accumulate(self._end)

    def lookup(self, ts: Ints) -> Ints:
        at = np.searchsorted(self._start, ts, "right") - 1
        while True:
            # An earlier, longer step may still be running when the latest one is over.
            back = (at >= 0) & (self._end[at] <= ts)
            if not back.any():
                break
            at = np.where(back, np.where(self._reach[at] > ts, at - 1, -1), at)
        return np.where(at >= 0, self._ident[at], NONE)


def _spans(steps: Iterable[tuple[int | str | None, Step]]) -> dict[int | str | None, _Spans]:
    grouped: dict[int | str | None, list[Step]] = {}
    for key, step in steps:
        grouped.setdefault(key, []).append(step)
    return {key: _Spans(members) for key, members in grouped.items()}


def _find(stage: Stage, first_id: int) -> list[Step]:
    stage.flush()
    pool = stage.pool
    slice_code = pool.codes.get("slice")
    marks: dict[tuple[int, int], Mark | None] = {}
    rows: list[tuple[Mark, int, int, int, int]] = []
    for batch in stage.batches("annotations"):
        columns = [batch[c].tolist() for c in ("name", "args", "kind", "category", "step", "track", "ts_ns", "dur_ns")]
        for name, args, kind, category, stated, track, ts, dur in zip(*columns, strict=True):
            if kind != slice_code or name < 0 or pool[category] == _DEVICE_SIDE:
                continue
            key = (name, args)
            if key not in marks:
                marks[key] = parse(pool[name] or "", pool[args])
            dialect = "device_step" if pool[category] == DEVICE_STEPS else "step_num"
            mark = marks[key] if stated == NONE else Mark(StepKind.PROFILER_STEP, dialect, index=stated)
            if mark is not None:
                rows.append((mark, name, track, ts, dur))
    found = {mark.dialect for mark, *_ in rows}
    best = next((d for d in DIALECTS if d in found), None)
    rows = [r for r in rows if r[0].dialect == best]
    if best == "device_step":
        rows = _of_all_devices(rows)
    rows.sort(key=lambda r: (r[3], -r[4], pool[r[1]] or "", tuple(t or "" for t in stage.tracks.names[r[2]])))
    return [
        Step(first_id + i, pool[name] or "", track, ts, dur, mark)
        for i, (mark, name, track, ts, dur) in enumerate(rows)
    ]


def _of_all_devices(rows: list[tuple[Mark, int, int, int, int]]) -> list[tuple[Mark, int, int, int, int]]:
    """Make one step of the steps that several devices have under one number: from its first start to its last end."""
    by_number: dict[int | None, list[tuple[Mark, int, int, int, int]]] = {}
    for row in sorted(rows, key=lambda r: r[3]):
        by_number.setdefault(row[0].index, []).append(row)
    out = []
    for members in by_number.values():
        mark, name, track, start, _ = members[0]
        out.append((mark, name, track, start, max(ts + max(dur, 0) for *_, ts, dur in members) - start))
    return out
