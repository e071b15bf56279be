"""The kinds of faults, with inputs of our own: whatever the bytes, a file is read with its books balanced or refused."""

from __future__ import annotations

import bz2
import decimal
import gzip
import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.normalized import Run

from magneton.schemas.errors import (
    InputFormatError,
    LimitExceededError,
    MagnetonError,
    RankError,
    TruncatedInputError,
    UnsupportedCompressionError,
)
from magneton.schemas.run_tables import RUN_TABLES
from magneton.transforms.normalize import NormalizeOptions, normalize

KINDS = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
Event = dict[str, Any]


def run_of(*files: bytes, name: str = "trace.json", **options: Any) -> Run:
    """Normalise files with these contents and read all tables into memory."""
    with tempfile.TemporaryDirectory() as directory:
        paths = []
        for number, content in enumerate(files):
            path = Path(directory) / str(number) / name
            path.parent.mkdir()
            path.write_bytes(content)
            paths.append(path)
        out = Path(directory) / "run"
        run = Run(out, normalize(paths, out, NormalizeOptions(keep_raw=False, **options)))
        for table in RUN_TABLES:
            run.rows(table)
        (capture, *_) = run.rows("captures")
        assert capture["n_raw"] == sum(capture[f"n_{c}"] for c in ("kept", "merged", "ignored", "quarantined"))
    return run


def kernel(name: str = "k", ts: Any = 1, dur: Any = 2, **more: Any) -> Event:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": ts,
        "dur": dur,
        "args": {"device": 0, "stream": 7},
    } | more


def op(name: str, ts: Any, dur: Any, **more: Any) -> Event:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur} | more


def document(events: list[Any], **top: Any) -> bytes:
    return json.dumps({"schemaVersion": 1, **top, "traceEvents": events}, indent=1).encode()


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
@KINDS
def test_times_are_exact_to_half_even(texts: list[tuple[str, bool]]) -> None:
    written = [f'"{t}"' if quoted else t for t, quoted in texts]
    events = [
        f'{{"ph":"X","cat":"cpu_op","name":"n{i}","pid":1,"tid":1,"ts":{t},"dur":1}}' for i, t in enumerate(written)
    ]
    run = run_of(('{"traceEvents":[' + ",\n".join(events) + "]}").encode())
    assert {o["name"]: o["ts_ns"] for o in run.rows("ops")} == {f"n{i}": exactly(t) for i, (t, _) in enumerate(texts)}


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


# --- the document ----------------------------------------------------------------------------------------------------------

TRAPS = [
    op("a", 1, 2, args={"note": 'say "},{" or ]}', "list": [{"x": 1}, {"y": [{}]}]}),
    kernel("k},{", 2, 3),
    op("b", 3, 1),
]


@pytest.mark.parametrize("indent", [None, 0, 2])
@pytest.mark.parametrize("space", ["", "\r\n\t  "])
def test_metadata_and_layout_do_not_matter(indent: int | None, space: str) -> None:
    metadata = {
        "nested": {"traceEvents": [1, 2, {"a": "]"}]},
        "text": '"traceEvents": [',
        "distributedInfo": {"rank": 2, "world_size": 4},
    }
    body = json.dumps(TRAPS, indent=indent)
    members = [json.dumps(m)[1:-1] for m in ({k: v} for k, v in metadata.items())]
    for place in range(len(members) + 1):
        parts = [*members[:place], f'"traceEvents"{space}:{space}{body}', *members[place:]]
        run = run_of(f"{space}{{{space}{f'{space},{space}'.join(parts)}{space}}}{space}".encode())
        assert [r["name"] for t in ("ops", "kernels") for r in run.rows(t)] == ["a", "b", "k},{"]
        assert run.rows("captures")[0]["rank"] == 2


def test_small_pieces_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from magneton.transforms import inputs, json_events

    events = [{**e, "name": f"{e['name']}{i}", "ts": i} for i in range(200) for e in TRAPS]
    whole = run_of(document(events))
    for size in (1, 7, 100, 1000):
        monkeypatch.setattr(json_events, "PIECE_BYTES", size)
        monkeypatch.setattr(inputs, "BLOCK_BYTES", size)
        pieces = run_of(document(events))
        for table in ("ops", "kernels"):
            mine, others = ([r | {"run_id": ""} for r in run.rows(table)] for run in (whole, pieces))
            assert mine == others


