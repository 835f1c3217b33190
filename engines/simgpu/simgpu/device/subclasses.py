"""Tensor subclasses of a program, such as an image that knows its spacing, on the simulated GPU.

By a class of both, made once for each class of a program. For Python and for `__torch_function__` its tensors are of
the program's class; operators see them as the `SimTensor`s that they are, too.
"""

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import get_default_nowrap_functions
from torch.utils._pytree import tree_leaves

from simgpu.device.tensor import OURS, SimTensor, shown_to_modes
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import TORCH, Args, Kwargs, Operator

_plain_as_subclass = torch.Tensor.as_subclass
# By the address of a tensor: what it consists of. Its `__dict__` is the program's, which may copy it to another tensor.
_parts: dict[int, dict[str, Any]] = {}
_alive: dict[int, weakref.ref[torch.Tensor]] = {}


def _part(name: str) -> Any:
    return property(lambda self: _parts[id(self)][name], lambda self, value: _parts[id(self)].update({name: value}))


class _OfAProgram(SimTensor):
    """Common base of both classes; `_class` is the program's."""

    _class: type[torch.Tensor]
    _inner, _index, _layout = (_part(name) for name in OURS)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        """Run `torch.Tensor.__torch_function__`; a result on another device keeps the program's class."""
        if not all(issubclass(cls, kind) for kind in types):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            return result if func in get_default_nowrap_functions() else TORCH._tensor._convert(result, cls._class)

    @classmethod
    def __torch_dispatch__(cls, func: Operator, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        """Run an operator while these tensors are `SimTensor`s, as everything behind the dispatcher expects."""
        tensors = [(leaf, type(leaf)) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, _OfAProgram)]
        for tensor, _ in tensors:
            if type(tensor) is not SimTensor:  # it may be there twice
                _undress(tensor)
        try:
            kinds = [SimTensor if issubclass(kind, _OfAProgram) else kind for kind in types]
            return SimTensor.__torch_dispatch__(func, kinds, args, kwargs)
        finally:
            for tensor, kind in tensors:
                if type(tensor) is SimTensor:
                    _dress(tensor, kind)

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if torch.overrides.has_torch_function_unary(self):  # by its name of torch.Tensor, which libraries compare with
            return torch.overrides.handle_torch_function(torch.Tensor.to, (self,), self, *args, **kwargs)
        return super().to(*args, **kwargs)

    @shown_to_modes  # pyright: ignore[reportArgumentType]
    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        copied = super().__deepcopy__(memo)
        if type(copied) is SimTensor:
            _dress(copied, type(self))
        return copied

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        function, args = super().__reduce_ex__(protocol)
        return TORCH._tensor._rebuild_from_type_v2, (function, self._class, args, self.__dict__)


def _dress(tensor: Any, kind: type[_OfAProgram]) -> None:
    """Give a `SimTensor` the class `kind`."""
    key, parts = id(tensor), {name: tensor.__dict__.pop(name) for name in OURS}
    tensor.__class__ = kind
    if key not in _alive:
        _alive[key] = weakref.ref(tensor, functools.partial(_forget, key))
    _parts[key] = parts


def _undress(tensor: Any) -> None:
    tensor.__class__ = SimTensor
    tensor.__dict__.update(_parts[id(tensor)])


def _forget(key: int, _: object) -> None:
    del _alive[key], _parts[key]


@functools.cache
def _class_of_both(cls: type[torch.Tensor]) -> type[_OfAProgram]:
    """Make the class of both. Raises NotImplementedError for one whose operators the program runs itself."""
    if cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # pyright: ignore[reportAttributeAccessIssue]
        raise NotImplementedError(f"the simulated GPU has no tensors of the class {cls.__name__}: use plain ones there")
    names = {"_class": cls, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return _kind_of_both(type(cls))(cls.__name__, (cls, _OfAProgram), names)


@functools.cache
def _kind_of_both(kind: type) -> type:
    """Return the class of such classes: each passes for the program's where that is asked for, or is a key."""
    answers = {
        "__eq__": lambda both, other: other is both or other is both._class,
        "__hash__": lambda both: hash(both._class),
        "__instancecheck__": lambda both, thing: isinstance(thing, both._class),
        "__subclasscheck__": lambda both, other: issubclass(other, both._class),
    }
    return type(kind.__name__, (kind,), answers)


def _as_subclass(self: torch.Tensor, cls: type[torch.Tensor]) -> Any:
    """Also for tensors on a simulated GPU; `type(x)` of one of these stands for the program's class elsewhere."""
    cls = getattr(cls, "_class", cls)
    if not isinstance(self, SimTensor):
        return _plain_as_subclass(self, cls)
    with torch._C.DisableTorchFunctionSubclass():
        view: Any = self.view_as(self)
    if cls not in (torch.Tensor, SimTensor):
        _dress(view, _class_of_both(cls))
    return view


_plain_make_subclass = torch.Tensor._make_subclass


def _make_subclass(cls: type[torch.Tensor], data: torch.Tensor, require_grad: bool = False, **kwargs: Any) -> Any:
    if not isinstance(data, SimTensor):
        return _plain_make_subclass(cls, data, require_grad, **kwargs)
    with torch._C.DisableTorchFunctionSubclass():
        made: Any = data.detach().requires_grad_(require_grad)
    _dress(made, _class_of_both(getattr(cls, "_class", cls)))
    return made


SimTensor.as_subclass = functools.wraps(_plain_as_subclass)(_as_subclass)


def replace_functions(put: Replacements) -> None:
    """Patch the methods that make a tensor of a class from another tensor."""
    make = staticmethod(functools.wraps(_plain_make_subclass)(_make_subclass))
    put.put(torch.Tensor, _make_subclass=make, as_subclass=SimTensor.as_subclass)
