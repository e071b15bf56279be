"""Replays of real serving runs, normalised with and without the trace of their capture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from magneton.transforms.normalize import normalize

PAIRS = ("decode_full", "prefilldecode_piecewise")
N_LAYERS = 24


class _Tables:
    """SQL over the tables of one run."""

    def __init__(self, run: Path) -> None:
        self._connection = duckdb.connect()
        for path in (run / "tables").glob("*.parquet"):
            self._connection.read_parquet(str(path)).create_view(path.stem)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(query).fetchall()

    def one(self, query: str) -> Any:
        return self.rows(query)[0][0]


@pytest.fixture(scope="module", params=PAIRS)
def pair(request: pytest.FixtureRequest, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Tables]:
    folder = shared / "traces" / "vllm" / request.param
    run = tmp_path_factory.mktemp("runs") / request.param
    normalize([folder / "replay.json.gz"], run, capture_traces=[folder / "capture.json.gz"])
    yield _Tables(run)


@pytest.fixture(scope="module")
def decode(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> _Tables:
    folder = shared / "traces" / "vllm" / "decode_full"
    run = tmp_path_factory.mktemp("runs") / "decode"
    normalize([folder / "replay.json.gz"], run, capture_traces=[folder / "capture.json.gz"])
    return _Tables(run)


def test_kernel_time_lies_in_a_layer_and_an_operator_below_the_root_module(pair: _Tables) -> None:
    # Of all kernels of the replay trace, those launched one by one included.
    share = pair.one("""
        SELECT sum(k.dur_ns) FILTER (k.layer IS NOT NULL AND k.op_id IS NOT NULL AND m.parent_id IS NOT NULL)
               / sum(k.dur_ns)
        FROM kernels k LEFT JOIN modules m USING (module_id)
        WHERE k.capture = 'profile' AND k.category = 'kernel'""")
    assert share >= 0.97


def test_every_replayed_activity_is_placed_and_bears_the_name_of_its_call(pair: _Tables) -> None:
    replayed, placed, named, capture = pair.rows("""
        SELECT count(*), count(l.launch_id), count(*) FILTER (l.kernel_name = k.name), any_value(l.capture)
        FROM kernels k LEFT JOIN launches l ON l.launch_id = k.capture_launch_id
        WHERE k.graph_launch""")[0]
    assert replayed in (421, 361)
    assert replayed == placed == named
    assert capture == "graph_capture"
    assert pair.one("SELECT count(*) FROM kernels WHERE link = 'capture'") == replayed


def test_calls_are_taken_in_order_and_once(pair: _Tables) -> None:
    calls = [i for (i,) in pair.rows("SELECT capture_launch_id FROM kernels WHERE graph_launch ORDER BY ts_ns")]
    assert calls == sorted(set(calls))


def test_operator_and_module_are_those_of_the_captured_call(pair: _Tables) -> None:
    assert not pair.rows("""
        SELECT 1 FROM kernels k JOIN launches l ON l.launch_id = k.capture_launch_id
        WHERE (k.op_id, k.module_id, k.module_call) IS DISTINCT FROM (l.op_id, l.module_id, l.module_call)""")


@pytest.mark.parametrize(
    ("kernel", "operator", "per_layer"),
    [
        ("_matmul_ogs_%", "vllm::moe_forward", 2),
        ("_matmul_ogs_%_swiglu", "vllm::moe_forward", 1),
        ("_finalize_matmul_scatter_bf16", "vllm::moe_forward", 1),
        ("_topk_forward", "TopK", 1),
        ("kernel_unified_attention_%", "vllm::unified_attention_with_output", 1),
        ("%reshape_and_cache_flash_kernel%", "_C_cache_ops::reshape_and_cache_flash", 1),
        ("%rotary_embedding_kernel%", "_C::rotary_embedding", 1),
        ("Cijk_%", "aten::addmm", 3),
    ],
)
def test_each_layer_holds_its_kernels_in_their_operators(
    pair: _Tables, kernel: str, operator: str, per_layer: int
) -> None:
    rows = pair.rows(f"""
        SELECT k.layer, o.name, count(*) FROM kernels k JOIN ops o USING (op_id)
        WHERE k.layer IS NOT NULL AND k.name LIKE '{kernel}' GROUP BY ALL ORDER BY 1""")
    assert rows == [(layer, operator, per_layer) for layer in range(N_LAYERS)]


def test_routing_and_experts_lie_inside_the_operator_of_the_mixture(pair: _Tables) -> None:
    rows = pair.rows("""
        SELECT k.layer, count(*) FROM kernels k JOIN ops o USING (op_id) LEFT JOIN ops p ON p.op_id = o.parent_id
        WHERE 'vllm::moe_forward' IN (o.name, p.name) GROUP BY 1 ORDER BY 1""")
    # top-k, 3 of sorting, 2 of matrix products, the sum over experts
    assert rows == [(layer, 7) for layer in range(N_LAYERS)]


def test_attention_runs_in_a_module_of_its_own_in_every_layer(pair: _Tables) -> None:
    rows = pair.rows("""
        SELECT k.layer, m.path, count(DISTINCT k.module_call) FROM kernels k JOIN modules m USING (module_id)
        WHERE k.name LIKE 'kernel_unified_attention_%' GROUP BY ALL ORDER BY 1""")
    assert [layer for layer, _, _ in rows] == list(range(N_LAYERS))
    assert {path for _, path, _ in rows} == {"GptOssForCausalLM_0/GraphModule_0/GraphModule_0"}
    calls = "SELECT count(DISTINCT module_call) FROM kernels WHERE name LIKE 'kernel_unified_attention_%'"
    assert pair.one(calls) == N_LAYERS


def test_positions_of_a_layer_are_the_same_in_all_layers(pair: _Tables) -> None:
    assert not pair.rows("""
        SELECT layer_position FROM kernels WHERE layer IS NOT NULL GROUP BY 1
        HAVING count(*) <> count(DISTINCT layer) OR count(DISTINCT regexp_replace(name, '[0-9]+', '#', 'g')) > 1""")


def test_sliding_and_full_attention_alternate_while_decoding(decode: _Tables) -> None:
    rows = decode.rows("""
        SELECT layer, name FROM kernels
        WHERE name LIKE 'kernel_unified_attention_%' OR name = 'reduce_segments' ORDER BY ts_ns""")
    sliding, full = ["kernel_unified_attention_2d"], ["kernel_unified_attention_3d", "reduce_segments"]
    assert rows == [(n, name) for n in range(N_LAYERS) for name in (full if n % 2 else sliding)]


def test_coverage_is_said(pair: _Tables) -> None:
    rows = pair.rows("SELECT code, count, message FROM warnings WHERE code LIKE 'graph_replay_%'")
    assert [(code, count) for code, count, _ in rows] == [
        ("graph_replay_placed", pair.one("SELECT count(*) FROM kernels WHERE graph_launch"))
    ]
    assert "(100.0 % of their time) placed by graph_capture; 24 layers found by repetition hold 99." in rows[0][2]


@pytest.mark.parametrize(
    ("path", "n_layers", "share"),
    [
        ("vllm/decode_full/replay.json.gz", 24, 0.99),
        ("vllm/prefilldecode_piecewise/replay.json.gz", 24, 0.99),
    ],
)
def test_without_a_capture_layers_are_found_and_coverage_is_said(
    shared: Path, tmp_path: Path, path: str, n_layers: int, share: float
) -> None:
    normalize([shared / "traces" / path], tmp_path / "run")
    tables = _Tables(tmp_path / "run")
    assert tables.one("SELECT count(DISTINCT layer) FROM kernels") == n_layers
    assert tables.one("SELECT count(capture_launch_id) FROM kernels") == 0
    in_layer = "SELECT sum(dur_ns) FILTER (layer IS NOT NULL) / sum(dur_ns) FROM kernels WHERE graph_launch"
    assert tables.one(in_layer) >= share
    (message,) = tables.rows("SELECT message FROM warnings WHERE code = 'graph_replay_no_op'")[0]
    assert f"{n_layers} layers found by repetition hold 99." in message


def test_a_capture_of_other_graphs_places_only_what_bears_the_same_names(shared: Path, tmp_path: Path) -> None:
    folder = shared / "traces" / "vllm"
    other = folder / "prefilldecode_piecewise" / "capture.json.gz"
    normalize([folder / "decode_full" / "replay.json.gz"], tmp_path / "run", capture_traces=[other])
    tables = _Tables(tmp_path / "run")
    assert not tables.rows("""
        SELECT 1 FROM kernels k JOIN launches l ON l.launch_id = k.capture_launch_id WHERE l.kernel_name <> k.name""")
    assert tables.one("SELECT count(*) FROM kernels WHERE link = 'capture'") == 0
