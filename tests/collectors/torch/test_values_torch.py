"""The dataflow that the values recorder sees: identities, versions, aliases, and what operators do by their schema."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (pip install 'magneton[torch]')")

pytestmark = pytest.mark.torch

from tests.support.value_capture import Seen, randn, seen  # noqa: E402

from magneton.collectors.torch.values_capture import capture_values, record_values  # noqa: E402

# -- what runs


def test_an_operator_with_a_kernel_of_its_own_is_not_taken_apart() -> None:
    x = randn(4, 5)
    got = seen(torch.ops.aten.silu_backward, randn(4, 5, seed=1), x)
    assert got.names == ["silu_backward"]

    def inferred(at: Any, weight: Any) -> Any:
        with torch.inference_mode():
            return torch.nn.functional.linear(at, weight)

    assert "linear" not in seen(inferred, x, randn(3, 5)).names


# -- identity, views


def test_views_of_the_same_elements_are_one_value_with_several_arrangements() -> None:
    def program(x: Any) -> Any:
        y = x + 1
        return y.view(6, 20).t().relu()

    got = seen(program, randn(2, 3, 20))
    made = got.one("add").writes
    assert got.one("view").writes == got.one("t").writes == made
    assert got.one("relu").reads == made
    assert got.keys(made[0]) == ["2x3x20", "flat:120", "6x20", "flat:120"]
    assert got.one("view").flags == {"view", "move"}
    assert got.tensors[made[0]]["dims"] == [2, 3, 20]


def test_uses_carry_the_geometry_of_the_very_view() -> None:
    got = seen(lambda x: (x + 1)[1:].t() * 2, randn(4, 5))
    uses = [u for u in got.capture.uses.to_pylist() if u["op_id"] == got.one("mul").op_id]
    assert (uses[0]["dims"], uses[0]["strides"], uses[0]["storage_offset"]) == ([5, 3], [1, 5], 5)
    assert (uses[0]["itemsize"], uses[0]["device"], uses[0]["dtype"]) == (4, "cpu", "float32")


def test_a_view_that_selects_part_of_a_value_defines_a_value() -> None:
    def program(x: Any) -> Any:
        q, k = (x * 2).split(8, dim=1)
        return q @ k.t()

    got = seen(program, randn(6, 16))
    split = got.one("split")
    assert len(split.writes) == 2
    assert split.writes != split.reads
    assert split.flags == {"view", "move"}
    assert got.one("mm").reads == split.writes


def test_an_expanded_view_is_a_value_of_its_own() -> None:
    got = seen(lambda x: (x + 1).expand(4, 5, 6) * 2, randn(1, 5, 6))
    expand = got.one("expand")
    assert expand.reads != expand.writes
    assert got.tensors[expand.writes[0]]["numel"] == 120


def test_views_made_outside_of_operators_are_the_same_value() -> None:
    def program(x: Any) -> Any:
        y = x + 1
        return y.detach() * 2 + y.data * 3

    got = seen(program, randn(4, 8))
    first, second = got.all("mul")
    assert first.reads == second.reads == got.all("add")[0].writes


def test_the_same_bits_as_another_type_or_conjugated_are_another_value() -> None:
    def program(x: Any) -> Any:
        c = torch.view_as_complex(x + 1)
        return c * c.conj(), (x + 2).view(torch.int32) + 1

    got = seen(program, randn(32, 2))
    product = got.one("mul")
    assert product.reads[0] != product.reads[1]
    first = got.all("add")[0]
    assert got.one("view_as_complex").writes != first.writes
    assert got.all("add")[2].reads != got.all("add")[1].writes


# -- memory


def test_memory_that_is_used_again_is_not_taken_for_the_old() -> None:
    addresses = set()

    def program(x: Any) -> Any:
        total = x
        for _ in range(50):
            y = total * 1.5
            addresses.add(y.data_ptr())
            total = y.sum() + x
            del y
            gc.collect()
        return total

    got = seen(program, randn(64, 64))
    products = got.all("mul")
    assert len(addresses) < 50, "the allocator did not use memory again: the test shows nothing"
    assert len({op.writes[0] for op in products}) == 50
    storages = [got.tensors[op.writes[0]]["storage_id"] for op in products]
    assert len(set(storages)) == 50
    for product, total in zip(products, got.all("sum"), strict=True):
        assert total.reads == product.writes


def test_memory_is_released_while_recording() -> None:
    import weakref

    alive = []

    def program(x: Any) -> Any:
        for _ in range(5):
            y = x * 2
            alive.append(weakref.ref(y.untyped_storage()))
            x = y + 1
        return x

    record_values(program, (randn(100),))
    gc.collect()
    assert not [ref for ref in alive if ref() is not None]


# -- writes


def test_an_in_place_write_keeps_the_earlier_value() -> None:
    def program(x: Any) -> Any:
        y = x * 2
        before = y.sum()
        y.add_(1)
        return before + y.sum()

    got = seen(program, randn(8, 8))
    old, new = got.one("mul").writes[0], got.one("add_").writes[0]
    assert old != new
    first, second = got.all("sum")
    assert first.reads == [old]
    assert second.reads == [new]
    assert got.one("add_").reads == [old]
    assert got.one("add_").flags == {"inplace"}
    assert got.tensors[new]["version"] == got.tensors[old]["version"] + 1
    assert got.tensors[new]["storage_id"] == got.tensors[old]["storage_id"]
    assert got.tensors[new]["mean"] == pytest.approx(got.tensors[old]["mean"] + 1)


def test_a_write_to_a_view_is_seen_through_the_base_and_through_overlapping_views() -> None:
    def program(x: Any) -> Any:
        y = x * 2
        top, bottom, middle = y[:4], y[4:], y[2:6]
        top.mul_(3)
        return bottom.exp(), middle.sin(), y.cos()

    x = randn(8, 8)
    got = seen(program, x)
    made, written = got.one("mul").writes[0], got.one("mul_").writes[0]
    views = [op.writes[0] for op in got.all("slice")]
    # What does not overlap is still the old value.
    assert got.one("exp").reads == [views[1]]
    middle, whole = got.all("_assemble")
    assert middle.reads == [written, views[2]]
    assert got.one("sin").reads == middle.writes
    assert middle.flags == {"move", "assemble"}
    assert set(whole.reads) == {written, made}
    assert got.one("cos").reads == whole.writes
    expected = (x * 2).clone()
    expected[:4] *= 3
    assert got.tensors[whole.writes[0]]["mean"] == pytest.approx(float(expected.mean()), rel=1e-5)
    assert got.tensors[middle.writes[0]]["mean"] == pytest.approx(float(expected[2:6].mean()), rel=1e-5)


def test_a_base_written_whole_leaves_nothing_of_the_old_value() -> None:
    def program(x: Any) -> Any:
        y = x * 2
        part = y[1]
        y.copy_(x)
        return part.exp(), y.sin()

    got = seen(program, randn(4, 8))
    copied = got.one("copy_")
    assert copied.reads == [0], "what is overwritten is not read"
    assert got.one("_assemble").reads == copied.writes
    assert got.one("sin").reads == copied.writes


def test_writes_that_together_cover_all_leave_nothing_of_the_old_value() -> None:
    def program(x: Any) -> Any:
        y = torch.zeros(4, 8)
        y[:2] = x
        y[2:] = x + 1
        return y.exp()

    got = seen(program, randn(2, 8))
    assert set(got.one("_assemble").reads) == {op.writes[0] for op in got.all("copy_")}


def test_a_cache_that_is_filled_row_by_row() -> None:
    cache = torch.zeros(1, 6, 8)

    def program(x: Any) -> Any:
        for step in range(3):
            cache[:, step] = x * (step + 1)
            total = cache[:, : step + 1].sum()
        return total

    got = seen(program, randn(1, 8))
    for step, (total, product) in enumerate(zip(got.all("sum"), got.all("mul"), strict=True)):
        assert got.tensors[total.reads[0]]["numel"] == 8 * (step + 1)
        assert product.writes
    assert "uninitialized" not in {t["why_no_values"] for t in got.tensors.values()}


def test_memory_that_was_never_filled_has_no_values() -> None:
    def program(x: Any) -> Any:
        y = torch.empty(4, 8)
        y[:2] = x
        filled = y[:2].exp()
        return filled, y.sin(), torch.empty(3).normal_() + 1

    got = seen(program, randn(2, 8))
    empty = got.all("empty")[0]
    assert got.tensors[empty.writes[0]]["why_no_values"] == "uninitialized"
    assert got.tensors[empty.writes[0]]["mean"] is None
    assert got.tensors[got.one("exp").reads[0]]["why_no_values"] is None
    assert got.tensors[got.one("sin").reads[0]]["why_no_values"] == "uninitialized"
    assert got.tensors[got.one("normal_").writes[0]]["why_no_values"] is None


def test_results_written_to_an_argument() -> None:
    def program(x: Any) -> Any:
        out = torch.empty(4, 4)
        torch.mm(x, x, out=out)
        return out + 1

    got = seen(program, randn(4, 4))
    product = got.one("mm")
    assert product.reads == [0, 0]
    assert product.writes == got.one("add").reads
    assert got.tensors[product.writes[0]]["why_no_values"] is None


def test_statistics_that_a_batch_norm_updates_get_a_new_version() -> None:
    norm = torch.nn.BatchNorm1d(8).train()
    with torch.no_grad():
        got = seen(lambda x: norm(norm(x)), randn(16, 8), parameters=[*norm.parameters(), *norm.buffers()])
    first, second = got.all("native_batch_norm")
    assert len(first.writes) == 5
    assert first.writes[3:] == second.reads[3:5], "running statistics of the first call are what the second reads"
    assert got.tensors[first.reads[3]]["role"] == "parameter"
    assert not got.tensors[second.reads[3]]["constant"]


def test_foreach_operators_write_every_tensor_of_their_list() -> None:
    def program(x: Any) -> Any:
        parts = [x * 1, x * 2]
        torch._foreach_add_(parts, 1.0)
        return parts[0] + parts[1]

    got = seen(program, randn(4, 4))
    added = got.one("_foreach_add_")
    assert len(added.writes) == 2
    assert got.one("add").reads == added.writes
    elements = [u["element"] for u in got.capture.uses.to_pylist() if u["op_id"] == added.op_id]
    assert elements[:2] == [0, 1]


# -- what operators do


def test_flags_follow_the_schema() -> None:
    def program(x: Any) -> Any:
        y = x.transpose(0, 1)
        z = y.contiguous()
        return torch.cat([z + 0, z.clone()]), z.bfloat16().float(), z.to(torch.int64)

    got = seen(program, randn(4, 6))
    first, second = got.all("clone")
    assert first.flags == second.flags == {"move", "copy"}
    assert got.one("cat").flags == {"move"}
    assert got.one("add").flags == set(), "x + 0 computes"
    assert [op.flags for op in got.all("_to_copy")] == [{"move", "copy"}, {"move", "copy"}, {"move"}]


def test_constants_are_what_derives_from_parameters_and_literals() -> None:
    weight = torch.nn.Parameter(randn(8, 8))
    table = randn(4, 8)

    def program(x: Any) -> Any:
        a = weight.exp() + torch.arange(8.0)
        b = table * 2
        noise = torch.rand(8)
        return x @ a, b + 1, noise * 3

    got = seen(program, randn(4, 8), parameters=[weight])
    constant = {op.name: "constant" in op.flags for op in got.ops}
    assert constant["exp"] and constant["arange"]
    assert not constant["mm"]
    assert not constant["rand"], "what is drawn is neither a literal nor a parameter"
    assert [("constant" in op.flags) for op in got.all("mul")] == [True, False]
    roles = {t["role"] for t in got.tensors.values()}
    assert roles == {"input", "parameter", "output", None}
    assert [t["constant"] for t in got.tensors.values() if t["role"] == "parameter"] == [True]
    assert sum(t["role"] == "output" for t in got.tensors.values()) == 3


def test_without_known_inputs_what_was_there_counts_as_input() -> None:
    linear, x, table = torch.nn.Linear(4, 4), randn(2, 4), randn(2, 4)
    got = Seen(capture_values(lambda: linear(x) + table, parameters=linear.parameters()))
    assert "constant" not in got.one("add").flags
    assert "constant" in got.one("t").flags
    assert got.tensors[got.one("add").reads[1]]["role"] is None


def test_precision_is_the_coarsest_type_upstream() -> None:
    def program(x: Any, ids: Any) -> Any:
        y = x.bfloat16().float() + 1
        return y * x, x + 1, ids + 1, y.argmax(), x.half() @ x.half().t()

    got = seen(program, randn(4, 4), torch.arange(4))
    precision = [got.tensors[op.writes[0]]["precision"] for op in (*got.all("mul"), *got.all("add")[1:])]
    assert precision == ["bfloat16", "float32", None]
    assert got.tensors[got.one("argmax").writes[0]]["precision"] == "bfloat16"
    assert got.tensors[got.one("mm").writes[0]]["precision"] == "float16"


def test_precision_follows_the_setting_for_products() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        got = seen(lambda x: (x @ x) + 1, randn(4, 4))
    finally:
        torch.set_float32_matmul_precision(before)
    assert got.tensors[got.one("mm").writes[0]]["precision"] == "bfloat16"
    assert got.tensors[got.one("add").writes[0]]["precision"] == "bfloat16"
    assert got.tensors[got.one("mm").writes[0]]["dtype"] == "float32"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda x: x.to_sparse(), "sparse"),
        (lambda x: x.to_sparse_csr(), "sparse"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "quantized"),
        (lambda x: x.to_mkldnn(), "opaque"),
        (lambda x: x.to("meta"), "meta"),
        (lambda x: torch.tensor(0x7F0012345678), "opaque"),
        (lambda x: x[:0], "empty"),
        (lambda x: torch.nested.nested_tensor([x, x[:2]]), "nested"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_cannot_be_read_is_recorded_without_values(make: Any, why: str) -> None:
    def program(x: Any) -> Any:
        made = make(x)
        return made, (made.dequantize() if made.is_quantized else made.clone()), x + 1

    got = seen(program, randn(4, 4))
    assert why in {t["why_no_values"] for t in got.tensors.values()}
    unread = [t for t in got.tensors.values() if t["why_no_values"] == why]
    assert all(t["mean"] is None and t["sketches"] is None for t in unread)
    assert got.all("add"), "the program went on"


def test_sparse_tensors_flow() -> None:
    got = seen(lambda x: torch.sparse.mm(x.to_sparse(), x), torch.eye(4))
    made = next(t for t in got.tensors.values() if t["why_no_values"] == "sparse")
    readers = [op for op in got.ops if made["tensor_id"] in op.reads]
    assert readers


# -- modes


def names(got: Seen) -> list[str]:
    return [op.name for op in got.ops if op.name != "detach"]


def test_inference_mode_shows_the_same_operators() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.1).eval()
    x = randn(2, 5, 16)
    for parameter in layer.parameters():
        parameter.requires_grad_(False)

    def program(x: Any) -> Any:
        y = torch.nn.functional.linear(x, layer.linear1.weight, layer.linear1.bias)
        y = torch.nn.functional.scaled_dot_product_attention(y[:, None], y[:, None], y[:, None])
        return layer(x), y.reshape(-1), torch.dropout(x, 0.5, False)

    with torch.no_grad():
        plain = seen(program, x)
    with torch.inference_mode():
        inference = seen(program, x)
    assert names(inference) == names(plain)
    assert "addmm" in names(inference)
    assert "_transformer_encoder_layer_fwd" in names(plain), "recording switched the fused path off"
    assert torch.equal(inference.capture.outputs[0], plain.capture.outputs[0])


def test_autocast() -> None:
    linear = torch.nn.Linear(8, 8)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        got = seen(lambda x: linear(x) + x, randn(4, 8))
    product = got.one("addmm")
    assert got.tensors[product.writes[0]]["dtype"] == "bfloat16"
    assert got.tensors[got.all("add")[-1].writes[0]]["precision"] == "bfloat16"
    x = got.tensors[0]
    assert x["std"] == pytest.approx(float(randn(4, 8).std(correction=0)), rel=1e-6)


def test_what_draws_nothing_is_not_random() -> None:
    """Attention without dropout draws no numbers: where its inputs are constant, it is constant too, as in its parts."""
    weight = torch.nn.Parameter(randn(1, 2, 16, 16))
    attention = torch.nn.functional.scaled_dot_product_attention

    def run(x: Any) -> Any:
        kept = torch.dropout(x, 0.0, True) + torch.nn.functional.rrelu(x, training=False)
        drawn = torch.bernoulli(torch.zeros(4, 4)) + torch.rand(4, 4) + torch.native_dropout(x, 0.5, True)[0]
        return attention(weight, weight, weight).sum() + kept + drawn + torch.native_dropout(x, 0.5, False)[0]

    with torch.no_grad():
        got = seen(run, randn(4, 4), parameters=[weight])
    drawing = [op.name for op in got.ops if "random" in op.flags]
    assert sorted(drawing) == ["bernoulli", "native_dropout", "rand"]
    (fused,) = (op for op in got.ops if op.name.startswith("_scaled_dot_product"))
    assert "constant" in fused.flags


def test_compiled_regions_are_looked_into_eagerly_and_said_so() -> None:
    compiled = torch.compile(lambda x: (x * 2).relu() + 1, backend="eager", fullgraph=True)
    capture = record_values(lambda x: compiled(x).sum(), (randn(4, 4),))
    got = Seen(capture)
    assert got.names == ["mul", "relu", "add", "sum"]
    inside = [json.loads(op.row["attributes"] or "{}").get("compiled", False) for op in got.ops]
    assert inside == [True, True, True, False]
    assert ["compiled" in op.flags for op in got.ops] == inside
    assert capture.notes == [
        "3 operators of the capture of values lie in regions under torch.compile; they were looked into eagerly, while the "
        "profile times the compiled code."
    ]
    x = randn(4, 4)
    assert torch.equal(compiled(x), (x * 2).relu() + 1), "compiling still works afterwards"


def test_higher_order_operators_are_one_call() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    q = randn(1, 2, 16, 16)
    got = seen(lambda q: flex_attention(q, q, q) + 1, q)
    assert got.ops[-1].name == "add"
