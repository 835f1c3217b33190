"""Protocol between a launch and its ranks: whole messages over a socket, values with tensors on the CPU."""

import collections
import contextlib
import ctypes
import datetime
import functools
import importlib.machinery
import inspect
import io
import itertools
import pickle
import pkgutil
import socket
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from traceback import FrameSummary
from typing import Any, NamedTuple

import cloudpickle
import torch
from torch._library.custom_ops import OPDEFS, CustomOpDef
from torch._utils import _rebuild_parameter
from torch.utils._python_dispatch import _disable_current_modes

_CACHED = type(functools.cache(print))  # cloudpickle takes it for a function that can be imported
_OPERATORS = type(torch.ops.aten.add), type(torch.ops.aten.add.Tensor)  # and torch.ops is a module of its own kind
_DEEPEST = 8  # errors that are told of: one, its cause, the cause of that
_LONGEST = 2000  # characters of the text of an error
_IDLE = 0.1  # the share of the time that a rank may compute while it waits: it answers, and its threads look around
MEET = datetime.timedelta(minutes=40)  # for all ranks to join: whoever starts them gives up before


class Channel:
    """Sends and receives messages; several threads may send at once, one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._file = connection.makefile("rb")
        self._sending = threading.Lock()

    def send(self, *message: Any) -> None:
        """Send a message of plain values. Raises OSError when the other end is closed."""
        data = pickle.dumps(message, protocol=5)
        with self._sending:
            self.connection.sendall(data)

    def receive(self) -> tuple[Any, ...]:
        """Return the next message. Raises EOFError or OSError when none will come, ValueError for what is none."""
        try:
            if self._file.peek(1)[:1] not in (b"", pickle.PROTO):
                raise ValueError("no message begins so")
            return pickle.load(self._file)
        except (EOFError, OSError):
            raise
        except Exception as error:
            if self._file.closed or "truncated" in str(error):  # the sender was killed on the way
                raise EOFError from None
            raise ValueError("what came is not a message") from error

    def close(self) -> None:
        """End the connection; a thread that receives gets EOFError."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self._file.close()
        self.connection.close()


class Look(NamedTuple):
    """Where a rank is, the outermost call first, and the seconds that it has computed, if that is known.

    `runnable` says whether it has a core, or wants one.
    """

    frames: list[FrameSummary]
    cpu_s: float | None
    runnable: bool = False

    def moved(self, before: "Look", seconds: float) -> bool:
        """Return whether the rank has got on in the `seconds` since the look `before`: it is elsewhere, or computes."""
        now, was = ([(one.filename, one.lineno, one.name) for one in look.frames] for look in (self, before))
        if now and was and now != was:
            return True
        if self.cpu_s is None or before.cpu_s is None:
            return False
        return self.cpu_s - before.cpu_s > _IDLE * seconds


@dataclass(frozen=True)
class Failure:
    """An error of a rank, without its objects: they may not exist in the parent. `at_s` is when it was told."""

    kind: str
    words: str
    frames: list[FrameSummary]  # the outermost first
    cause: "Failure | None"
    at_s: float
    parts: "tuple[Failure, ...]" = ()  # of an ExceptionGroup


