"""How kineto writes an event: the fields we read, typed strictly, so that decoding is also checking.

Numbers of time stay text (``Raw``): they are scaled exactly later. Arguments stay text until the kind of the event is
known. Names of arguments on the left, kineto's spelling on the right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct, field

from magneton.schemas.kinds import Activity

NO_ARGS = Raw(b"{}")
EMPTY = Raw(b"")


class Event(Struct, gc=False):
    """One element of the event array."""

    ph: str
    name: str | None = None
    cat: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: Raw = EMPTY
    dur: Raw = EMPTY
    id: int | str | None = None
    args: Raw = NO_ARGS


class FrameArgs(Struct, gc=False):
    """Arguments of ``python_function``."""

    python_id: int | None = field(default=None, name="Python id")
    python_parent_id: int | None = field(default=None, name="Python parent id")


class FrameEvent(Struct, gc=False):
    """A whole ``python_function`` event: most events of a trace with stacks are, one after another."""

    ph: Literal["X"]
    cat: Literal["python_function"]
    name: str
    pid: int | str
    tid: int | str
    ts: Raw
    dur: Raw
    args: FrameArgs


class CollectiveArgs(Struct, gc=False, kw_only=True, omit_defaults=True):
    """Arguments that describe a collective; kernels and operators share them."""

    collective_name: Any = field(default=None, name="Collective name")
    in_nelems: Any = field(default=None, name="In msg nelems")
    out_nelems: Any = field(default=None, name="Out msg nelems")
    in_split: Any = field(default=None, name="In split size")
    out_split: Any = field(default=None, name="Out split size")
    group_size: Any = field(default=None, name="Group size")
    dtype: Any = None
    group_name: Any = field(default=None, name="Process Group Name")
    group_description: Any = field(default=None, name="Process Group Description")
    group_ranks: Any = field(default=None, name="Process Group Ranks")
    comms_id: Any = field(default=None, name="Comms Id")


class OpArgs(CollectiveArgs, gc=False, kw_only=True, forbid_unknown_fields=True):
    """Arguments of ``cpu_op``. Those that become ``attributes`` are listed in ``MORE``; ``rest`` holds unknown ones."""

    external_id: int | None = field(default=None, name="External id")
    record_function_id: int | None = field(default=None, name="Record function id")
    sequence_number: int | None = field(default=None, name="Sequence number")
    fwd_thread_id: int | None = field(default=None, name="Fwd thread id")
    input_dims: Raw = field(default=EMPTY, name="Input Dims")
    input_types: Raw = field(default=EMPTY, name="Input type")
    input_strides: Raw = field(default=EMPTY, name="Input Strides")
    concrete_inputs: Raw = field(default=EMPTY, name="Concrete Inputs")
    event_index: Any = field(default=None, name="Ev Idx")
    old_event_index: Any = field(default=None, name="Profiler Event Index")
    call_stack: Any = field(default=None, name="Call stack")
    module_hierarchy: Any = field(default=None, name="Module Hierarchy")
    trace_name: Any = field(default=None, name="Trace name")
    trace_iteration: Any = field(default=None, name="Trace iteration")
    finished: Any = None
    kernel_backend: Any = None
    kernel_file: Any = None
    kernel_hash: Any = None
    kernel_name: Any = None
    kernel_kwargs: Any = None
    num_warps: Any = None
    num_stages: Any = None
    stream: Any = None
    grid: Any = None
    rest: Any = field(default=None, name="(rest)")


class LaunchArgs(Struct, gc=False):
    """Arguments of runtime and driver calls."""

    correlation: int | None = None
    external_id: int | None = field(default=None, name="External id")
    kernel: str | None = None


class KernelArgs(CollectiveArgs, gc=False, kw_only=True, forbid_unknown_fields=True):
    """Arguments of ``kernel``, ``gpu_memcpy`` and ``gpu_memset``; ``MORE`` and ``rest`` as in ``OpArgs``."""

    device: int | None = None
    stream: int | None = None
    correlation: int | None = None
    external_id: int | None = field(default=None, name="External id")
    bytes: int | None = None
    grid: list[int] | None = None
    block: list[int] | None = None
    registers_per_thread: int | None = field(default=None, name="registers per thread")
    shared_memory_bytes: int | None = field(default=None, name="shared memory")
    occupancy_percent: float | None = field(default=None, name="est. achieved occupancy %")
    graph_node_id: int | None = field(default=None, name="graph node id")
    queue: Any = field(default=None, name="sycl queue")
    context: Any = None
    queued: Any = None
    priority: Any = None
    blocks_per_sm: Any = field(default=None, name="blocks per SM")
    warps_per_sm: Any = field(default=None, name="warps per SM")
    kind: Any = None
    bandwidth: Any = field(default=None, name="memory bandwidth (GB/s)")
    rest: Any = field(default=None, name="(rest)")


class AnnotationArgs(Struct, gc=False):
    """The two arguments of annotations that are columns of their own."""

    external_id: int | None = field(default=None, name="External id")
    correlation: int | None = None


class MemoryArgs(Struct, gc=False, kw_only=True):
    """Arguments of the allocator's ``[memory]`` instants."""

    total_reserved: int | None = field(default=None, name="Total Reserved")
    total_allocated: int | None = field(default=None, name="Total Allocated")
    bytes: int | None = field(default=None, name="Bytes")
    device_id: int | None = field(default=None, name="Device Id")
    device_type: int | None = field(default=None, name="Device Type")


