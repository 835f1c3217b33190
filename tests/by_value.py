"""Does a function that is sent keep the name of its file, whatever cloudpickle writes? Since 3.1.3 one name for all."""

import pickle
import types
from collections.abc import Callable
from typing import Any

import cloudpickle


def files_of_sent(dumps: Callable[[Any], bytes], monkeypatch) -> list[str]:
    """Return the files of a function of a cell, and of the one inside it, after `dumps` has sent them."""
    table, typed = cloudpickle.Pickler.dispatch_table, {"__name__": "__main__"}
    reduced = table[types.CodeType]
    monkeypatch.setitem(table, types.CodeType, lambda code: reduced(code.replace(co_filename="<dynamic-code>")))
    exec(compile("def outer():\n    def inner(): ...\n    return inner", "<cell 7>", "exec"), typed)
    sent = pickle.loads(dumps(typed["outer"]))
    return [function.__code__.co_filename for function in (sent, sent())]