@pytest.mark.parametrize(
    "text",
    [
        "", " \n", "null", "3", '"traceEvents"', "{}", '{"traceEvents": null}', '{"traceEvents": {}}', '{"traceEvents": "x"}',
        "[1, 2, 3]", '[["a"], ["b"]]', "\ufeff", "traceEvents", '{"traceEvents": [] "x": 1}', '{"traceEvents": []} garbage',
        '{"traceEvents": [], "traceEvents": []}', '{"traceEvents": [{"ph": "X" "ts": 1}]}', "{'traceEvents': []}",
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused(text: str) -> None:
    with pytest.raises(InputFormatError):
        run_of(text.encode())


def test_another_encoding_is_refused_in_words() -> None:
    with pytest.raises(InputFormatError):
        run_of(document(TRAPS).decode().encode("utf-16"))


SMALL = document(
    [op("a", 1, 2), kernel("k1", 5, 1), op("b", 9, 1, args={"External id": 3}), kernel("k2", 12, 1)], rank=1
)


@pytest.mark.parametrize("compress", [None, gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_cut_anywhere_is_noticed_and_salvaged(compress: Any) -> None:
    whole = SMALL if compress is None else compress(SMALL)
    step = 17 if compress is None else 11
    for cut in range(len(whole) - 1, 1, -step):
        part = whole[:cut]
        with pytest.raises((TruncatedInputError, InputFormatError)) as caught:
            run_of(part)
        assert caught.type is TruncatedInputError
        try:
            run = run_of(part, allow_truncated=True)
        except InputFormatError:
            assert compress is not None or cut < 20
            continue
        assert run.manifest.incomplete
        assert "truncated" in run.warnings()
        names = [r["name"] for t in ("ops", "kernels") for r in run.rows(t)]
        assert set(names) <= {"a", "k1", "b", "k2"}
        if compress is None:
            closed = sum(part.count(b'"name": "%s"' % n) for n in (b"a", b"b", b"k1", b"k2"))
            assert closed - 1 <= len(names) <= closed


def test_an_open_array_may_end_after_any_event() -> None:
    for tail in (b"", b",", b" ,\n", b"\n"):
        run = run_of(b"[" + b",".join(json.dumps(e).encode() for e in TRAPS) + tail)
        assert run.warnings()["array_not_terminated"] == 1
        assert len(run.rows("ops")) == 2
    with pytest.raises(TruncatedInputError):
        run_of(b"[" + json.dumps(TRAPS[0]).encode() + b',{"ph":')


@given(cuts=st.lists(st.integers(0, len(SMALL)), max_size=6), padding=st.integers(0, 700), frames=st.booleans())
@KINDS
def test_any_division_into_members_or_frames(cuts: list[int], padding: int, frames: bool) -> None:
    bounds = [0, *sorted(cuts), len(SMALL)]
    parts = [SMALL[a:b] for a, b in itertools.pairwise(bounds)]
    compress = zstandard.ZstdCompressor().compress if frames else gzip.compress
    whole = b"".join(compress(p) for p in parts) + (b"" if frames else bytes(padding))
    assert len(run_of(whole).rows("kernels")) == 2


@pytest.mark.parametrize("garbage", [b"\1\2\3", b"garbage" * 100_000, b"\x1f"])
@pytest.mark.parametrize("compress", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_garbage_after_the_stream_is_left_out_with_a_word(garbage: bytes, compress: Any) -> None:
    run = run_of(compress(SMALL) + garbage)
    assert run.warnings()["trailing_garbage"] == 1
    assert len(run.rows("kernels")) == 2


def test_other_codecs_are_named() -> None:
    with pytest.raises(UnsupportedCompressionError, match="bzip2"):
        run_of(bz2.compress(SMALL))


def test_a_damaged_stream_is_refused() -> None:
    whole = bytearray(gzip.compress(SMALL * 1))
    whole[len(whole) // 2] ^= 0xFF
    with pytest.raises(InputFormatError):
        run_of(bytes(whole))


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(b'{"traceEvents":[' + b" " * (40 << 20) + b"]}"),
        gzip.compress(b"[" + b"{}," * (14 << 20) + b"{}]"),
        zstandard.ZstdCompressor().compress(b'{"traceEvents":[{"name":"' + b"a" * (40 << 20) + b'"}]}'),
        gzip.compress(b'{"metadata":"' + b"a" * (40 << 20) + b'","traceEvents":[]}'),
    ],
)
def test_bombs_of_any_make_are_refused_early(content: bytes) -> None:
    start = time.monotonic()
    with pytest.raises(LimitExceededError):
        run_of(content)
    assert time.monotonic() - start < 10


def test_the_size_limit_counts_what_comes_out() -> None:
    with pytest.raises(LimitExceededError):
        run_of(document(TRAPS * 100), max_decompressed_bytes=10_000)


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
