"""Does lesson 08 run where there is CUDA and no Triton, as on Windows?"""

import importlib.util
import json

import pytest
import torch

from tools import notebooks


@pytest.fixture
def cell() -> str:
    """The cell of lesson 08 that makes an operator into which the compiler sees."""
    (file,) = (notebooks.ROOT / "notebooks").glob("08_*.ipynb")
    sources = ["".join(one["source"]) for one in json.loads(file.read_text(encoding="utf-8"))["cells"]]
    (found,) = [source for source in sources if "torch.library.triton_op(" in source and "HAS_TRITON" in source]
    return found


def test_an_operator_of_triton_s_is_left_out_without_triton(cell, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    exec(cell, {"torch": torch, "DEVICE": torch.device("cuda", 0)})
    assert "needs CUDA and Triton" in capsys.readouterr().out
