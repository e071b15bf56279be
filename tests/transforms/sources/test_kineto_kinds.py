"""Kinds of faults of events: numbers, bytes, values, phases, depth, ranks. Whatever they hold, the books balance."""

from __future__ import annotations

import decimal
import json
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.made_traces import KINDS, Event, document, kernel, op, run_of

from magneton.schemas.errors import (
    MagnetonError,
    RankError,
)

SMALL = document(
    [op("a", 1, 2), kernel("k1", 5, 1), op("b", 9, 1, args={"External id": 3}), kernel("k2", 12, 1)], rank=1
)


# --- numbers --------------------------------------------------------------------------------------------------------------


def exactly(text: str) -> int:
    return int((decimal.Decimal(text) * 1000).to_integral_value(decimal.ROUND_HALF_EVEN))


NUMBER = st.one_of(
    st.integers(0, 9 * 10**15).map(str),
    st.decimals(0, 9 * 10**15, places=3).map(str),
    st.decimals(0, 10**7, places=7).map(str),
    st.builds("{}.{:04d}5".format, st.integers(0, 10**15), st.integers(0, 9999)),
    st.builds("{}.{}e{}".format, st.integers(1, 9), st.integers(0, 10**12), st.integers(-3, 15)),
    st.builds("-{}.{:03d}".format, st.integers(0, 10**9), st.integers(0, 999)),
)


@given(texts=st.lists(st.tuples(NUMBER, st.booleans()), min_size=1, max_size=30))
@example(texts=[("1718000000123456.0005", False), ("0.0005", False), ("0.0015", True), ("1e-9", False)])
@example(texts=[("3458764513820540.928", False), ("3458764513820540.929", False), ("3458764513820540.929", True)])
@KINDS
def test_times_are_exact_to_half_even(texts: list[tuple[str, bool]]) -> None:
    written = [f'"{t}"' if quoted else t for t, quoted in texts]
    events = [
        f'{{"ph":"X","cat":"cpu_op","name":"n{i}","pid":1,"tid":1,"ts":{t},"dur":1}}' for i, t in enumerate(written)
    ]
    run = run_of(('{"traceEvents":[' + ",\n".join(events) + "]}").encode())
    ns = {f"n{i}": exactly(t) for i, (t, _) in enumerate(texts)}
    assert {o["name"]: o["ts_ns"] for o in run.rows("ops")} == {n: t for n, t in ns.items() if t <= 3 * 2**60}
    beyond = [q["reason"] for q in run.rows("quarantine")]
    assert beyond == ["ts_out_of_range"] * sum(t > 3 * 2**60 for t in ns.values())


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("1e400", "ts_out_of_range"),
        ("-1e30", "ts_out_of_range"),
        ("9223372036854776", "ts_out_of_range"),
        ("1e999999999", "ts_out_of_range"),
        ("false", "ts_not_numeric"),
        ("[1]", "ts_not_numeric"),
        ('{"a":1}', "ts_not_numeric"),
        ('"1 000"', "ts_not_numeric"),
        ('"\\u0661"', "ts_not_numeric"),
        ('"nan"', "ts_not_finite"),
        ("-Infinity", "ts_not_finite"),
        ("-nan(ind)", "ts_not_finite"),
        ("1.#QNAN", "ts_not_finite"),
        ("null", "ts_missing"),
    ],
)
def test_a_time_that_is_none_is_set_aside(written: str, reason: str) -> None:
    text = '{"traceEvents":[%s,{"ph":"X","cat":"kernel","name":"bad","pid":0,"tid":7,"ts":%s,"dur":1}]}'
    run = run_of((text % (json.dumps(kernel()), written)).encode())
    assert [q["reason"] for q in run.rows("quarantine")] == [reason]
    assert run.rows("quarantine")[0]["position"] == 1
    assert [k["name"] for k in run.rows("kernels")] == ["k"]


