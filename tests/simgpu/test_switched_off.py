"""Does everything that is switched on leave PyTorch as it was, once it is off?"""

import ast
import gc
import importlib
import json
import operator
import re
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch

import simgpu
from tests import children
from tests.simgpu.simulated import read_programs

# What Python and PyTorch note at their first use of something; counters go up besides.
THEIRS = {"__warningregistry__", "__annotations_cache__", "_compiled_autograd_enabled", "_FakeScriptObject_cls",
          "index_to_external_object_weakref"}  # fmt: skip
_TABLE = read_programs("switched_off")
TRAIN, COMPILE, SWITCHES, STATE = (_TABLE[name] for name in ("train", "compile", "switches", "state"))


def attributes():
    """Return every attribute of each module and class of torch; of a list what it holds."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "torch" and isinstance(module, types.ModuleType):
            owners = [(name, module), *((f"{kind.__module__}.{kind.__qualname__}", kind) for kind in classes(module))]
            for path, owner in owners:
                for key, value in list(vars(owner).items()):
                    if key not in THEIRS:
                        found[path, key] = tuple(value) if isinstance(value, list) else value
    return found


def classes(module):
    kinds = [value for value in list(vars(module).values()) if isinstance(value, type)]
    return [kind for kind in kinds if str(kind.__module__).partition(".")[0] == "torch"]


def changed(before, after):
    """Return the names of attributes that are others now; what the import of a module of torch adds is none."""
    owners, same = {path for path, _ in before}, (int, float, str, tuple, re.Pattern)
    names = []
    for key in before.keys() | after.keys():
        old, new = before.get(key, owners), after.get(key, owners)
        imported = old is owners and (key[0] not in owners or isinstance(new, types.ModuleType))
        counted = type(old) is type(new) is int and new > old
        if old is not new and not imported and not counted and not (isinstance(new, same) and old == new):
            names.append(".".join(key))
    return sorted(names)


def main():
    """Print by the name of each block which attributes it leaves changed, and how many two of them change inside."""
    warnings.simplefilter("ignore")
    for name in ("torch._inductor.compile_fx", "torch.nn.attention.flex_attention"):
        importlib.import_module(name)

    inside = []
    names = {
        "torch": torch,
        "simgpu": simgpu,
        "gc": gc,
        "look": lambda: inside.append(len(changed(before, attributes()))),
    }
    exec(TRAIN, names)
    names["train"]("cpu", False)  # what PyTorch imports and remembers at its first use is no trace of a switch
    before = attributes()
    found = {}
    for name, block in SWITCHES.items():
        exec(block, names)
        after = attributes()
        found[name] = changed(before, after)
        if name == "enable":
            exec(COMPILE, names)
            after = attributes()
        before = after
    gc.collect()
    emptied = [name for names in list(STATE.values())[:3] for name in names.split()]
    loaded = [name for name in emptied if f"simgpu.{name.rpartition('.')[0]}" in sys.modules]
    left = {name: len(operator.attrgetter(name)(simgpu)) for name in loaded}
    print(json.dumps([found, inside, left]))


@pytest.fixture(scope="module")
def found():
    done = children.run("-c", f"from {__name__} import main; main()")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", SWITCHES)
def test_every_attribute_of_torch_is_what_it_was(name, found):
    assert found[0][name] == []


def test_the_search_sees_what_is_switched_on(found):
    assert len(found[1]) == 2 and found[1][0] > 100 and found[1][1] > 5000


def test_tensors_outlive_the_switch():
    simgpu.enable()
    with simgpu.enable(capacity="64 MiB"):
        assert simgpu.memory().capacity_bytes == 2**26
    assert simgpu.memory().capacity_bytes == 2**30
    x = torch.ones(2, device="sim")
    simgpu.disable()
    assert not simgpu.enabled() and torch.sim.device_count() == 0 and x.cpu().tolist() == [1, 1]
    with torch.random.fork_rng():  # C++ says that the accelerator is sim, of which there are none
        torch.utils.checkpoint.checkpoint(torch.nn.Linear(2, 2), torch.ones(2), use_reentrant=False).sum().backward()
    assert not torch.accelerator.is_available() and next(iter(torch.utils.data.DataLoader([1], pin_memory=True))) == 1
    with pytest.raises(RuntimeError, match=r"switched off: simgpu.enable\(\)"):
        torch.ones(2, device="sim")
    assert type(torch.ones(2, device="meta:0")) is torch.Tensor
    with pytest.raises(ValueError, match="cannot change to 3 while they are enabled or hold tensors"):
        simgpu.enable(3)
    simgpu.enable()
    assert (x + x).device == torch.device("sim:0") and simgpu.memory().allocated_bytes >= x.nbytes
    with simgpu.cuda(), pytest.raises(RuntimeError, match=r"simgpu.cuda\(\) is on: switch it off first"):
        simgpu.disable()


CHANGES = set("add append clear extend insert pop put register remove setdefault undo update".split())  # noqa: SIM905


def changed_by_functions(tree):
    """Return the names that a module binds and its functions change."""
    assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None]
    targets = [one for node in assigned for one in (node.targets if isinstance(node, ast.Assign) else [node.target])]
    found = set()
    for node in (node for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.Lambda) for node in ast.walk(f)):
        if isinstance(node, ast.Global):
            found |= set(node.names)
        elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.value, ast.Name):
            written = not isinstance(node.ctx, ast.Load) or getattr(node, "attr", "") in CHANGES
            found |= {node.value.id} if written else set()
    return found & {one.id for one in targets if isinstance(one, ast.Name)}


def test_state_outside_the_world_is_listed_and_ends(found):
    root = Path(simgpu.__file__).parent
    there = {
        f"{'.'.join(file.relative_to(root).with_suffix('').parts)}.{name}"
        for file in root.rglob("*.py")
        for name in changed_by_functions(ast.parse(file.read_text(encoding="utf-8")))
    }
    listed = [name for names in STATE.values() for name in names.split()]
    assert sorted(there | {"device.state.replaced"}) == sorted(listed)
    assert len(found[2]) > 8 and not any(found[2].values())
