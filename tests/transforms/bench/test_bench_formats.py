"""Results of serving benchmarks: the totals of the run they were made from, and no start time that nobody knows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.power_cases import E0

from magneton.schemas import codes as all_codes
from magneton.schemas.errors import InputFormatError, InputNotFoundError, MagnetonError
from magneton.schemas.manifest import ClockAnchor
from magneton.transforms.bench.registry import FORMATS, read_bench
from magneton.transforms.bench.result import BenchOptions

# The client's perf_counter stood at 54321 s when the invented run began.
ANCHORED = BenchOptions(anchors=(ClockAnchor(unix_ns=E0, clock="monotonic", clock_ns=54321 * 10**9),))

SERVING = [
    ("vllm_bench_serve_save_result.json", "vllm-bench", 0),
    ("vllm_bench_serve_save_detailed.json", "vllm-bench", 8),
    ("sglang_bench_serving.jsonl", "sglang-bench", 0),
    ("sglang_bench_serving_output_details.jsonl", "sglang-bench", 8),
    ("guidellm_benchmarks.json", "guidellm", 8),
]


@pytest.mark.parametrize(("name", "kind", "listed"), SERVING)
def test_samples_give_the_true_totals(shared, name, kind, listed):
    result = read_bench(shared / "formats" / name)
    work = result.workload
    assert result.format == work.source == kind and kind in FORMATS and result.warnings == []
    assert (work.requests, work.input_tokens, work.output_tokens) == (8, 284, 160)
    assert work.duration_s == pytest.approx(4.55, rel=1e-12)
    assert work.model == ("synthetic/model" if kind == "vllm-bench" else None)
    assert [(r.input_tokens, r.output_tokens, r.ok) for r in result.requests] == [
        (32 + i, 20, True) for i in range(listed)
    ]
    assert all(r.latency_s == pytest.approx(1.05) and r.ttft_s == 0.1 for r in result.requests)
    assert all(isinstance(v, str | int | float | bool) for v in work.details.values())
    json.dumps(work.details, allow_nan=False)


def test_monotonic_starts_are_placed_only_by_an_anchor(shared):
    path = shared / "formats" / "vllm_bench_serve_save_detailed.json"
    alone = read_bench(path)
    assert alone.start_clock == "monotonic" and alone.window_unix_ns is None
    assert {r.start_unix_ns for r in alone.requests} == {None}
    placed = read_bench(path, ANCHORED)
    assert [r.start_unix_ns for r in placed.requests] == [E0 + 2 * 10**9 + i * 5 * 10**8 for i in range(8)]
    assert placed.window_unix_ns == (E0 + 2 * 10**9, E0 + 6_550_000_000)
    boottime = BenchOptions(anchors=(ClockAnchor(unix_ns=E0, clock="boottime", clock_ns=0),))
    assert read_bench(path, boottime).window_unix_ns is None
    assert read_bench(shared / "formats" / "vllm_bench_serve_save_result.json", ANCHORED).start_clock is None


def test_guidellm_knows_the_time(shared):
    result = read_bench(shared / "formats" / "guidellm_benchmarks.json")
    assert result.start_clock == "realtime" and result.window_unix_ns == (E0 + 2 * 10**9, E0 + 6_550_000_000)
    assert [r.start_unix_ns for r in result.requests] == [E0 + 2 * 10**9 + i * 5 * 10**8 for i in range(8)]


def test_mlperf_states_the_power_window(shared):
    result = read_bench(shared / "formats" / "mlperf_log_detail_excerpt.txt")
    assert result.window_unix_ns == (E0 + 2_123_000_000, E0 + 8_123_000_000) and result.workload.duration_s == 6.0
    later = read_bench(shared / "formats" / "mlperf_log_detail_excerpt.txt", BenchOptions(tz="+01:00"))
    assert later.window_unix_ns[0] == result.window_unix_ns[0] - 3600 * 10**9


# ---- inputs of our own ---------------------------------------------------------------------------------------------

VLLM = {
    "model_id": "m", "completed": 2, "failed": 1, "duration": 4.5, "total_input_tokens": 30, "total_output_tokens": 7,
    "input_lens": [10, 20, 50], "output_lens": [3, 4, 0], "ttfts": [0.1, 0.2, 0.0], "itls": [[0.1, 0.1], [0.1], []],
    "errors": ["", "", "timeout"], "start_times": [1.5, 2.25, 3.0], "generated_texts": ["secret", "x", ""],
}  # fmt: skip
SGLANG = {
    "backend": "sglang", "completed": 2, "duration": 4.5, "total_input_tokens": 30, "total_output_tokens": 7,
    "random_input_len": 16,
}  # fmt: skip
GUIDELLM = {
    "metadata": {"version": 2},
    "args": {"model": "m"},
    "benchmarks": [
        {
            "duration": 4.5, "start_time": 1767225600.25, "end_time": 1767225604.75,
            "requests": {
                "successful": [
                    {"prompt_tokens": 10, "output_tokens": 3, "request_start_time": 1767225600.25},
                    {"input_metrics": {"text_tokens": 20}, "output_metrics": {"text_tokens": 4}},
                ],
                "errored": [{"prompt_tokens": 50, "output_tokens": 1}],
                "incomplete": [],
            },
        }
    ],
}  # fmt: skip


def write(tmp_path: Path, document: object, name: str = "b.json") -> Path:
    path = tmp_path / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


@pytest.mark.parametrize("document", [VLLM, SGLANG, GUIDELLM])
def test_failed_requests_are_not_in_the_totals(tmp_path, document):
    result = read_bench(write(tmp_path, document))
    work = result.workload
    assert (work.requests, work.input_tokens, work.output_tokens, work.duration_s) == (2, 30, 7, 4.5)
    assert result.warnings == [] and "secret" not in json.dumps(work.details)
    if result.requests:
        assert [r.ok for r in result.requests] == [True, True, False]


def test_totals_that_the_list_contradicts(tmp_path):
    result = read_bench(write(tmp_path, VLLM | {"total_output_tokens": 8}))
    assert [w[0] for w in result.warnings] == ["bench_totals_disagree"] and result.workload.output_tokens == 8
    with pytest.raises(InputFormatError, match="different length"):
        read_bench(write(tmp_path, VLLM | {"output_lens": [3]}))


@pytest.mark.parametrize("document", [VLLM, SGLANG])
def test_several_results_in_one_file(tmp_path, document):
    text = "\n".join(json.dumps(document | {"duration": float(i)}) for i in range(3)) + "\n"
    last = read_bench(write(tmp_path, text))
    assert last.workload.duration_s == 2.0 and [w[0] for w in last.warnings] == ["several_benchmarks"]
    first = read_bench(write(tmp_path, text), BenchOptions(index=0))
    assert first.workload.duration_s == 0.0 and first.warnings == []
    with pytest.raises(InputFormatError, match="no number 7"):
        read_bench(write(tmp_path, text), BenchOptions(index=7))


def test_a_sweep_of_guidellm(tmp_path):
    two = GUIDELLM | {"benchmarks": [GUIDELLM["benchmarks"][0] | {"duration": 1.0}, GUIDELLM["benchmarks"][0]]}
    assert read_bench(write(tmp_path, two)).workload.duration_s == 4.5
    assert read_bench(write(tmp_path, two), BenchOptions(index=0)).workload.duration_s == 1.0
    with pytest.raises(InputFormatError, match="no benchmark result"):
        read_bench(write(tmp_path, GUIDELLM | {"benchmarks": []}))


def test_what_python_writes_for_numbers(tmp_path):
    text = json.dumps(VLLM | {"std_tpot_ms": float("nan"), "p99_itl_ms": float("inf")})
    assert "std_tpot_ms" not in read_bench(write(tmp_path, text)).workload.details
    huge = (
        json.dumps(VLLM)
        .replace("4.5", "1e999999999")
        .replace('"total_input_tokens": 30', '"total_input_tokens": 1e99999999')
    )
    work = read_bench(write(tmp_path, huge)).workload
    assert work.duration_s is None and work.input_tokens is None
    odd = read_bench(write(tmp_path, VLLM | {"completed": "2", "duration": True, "total_input_tokens": -1})).workload
    assert (odd.requests, odd.duration_s, odd.input_tokens) == (None, None, None)


def test_exact_times(tmp_path):
    anchor = (ClockAnchor(unix_ns=1700000000123456789, clock="monotonic", clock_ns=0),)
    text = json.dumps(VLLM).replace("1.5,", "1234567.123456789012,")
    result = read_bench(write(tmp_path, text), BenchOptions(anchors=anchor))
    assert result.requests[0].start_unix_ns == 1700000000123456789 + 1234567123456789
    assert result.window_unix_ns == (1700000000123456789 + 2250000000, 1700000000123456789 + 6750000000)


def test_mlperf_lines_that_are_broken(tmp_path):
    line = ':::MLLOG {"key": "power_begin", "value": "02-03-2026 00:00:02.123"}\n'
    result = read_bench(write(tmp_path, line + line.replace("begin", "end") + line[:30]))
    assert (
        sorted(w[0] for w in result.warnings) == ["date_order_assumed", "truncated"]
        and result.workload.duration_s == 0.0
    )
    with pytest.raises(InputFormatError, match="ends before"):
        read_bench(write(tmp_path, line + line.replace("begin", "end").replace("02.123", "01.123")))
    with pytest.raises(InputFormatError, match="no MLLOG line"):
        read_bench(write(tmp_path, line[:30]))


def test_compressed_results_and_others(tmp_path):
    packed = tmp_path / "b.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(VLLM).encode()))
    assert read_bench(packed).format == "vllm-bench"
    for text in ("", "{}", "[]", "null", "hello", '{"traceEvents": []}', "[" * 100000, '{"completed": 1}'):
        with pytest.raises(InputFormatError):
            read_bench(write(tmp_path, text))
    with pytest.raises(InputNotFoundError):
        read_bench(tmp_path / "absent.json")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.sampled_from([VLLM, SGLANG, GUIDELLM]).map(json.dumps),
    edits=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 9), st.sampled_from(["", "null", "-1", '"x"', "[]", "{}", "1e400", ","])), max_size=3),
)  # fmt: skip
def test_damaged_results_are_read_or_refused(tmp_path, seed, edits):
    text = seed
    for at, length, new in edits:
        text = text[:at] + new + text[at + length :]
    try:
        result = read_bench(write(tmp_path, text), ANCHORED)
    except MagnetonError:
        return
    counts = (result.workload.requests, result.workload.input_tokens, result.workload.output_tokens)
    assert all(c is None or c >= 0 for c in counts)
    assert {w[0] for w in result.warnings} <= all_codes.WARNING_CODES.keys()
