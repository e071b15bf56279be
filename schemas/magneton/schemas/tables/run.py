"""The tables of a run. Names are the field's own: kineto, Chakra, OpenTelemetry, in snake_case.

Ids (``op_id``, ``kernel_id`` ...) are unique within a run across captures and ranks, and follow time, not the order of
events in the input. Unknown is NULL, never -1 and never 0.
"""

from __future__ import annotations

from magneton.schemas.tables.columns import (
    BOOL,
    FLOAT,
    FLOATS,
    INT,
    INTS,
    SIGNATURES,
    SINGULAR,
    SKETCHES,
    SLICES,
    STRING,
    Column,
    Table,
    event_table,
    plain_table,
)

_THREAD = (
    Column("pid", STRING, "process as the input names it"),
    Column("tid", STRING, "thread (or track) as the input names it"),
)
_PLACE = (
    Column("module_id", INT, "innermost `nn.Module` call around it: row of `modules`"),
    Column("module_call", INT, "the call of that module: row of `frames`"),
    Column("step_id", INT, "step it belongs to: row of `steps`"),
)

CAPTURES = event_table(
    "captures",
    "One execution of the recorded system on one rank: its input file, its clock, and what became of every input "
    "event. `n_raw = n_kept + n_merged + n_ignored + n_quarantined`.",
    Column("kind", STRING, "`energy`, `profile`, `values`, `branches` or `graph_capture`"),
    Column("source_format", STRING, "format of the input, e.g. `kineto`"),
    Column("framework", STRING, "system that ran, as far as the input says"),
    Column("file", STRING, "input file, by its path in the recording: `files.path` of the manifest"),
    Column("base_unix_ns", INT, "Unix time of `ts_ns = 0`; NULL when the input has no absolute time", "ns"),
    Column("clock", STRING, "clock of the time stamps: `realtime`, `monotonic`, `boottime`, `session` or NULL"),
    Column("world_size", INT, "number of ranks of the job, as far as the input says"),
    Column("incomplete", BOOL, "the input was cut off, or ranks are missing: totals are lower bounds"),
    Column("n_raw", INT, "elements of the input's event list"),
    Column("n_kept", INT, "input events that became a row of a table"),
    Column("n_merged", INT, "input events folded into another row (B/E pairs, metadata, flow ends)"),
    Column("n_ignored", INT, "empty elements"),
    Column("n_quarantined", INT, "input events set aside with a reason: see `quarantine`"),
    Column("devices", STRING, "device properties as written by the system, JSON"),
    Column("metadata", STRING, "other top-level fields of the input, JSON"),
)

WARNINGS = plain_table(
    "warnings",
    "What was noticed while a capture was read. It may limit the trust in the numbers of the capture.",
    Column("code", STRING, "stable code, see `docs/formats.md`"),
    Column("count", INT, "how often it was seen"),
    Column("message", STRING, "one sentence, with the first place where it was seen"),
)

OPS = event_table(
    "ops",
    "One call of an operator on the host (`cat: cpu_op`, or the format's equivalent).",
    *_THREAD,
    Column("op_id", INT, "identity of the call within the run"),
    Column("parent_id", INT, "enclosing operator call on the same thread"),
    Column("depth", INT, "number of enclosing slices (operators, frames, annotations) of the same thread"),
    *_PLACE,
    Column("frame_id", INT, "innermost Python frame around it: row of `frames`"),
    Column("external_id", INT, "kineto `External id`"),
    Column("record_function_id", INT, "kineto `Record function id` (equals the Chakra trace's `rf_id`)"),
    Column("sequence_number", INT, "autograd sequence number"),
    Column("fwd_thread_id", INT, "autograd forward thread; not 0 on backward operators"),
    Column("forward_op_id", INT, "operator whose gradient this call computes"),
    Column("input_dims", STRING, "shapes of the inputs, JSON list"),
    Column("input_types", STRING, "dtypes of the inputs, JSON list"),
    Column("input_strides", STRING, "strides of the inputs in elements, JSON list"),
    Column("concrete_inputs", STRING, "values of scalar inputs as text, JSON list"),
    Column("collective", STRING, "collective communication: name, group and sizes, JSON"),
    Column("attributes", STRING, "other fields of the call in the input (graph node, HLO module, provider ...), JSON"),
    Column("flags", STRING, "codes that apply to this row, space separated, e.g. `inferred_end`"),
)

