"""The dataflow of a recorded program: storages with versions, the values in them, and which operator defines what.

A *value* is the set of elements that a tensor shows of one storage at one version. Views of the same elements are the same value. A
view that selects part of a value, or repeats it, defines a value of its own.

A write gives the written elements a new value, and the storage a new version. Another view of this storage gets its new value when it
is read again. The pseudo operator ``_assemble`` defines this value and reads the values that its elements come from.

PyTorch uses addresses again within one pass. So a storage is recognised by its address only while it is referenced, and the recorder
holds a weak reference to each storage until the recording ends.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from magneton.collectors.torch.fingerprint import Fingerprint
from magneton.collectors.torch.geometry import WHOLE, Geometry, Key, covered, key_of, overlap
from magneton.collectors.torch.profile import import_torch
from magneton.collectors.torch.tensor_signature import SignatureBudget

torch: Any = import_torch()

INPUT, PARAMETER, OUTPUT = "input", "parameter", "output"
UNINITIALIZED = "uninitialized"

# Floating types from the finest to the coarsest, by the width of their mantissa.
_PRECISIONS = (
    "float64",
    "float32",
    "float16",
    "tfloat32",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
)
_REAL = {"complex128": "float64", "complex64": "float32", "complex32": "float16"}
_RANK = {name: rank for rank, name in enumerate(_PRECISIONS)}


def dtype_name(dtype: Any) -> str:
    """Return the name of a torch dtype without its module: ``float32``."""
    return str(dtype).removeprefix("torch.")


def coarsest(*precisions: str | None) -> str | None:
    """Return the coarsest of several floating types; None where there is none."""
    known = [p for p in precisions if p is not None]
    return max(known, key=lambda p: _RANK.get(p, 0)) if known else None


def precision_of(dtype: Any) -> str | None:
    """Return a dtype as a precision: None for integers and booleans, the part's for complex numbers."""
    name = dtype_name(dtype)
    name = _REAL.get(name, name)
    return name if name in _RANK else None


@dataclass(slots=True)
class Value:
    """One row of ``tensors`` in the making."""

    number: int
    storage: int
    version: int
    geometry: Geometry
    dims: tuple[int, ...] | None
    dtype: str
    numel: int | None
    constant: bool
    precision: str | None
    role: str | None = None
    fingerprint: Fingerprint = field(default_factory=Fingerprint)


@dataclass(slots=True)
class _Write:
    version: int
    geometry: Geometry
    value: Value


@dataclass(slots=True)
class Storage:
    """Memory of one lifetime. ``alive`` keeps its address from being used by another storage."""

    number: int
    alive: object
    role: str | None = None
    version: int = 0
    values: dict[Key | Geometry, Value] = field(default_factory=dict)
    writes: list[_Write] = field(default_factory=list)

    def is_late(self, value: Value) -> bool:
        """Tell whether a value's elements were written to since it was defined."""
        return next(self.late(value), None) is not None

    def late(self, value: Value) -> Iterator[_Write]:
        """Yield the writes since a value was defined that touch its elements, newest first."""
        for write in reversed(self.writes):
            if write.version <= value.version:
                return
            if overlap(write.geometry, value.geometry):
                yield write


# Called with the values read and the value defined, to record an ``_assemble``.
Assemble = Callable[[Sequence[Value], Value], None]


