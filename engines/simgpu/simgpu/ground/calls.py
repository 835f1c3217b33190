"""Arguments of an operator by name, defaults included."""

from typing import Any

from simgpu.ground.torch_internals import Args, Kwargs, Operator


class Call:
    """One call of an operator `func`: `call["dim"]` is what it is given as `dim`."""

    def __init__(self, func: Operator, args: Args, kwargs: Kwargs) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs

    def __getitem__(self, name: str) -> Any:
        """Return an argument, its default where it was left out, or None where the operator has none of this name."""
        for index, argument in enumerate(self.func._schema.arguments):
            if argument.name == name:
                by_place = index < len(self.args)
                return self.args[index] if by_place else self.kwargs.get(name, argument.default_value)
        return None