def failure(error: BaseException, seen: frozenset[int] = frozenset()) -> Failure:
    """Return `error` and what caused it as plain values."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    seen |= {id(error)}
    told = len(seen) < _DEEPEST
    cause = failure(before, seen) if told and before is not None and id(before) not in seen else None
    inner = error.exceptions[:_DEEPEST] if told and isinstance(error, BaseExceptionGroup) else ()
    try:
        words = short("".join(traceback.format_exception_only(error)).strip(), _LONGEST)
    except Exception:  # an error whose own text cannot be made
        words = type(error).__name__
    frames, parts = _frames(traceback.walk_tb(error.__traceback__)), tuple(failure(one, seen) for one in inner)
    return Failure(type(error).__name__, words, frames, cause, time.perf_counter(), parts)


def frames(innermost: types.FrameType) -> list[FrameSummary]:
    """Return the stack of a running thread, the outermost first."""
    return _frames(traceback.walk_stack(innermost))[::-1]


def _frames(walked: Iterable[tuple[types.FrameType, int]]) -> list[FrameSummary]:
    codes = ((frame.f_code, line) for frame, line in walked)
    return [FrameSummary(code.co_filename, line or 0, code.co_name, lookup_line=False) for code, line in codes]


def short(text: str, longest: int) -> str:
    """Return a text of at most about `longest` characters, without its middle if it had more."""
    if len(text) <= longest:
        return text
    return f"{text[: longest // 2]} ... ({len(text) - longest} characters left out) ... {text[-longest // 2 :]}"


class _Pickler(cloudpickle.Pickler):
    """Pickles functions and classes by value where they are typed in a notebook, and tensors as CPU tensors."""

    def __init__(self, file: io.BytesIO, known: dict[type, str]) -> None:
        super().__init__(file, protocol=5)
        self._known = known

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            reduced = _tensor(obj)
            if reduced is not None:
                return reduced
        elif isinstance(obj, torch.device) and obj.type == torch._C._get_privateuse1_backend_name():
            raise TypeError(f"{str(obj)!r} does not exist in the ranks; in the function use rank_device() instead")
        elif isinstance(obj, _OPERATORS) or (isinstance(obj, types.ModuleType) and type(obj) is not types.ModuleType):
            name = obj.__name__ if isinstance(obj, types.ModuleType) else f"torch.ops.{obj}"
            if name in sys.modules:
                return pkgutil.resolve_name, (name,)
            if name.startswith("torch.ops."):
                wanted = name.split(".")[2:4]  # all operators of a namespace, or one
                made = [one for one in _typed() if [one._namespace, one._name][: len(wanted)] == wanted]
                return _found, (name.replace(".", ":", 1), made)
        elif isinstance(obj, CustomOpDef):
            return _custom_operator, _parts(obj)
        elif isinstance(obj, types.CodeType):  # with its file, which cloudpickle leaves out since 3.1.3
            return _code, (*self.dispatch_table[types.CodeType](obj), obj.co_filename)
        elif isinstance(obj, type) and obj in self._known:
            return _class_known, (self._known[obj],)
        elif isinstance(obj, _CACHED) and _by_value_only(obj):
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        return super().reducer_override(obj)


def dumps(value: Any, known: dict[type, str] | None = None) -> bytes:
    """Return `value` pickled; `known` are classes typed in a cell that the receiver has already.

    Tensors of any device are written as CPU tensors with the same values, and without the rest of a larger storage.
    Raises whatever the objects in `value` raise when they cannot be pickled.
    """
    file = io.BytesIO()
    _Pickler(file, known or {}).dump(value)
    return file.getvalue()


def known_classes() -> dict[type, str]:
    """Return the classes that came to this process by value, with the name under which the sender knows them."""
    return dict(cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS)


def name_in_main(classes: Iterable[type]) -> None:
    """Register classes typed in a cell for pickle, which collectives of objects and `torch.save` use."""
    for typed in classes:
        if typed.__module__ == "__main__" and "." not in typed.__qualname__:
            setattr(sys.modules["__main__"], typed.__name__, typed)


def _code(make: Callable[..., types.CodeType], parts: tuple[Any, ...], file: str) -> types.CodeType:
    return make(*parts).replace(co_filename=file)


def _typed() -> list[CustomOpDef]:
    """Return the custom operators whose functions travel by value, as a rank does not have them.

    PyTorch makes a hundred of its own inside a function; `import torch` does so in each rank.
    """
    made = (one for one in OPDEFS.values() if _by_value_only(one._init_fn))
    return [one for one in made if not one._init_fn.__module__.startswith("torch.")]


def _by_value_only(function: Any) -> bool:
    """Return whether a function or a class stands where a rank could not import it from."""
    typed = function.__module__ in {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    return typed or "<locals>" in function.__qualname__


def _found(name: str, made: list[CustomOpDef]) -> Any:
    """Look up an operator by name; `made` is passed so that unpickling registers it first."""
    return pkgutil.resolve_name(name)


def _parts(operator: CustomOpDef) -> tuple[Any, ...]:
    """Return what `_custom_operator` needs. PyTorch keeps a body inside a function that refers to the operator."""
    changed = [one.name for one in operator._opoverload._schema.arguments if one.alias_info and one.alias_info.is_write]
    bodies = {
        device: inspect.getclosurevars(inspect.unwrap(kept)).nonlocals.get("fn", operator._init_fn)
        for device, kept in operator._backend_fns.items()
    }
    gradient = operator._backward_fn, operator._setup_context_fn
    return operator._qualname, operator._schema, changed, operator._init_fn, bodies, operator._abstract_fn, gradient


def _custom_operator(
    name: str,
    schema: str,
    changed: list[str],
    function: Callable[..., Any],
    bodies: dict[Any, Callable[..., Any]],  # by their device; None is for all
    fake: Callable[..., Any] | None,
    gradient: tuple[Any, Any],
) -> CustomOpDef:
    """Register a custom operator as it is in the sender, unless it is here: it came before, or by an import."""
    operator: Any = OPDEFS.get(name)
    if operator is None:
        operator = torch.library.custom_op(
            name,
            function,
            mutates_args=changed,
            device_types=list(bodies) if None not in bodies else None,
            schema=schema,
        )
        for device, body in bodies.items():
            if body is not function:
                operator.register_kernel(device)(body)
        if fake is not None:
            operator.register_fake(fake)
        if gradient[0] is not None:
            operator.register_autograd(gradient[0], setup_context=gradient[1])
    return operator


class _Beside:
    """A value that is pickled with others before it, and is itself again at the receiver."""

    def __init__(self, others: list[Any], value: Any) -> None:
        self.others, self.value = others, value

    def __reduce__(self) -> tuple[Any, ...]:
        return _last, (self.others, self.value)


def _last(others: list[Any], value: Any) -> Any:
    return value


def _cached(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _class_known(name: str) -> type:
    """Return the class itself: rebuilding it from a copy would replace the methods of the reader's class."""
    return cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID[name]