@pytest.mark.parametrize(
    ("dur", "expected"),
    [
        (None, None), ("", None), ("long", None), (True, None), ([], None), (-0.0, 0), ("1e1", 10_000), (0.0004, 0),
        (0.0005, 0), (0.0015, 2), (-0.001, "dur_negative"), ("-3", "dur_negative"), (-1e300, "dur_negative"),
        (1e300, "dur_implausible"), (604800000000.001, "dur_implausible"), (604800000000, 604800000000000),
    ],
)  # fmt: skip
def test_lengths(dur: Any, expected: Any) -> None:
    run = run_of(document([kernel("good"), kernel("odd", ts=5, dur=dur)]))
    if isinstance(expected, str):
        assert [q["reason"] for q in run.rows("quarantine")] == [expected]
    else:
        assert run.by_name("kernels")["odd"]["dur_ns"] == expected
        assert ("dur_missing" in run.warnings()) == (expected is None)


def test_the_limit_on_lengths_is_a_setting() -> None:
    run = run_of(document([kernel(dur=100)]), max_event_dur_ns=99_999)
    assert [q["reason"] for q in run.rows("quarantine")] == ["dur_implausible"]


@pytest.mark.parametrize("value", [2**64 - 1, 2**63, -(2**63) - 1, 10**40])
def test_ids_of_any_size_link_and_stay_apart(value: int) -> None:
    events = [
        op("mine", 0, 10),
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 1,
            "tid": 1,
            "ts": 1,
            "dur": 1,
            "args": {"correlation": value},
        },
        op("other", 20, 10),
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 1,
            "tid": 1,
            "ts": 21,
            "dur": 1,
            "args": {"correlation": value + 1},
        },
        kernel("one", 50, args={"correlation": value}),
        kernel("two", 60, args={"correlation": value + 1}),
        kernel("none", 70, args={"correlation": -1}),
    ]
    run = run_of(document(events))
    ops = {o["op_id"]: o["name"] for o in run.rows("ops")} | {None: None}
    if value > 0:
        assert {k["name"]: ops[k["op_id"]] for k in run.rows("kernels")} == {
            "one": "mine",
            "two": "other",
            "none": None,
        }
    assert all(k["correlation"] is None or -(2**63) <= k["correlation"] < 2**63 for k in run.rows("kernels"))


# --- bytes -------------------------------------------------------------------------------------------------------------------


@given(
    name=st.binary(max_size=12).filter(lambda b: b'"' not in b and b"\\" not in b),
    place=st.sampled_from(["name", "cat", "key", "value", "metadata"]),
)
@KINDS
def test_any_bytes_in_any_string(name: bytes, place: str) -> None:
    fields = dict.fromkeys(("name", "cat", "key", "value", "metadata"), b"x") | {place: name}
    text = (
        b'{"note":"%(metadata)b","traceEvents":[{"ph":"X","cat":"user_annotation","name":"%(name)b","pid":1,"tid":1,"ts":1,"dur":1},'
        b'{"ph":"i","cat":"%(cat)b","name":"i","pid":1,"tid":1,"ts":2,"args":{"%(key)b":"%(value)b"}}]}'
    ) % {k.encode(): v for k, v in fields.items()}
    run = run_of(text)
    by_kind = {a["kind"]: a for a in run.rows("annotations")}
    assert by_kind["slice"]["name"] == fields["name"].decode("utf-8", "replace")
    assert by_kind["instant"]["category"] == fields["cat"].decode("utf-8", "replace")
    for annotation in run.rows("annotations"):
        json.loads(annotation["args"] or "null")
    json.loads(run.rows("captures")[0]["metadata"])


