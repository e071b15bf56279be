"""Facts from the schema of a torch operator: which arguments are written, whether data is only moved, whether it is random."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from magneton.collectors.systems import systems
from magneton.collectors.systems.protocol import OperatorNote
from magneton.collectors.torch.profile import import_torch

torch: Any = import_torch()

# Namespaces whose operators mark time and move no tensors.
_MARKS = ("profiler", "prim")
# The result holds the elements of the (first) input, in another arrangement or another floating type.
_COPIES = {
    "_copy_from",
    "_reshape_copy",
    "_to_copy",
    "_unsafe_view",
    "alias",
    "alias_copy",
    "clone",
    "contiguous",
    "copy_",
    "detach",
    "lift_fresh",
    "lift_fresh_copy",
    "permute_copy",
    "squeeze_copy",
    "t_copy",
    "transpose_copy",
    "unsqueeze_copy",
    "view_copy",
}
# Elements move and none is computed.
_MOVES = _COPIES | {
    "_foreach_copy_",
    "cat",
    "channel_shuffle",
    "expand_copy",
    "flip",
    "narrow_copy",
    "pixel_shuffle",
    "pixel_unshuffle",
    "repeat",
    "roll",
    "select_copy",
    "slice_copy",
    "split_copy",
    "split_with_sizes_copy",
    "stack",
    "unbind_copy",
}
_EMPTY = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_"}
# In-place operators that do not read what was there.
_OVERWRITES = {
    "_foreach_copy_",
    "_foreach_zero_",
    "bernoulli_",
    "cauchy_",
    "copy_",
    "exponential_",
    "fill_",
    "geometric_",
    "log_normal_",
    "normal_",
    "random_",
    "resize_",
    "set_",
    "uniform_",
    "zero_",
}
_BACKENDS = ("CPU", "CUDA")
# Operators that write to arguments without their schema saying so: arguments, and the flag that must be set.
_UNSTATED = dict.fromkeys(
    ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"), (("running_mean", "running_var"), "training")
)
# Products that float32 settings may compute in a coarser type.
_PRODUCTS = {
    "_convolution",
    "addbmm",
    "addmm",
    "addmv",
    "baddbmm",
    "bmm",
    "convolution",
    "convolution_backward",
    "cudnn_convolution",
    "linear",
    "miopen_convolution",
    "mkldnn_convolution",
    "mkldnn_linear",
    "mm",
    "mv",
}


# Arguments that switch the random part of an operator off: the probability of a dropout, and whether the program trains. Example:
# attention calls its random operator with a probability of 0 in every model that does not train.
_PROBABILITIES = frozenset({"dropout", "dropout_p", "p"})
_TRAINS = frozenset({"train", "training"})
_OTHER_P = frozenset({"_fused_dropout", "bernoulli", "bernoulli_", "geometric", "geometric_"})


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument as the schema has it.

    ``read`` is False where what is written to was not read before. ``handle`` is True where the argument is no data.
    """

    name: str
    default: Any
    written: bool
    read: bool
    handle: bool = False