REST = "rest"
# Arguments that only count events.
COUNTING = frozenset({"Ev Idx", "Profiler Event Index"})
# Arguments that have no column: they become `attributes`.
MORE: dict[type[Struct], frozenset[str]] = {
    OpArgs: frozenset({
        "call_stack", "module_hierarchy", "trace_name", "trace_iteration", "finished", "kernel_backend", "kernel_file",
        "kernel_hash", "kernel_name", "kernel_kwargs", "num_warps", "num_stages", "stream", "grid",
    }),
    KernelArgs: frozenset({"context", "queued", "priority", "blocks_per_sm", "warps_per_sm", "kind", "bandwidth"}),
}  # fmt: skip


def known_names(type_: type[Struct]) -> frozenset[str]:
    """Return the arguments that a type has, as kineto spells them."""
    return frozenset(f.encode_name for f in msgspec.structs.fields(type_))


# Category as written (lower case) -> kind of row. Everything else that has a length is an annotation.
# `Operator`, `Runtime`, `Kernel`, `Memcpy`, `Memset` are the names of 2020 and 2021.
CATEGORIES: dict[str, tuple[str, str]] = {
    "cpu_op": ("ops", "cpu_op"),
    "operator": ("ops", "cpu_op"),
    "python_function": ("frames", "python_function"),
    "cuda_runtime": ("launches", "cuda_runtime"),
    "runtime": ("launches", "cuda_runtime"),
    "xpu_runtime": ("launches", "cuda_runtime"),
    "mtia_runtime": ("launches", "cuda_runtime"),
    "privateuse1_runtime": ("launches", "cuda_runtime"),
    "cuda_driver": ("launches", "cuda_driver"),
    "xpu_driver": ("launches", "cuda_driver"),
    "privateuse1_driver": ("launches", "cuda_driver"),
    "kernel": ("kernels", Activity.KERNEL),
    "mtia_ccp_events": ("kernels", "kernel"),
    "hpu_op": ("kernels", "kernel"),
    "gpu_memcpy": ("kernels", Activity.MEMCPY),
    "memcpy": ("kernels", Activity.MEMCPY),
    "gpu_memset": ("kernels", Activity.MEMSET),
    "memset": ("kernels", Activity.MEMSET),
}

# Annotations that are known not to be work of a device, though some stand beside its streams.
NO_WORK = frozenset({
    "user_annotation", "gpu_user_annotation", "cuda_sync", "cuda_event", "xpu_sync", "overhead", "external_correlation",
    "cuda_profiler_range", "gpu_pm_counter", "mtia_counters", "mtia_insight", "glow_runtime", "cpu_instant_event", "trace",
})  # fmt: skip

# Phases that become edges: they are paired once the file is complete.
EDGES = frozenset("BEbneSTpF")
INSTANTS = frozenset("iIR")
FLOWS = frozenset("stf")
# Defined phases that are neither spans nor samples of the program: objects, profiler samples, dumps, marks, contexts.
OTHERS = frozenset("NODPvVc(),")
PHASES = frozenset("XMC") | EDGES | INSTANTS | FLOWS | OTHERS

# Groups of events that are staged together, and the type of their arguments.
ARGS: dict[str, type[Struct]] = {
    "ops": OpArgs,
    "frames": FrameArgs,
    "launches": LaunchArgs,
    "kernels": KernelArgs,
    "annotations": AnnotationArgs,
    "memory": MemoryArgs,
}

decode_events = msgspec.json.Decoder(list[Event]).decode
decode_frames = msgspec.json.Decoder(list[FrameEvent]).decode


def _typed(type_: type[Struct]) -> Callable[[bytes], list[Any]]:
    return msgspec.json.Decoder(list[type_]).decode  # type: ignore[valid-type]


def _with_rest(type_: type[Struct]) -> Callable[[bytes], list[Any]]:
    """Return a decoder that keeps arguments of any name: what the type does not know goes to ``rest``."""
    strict = _typed(type_)
    known = known_names(type_)
    plain = msgspec.json.Decoder(list[dict[str, Any]]).decode
    each = msgspec.json.Decoder(list[dict[str, Raw]]).decode

    def decode(text: bytes) -> list[Any]:
        try:
            return strict(text)
        except msgspec.ValidationError:
            # Either an unknown argument or a wrong type; the latter fails again.
            parts = each(text)
            cut = b",".join(
                b"{%b}"
                % b",".join(b"%b:%b" % (msgspec.json.encode(k), bytes(v)) for k, v in part.items() if k in known)
                for part in parts
            )
            found = strict(b"[%b]" % cut)
            for args, whole in zip(found, plain(text), strict=True):
                args.rest = {k: v for k, v in whole.items() if k not in known} or None
            return found

    return decode


DECODE_ARGS: dict[str, Callable[[bytes], list[Any]]] = {
    "ops": _with_rest(OpArgs),
    "frames": _typed(FrameArgs),
    "launches": _typed(LaunchArgs),
    "kernels": _with_rest(KernelArgs),
    "annotations": _typed(AnnotationArgs),
    "memory": _typed(MemoryArgs),
    "metadata": msgspec.json.Decoder(list[dict[str, Any]]).decode,
    "counters": msgspec.json.Decoder(list[dict[str, Any]]).decode,
}


def group_of(phase: str, category: str | None, name: str | None) -> tuple[str, str | None]:
    """Return the group an event is staged with, and its category in today's spelling."""
    if phase == "X":
        return CATEGORIES.get((category or "").lower(), ("annotations", category))
    if phase in FLOWS:
        return "flows", category
    if phase in INSTANTS:
        return ("memory" if category == "cpu_instant_event" and name == "[memory]" else "instants"), category
    if phase == "C":
        return "counters", category
    if phase == "M":
        return "metadata", category
    return ("edges" if phase in EDGES else "others"), category
