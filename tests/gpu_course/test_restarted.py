"""A NameError after a restart is answered with how to go on, and no other one is."""

import json
import sys

import pytest

from gpu_course import restarted
from tests import children

CELLS = ["import torch\nfrom gpu_course import (\n    lesson05,\n)", "step, loss = 1, 2", "loss + step", "late = 1"]


@pytest.mark.parametrize("name", ["torch", "lesson05", "loss", "step"])
def test_a_name_of_a_cell_above_is_answered(name):
    said = restarted.advice(name, "loss + step", CELLS)
    assert name in said and "Run All Above Selected Cell" in said
    assert "Execute Above Cells" in restarted.advice(name, "not saved yet", CELLS, "VS Code")


@pytest.mark.parametrize("name", ["typo", "late", "los", "gpu_course"])
def test_another_name_is_not(name):
    assert restarted.advice(name, "loss + step", CELLS) == ""


def test_a_kernel_that_was_restarted_says_it_under_the_error(tmp_path):
    cells = [{"cell_type": "code", "source": source} for source in CELLS]
    (tmp_path / "05_loop.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    config = "c.InteractiveShellApp.extensions.append"
    shipped = (children.ROOT / "tools/jupyterlab/ipython/ipython_kernel_config.py").read_text(encoding="utf-8")
    assert f'{config}("gpu_course.restarted")' in shipped
    run = ["-m", "IPython", "--ext=gpu_course.restarted", "--colors=nocolor", "-c"]
    env = {**children.os.environ, "JPY_SESSION_NAME": "x/05_loop.ipynb", "IPYTHONDIR": str(tmp_path)}
    said = [children.run(*run, cell, env=env, cwd=tmp_path).stdout for cell in ("loss + step", "typo")]
    assert "A cell above defines loss" in said[0] and "A cell above" not in said[1], sys.version
