"""The pickle inside a `.bin`, read without running it: only the few opcodes and names that a state dict needs.

A pickle is a program; Python's own unpickler calls whatever it names. This one is Python's, cut to a fixed list of
opcodes and of names that only describe tensors; every other name is refused. It never imports anything.
Source: pickle protocol 2-5 (`pickletools`); `torch/_utils.py` (`_rebuild_tensor_v2`, `_rebuild_parameter`).
"""

import io
import pickle
import struct
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eyas.errors import EyasError

MAX_PICKLE_BYTES = 32 << 20

STORAGE_DTYPES: Mapping[str, str] = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8",
    "BoolStorage": "BOOL", "ComplexFloatStorage": "C64",
    "Float8_e4m3fnStorage": "F8_E4M3", "Float8_e5m2Storage": "F8_E5M2",
}  # fmt: skip


class PickleRunsCode(EyasError):
    """The pickle names something that is not part of a state dict: loading it would run code. It was not run."""

    code = "pickle-runs-code"


class PickleInvalid(EyasError):
    """The pickle is malformed, or is not a state dict (name -> tensor)."""

    code = "pickle-invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """A tensor's backing record, by key; `num_elements` as the pickle claims."""

    dtype: str
    key: str
    num_elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PickledTensor:
    """A view on a storage: `offset` and `stride` in elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def is_contiguous(self) -> bool:
        """Row-major without gaps, so that its bytes lie in one run."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != expected:
                return 0 in self.shape
            expected *= size
        return True


class _Malformed(Exception):
    pass


class _Names(dict[str, Any]):
    """The only map that a pickle can make. Only names as keys: hashing a nested tuple could take for ever."""

    __slots__ = ()

    def __setitem__(self, key: Any, value: Any) -> None:
        if type(key) is not str or key in self:
            shown = str(key)[:80] if type(key) is str else ""
            raise _Malformed(f"a key is a {type(key).__name__}, or occurs twice: {shown}")
        super().__setitem__(key, value)


def read_state_dict(data: bytes, where: str) -> dict[str, PickledTensor]:
    """The tensors that the pickle `data` describes; nothing of it is executed.

    Raises:
        PickleRunsCode: it names a global outside the list of a state dict.
        PickleInvalid: malformed, too large, or not a flat map from names to tensors.
    """
    try:
        if len(data) > MAX_PICKLE_BYTES:
            raise _Malformed(f"it has {len(data)} bytes, the limit is {MAX_PICKLE_BYTES}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escapes in strings that are refused anyway
            return _flat_state_dict(_Machine(data, where).load())
    except _Malformed as error:
        why = str(error)
    except _MALFORMED as error:
        why = f"{type(error).__name__}: {str(error)[:120] or 'its end is missing'}"
    do = "save `model.state_dict()` alone, best as safetensors"
    raise PickleInvalid("the pickle does not hold a readable state dict", where, why, do)


def _flat_state_dict(value: Any) -> dict[str, PickledTensor]:
    if not isinstance(value, _Names):
        raise _Malformed(f"it holds a {type(value).__name__}, not a state dict")
    for name, item in value.items():
        if not isinstance(item, PickledTensor):
            raise _Malformed(f"entry {name[:80]!r} is a {type(item).__name__}, not a tensor")
    return dict(value)


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple) or len(value) > 64 or not all(type(v) is int and 0 <= v < 1 << 63 for v in value):
        raise _Malformed(f"a size or stride is not a tuple of sizes but a {type(value).__name__}")
    return value


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> PickledTensor:
    if not isinstance(storage, Storage) or type(offset) is not int or offset < 0:
        raise _Malformed("a tensor without a storage or with a bad offset")
    shape, stride = _sizes(shape), _sizes(stride)
    if len(shape) != len(stride):
        raise _Malformed("a tensor with more sizes than strides")
    return PickledTensor(storage=storage, offset=offset, shape=shape, stride=stride)


def _rebuild_parameter(tensor: Any, *_: Any) -> PickledTensor:
    if not isinstance(tensor, PickledTensor):
        raise _Malformed("a parameter without a tensor")
    return tensor


def _ordered_dict(*arguments: Any) -> _Names:
    if arguments not in ((), ([],)):
        raise _Malformed("an OrderedDict with initial items")
    return _Names()


# a storage class is only ever an argument: its dtype, which cannot be called
_ALLOWED: Mapping[str, Any] = {
    "collections OrderedDict": _ordered_dict,
    "torch._utils _rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils _rebuild_parameter": _rebuild_parameter,
    "torch Size": lambda sizes: _sizes(tuple(sizes)),
    **{f"torch {name}": (dtype,) for name, dtype in STORAGE_DTYPES.items()},
}
# what malformed input makes of a stack machine
_MALFORMED = (
    pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, AttributeError,
    RecursionError, MemoryError, struct.error,
)  # fmt: skip
_OPCODES = (
    "PROTO", "FRAME", "MARK", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1",
    "TUPLE2", "TUPLE3", "INT", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "BINSTRING", "SHORT_BINSTRING", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET",
    "BINGET", "LONG_BINGET", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BINPERSID", "SETITEM", "SETITEMS", "APPEND",
    "APPENDS",
)  # fmt: skip


class _Opcodes(dict[int, Any]):
    def __missing__(self, code: int) -> None:
        raise _Malformed(f"opcode {chr(code)!r} does not belong in a state dict")


class _Machine(pickle._Unpickler):
    """Python's own unpickler in Python (its memory is linear in the pickle's length), cut to a state dict's opcodes."""

    stack: list[Any]

    def __init__(self, data: bytes, where: str) -> None:
        super().__init__(io.BytesIO(data))
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a global."""
        if (known := _ALLOWED.get(f"{module} {name}")) is not None:
            return known
        raise PickleRunsCode(
            f"the pickle names {f'{module}.{name}'[:120]!r}",
            self._where,
            "that is not part of a state dict; loading this file with pickle would call it (eyas did not)",
            "do not load this file; ask its author for safetensors",
        )

    def persistent_load(self, identity: Any) -> Storage:
        """A storage."""
        if not isinstance(identity, tuple) or len(identity) != 5 or identity[0] != "storage":
            raise _Malformed("a persistent id that is not a storage")
        _, kind, key, _, size = identity
        if kind not in _DTYPES or type(key) is not str or type(size) is not int or size < 0:
            raise _Malformed("a storage without type, key or length")
        return Storage(dtype=kind[0], key=key, num_elements=size)

    def _empty_dict(self) -> None:
        self.stack.append(_Names())

    def _build(self) -> None:
        self.stack.pop()  # `_metadata` of a state dict: module versions
        if not isinstance(self.stack[-1], _Names):
            raise _Malformed("it sets attributes of something that is not a dict")

    dispatch = _Opcodes(
        {getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]] for name in _OPCODES}
    )
    dispatch |= {pickle.EMPTY_DICT[0]: _empty_dict, pickle.BUILD[0]: _build}


_DTYPES = [(dtype,) for dtype in STORAGE_DTYPES.values()]
