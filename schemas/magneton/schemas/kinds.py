"""The words that files and stages share: one enumeration for each kind of thing, and no other place that spells them.

A member is a text: ``CaptureKind.PROFILE == "profile"``. It is written to files as that text.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum, unique


@unique
class CaptureKind(StrEnum):
    """What an execution was recorded for: ``captures.kind``."""

    ENERGY = "energy"
    PROFILE = "profile"
    VALUES = "values"
    BRANCHES = "branches"
    GRAPH_CAPTURE = "graph_capture"
    # Asked of a program, never kept: chosen operators are repeated, and the answer is a document.
    REPEAT = "repeat"


@unique
class StepKind(StrEnum):
    """What a step is: ``steps.kind``."""

    PROFILER_STEP = "profiler_step"
    SERVING_STEP = "serving_step"
    BARE_STEP = "bare_step"
    CAPTURE = "capture"


@unique
class Activity(StrEnum):
    """What a device did: ``kernels.category``."""

    KERNEL = "kernel"
    MEMCPY = "gpu_memcpy"
    MEMSET = "gpu_memset"


@unique
class KernelClass(StrEnum):
    """Classes of device work that are judged in a way of their own: ``kernels.kernel_class`` and the roll-up by kernel class."""

    COLLECTIVE = "collective"
    COLLECTIVE_WAIT = "collective_wait"
    # Time of the host without an operator, on a CPU.
    PYTHON = "python"
    HOST_WAIT = "host_wait"


@unique
class Reason(StrEnum):
    """Why device time is in no row of a diff: ``left_out.reason``."""

    NO_LAUNCH = "no_launch"
    OUTSIDE_STEPS = "outside_steps"
    OTHER_STEPS = "other_steps"


class DeviceKind(StrEnum):
    """What a sensor measures: ``power.device_kind``. A module (a GPU with what shares its board) and a psys contain others."""

    GPU = "gpu"
    MODULE = "module"
    CPU = "cpu"
    CPU_PACKAGE = "cpu_package"
    PACKAGE = "package"
    CORE = "core"
    UNCORE = "uncore"
    DRAM = "dram"
    PSYS = "psys"
    NODE = "node"
    WALL = "wall"
    METER = "meter"
    OTHER = "other"


@unique
class PowerField(StrEnum):
    """What a power sensor reads: ``power.field``. Other readings (clocks, temperatures) have names of their own."""

    ENERGY_COUNTER = "energy_counter"
    POWER_INSTANT = "power_instant"
    POWER = "power"
    POWER_AVERAGE = "power_average"
    POWER_LIMIT = "power_limit"


@unique
class SensorKind(StrEnum):
    """Where readings of power come from: ``sensors.kind`` of the manifest."""

    POWER_LOG = "power_log"
    DEVICE_MAP = "device_map"
    METER = "meter"


@unique
class EnergyLabel(StrEnum):
    """How an energy was got, strongest first. A sum takes the weakest label of its parts."""

    MEASURED = "measured"
    REPLAYED = "replayed"
    DISAGGREGATED = "disaggregated"
    APPORTIONED = "apportioned"
    MODELLED = "modelled"
    NOT_IDENTIFIABLE = "not_identifiable"


@unique
class EnergyBasis(StrEnum):
    """What of the power counts: all of it, or what lies above the power at rest."""

    GROSS = "gross"
    DYNAMIC = "dynamic"


@unique
class Unit(StrEnum):
    """What a diff is per: ``comparison.unit``. One can ask for steps, samples and tokens (``ASKED_UNITS``)."""

    STEP = "step"
    CALL = "call"
    CAPTURE = "capture"
    REPETITION = "repetition"
    SAMPLE = "sample"
    TOKEN = "token"  # noqa: S105


ASKED_UNITS = (Unit.STEP, Unit.SAMPLE, Unit.TOKEN)


@unique
class Method(StrEnum):
    """By what two recordings were aligned: ``comparison.method``."""

    VALUES = "values"
    STRUCTURE = "structure"


@unique
class RegionKind(StrEnum):
    """Which sides have the work of a region: ``regions.kind``."""

    PAIRED = "paired"
    ONLY_A = "only_a"
    ONLY_B = "only_b"


@unique
class Verdict(StrEnum):
    """What may be concluded of a difference: ``findings.verdict``."""

    WASTE = "waste"
    TRADE_OFF = "trade-off"
    EQUAL = "equal"
    INCONCLUSIVE = "inconclusive"
    NOT_COMPARABLE = "not comparable"


@unique
class Evidence(StrEnum):
    """What a pairing rests on, strongest first: ``regions.evidence``."""

    VALUES = "values"
    SECOND_INPUT = "second_input"
    MOVEMENT = "movement"
    UNION = "union"
    PARTIAL = "partial"
    CONTEXT = "context"
    TREE = "tree"
    MODULE = "module"
    SHAPES = "shapes"
    PARTS = "parts"
    KERNEL_CLASS = "kernel_class"
    ORDER = "order"
    NAME = "name"


@unique
class OpFlag(StrEnum):
    """What the capture of values says of a call for the diff to repeat: one word of ``ops.flags``."""

    RANDOM = "random"
    COMPILED = "compiled"


@unique
class Clock(StrEnum):
    """Whose time stamps they are. ``session`` is a clock of the recorded system with no relation to others."""

    REALTIME = "realtime"
    MONOTONIC = "monotonic"
    BOOTTIME = "boottime"
    SESSION = "session"


@unique
class FileRole(StrEnum):
    """What a file is to its recording: ``files.role`` of the manifest."""

    PRIMARY = "primary"
    AUXILIARY = "auxiliary"
    DERIVED = "derived"


@unique
class OwnFormat(StrEnum):
    """Formats that the recorder writes itself: ``captures.source_format``."""

    VALUES = "magneton-values"
    STEPS = "magneton-steps"
    POWER = "magneton_power"


@unique
class Flag(StrEnum):
    """Codes of warnings, flags and reasons that more than one module names. All codes stand in ``codes``, with their meaning."""

    BELOW_IDLE_BASELINE = "below_idle_baseline"
    DEVICE_SHARED = "device_shared"
    DEVICE_UNREAD = "device_unread"
    CONFLICTING_INSTANT = "conflicting_instant"
    ENERGY_OF_ANOTHER_CAPTURE = "energy_of_another_capture"
    GRAPH_REPLAY_NO_OP = "graph_replay_no_op"
    NEGATIVE_ENERGY = "negative_energy"
    NEGATIVE_POWER = "negative_power"
    NOT_AVAILABLE = "not_available"
    ROW_CUT = "row_cut"
    ROW_MALFORMED = "row_malformed"
    SIMULATED = "simulated"
    UNTERMINATED_ASYNC = "unterminated_async"
    UNTERMINATED_SLICE = "unterminated_slice"
    VALUE_IMPLAUSIBLE = "value_implausible"
    VALUE_NOT_FINITE = "value_not_finite"
    VALUE_NOT_NUMERIC = "value_not_numeric"


_STRENGTH: dict[str, int] = {word: number for number, word in enumerate(Evidence)}
# What people read of evidence, where it is another word than the one in files.
_EVIDENCE_TEXT: dict[str, str] = {
    Evidence.MOVEMENT: "only moves data",
    Evidence.UNION: "concatenation",
    Evidence.PARTIAL: "same but for padding",
    Evidence.CONTEXT: "neighbours",
    Evidence.MODULE: "module path",
    Evidence.PARTS: "sum of parts",
    Evidence.KERNEL_CLASS: "kind of kernel",
}


def in_order(words: Iterable[str]) -> list[str]:
    """Return words of evidence, strongest first; words that are none come last."""
    return sorted(words, key=lambda word: (_STRENGTH.get(word, len(_STRENGTH)), word))


def evidence_text(words: Iterable[str]) -> str:
    """Return evidence for people. Example: ``values, on two inputs`` of ``second_input`` and ``values``."""
    found = in_order(words)
    if Evidence.VALUES in found and Evidence.SECOND_INPUT in found:
        found.remove(Evidence.SECOND_INPUT)
        found[found.index(Evidence.VALUES)] = "values, on two inputs"
    return ", ".join(_EVIDENCE_TEXT.get(word, word) for word in found)
