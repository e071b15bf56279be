"""Kernels of a replayed graph find their call in the trace of its capture, or their layer in the repetition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magneton.transforms.cuda_graphs.place import captured_graphs, label_blocks, place_by_capture
from magneton.transforms.naming.kernel_names import MEMCPY, MEMSET, UNNAMED

LAYER = ["norm", "qkv", "attention", "out", "mlp"]
FIRST = ["embedding", "norm", "qkv"]
LAST = ["out", "mlp", "final_norm"]


def _calls(*names: str) -> tuple[list[str], list[str], np.ndarray]:
    return list(names), ["7"] * len(names), np.array(["Launch" in name for name in names])


def test_calls_are_split_at_begin_and_end_of_capture() -> None:
    api, thread, wanted = _calls(
        "hipLaunchKernel", "hipStreamBeginCapture", "hipLaunchKernel", "hipPointerGetAttribute", "hipModuleLaunchKernel",
        "hipStreamEndCapture", "hipLaunchKernel", "hipStreamBeginCapture", "hipStreamEndCapture",
        "hipStreamBeginCapture", "hipLaunchKernel", "hipStreamEndCapture",
    )  # fmt: skip
    assert [g.tolist() for g in captured_graphs(api, thread, wanted)] == [[2, 4], [10]]
    thread[4] = "8"
    assert [g.tolist() for g in captured_graphs(api, thread, wanted)] == [[2], [10]]


def test_without_a_begin_all_calls_are_one_graph() -> None:
    assert [g.tolist() for g in captured_graphs(*_calls("cudaLaunchKernel", "cudaFree", "cudaLaunchKernel"))] == [
        [0, 2]
    ]
    assert captured_graphs([], [], np.array([], dtype=bool)) == []


def test_one_graph_with_a_call_that_did_not_run_and_a_kernel_nobody_called() -> None:
    graph = ["embedding", *LAYER, *LAYER, "head"]
    replay = ["embedding", *LAYER[:3], *LAYER[4:], "extra", *LAYER, "head"]
    placed = place_by_capture([graph], [replay])
    assert placed.segment.tolist() == [0]
    assert placed.partner[0].tolist() == [0, 1, 2, 3, 5, -1, 6, 7, 8, 9, 10, 11]
    assert placed.coverage() == pytest.approx(11 / 12)
    assert placed.coverage([np.array([1] * 5 + [89] + [1] * 6)]) == pytest.approx(11 / 100)


def test_alike_pieces_are_replayed_in_the_order_of_their_capture() -> None:
    graphs = [FIRST, *[LAYER] * 5, LAST]
    steps = [*range(2, 7), *range(7), *range(7)]
    group = [0] * 5 + [1] * 7 + [2] * 7
    placed = place_by_capture(graphs, [graphs[k] for k in steps], group=group)
    assert placed.segment.tolist() == steps
    assert placed.coverage() == 1.0
    # The order is found without knowing the steps, too: only the first piece can follow the last one.
    assert place_by_capture(graphs, [graphs[k] for k in steps]).segment.tolist() == steps


def test_a_step_cut_off_at_the_end_begins_at_the_first_piece() -> None:
    graphs = [FIRST, *[LAYER] * 5, LAST]
    assert place_by_capture(graphs, [FIRST, LAYER, LAYER]).segment.tolist() == [0, 1, 2]


def test_batch_size_decides_among_graphs_of_the_same_kernels() -> None:
    graphs = [LAYER] * 4
    placed = place_by_capture(graphs, [LAYER] * 3, group=[0, 1, 2], size=[64, 32, 16, None], needed=[17, 64, 16])
    assert placed.segment.tolist() == [1, 0, 2]
    # What was run outweighs the size: only names say what a kernel is.
    other = [name + "_big" for name in LAYER]
    assert place_by_capture([other, LAYER], [other], size=[8, 64], needed=[64]).segment.tolist() == [0]


def test_a_replay_of_something_else_is_not_placed() -> None:
    placed = place_by_capture([LAYER], [["a", "b", "norm", "c"], LAYER], group=[0, 0])
    assert placed.segment.tolist() == [-1, 0]
    assert placed.partner[0].tolist() == [-1] * 4
    assert place_by_capture([], [LAYER]).coverage() == 0.0
    assert place_by_capture([LAYER], []).coverage() == 0.0


def test_copies_and_fills_are_placed_by_kind() -> None:
    placed = place_by_capture([[MEMCPY, "norm", MEMSET, "qkv"]], [[MEMCPY, "norm", MEMSET, "qkv"]])
    assert placed.partner[0].tolist() == [0, 1, 2, 3]


def test_calls_without_names_are_paired_by_count_or_not_at_all() -> None:
    graph = [UNNAMED, MEMSET, UNNAMED, UNNAMED]
    assert place_by_capture([graph], [["a", MEMSET, "b", "c"]]).partner[0].tolist() == [0, 1, 2, 3]
    assert place_by_capture([graph], [["a", "b", MEMSET, "c"]]).partner[0].tolist() == [-1] * 4
    assert place_by_capture([graph], [["a", MEMSET, "b"]]).partner[0].tolist() == [-1] * 3


@given(st.data())
def test_placed_kernels_are_in_order_and_bear_the_name_of_their_call(data: st.DataObject) -> None:
    name = st.sampled_from("abcd")
    graphs = data.draw(st.lists(st.lists(name, min_size=1, max_size=8), max_size=5))
    replays = data.draw(st.lists(st.lists(name, max_size=8), max_size=6))
    placed = place_by_capture(graphs, replays)
    assert len(placed.segment) == len(placed.partner) == len(replays)
    for segment, partner, replay in zip(placed.segment.tolist(), placed.partner, replays, strict=True):
        assert len(partner) == len(replay)
        chosen = partner[partner >= 0]
        assert np.all(np.diff(chosen) > 0)
        assert all(graphs[segment][p] == replay[j] for j, p in enumerate(partner.tolist()) if p >= 0)
        assert segment >= 0 or not len(chosen)


def test_layers_of_one_graph_per_pass_are_counted_in_each_pass() -> None:
    one_pass = ["embedding", *LAYER * 4, "head"]
    names = ["copy", *one_pass, "sample", "copy", *one_pass, "sample"]
    replay = np.array([-1, *[0] * len(one_pass), -1, -1, *[1] * len(one_pass), -1])
    block, position = label_blocks(names, replay, np.zeros(len(names), dtype=np.int64))
    expected = [-1, *[k for k in range(4) for _ in LAYER], -1]
    assert block.tolist() == [-1, *expected, -1, -1, *expected, -1]
    assert position[2:7].tolist() == [0, 1, 2, 3, 4]


def test_layers_of_one_graph_per_layer_include_what_runs_between() -> None:
    step = [("norm", 0), ("qkv", 0)]
    for k in range(1, 5):
        step += [("attention", -1), ("out", k), ("mlp", k), ("norm", k), ("qkv", k)]
    step += [("attention", -1), ("out", 5), ("mlp", 5), ("head", -1)]
    names = [name for name, _ in step] * 2
    number = [k for _, k in step]
    replay = np.array([*number, *[k + 6 if k >= 0 else -1 for k in number]])
    block, _ = label_blocks(names, replay, np.repeat([3, 4], len(step)))
    once = [k for k in range(5) for _ in range(5)]
    assert block.tolist() == [*once, -1] * 2


def test_kernels_outside_of_replays_alone_are_not_labelled() -> None:
    block, position = label_blocks(LAYER * 9, np.full(45, -1), np.zeros(45, dtype=np.int64))
    assert set(block.tolist()) == set(position.tolist()) == {-1}
