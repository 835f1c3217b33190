"""Do the simulated Mac's GPU and Intel GPU keep the rules of the real ones? And are they gone when they are off?"""

import pytest
import torch

import simgpu
from simgpu.ground import device_kind
from simgpu.machine import kernels_of_kinds

device_rules = pytest.importorskip("benchmarks.device_rules")  # which an engine installed alone has not
RULES = [rule for kind in ("mps", "xpu") for rule in device_rules.read(kind)]
TRIED = [  # those that need a process of their own are slow
    pytest.param(rule, id=f"{rule.kind}: {rule.name}", marks=[pytest.mark.slow] * bool(rule.alone or rule.environment))
    for rule in RULES
]


@pytest.fixture
def _no_warnings_so_far(monkeypatch):
    """Let what PyTorch says once a process not have been said."""
    from simgpu.device import cpu_fallback

    monkeypatch.setattr(cpu_fallback, "_warned", set())


@pytest.mark.parametrize("rule", TRIED)
def test_a_rule_is_kept(rule, _no_warnings_so_far):
    outcome = device_rules.tried(rule)
    assert rule.is_kept(outcome, real=False), outcome
    assert device_kind.kind == "sim" and not torch.backends.mps.is_available() and not torch.xpu.is_available()


def test_the_table_has_a_source_for_each_rule_and_no_rule_twice():
    table = device_rules.TABLE.read_text(encoding="utf-8")
    assert table.count('kind = "mps"') > 200 and table.count('kind = "xpu"') > 95
    assert all(rule.source and rule.versions for rule in RULES)
    assert len({(rule.kind, rule.name) for rule in RULES}) == len(RULES)


def test_what_has_no_kernel_is_read_from_pytorch():
    missing = kernels_of_kinds.without_kernel("mps")
    assert missing["linalg_ldl_solve"] == "linalg_ldl_solve.out" and "special_ndtri" in missing
    assert "add.Tensor" not in missing and "mm" not in missing and "narrow_copy" not in missing
    assert len(missing) > 100 and kernels_of_kinds.without_kernel("cuda") == {}


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_a_step_of_training_is_that_of_the_cpu(kind):
    def step(device):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(64, 3)
        )
        x, model = torch.randn(4, 1, 6, 6).to(device), model.to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        torch.nn.functional.cross_entropy(model(x), torch.tensor([0, 1, 2, 0], device=device)).backward()
        optimizer.step()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    expected = step("cpu")
    with getattr(simgpu, kind)(memory="1 GiB"):
        torch.testing.assert_close(step(kind), expected)


def test_one_face_at_a_time():
    with simgpu.mps(), pytest.raises(RuntimeError, match=r"simgpu.mps\(\) is on"):
        simgpu.cuda()
    with simgpu.cuda():
        assert torch.ones(1, device="cuda").is_cuda and not torch.ones(1, device="cuda").is_mps


def test_the_command_says_how_many_rules_are_kept_and_what_came_of_others(capsys, monkeypatch):
    assert device_rules.main(["--kind", "xpu", "--only", "method of its name"])
    assert capsys.readouterr().out.startswith("1 of 1 rules of xpu are kept on the simulated one, PyTorch ")
    broken = device_rules.Rule("xpu", "sums", "nowhere", "all", "result = 1 + 1", "^3$")
    monkeypatch.setattr(device_rules, "read", lambda kind: [broken])
    assert not device_rules.main(["--kind", "xpu"])
    assert "NOT KEPT: sums\n    2\n    nowhere" in capsys.readouterr().out
