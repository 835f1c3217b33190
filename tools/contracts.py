"""Import contract for layers that are a pattern, such as `lesson*`, for `lint-imports`."""

import fnmatch

import grimp
from importlinter import ContractCheck
from importlinter.contracts.layers import Layer, LayersContract, ModuleTail

__all__ = ["Layers"]


class Layers(LayersContract):
    """import-linter's layers, where the name of a room may be a pattern: rooms that it fits do not use each other."""

    type_name = "layers of patterns"

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        """Return what import-linter says of the layers, with rooms in place of patterns."""
        containers = [str(container) for container in self.containers or ()]  # pyright: ignore[reportGeneralTypeIssues]
        rooms = {child.rpartition(".")[2] for container in containers for child in graph.find_children(container)}
        self.layers = [_spelled_out(layer, rooms) for layer in self.layers]
        return super().check(graph, verbose)


def _spelled_out(layer: Layer, rooms: set[str]) -> Layer:
    """Return the layer with each room that a pattern of it fits; a name without an asterisk stays."""
    names = {name for tail in layer.module_tails for name in fnmatch.filter(rooms, tail.name) or [tail.name]}
    return Layer({ModuleTail(name) for name in names}, layer.is_independent)