class Dataflow:
    """Keeps track of which value each tensor shows.

    Args:
        assemble: told of every assembled value.
        unknown_constant: whether memory that was there before, and was not announced, counts as constant.
        values: look at the elements of tensors.
    """

    def __init__(self, assemble: Assemble, *, unknown_constant: bool, values: bool = True) -> None:
        self.values: list[Value] = []
        self.signatures = SignatureBudget()
        self._assemble = assemble
        self._unknown_constant = unknown_constant
        self._values = values
        self._storages: dict[tuple[str, int], Storage] = {}
        self._n_storages = 0

    # -- storages

    def storage(self, tensor: Any) -> Storage:
        """Return the memory a tensor lies in; tensors without any are memory of their own."""
        try:
            memory = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return self._own(tensor)
        address = ("storage", memory._cdata)
        found = self._storages.get(address)
        if found is None:
            found = self._register(address, torch.multiprocessing.reductions.StorageWeakRef(memory))
        return found

    def _own(self, tensor: Any) -> Storage:
        address = ("object", id(tensor))
        found = self._storages.get(address)
        if found is None or found.alive() is None:  # type: ignore[operator]
            found = self._register(address, weakref.ref(tensor))
        return found

    def _register(self, address: tuple[str, int], alive: object) -> Storage:
        storage = self._storages[address] = Storage(self._n_storages, alive)
        self._n_storages += 1
        return storage

    def announce(self, tensor: Any, role: str) -> None:
        """Set the role of a tensor before the program runs. The first role of a storage is kept."""
        storage = self.storage(tensor)
        if storage.role is None:
            storage.role = role

    # -- reading

    def read(self, tensor: Any) -> Value:
        """Return the value a tensor shows now; values that were not seen or have changed are defined."""
        sources, value = self.show(tensor)
        if sources:
            self._assemble(sources, value)
        return value

    def show(self, tensor: Any) -> tuple[list[Value], Value]:
        """Return the value a tensor shows now. If it had to be defined, also return the values it is assembled from."""
        storage = self.storage(tensor)
        key, geometry = self._place(tensor)
        value = storage.values.get(key)
        if value is not None and not storage.is_late(value):
            self._look(value, tensor)
            return [], value
        sources = self._sources(storage, geometry) if value is None else self._since(storage, value)
        if not sources:
            return [], self._root(storage, key, geometry, tensor)
        return sources, self._assembled(storage, key, geometry, tensor, sources)

    def peek(self, tensor: Any) -> Value | None:
        """Return the value a tensor shows now, without recording anything; None where it is not known."""
        storage = self.storage(tensor)
        value = storage.values.get(self._place(tensor)[0])
        return None if value is None or storage.is_late(value) else value

    def stale(self, tensor: Any) -> bool:
        """Tell whether the value of a tensor must be assembled before the tensor is read."""
        return bool(self.storage(tensor).values) and self.peek(tensor) is None

    @staticmethod
    def _since(storage: Storage, value: Value) -> list[Value]:
        """Return what a value's elements are after later writes: the writes' values, and the value where they leave any."""
        sources: list[Value] = []
        seen: list[Geometry] = []
        for write in storage.late(value):
            sources.append(write.value)
            seen.append(write.geometry)
            if covered(value.geometry, seen):
                return sources
        return [*sources, value]

    @staticmethod
    def _sources(storage: Storage, geometry: Geometry) -> list[Value]:
        """Return the values that elements which were never looked at come from, newest first: few, and all there is."""
        newest = sorted(storage.values.values(), key=lambda v: -v.number)
        for value in newest:
            whole = geometry.start < 0 or (
                value.geometry.start <= geometry.start
                and value.geometry.stop >= geometry.stop
                and covered(geometry, [value.geometry])
            )
            if whole and not storage.is_late(value):
                return [value]
        chosen: list[Value] = []
        outers: list[Geometry] = []
        # What was partly overwritten since supplies what is still missing.
        for late in (False, True):
            for value in newest:
                if overlap(value.geometry, geometry) and storage.is_late(value) == late:
                    chosen.append(value)
                    outers.append(value.geometry)
                    if covered(geometry, outers):
                        return chosen
        return chosen

    def _root(self, storage: Storage, key: Key | Geometry, geometry: Geometry, tensor: Any) -> Value:
        constant = storage.role == PARAMETER or (storage.role is None and self._unknown_constant)
        value = self._define(storage, key, geometry, tensor, constant, None)
        value.role = storage.role
        self._look(value, tensor)
        return value

    def _assembled(
        self, storage: Storage, key: Key | Geometry, geometry: Geometry, tensor: Any, sources: Sequence[Value]
    ) -> Value:
        constant = all(v.constant for v in sources)
        value = self._define(storage, key, geometry, tensor, constant, coarsest(*(v.precision for v in sources)))
        if any(v.fingerprint.why == UNINITIALIZED for v in sources):
            value.fingerprint.why = UNINITIALIZED
        self._look(value, tensor)
        return value

    # -- defining

    def written(self, tensors: Sequence[Any], constant: bool, precision: str | None, why: str | None) -> list[Value]:
        """Record that an operator has written to tensors. Return their new values.

        Args:
            tensors: what was written to, after the operator has run.
            constant: it read nothing but constants.
            precision: coarsest type it read.
            why: why the new values have no fingerprint.
        """
        storages = [self.storage(t) for t in tensors]
        for storage in {s.number: s for s in storages}.values():
            storage.version += 1
        found = []
        for storage, tensor in zip(storages, tensors, strict=True):
            key, geometry = self._place(tensor)
            value = self._define(storage, key, geometry, tensor, constant, precision)
            value.fingerprint.why = why
            self._look(value, tensor)
            storage.writes = [w for w in storage.writes if w.geometry != geometry]
            storage.writes.append(_Write(storage.version, geometry, value))
            found.append(value)
        return found

    def made(
        self,
        tensor: Any,
        read: set[int],
        constant: bool,
        precision: str | None,
        why: tuple[str | None, str | None] = (None, None),
    ) -> tuple[Value, bool]:
        """Return the value of an operator's output, and whether it lies in memory the operator read.

        Args:
            tensor: the output.
            read: numbers of the storages the operator read.
            constant: it read nothing but constants.
            precision: coarsest type it read.
            why: why a new value has no fingerprint, in memory of its own and in memory the operator read.
        """
        known = self._n_storages
        storage = self.storage(tensor)
        shares = storage.number in read
        if storage.number < known and not shares:
            return self.read(tensor), True
        key, geometry = self._place(tensor)
        value = storage.values.get(key)
        if value is not None and not storage.is_late(value):
            self._look(value, tensor)
            return value, shares
        value = self._define(storage, key, geometry, tensor, constant, precision)
        value.fingerprint.why = why[shares]
        self._look(value, tensor)
        return value, shares

    def _define(
        self,
        storage: Storage,
        key: Key | Geometry,
        geometry: Geometry,
        tensor: Any,
        constant: bool,
        precision: str | None,
    ) -> Value:
        nested = bool(tensor.is_nested)
        value = Value(
            number=len(self.values),
            storage=storage.number,
            version=storage.version,
            geometry=geometry,
            dims=None if nested else tuple(tensor.shape),
            dtype=dtype_name(tensor.dtype),
            numel=None if nested else tensor.numel(),
            constant=constant,
            precision=coarsest(precision_of(tensor.dtype), precision),
        )
        self.values.append(value)
        storage.values[key] = value
        return value

    @staticmethod
    def _place(tensor: Any) -> tuple[Key | Geometry, Geometry]:
        if tensor.layout is not torch.strided or tensor.is_nested:
            return WHOLE, WHOLE
        key = key_of(tensor)
        return key, key[0]

    def _look(self, value: Value, tensor: Any) -> None:
        """Add a tensor's arrangement to its value. An error while reading it must not stop the program."""
        if not self._values:
            return
        try:
            value.fingerprint.add(tensor, constant=value.constant, budget=self.signatures)
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
            value.fingerprint.why = "unreadable"
