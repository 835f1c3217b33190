"""Does the table of PyTorch's private names say which are used, and does this PyTorch have them?"""

import ast

import pytest
import torch

from tests import children
from tools import torch_contract


@pytest.mark.parametrize("part", torch_contract.PARTS)
def test_the_table_has_every_private_name_that_is_used_and_no_other(part):
    used, rows = torch_contract.uses(part), torch_contract.rows()[part]
    covered = {name for row in rows for name in (row, row[row.rindex(".") :])}
    assert {name for name in used if not any(f"{row}.".startswith(f"{name}.") for row in covered)} == set()
    private = [row for row in rows.values() if "._" in row.name]  # the public ones are listed for what they come with
    assert [row.name for row in private if not torch_contract.users(row, used)] == []


def test_this_pytorch_has_every_name():
    done = children.run("-m", "tools.torch_contract", cwd=torch_contract.ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"torch {torch.__version__} lacks 0 of the" in done.stdout


def test_what_is_gone_is_listed_with_its_users(monkeypatch, capsys):
    monkeypatch.setattr(torch_contract, "exists", lambda name: name != "torch.cuda._tls")
    assert torch_contract.main([]) == 1
    said = capsys.readouterr().out
    assert (
        "torch.cuda._tls\n  simgpu, for the face of CUDA" in said
        and "  in engines/simgpu/simgpu/face/beginning.py" in said
    )
    assert "lacks 1 of the" in said


def test_a_name_is_expected_from_its_version_on_and_up_to_its_end():
    row = torch_contract.Row("torch._x", "", "", since="2.13", until="2.16")
    versions = ("2.11.0", "2.13.0+cpu", "2.15.1", "2.16.0.dev20261127")
    assert [row.expected(one) for one in versions] == [False, True, True, False]


def test_every_way_of_naming_is_seen():
    tree = ast.parse("""
import torch._a
from torch import _b as c, nn
from torch._d.e import f
import torch.distributed as dist
k, l = TORCH._g, nn
hasattr(torch.x, "_h"), put.put(l.Module, _i=1), c.j(), dist.y._m.z, k.n.__get__, "torch._o.p", q._r
imports.get("torch.u")._v
""")
    names = {"torch._a", "torch._b", "torch._b.j", "torch._d.e.f", "torch._g", "torch._g.n", "torch.x._h"}
    names |= {"torch.nn.Module._i", "torch.distributed.y._m.z", "torch._o.p", "torch.u._v"}
    assert set(torch_contract._File(tree).private()) == names
    assert torch_contract._File(tree).members() == {"_r"}