LAUNCHES = event_table(
    "launches",
    "One call of a device runtime or driver (`cuda_runtime`, `cuda_driver`; HIP calls carry the same names).",
    *_THREAD,
    Column("launch_id", INT, "identity of the call within the run"),
    Column("category", STRING, "`cuda_runtime` or `cuda_driver`"),
    Column("correlation", INT, "correlation id shared with device activities"),
    Column("external_id", INT, "kineto `External id`"),
    Column("op_id", INT, "innermost operator around it on its thread"),
    Column("depth", INT, "number of enclosing slices of the same thread"),
    *_PLACE,
    Column("frame_id", INT, "innermost Python frame around it: row of `frames`"),
    Column("kernel_name", STRING, "kernel named by the call itself (HIP)"),
    Column("expects_device_activity", BOOL, "the call launches a kernel, copy, memset or graph"),
)

KERNELS = event_table(
    "kernels",
    "One activity on a device: kernel, copy or memset.",
    *_THREAD,
    Column("kernel_id", INT, "identity of the activity within the run"),
    Column("category", STRING, "`kernel`, `gpu_memcpy` or `gpu_memset`"),
    Column("kernel_class", STRING, "what kind of work its name shows: `gemm`, `attention`, `collective` ..."),
    Column("device", INT, "device number as the system saw it"),
    Column("stream", INT, "stream or queue"),
    Column("correlation", INT, "correlation id shared with the launch (shared by all kernels of a graph replay)"),
    Column("external_id", INT, "kineto `External id`; NULL where it is only a copy of the correlation"),
    Column("launch_id", INT, "call that launched it: row of `launches`"),
    Column("op_id", INT, "operator it belongs to: row of `ops`"),
    Column("link", STRING, "how it was tied to its operator: `launch`, `external_id`, `flow`, `capture`, or NULL"),
    *_PLACE,
    Column("launch_latency_ns", INT, "start minus start of its launch; negative under clock skew", "ns"),
    Column("graph_launch", BOOL, "the launch replays a captured graph (its correlation is shared)"),
    Column("graph_node_id", INT, "node of that graph, where the input names it"),
    Column(
        "capture_launch_id",
        INT,
        "call that captured it into the graph, in a capture of kind `graph_capture`: row of `launches`",
    ),
    Column(
        "layer",
        INT,
        "number of the layer it lies in, from 0. Layers are the repeating blocks of the kernel sequence; only where graphs are replayed",
    ),
    Column("layer_position", INT, "its place in the layer; corresponding kernels of two layers have the same place"),
    Column("bytes", INT, "bytes moved", "bytes"),
    Column("grid", INTS, "grid size"),
    Column("block", INTS, "block size"),
    Column("registers_per_thread", INT, "registers per thread"),
    Column("shared_memory_bytes", INT, "shared memory per block", "bytes"),
    Column("occupancy_percent", FLOAT, "estimated achieved occupancy", "%"),
    Column("collective", STRING, "collective communication: name, group and sizes, JSON"),
    Column("attributes", STRING, "other fields of the activity in the input (HLO instruction, mangled name ...), JSON"),
)

FRAMES = event_table(
    "frames",
    "One Python call seen by the profiler (`cat: python_function`).",
    *_THREAD,
    Column("frame_id", INT, "identity of the call within the run"),
    Column("python_id", INT, "kineto `Python id`"),
    Column("parent_id", INT, "calling frame (from Python ids, or by containment where there are none)"),
    Column("file", STRING, "source file, where the name gives one"),
    Column("line", INT, "line in it"),
    Column("function", STRING, "function name"),
    Column("module_id", INT, "the `nn.Module` instance, when the frame is a module call"),
)

MODULES = event_table(
    "modules",
    "One `nn.Module` instance at one place of the module tree; `ts_ns` is its first call, `dur_ns` the sum of its calls.",
    Column("module_id", INT, "identity within the run"),
    Column("parent_id", INT, "enclosing module"),
    Column("class_name", STRING, "class, e.g. `Linear`"),
    Column("path", STRING, "names from the root, joined by `/`, e.g. `GPT2Model_0/GPT2Block_3/LayerNorm_6`"),
    Column("depth", INT, "number of enclosing modules"),
    Column("n_calls", INT, "how often it was called"),
)

