"""Facts about the instructions of an XLA program: shapes, the operation they were made of, and the line of source.

A profile carries the compiled programs it saw as ``HloProto`` messages (``xla/service/hlo.proto``). An instruction is a
fusion more often than not, so its name (``loop_add_fusion.3``) says little; its ``op_name``
(``jit(step)/transformer/attention/dot_general``) and its operands' shapes say what it computes.
"""

from __future__ import annotations

from dataclasses import dataclass

from magneton.transforms.sources.xla.protowire import LENGTH, VARINT, Buffer, fields, signed, text, varints

# xla_data.proto, PrimitiveType
_TYPES = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64", 10: "f16", 11: "f32",
    12: "f64", 13: "tuple", 15: "c64", 16: "bf16", 17: "token", 18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 21: "s4",
    22: "u4", 23: "f8e4m3b11fnuz", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 26: "s2", 27: "u2", 28: "f8e4m3", 29: "f8e3m4",
    32: "f4e2m1fn", 33: "f8e8m0fnu",
}  # fmt: skip
_TUPLE = 13
_MAX_TUPLE_DEPTH = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """Type and dimensions of one array (a tuple is listed as its arrays)."""

    dtype: str | None
    dims: tuple[int, ...]


@dataclass(slots=True)
class Instruction:
    """One instruction of a program. Whatever the program does not say is None."""

    name: str
    opcode: str | None = None
    op_name: str | None = None
    source_file: str | None = None
    source_line: int | None = None
    outputs: tuple[Shape, ...] = ()
    operands: tuple[tuple[Shape, ...], ...] = ()


@dataclass(slots=True)
class _Raw:
    instruction: Instruction
    identity: int
    operand_ids: list[int]
    frame: int


class _Frames:
    """The table of stack frames that newer programs keep once per module."""

    def __init__(self, data: Buffer, start: int, stop: int) -> None:
        self._files: list[str] = []
        self._locations: list[tuple[int, int]] = []
        self._frames: list[int] = []
        for number, wire, a, b in fields(data, start, stop):
            if wire != LENGTH:
                continue
            if number == 1:
                self._files.append(text(data, a, b))
            elif number == 3:
                inner = {n: x for n, w, x, _ in fields(data, a, b) if w == VARINT}
                self._locations.append((inner.get(1, 0), inner.get(3, 0)))
            elif number == 4:
                inner = {n: x for n, w, x, _ in fields(data, a, b) if w == VARINT}
                self._frames.append(inner.get(1, 0))

    def place(self, frame: int) -> tuple[str | None, int | None]:
        """Return file and line of a frame (ids count from 1; 0 is none)."""
        try:
            file, line = self._locations[self._frames[frame - 1] - 1] if frame > 0 else (0, 0)
            return (self._files[file - 1] if file > 0 else None), (line or None)
        except IndexError:
            return None, None


def _shape(data: Buffer, start: int, stop: int, depth: int = 0) -> list[Shape]:
    dtype: int | None = None
    dims: list[int] = []
    parts: list[Shape] = []
    for number, wire, a, b in fields(data, start, stop):
        if number == 2 and wire == VARINT:
            dtype = a
        elif number == 3 and wire in (VARINT, LENGTH):
            dims += varints(data, wire, a, b)
        elif number == 4 and wire == LENGTH and depth < _MAX_TUPLE_DEPTH:
            parts += _shape(data, a, b, depth + 1)
    if dtype == _TUPLE:
        return parts
    return [Shape(None if dtype is None else _TYPES.get(dtype, f"type_{dtype}"), tuple(dims))]


def _instruction(data: Buffer, start: int, stop: int) -> _Raw:
    raw = _Raw(Instruction(""), 0, [], 0)
    for number, wire, a, b in fields(data, start, stop):
        if wire == LENGTH:
            if number == 1:
                raw.instruction.name = text(data, a, b)
            elif number == 2:
                raw.instruction.opcode = text(data, a, b)
            elif number == 3:
                raw.instruction.outputs = tuple(_shape(data, a, b))
            elif number == 7:
                _metadata(data, a, b, raw)
            elif number == 36:
                raw.operand_ids += varints(data, wire, a, b)
        elif wire == VARINT:
            if number == 35:
                raw.identity = signed(a)
            elif number == 36:
                raw.operand_ids.append(signed(a))
    return raw


def _metadata(data: Buffer, start: int, stop: int, raw: _Raw) -> None:
    for number, wire, a, b in fields(data, start, stop):
        if number == 2 and wire == LENGTH:
            raw.instruction.op_name = text(data, a, b) or None
        elif number == 3 and wire == LENGTH:
            raw.instruction.source_file = text(data, a, b) or None
        elif number == 4 and wire == VARINT:
            raw.instruction.source_line = signed(a) or None
        elif number == 15 and wire == VARINT:
            raw.frame = a


def read_module(data: Buffer, start: int, stop: int) -> dict[str, Instruction]:
    """Return the instructions of the ``HloProto`` in ``data[start:stop]`` by name (names are unique in a program).

    Raises:
        WireError: it is not a message.
    """
    raws: list[_Raw] = []
    frames: _Frames | None = None
    for number, wire, a, b in fields(data, start, stop):
        if number != 1 or wire != LENGTH:
            continue
        for inner, kind, c, d in fields(data, a, b):
            if kind != LENGTH:
                continue
            if inner == 3:
                raws += [_instruction(data, e, f) for n, w, e, f in fields(data, c, d) if n == 2 and w == LENGTH]
            elif inner == 17:
                frames = _Frames(data, c, d)
    outputs = {raw.identity: raw.instruction.outputs for raw in raws}
    found: dict[str, Instruction] = {}
    for raw in raws:
        instruction = raw.instruction
        instruction.operands = tuple(outputs[i] for i in raw.operand_ids if i in outputs)
        if frames is not None and instruction.source_file is None:
            instruction.source_file, instruction.source_line = frames.place(raw.frame)
        found[instruction.name] = instruction
    return found
