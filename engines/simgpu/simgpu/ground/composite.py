"""Decomposition of composite operators, which autograd leaves whole in inference mode.

There a Linear layer reaches `__torch_dispatch__` as `linear`, elsewhere as `t` and `addmm`.
"""

import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import _get_current_function_mode_stack, _pop_mode_temporarily
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from simgpu.ground.torch_internals import Args, Kwargs, Operator

__all__ = ["Mode", "conjugation", "is_composite", "take_apart", "without_modes"]

_C = torch._C
_ABOVE = _C.DispatchKeySet(_C.DispatchKey.Conjugate) | _C.DispatchKeySet(_C.DispatchKey.Negative)
_VIEWS = _C.DispatchKeySet(_C.DispatchKey.ADInplaceOrView)
_COMPOSITE = _C.DispatchKey.CompositeImplicitAutograd
_state = threading.local()


def _has_kernel(func: Operator, key: str) -> bool:
    name = func.name()
    return _C._dispatch_has_kernel_for_dispatch_key(name, key) and not (
        _C._dispatch_kernel_for_dispatch_key_is_fallthrough(name, key)
    )


def is_composite(func: Operator) -> bool:
    """Return whether `func` is nothing but a composition of other operators wherever autograd is on."""
    return _has_kernel(func, "CompositeImplicitAutograd") and not _has_kernel(func, "Meta")


def conjugation() -> AbstractContextManager[None]:
    """Return a context inside `__torch_dispatch__` in which operators see the conjugate and negative bits of tensors.

    Those who do not see them compute with the wrong values. PyTorch switches off there whatever comes before Python.
    """
    return _without(_ABOVE)


def _without(keys: torch._C.DispatchKeySet) -> AbstractContextManager[None]:
    excluded = _C._dispatch_tls_local_exclude_set() - keys
    return _C._ForceDispatchKeyGuard(_C._dispatch_tls_local_include_set(), excluded)


def take_apart(func: Operator, args: Args, kwargs: Kwargs) -> Any:
    """Call a composite operator as autograd does: with what its device has for it.

    Autocast is on inside, unless it has a rule for this operator, or for one that this is a part of.
    """
    tensor = next((leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)), None)
    if tensor is None:
        return func._op_dk(_COMPOSITE, *args, **kwargs)
    own = f"Autograd{_C._dispatch_key_for_device(_C.TensorBase.device.__get__(tensor).type)}"  # as C++ sees it
    kernel = getattr(_C.DispatchKey, own) if _has_kernel(func, own) else _COMPOSITE
    kind, before = tensor.device.type, getattr(_state, "cast", False)
    autocast = f"Autocast{_C._dispatch_key_for_device(kind)}"
    # three operators, such as `chunk`, make a view of their own result after this
    keys = _ABOVE if _has_kernel(func, "ADInplaceOrView") else _ABOVE | _VIEWS
    _state.cast = before or _has_kernel(func, autocast)
    if not _state.cast and _C._is_any_autocast_enabled() and torch.is_autocast_enabled(kind):
        keys = keys | _C.DispatchKeySet(getattr(_C.DispatchKey, autocast))
    try:
        with _without(keys):
            return func._op_dk(kernel, *args, **kwargs)
    finally:
        _state.cast = before


@contextmanager
def without_modes() -> Generator[None]:
    """Leave all modes of operators and functions; before 2.13 Dynamo asks a flag, not their stack."""
    flag = "_is_in_any_mode_without_ignore_compile_internals"
    with ExitStack() as stack, mock.patch.object(_python_dispatch, flag, False, create=True):
        stack.enter_context(_python_dispatch._disable_current_modes())
        for _ in _get_current_function_mode_stack():
            stack.enter_context(_pop_mode_temporarily())
        yield


class Mode(TorchDispatchMode):
    """A mode of operators, the first of which in a process does not load the whole compiler: that takes a second."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