ANNOTATIONS = event_table(
    "annotations",
    "Spans and marks that are not operators: user annotations, device-side annotations, instants, async spans.",
    *_THREAD,
    Column("annotation_id", INT, "identity within the run"),
    Column("category", STRING, "category as written, e.g. `user_annotation`"),
    Column(
        "kind",
        STRING,
        "`slice`, `instant`, `async`, `async_instant` (a mark within an async span), `object`, `sample` or `mark` (other "
        "phases of the trace format)",
    ),
    Column("parent_id", INT, "enclosing annotation on the same thread"),
    Column("step_id", INT, "step it belongs to: row of `steps`"),
    Column("external_id", INT, "kineto `External id`"),
    Column("correlation", INT, "correlation id, where written"),
    Column("args", STRING, "arguments as written, JSON"),
    Column("flags", STRING, "codes that apply to this row, space separated, e.g. `unterminated_slice`"),
)

STEPS = event_table(
    "steps",
    "One iteration: a training step, a forward pass, or one serving step of a scheduler.",
    Column("step_id", INT, "identity within the run"),
    Column(
        "kind",
        STRING,
        "`profiler_step`, `serving_step`, `bare_step` (of the program by itself, timed on the host) or `capture` (all of it)",
    ),
    Column("index", INT, "number the system gave it"),
    Column("phase", STRING, "`prefill`, `decode`, `mixed` or NULL"),
    Column("context_requests", INT, "requests in their context (prefill) phase"),
    Column("context_tokens", INT, "tokens processed for them", "tokens"),
    Column("generation_requests", INT, "requests in their generation (decode) phase"),
    Column("generation_tokens", INT, "tokens processed for them", "tokens"),
    Column("dialect", STRING, "naming scheme the fields were read from, e.g. `vllm`"),
)

COUNTERS = event_table(
    "counters",
    "One sample of a counter track (`ph: C`) or of the allocator; `dur_ns` is NULL.",
    *_THREAD,
    Column("series", STRING, "series within the counter"),
    Column("value", FLOAT, "value"),
    Column("unit", STRING, "unit of the value, where known"),
    Column("device", INT, "device, where the sample names one"),
)

FLOWS = event_table(
    "flows",
    "One arrow between two slices; `ts_ns` and `dur_ns` run from its start to its end. An arrow that only repeats a "
    "correlation id is not a row here. It is counted as merged.",
    Column("flow_id", INT, "identity within the run"),
    Column("category", STRING, "category as written, e.g. `fwdbwd`"),
    Column("source_kind", STRING, "table of the source row: `ops`, `launches`, `kernels`, `frames`, `annotations`"),
    Column("source_id", INT, "row where it starts"),
    Column("target_kind", STRING, "table of the target row"),
    Column("target_id", INT, "row where it ends"),
    Column("state", STRING, "`linked`, `dangling_start` or `dangling_end`"),
)

USES = plain_table(
    "uses",
    "One tensor that one operator call reads or writes, from an execution trace (Chakra) or a capture of kind `values`: "
    "the dataflow of a run. "
    "A tensor is named by `tensor_id` and `storage_id` of its capture; a storage id may be used again after it was freed.",
    Column("op_id", INT, "the call: row of `ops`"),
    Column("direction", STRING, "`input` or `output`"),
    Column("position", INT, "argument number, from 0"),
    Column("element", INT, "number within the argument where that is a list of tensors; NULL otherwise"),
    Column("tensor_id", INT, "the format's id of the tensor; in a capture of kind `values` the row of `tensors`"),
    Column("storage_id", INT, "the format's id of the memory it lies in"),
    Column("storage_offset", INT, "elements before its first one in that memory", "elements"),
    Column("numel", INT, "number of elements", "elements"),
    Column("itemsize", INT, "size of one element", "bytes"),
    Column("device", STRING, "device as the format names it, e.g. `cuda:0`"),
    Column("dtype", STRING, "type of the elements as the format names it, e.g. `float`"),
    Column("dims", INTS, "shape"),
    Column("strides", INTS, "strides", "elements"),
)

