"""The pickle inside a `.bin`, read without running it: an interpreter of the few opcodes a state dict needs.

A pickle is a program; Python's own unpickler calls whatever it names. This one knows a fixed list of names, all of
which only describe tensors, and refuses every other by its name. It never imports anything.
Source: pickle protocol 2-5 (`pickletools`); `torch/_utils.py` (`_rebuild_tensor_v2`, `_rebuild_parameter`).
"""

import pickletools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from eyas.errors import EyasError

MAX_PICKLE_BYTES = 32 << 20
MAX_MEMO = 4_000_000

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _StorageType:
    dtype: str


class _Function:
    """An allowed callable: what the interpreter does in its place."""

    __slots__ = ("apply", "name")

    def __init__(self, name: str, apply: Callable[[tuple[Any, ...]], Any]) -> None:
        self.name, self.apply = name, apply


class _Malformed(Exception):
    pass


class _Mark:
    pass


_MARK = _Mark()


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
            warnings.simplefilter("ignore")  # pickletools warns of escapes in strings that are refused anyway
            return _flat_state_dict(_Machine(where).run(data))
    except _Malformed as error:
        raise _pickle_invalid(where, str(error)) from None
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, AttributeError, RecursionError) as error:
        # pickletools and the stack machine meet any of these on malformed input
        raise _pickle_invalid(where, f"{type(error).__name__}: {str(error)[:120]}") from None


def _pickle_invalid(where: str, why: str) -> PickleInvalid:
    return PickleInvalid(
        "the pickle does not hold a readable state dict",
        where,
        why,
        "save `model.state_dict()` alone, best as safetensors",
    )


def _flat_state_dict(value: Any) -> dict[str, PickledTensor]:
    if not isinstance(value, dict):
        raise _Malformed(f"it holds a {type(value).__name__}, not a state dict")
    for name, item in value.items():
        if not isinstance(item, PickledTensor):
            raise _Malformed(f"entry {name[:80]!r} is a {type(item).__name__}, not a tensor")
    return value


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple) or len(value) > 64 or not all(type(v) is int and 0 <= v < 1 << 63 for v in value):
        raise _Malformed(f"a size or stride is not a tuple of sizes but a {type(value).__name__}")
    return value


def _rebuild_tensor(arguments: tuple[Any, ...]) -> PickledTensor:
    storage, offset, shape, stride = arguments[:4]
    if not isinstance(storage, Storage) or type(offset) is not int or offset < 0:
        raise _Malformed("a tensor without a storage or with a bad offset")
    shape, stride = _sizes(shape), _sizes(stride)
    if len(shape) != len(stride):
        raise _Malformed("a tensor with more sizes than strides")
    return PickledTensor(storage=storage, offset=offset, shape=shape, stride=stride)


def _rebuild_parameter(arguments: tuple[Any, ...]) -> PickledTensor:
    if not isinstance(arguments[0], PickledTensor):
        raise _Malformed("a parameter without a tensor")
    return arguments[0]


def _ordered_dict(arguments: tuple[Any, ...]) -> dict[str, Any]:
    if arguments not in ((), ([],)):
        raise _Malformed("an OrderedDict with initial items")
    return {}