@dataclass(frozen=True, slots=True)
class Operator:
    """What is known of every call of an operator."""

    name: str
    overload: str
    arguments: tuple[Argument, ...]
    unstated: tuple[tuple[str, ...], str] | None
    mark: bool
    view: bool
    copy: bool
    move: bool
    empty: bool
    random: bool
    product: bool
    composite: bool

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the values of all arguments in the order of the schema, defaults included."""
        given = len(args)
        return [
            args[i] if i < given else kwargs.get(argument.name, argument.default)
            for i, argument in enumerate(self.arguments)
        ]

    def draws(self, values: Sequence[Any]) -> bool:
        """Return whether a call draws random numbers, given the values of all arguments."""
        if not self.random:
            return False
        if self.name.partition("::")[2] in _OTHER_P:
            return True
        for argument, value in zip(self.arguments, values, strict=False):
            if argument.name in _TRAINS and value is False:
                return False
            if argument.name in _PROBABILITIES and isinstance(value, (int, float)) and not value:
                return False
        return True

    def writes(self, values: Sequence[Any]) -> list[bool]:
        """Return for each argument of a call whether it is written to."""
        stated = [argument.written for argument in self.arguments]
        if self.unstated is not None:
            names, condition = self.unstated
            by_name = {argument.name: i for i, argument in enumerate(self.arguments)}
            if condition in by_name and values[by_name[condition]]:
                for name in names:
                    if name in by_name:
                        stated[by_name[name]] = True
        return stated


@lru_cache(maxsize=1)
def _notes() -> dict[str, OperatorNote]:
    """Return what the files of the systems say of operators, by name."""
    return {note.name: note for system in systems().values() for note in system.OPERATORS}


def describe(function: Any) -> Operator:
    """Return what the schema of an operator says."""
    schema = getattr(function, "_schema", None)
    if schema is None:  # a higher-order operator: it takes functions, and has no schema
        namespace = getattr(function, "namespace", None) or "higher_order"
        return Operator(
            f"{namespace}::{function.name()}", "", (), None, False, False, False, False, False, False, False, False
        )
    namespace, _, base = schema.name.partition("::")
    ours = namespace == "aten"
    note = _notes().get(schema.name, OperatorNote(schema.name))
    arguments = tuple(
        Argument(
            a.name,
            a.default_value if a.has_default_value() else None,
            (a.alias_info is not None and a.alias_info.is_write) or a.name in note.overwrites,
            not (
                a.is_out
                or (ours and base in _OVERWRITES and a.alias_info is not None)
                or a.name in note.overwrites
                or a.name in note.handles
            ),
            a.name in note.handles,
        )
        for a in schema.arguments
    )
    return Operator(
        name=schema.name,
        overload=schema.overload_name,
        arguments=arguments,
        unstated=_UNSTATED.get(base) if ours else None,
        mark=namespace in _MARKS,
        view=bool(schema.returns)
        and not schema.is_mutable
        and all(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns),
        copy=ours and base in _COPIES,
        move=ours and base in _MOVES,
        empty=ours and base in _EMPTY,
        random=torch.Tag.nondeterministic_seeded in function.tags,
        product=ours and (base in _PRODUCTS or base.startswith("_scaled_dot_product")),
        composite=_composite(function.name()),
    )


def _composite(name: str) -> bool:
    """Whether an operator always consists of other operators.

    An operator with kernels of its own, such as ``aten::silu_backward``, does not.
    """
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(name, "CompositeImplicitAutograd") and not any(has_kernel(name, key) for key in _BACKENDS)


def tensors_in(value: Any) -> Iterator[tuple[int | None, Any]]:
    """Yield the tensors of an argument or a result, with their number where it is a list."""
    if isinstance(value, torch.Tensor):
        yield None, value
    elif isinstance(value, (list, tuple)):
        for element, item in enumerate(value):
            if isinstance(item, torch.Tensor):
                yield element, item


_TYPE_NAMES = {
    "float64": "double",
    "float32": "float",
    "float16": "c10::Half",
    "bfloat16": "c10::BFloat16",
    "complex64": "c10::complex<float>",
    "complex128": "c10::complex<double>",
    "int64": "long int",
    "int32": "int",
    "int16": "short int",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "bool",
}


def described(value: Any) -> tuple[Any, str]:
    """Return dims and type of an argument as torch.profiler writes them, so that calls of both can be joined."""
    if isinstance(value, torch.Tensor):
        name = str(value.dtype).removeprefix("torch.")
        return _dims(value), _TYPE_NAMES.get(name, name)
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], torch.Tensor):
            return [_dims(v) for v in value if isinstance(v, torch.Tensor)], "TensorList"
        return [], "ScalarList"
    if value is None:
        return [], ""
    return [], "Scalar" if isinstance(value, (bool, int, float, complex)) else ""


def _dims(tensor: Any) -> list[int]:
    return [] if tensor.is_nested else [int(n) for n in tensor.shape]