TENSORS = plain_table(
    "tensors",
    "One value of the dataflow and its fingerprint, from a capture of kind `values`. A value is a set of elements of one "
    "storage at one version. A view of a value adds a sketch of its arrangement to the row. A write makes a new value. "
    "Statistics are over the finite elements; elements at the limit of the dtype or beyond 1e30 count as infinite.",
    Column("tensor_id", INT, "identity within the capture, in order of definition"),
    Column("storage_id", INT, "memory it lies in; unique within the capture, never used again"),
    Column("version", INT, "how often that memory had been written to"),
    Column("dims", INTS, "shape when first seen"),
    Column("dtype", STRING, "type of the elements, e.g. `float32`"),
    Column("precision", STRING, "coarsest floating type that it was computed with; it sets the tolerance of a match"),
    Column("numel", INT, "number of elements", "elements"),
    Column("role", STRING, "`input`, `parameter` or `output` of the program; NULL in between"),
    Column("constant", BOOL, "computed from parameters and literals alone, not from an input"),
    Column("n_nan", INT, "elements that are not a number", "elements"),
    Column("n_posinf", INT, "infinite elements, positive", "elements"),
    Column("n_neginf", INT, "infinite elements, negative", "elements"),
    Column("mean", FLOAT, "mean"),
    Column("std", FLOAT, "standard deviation (of the population)"),
    Column("l1", FLOAT, "sum of absolute values"),
    Column("l2_squared", FLOAT, "sum of squares"),
    Column("l4_fourth", FLOAT, "sum of fourth powers"),
    Column("sum_cubes", FLOAT, "sum of cubes"),
    Column("min", FLOAT, "least value"),
    Column("max", FLOAT, "greatest value"),
    Column("quantiles", FLOATS, "values at 1/8, 1/4, 1/2, 3/4 and 7/8, from at most 4,096 elements evenly taken"),
    Column("hash", STRING, "integers and booleans: hash of the elements in order; NULL for floating types"),
    Column(
        "sketches",
        SKETCHES,
        "order-sensitive count sketches of the centred values, one per arrangement in which the program viewed it",
    ),
    Column(
        "slices",
        SLICES,
        "count sketches of the slices along the first axis (at most 16 slices) and along one other axis (at most 8). The shape "
        "names the sliced axis first and leaves out axes of length 1. Not centred",
    ),
    Column(
        "signatures",
        SIGNATURES,
        "a few sums with random signs of each row and of each column, in the order of memory. They find parts of unequal length in "
        "a whole. `key` names the axes that were summed over. The longest are left out beyond 6 MB a capture. NULL where there is "
        "none, and in recordings of earlier releases",
    ),
    Column(
        "singular_values",
        SINGULAR,
        "largest singular values of the tensor as a matrix, per way to make it one; only on request",
    ),
    Column(
        "why_no_values",
        STRING,
        "why there is no fingerprint: `sparse`, `quantized`, `empty`, `opaque` ...; NULL if there is",
    ),
)

KNOBS = plain_table(
    "knobs",
    "One setting that was in force during a capture.",
    Column("name", STRING, "name as the system has it, e.g. `torch.backends.cuda.matmul.allow_tf32`"),
    Column("value", STRING, "value as text; NULL when unset"),
    Column("source", STRING, "`torch`, `environment`, `package`, `model` or `program`"),
)

POWER = event_table(
    "power",
    "One reading of a power or energy sensor; `dur_ns` is NULL for instants.",
    Column("source", STRING, "who read it: `nvidia-smi`, `dcgm`, `csv` ..."),
    Column("device_kind", STRING, "`gpu`, `cpu`, `dram`, `wall`, `wall_part` (one of several analysers) ..."),
    Column("device_id", STRING, "UUID or index of the device as the sensor names it"),
    Column("field", STRING, "which reading: `power_instant`, `power_average`, `power`, `energy_counter` ..."),
    Column("value", FLOAT, "reading, in `unit`; NULL when the sensor gave none"),
    Column("unit", STRING, "`W`, `J`, `MHz`, `degC`, `%`, `bytes`, `V`, `A` or `1`"),
    Column("labels", STRING, "other labels of the reading as written (pod, host ...), JSON object"),
    Column("clock", STRING, "clock that stamped it: `realtime`, `monotonic` or `boottime`"),
    Column("flags", STRING, "codes that apply to this row, space separated"),
)

QUARANTINE = plain_table(
    "quarantine",
    "One input event that could not be used, with the reason. It contributes to no total.",
    Column("reason", STRING, "stable code, see `docs/formats.md`"),
    Column("file", STRING, "input file, by its path in the recording: `files.path` of the manifest"),
    Column("position", INT, "0-based position in the input's event list"),
    Column("raw", STRING, "the event as written, cut to 2,000 characters, invalid bytes replaced"),
)

# The tables that a capture of values fills.
VALUES_TABLES = ("ops", "tensors", "uses", "modules", "frames")

RUN_TABLES: dict[str, Table] = {
    t.name: t
    for t in (
        CAPTURES,
        OPS,
        LAUNCHES,
        KERNELS,
        FRAMES,
        ANNOTATIONS,
        STEPS,
        MODULES,
        COUNTERS,
        FLOWS,
        USES,
        TENSORS,
        KNOBS,
        POWER,
        QUARANTINE,
        WARNINGS,
    )
}