def _size(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    return _sizes(tuple(arguments[0]))


_ALLOWED: Mapping[str, Any] = {
    "collections OrderedDict": _Function("OrderedDict", _ordered_dict),
    "torch._utils _rebuild_tensor_v2": _Function("_rebuild_tensor_v2", _rebuild_tensor),
    "torch._utils _rebuild_parameter": _Function("_rebuild_parameter", _rebuild_parameter),
    "torch Size": _Function("Size", _size),
    **{f"torch {name}": _StorageType(dtype=dtype) for name, dtype in STORAGE_DTYPES.items()},
}


class _Machine:
    """The stack machine. Containers hold names, numbers, strings, tensors; memory is linear in the pickle's length."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                if len(self.stack) != 1:
                    raise _Malformed(f"{len(self.stack)} values are left at its end")
                return self.stack[0]
            self._step(opcode.name, argument)
        raise _Malformed("its end is missing")

    def _step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _PUSHES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name in ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"):
            if len(self.memo) >= MAX_MEMO:
                raise _Malformed("it remembers too many values")
            self.memo[len(self.memo) if name == "MEMOIZE" else int(argument)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self.memo[int(argument)])
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            self._global(name, argument)
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            if len(stack) < count:
                raise _Malformed("a tuple of more values than there are")
            stack[-count:] = [tuple(stack[-count:])]
        elif name == "TUPLE":
            stack.append(tuple(self._to_mark()))
        elif name not in ("PROTO", "FRAME"):
            self._build(name)

    def _build(self, name: str) -> None:
        stack = self.stack
        if name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            if not isinstance(function, _Function) or not isinstance(arguments, tuple):
                raise _Malformed("it calls something that is not a function")
            stack.append(function.apply(arguments))
        elif name == "BINPERSID":
            stack.append(_storage(stack.pop()))
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            self._set(stack[-1], [key, value])
        elif name == "SETITEMS":
            items = self._to_mark()
            self._set(stack[-1], items)
        elif name in ("APPEND", "APPENDS"):
            values = [stack.pop()] if name == "APPEND" else self._to_mark()
            if not isinstance(stack[-1], list):
                raise _Malformed("it appends to something that is not a list")
            stack[-1].extend(values)
        elif name == "BUILD":
            stack.pop()  # `_metadata` of a state dict: module versions
            if not isinstance(stack[-1], dict):
                raise _Malformed("it sets attributes of something that is not a dict")
        else:
            raise _Malformed(f"opcode {name} does not belong in a state dict")

    def _global(self, name: str, argument: Any) -> None:
        if name == "STACK_GLOBAL":
            attribute, module = self.stack.pop(), self.stack.pop()
            if type(attribute) is not str or type(module) is not str:
                raise _Malformed("a global without a name")
            argument = f"{module} {attribute}"
        if argument not in _ALLOWED:
            raise PickleRunsCode(
                f"the pickle names {argument.replace(' ', '.')[:120]!r}",
                self.where,
                "that is not part of a state dict; loading this file with pickle would call it (eyas did not)",
                "do not load this file; ask its author for safetensors",
            )
        self.stack.append(_ALLOWED[argument])

    def _set(self, target: Any, items: list[Any]) -> None:
        if not isinstance(target, dict) or len(items) % 2:
            raise _Malformed("it sets items of something that is not a dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # only names as keys: hashing a nested tuple could take forever
            if type(key) is not str or key in target:
                raise _Malformed(
                    f"a key is a {type(key).__name__}, or occurs twice: {str(key)[:80] if type(key) is str else ''}"
                )
            target[key] = value

    def _to_mark(self) -> list[Any]:
        for index in range(len(self.stack) - 1, -1, -1):
            if self.stack[index] is _MARK:
                values = self.stack[index + 1 :]
                del self.stack[index:]
                return values
        raise _Malformed("a mark is missing")


_PUSHES = {
    "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BININT", "BININT1", "BININT2", "INT", "LONG1", "LONG4",
    "BINFLOAT", "SHORT_BINSTRING", "BINSTRING",
}  # fmt: skip
_CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "MARK": lambda: _MARK,
}


def _storage(identity: Any) -> Storage:
    if not isinstance(identity, tuple) or len(identity) != 5 or identity[0] != "storage":
        raise _Malformed("a persistent id that is not a storage")
    _, kind, key, _, num_elements = identity
    if not isinstance(kind, _StorageType) or type(key) is not str or type(num_elements) is not int or num_elements < 0:
        raise _Malformed("a storage without type, key or length")
    return Storage(dtype=kind.dtype, key=key, num_elements=num_elements)