@given(data=st.data())
@settings(parent=KINDS, max_examples=50)
def test_mutated_bytes_are_read_or_refused(data: st.DataObject) -> None:
    whole = bytearray(SMALL)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        what = data.draw(st.sampled_from(["flip", "drop", "insert"]))
        if what == "flip":
            whole[at] = data.draw(st.integers(0, 255))
        elif what == "drop":
            del whole[at]
        else:
            whole[at:at] = data.draw(
                st.sampled_from([b"{", b"}", b"[", b"]", b",", b'"', b"\\", b"NaN", b"null", b"-", b"\0"])
            )
    for allow in (False, True):
        try:
            run_of(bytes(whole), allow_truncated=allow)
        except MagnetonError as error:
            assert "\n" not in str(error)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "args")
ARGS = (
    "External id", "correlation", "stream", "device", "bytes", "grid", "Input Dims", "Sequence number", "Python id",
    "Python parent id", "kernel", "est. achieved occupancy %", "Collective name", "Comms Id", "Total Allocated",
)  # fmt: skip


@given(data=st.data())
@settings(parent=KINDS, max_examples=50)
def test_any_value_in_any_field(data: st.DataObject) -> None:
    """One good event among odd ones is always found, and every odd one is accounted for."""
    events: list[Any] = [kernel("good", ts=3, dur=4)]
    for _ in range(data.draw(st.integers(1, 6))):
        if data.draw(st.integers(0, 9)) == 0:
            events.append(data.draw(JSON))
            continue
        phase = data.draw(st.sampled_from([*"XXXXXMCistfBEbneNODP", "Z"]))
        category = data.draw(
            st.sampled_from(["cpu_op", "kernel", "cuda_runtime", "python_function", "user_annotation", "ac2g"])
        )
        event: Event = {"ph": phase, "cat": category, "name": "n", "pid": 1, "tid": 1, "ts": 2, "dur": 1, "id": 5}
        event["args"] = {a: data.draw(JSON) for a in data.draw(st.lists(st.sampled_from(ARGS), max_size=3))}
        event[data.draw(st.sampled_from(FIELDS))] = data.draw(JSON)
        events.append(event)
    run = run_of(json.dumps({"traceEvents": events}).encode())
    assert run.by_name("kernels")["good"]["dur_ns"] == 4000
    assert run.rows("captures")[0]["n_raw"] == len(events)


# --- phases --------------------------------------------------------------------------------------------------------------------


@st.composite
def nested(draw: st.DrawFn) -> list[Event]:
    """Properly nested slices with distinct instants on a few threads."""
    clock = iter(range(1, 10_000))
    out: list[Event] = []

    def fill(tid: int, depth: int) -> None:
        for _ in range(draw(st.integers(0, 3 if depth < 3 else 0))):
            event = op(f"s{len(out)}", next(clock), 0, tid=tid)
            out.append(event)
            fill(tid, depth + 1)
            event["dur"] = next(clock) - event["ts"]

    for tid in range(draw(st.integers(1, 3))):
        fill(tid, 0)
    return out


@given(events=nested(), order=st.randoms(use_true_random=False))
@KINDS
def test_begins_and_ends_are_slices(events: list[Event], order: Any) -> None:
    edges = []
    for e in events:
        begin = {k: v for k, v in e.items() if k != "dur"} | {"ph": "B", "args": {"External id": 7 + len(edges)}}
        edges += [begin, {"ph": "E", "pid": e["pid"], "tid": e["tid"], "ts": e["ts"] + e["dur"]}]
    order.shuffle(edges)
    whole, apart = run_of(document(events)), run_of(document(edges))
    keep = ("name", "ts_ns", "dur_ns", "tid", "parent_id", "depth")
    assert [[r[k] for k in keep] for r in whole.rows("ops")] == [[r[k] for k in keep] for r in apart.rows("ops")]
    assert all(r["external_id"] for r in apart.rows("ops"))
    capture = apart.rows("captures")[0]
    assert (capture["n_kept"], capture["n_merged"]) == (len(events), len(events))


