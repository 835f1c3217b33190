"""Reasons for which checks of one kind do not exercise edge cases of the catalogue, by kind and edge case.

An exercise names the edge cases from which it is exempt, and takes their reasons from its kind's table:

    attention.exempt(KERNEL, "scalar empty formats second_call")
"""

from gpu_course.checks import edges

__all__ = ["KERNEL", "PROGRAM", "RANKS", "TRAINING"]

_ORDINARY = "these numbers take no other way than ordinary ones"
_NO_DEFAULT = "no default is asked: it works on what it is handed"
_CHANGES = "it changes what it is handed, as the text says"
_ONCE = "it changes what it is handed, or gets a function or a model"
_SHAPES = "the text says which shapes there are"
_IN_ORDER = "there are batches, in their order"

KERNEL = edges.reasons({
    "shapes": "a kernel gets its sizes and strides as numbers, and of no elements nothing is launched",
    "values": _ORDINARY,
    "formats": "the text says which format the numbers have",
    "default_type": "a kernel makes no tensor",
    "numbers": "sizes, strides and rates are numbers above 0, and none of them is a limit",
    "second_call unchanged": "it stores to memory that it is handed",
})  # fmt: skip

RANKS = edges.reasons({
    "shapes": _SHAPES,
    "values": _ORDINARY,
    "formats": "the text says float32, or the format plays no part",
    "default_type": _NO_DEFAULT,
    "numbers": "counts are small numbers above 0",
    "lists": "a list has entries, in its order",
    "second_call": "ranks run it in processes of their own",
    "other_input": "a training is one call",
    "unchanged": _CHANGES,
    "random_state": "each rank has random numbers of its own",
    "two_ranks": "it asks how many ranks there are: more than two show more",
    "three_ranks": "two ranks show what the text says",
    "four_ranks": "what holds of two or three ranks holds of four",
    "part": "the text speaks of all ranks",
    "uneven": "all ranks have equally much, padding included",
})  # fmt: skip

PROGRAM = edges.reasons({
    "shapes": "the program says which shapes it takes",
    "values": "the program takes ordinary numbers",
    "formats": "the program says which formats it takes",
    "elsewhere": "it works on the device that it is given, of which there are two",
    "default_type": _NO_DEFAULT,
    "models": "the program says which model and which optimizer it trains",
    "lists": _IN_ORDER,
    "second_call": _ONCE,
    "unchanged": _CHANGES,
    "random_state": "each process has random numbers of its own",
    "three_ranks four_ranks": "two ranks show what the text says",
    "part": "the text speaks of all ranks",
    "uneven": "all ranks have equally many batches",
})  # fmt: skip

TRAINING = edges.reasons({
    "shapes": _SHAPES,
    "values": _ORDINARY,
    "formats": "the text names the formats",
    "places": "two places show that none is named",
    "default_type": _NO_DEFAULT,
    "models": "the text says which model and which optimizer it is",
    "numbers": "sizes are small numbers above 0",
    "lists": _IN_ORDER,
    "second_call": _ONCE,
    "unchanged": _CHANGES,
})  # fmt: skip