_by_value = threading.Lock()


def dumps_call(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Return a call pickled. Raises TypeError that names the function or the argument that cannot be sent."""
    parts = {"fn": fn, **{f"argument {index}": value for index, value in enumerate(args, 1)}, **kwargs}
    return _dumps_function(fn, (fn, args, kwargs), parts)


def dumps_start(start: Any) -> bytes:
    """Return what ranks call first, or None, pickled. Raises TypeError that names it if it cannot be sent."""
    return _dumps_function(start, start, {"start": start})


def _dumps_function(fn: Any, value: Any, parts: dict[str, Any]) -> bytes:
    """Return `value` pickled, with the module of `fn` if the ranks cannot import it; `parts` are names for messages."""
    module = _unimportable(fn)
    with _by_value:
        if module is not None:
            cloudpickle.register_pickle_by_value(module)
        try:
            return dumps(_Beside(_sendable(_typed()), value))
        except Exception as error:
            first, *used = _culprit(parts) or ["the call"]
            name = f"{first}{''.join(f' uses {one}' for one in used)}{', which' if used else ''}"
            raise TypeError(f"{name} cannot be sent to the ranks: {error}") from error
        finally:
            if module is not None:
                cloudpickle.unregister_pickle_by_value(module)


def _sendable(operators: list[CustomOpDef]) -> list[CustomOpDef]:
    """Return those that can be sent: a function may find one by `torch.ops.name`, which its text alone shows."""
    sendable = []
    for operator in operators:
        with contextlib.suppress(Exception):
            dumps(operator)
            sendable.append(operator)
    return sendable


def _culprit(parts: dict[str, Any], seen: frozenset[int] = frozenset()) -> list[str]:
    """Return the name of the first part that cannot be sent; if a function, also of what is wrong in what it uses."""
    for name, part in parts.items():
        if id(part) not in seen:
            try:
                dumps(part)
            except Exception:
                used = {}
                with contextlib.suppress(TypeError, ValueError):  # no function; a name that has no value yet
                    variables = inspect.getclosurevars(part)
                    used = {**variables.nonlocals, **variables.globals}
                return [name, *_culprit(used, seen | {id(part)})]
    return []


def _unimportable(fn: Any) -> types.ModuleType | None:
    """Return the module of `fn` if a rank could not import it by its name, so that it must travel by value."""
    module = sys.modules.get(getattr(fn, "__module__", None) or "")
    if module is None or module.__name__ in ("__main__", *sys.builtin_module_names):  # those of __main__ do so anyway
        return None
    path = None
    for name in itertools.accumulate(module.__name__.split("."), "{}.{}".format):
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None:
            return module
        path = spec.submodule_search_locations
    return None


def _tensor(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Return how a tensor is rebuilt from a compact CPU tensor; None where its own way to be pickled does the same.

    PyTorch writes each storage as a zip archive, 0.6 ms for the smallest, and cannot so write float8 and uint16.
    """
    parameter = isinstance(tensor, torch.nn.Parameter)
    if tensor.device.type == "cpu":
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
        if not plain or tensor.is_quantized or tensor.is_nested:
            return None
        compact = tensor.untyped_storage().nbytes() <= tensor.numel() * tensor.element_size()
        if compact and (parameter or tensor.__dict__ or tensor._backward_hooks):  # these come along, or a warning
            return None
        with _disable_current_modes():  # these operations are not the reader's, and not fake
            value = tensor.detach() if compact else tensor.detach().clone()
            if not parameter:
                value = value.resolve_conj().resolve_neg()
                data = _bytes_of(value.untyped_storage())
                layout = value.storage_offset(), tuple(value.shape), value.stride()
                return _cpu_tensor, (pickle.PickleBuffer(data), value.dtype, *layout, tensor.requires_grad)
    elif tensor.device.type == "meta":
        return None
    else:
        value = tensor.detach().cpu()
    if parameter:
        return _rebuild_parameter, (value, tensor.requires_grad, collections.OrderedDict())
    return torch.Tensor.requires_grad_, (value, tensor.requires_grad)


def _bytes_of(storage: torch.UntypedStorage) -> ctypes.Array[ctypes.c_char]:
    """Return the bytes of a storage on the CPU, not copied; NumPy, which gives them too, may not be there."""
    content: Any = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    content.storage = storage  # alive as long as its bytes
    return content


def _cpu_tensor(
    data: bytearray,
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
) -> torch.Tensor:
    with _disable_current_modes():
        own = torch.frombuffer(data, dtype=torch.uint8).clone() if data else torch.empty(0, device="cpu")
        value = torch.empty(0, dtype=dtype, device="cpu").set_(own.untyped_storage(), offset, shape, stride)
    return value.requires_grad_(requires_grad)