@pytest.mark.parametrize("category", ["cpu_op", "python_function", "user_annotation"])
def test_what_never_ends_is_around_all_that_follows(category: str) -> None:
    events = [
        {"ph": "B", "cat": category, "name": "open", "pid": 1, "tid": 1, "ts": 1},
        {"ph": "X", "cat": category, "name": "inside", "pid": 1, "tid": 1, "ts": 5, "dur": 1000},
    ]
    run = run_of(document(events))
    table, ident = {
        "cpu_op": ("ops", "op_id"),
        "python_function": ("frames", "frame_id"),
        "user_annotation": ("annotations", "annotation_id"),
    }[category]
    found = run.by_name(table)
    assert found["open"]["dur_ns"] is None
    assert found["inside"]["parent_id"] == found["open"][ident]
    assert run.rows("captures")[0]["dur_ns"] == 1_004_000


def test_device_records_of_time_zero() -> None:
    near = run_of(document([kernel("first", ts=0, dur=5), op("a", 3, 1)]))
    assert near.by_name("kernels")["first"]["ts_ns"] == 0
    far = run_of(document([kernel("never filled", ts=0, dur=5), op("a", 10**12, 1), kernel("real", ts=10**12, dur=1)]))
    assert [q["reason"] for q in far.rows("quarantine")] == ["kernel_ts_zero"]
    assert far.rows("captures")[0]["ts_ns"] == 10**15


# --- depth -----------------------------------------------------------------------------------------------------------------------


def test_deep_and_toothed_stacks_take_seconds() -> None:
    deep = [
        {
            "ph": "X",
            "cat": "python_function",
            "name": f"f{i}",
            "pid": 1,
            "tid": 1,
            "ts": i,
            "dur": 200_000 - 2 * i,
            "args": {"Python id": i + 1, "Python parent id": i or None},
        }
        for i in range(50_000)
    ]
    teeth = [op(f"t{t}.{i}", 10**6 + 10_000 * t + i, 5_000 - 2 * i) for t in range(30) for i in range(1000)]
    start = time.monotonic()
    run = run_of(json.dumps({"traceEvents": [*deep, op("leaf", 60_000, 1), *teeth]}).encode())
    assert time.monotonic() - start < 20
    assert run.by_name("ops")["leaf"]["depth"] == 50_000
    assert run.by_name("ops")["t29.999"]["depth"] == 999


def test_arguments_nested_too_deep_are_set_aside() -> None:
    deep = "[" * 200_000 + "]" * 200_000
    text = '{"traceEvents":[%s,{"ph":"X","cat":"cpu_op","name":"n","pid":1,"tid":1,"ts":1,"dur":1,"args":{"Input Dims":%s}}]}'
    run = run_of((text % (json.dumps(kernel()), deep)).encode())
    assert [q["reason"] for q in run.rows("quarantine")] == ["event_too_large"]


# --- ranks -----------------------------------------------------------------------------------------------------------------------


def _rank(**info: Any) -> bytes:
    return document([kernel()], distributedInfo=info)


def test_ranks_contradict_or_fit() -> None:
    assert [c["rank"] for c in run_of(_rank(rank=1, world_size=2), _rank(rank=0, world_size=2)).rows("captures")] == [
        0,
        1,
    ]
    for files in (
        (_rank(rank=0, world_size=2), _rank(rank=1, world_size=4)),
        (_rank(rank=-1),),
        (_rank(rank=2, world_size=2),),
        (_rank(rank=0), document([kernel("other")])),
        (document([kernel("a")]), document([kernel("b")])),
    ):
        with pytest.raises(RankError):
            run_of(*files)


def test_the_same_files_in_any_order_are_the_same_run() -> None:
    a, b = _rank(rank=0, world_size=2), _rank(rank=1, world_size=2)
    one, two = run_of(a, b), run_of(b, a)
    assert one.manifest.run_id == two.manifest.run_id
    assert one.rows("kernels") == two.rows("kernels")
