"""Do views that change in place, their shapes too, have the CPU's values and gradients, or raise one clear error?"""

from collections import Counter

import pytest
import torch

from tests.simgpu import view_programs
from tests.simgpu.simulated import consistent, read_calls


def gradient_after(device, reshape, change):
    """Return the gradient through a view that is reshaped in place, and through what is changed in place after it."""
    leaf = torch.arange(9.0, device=device, requires_grad=True)
    x = (leaf * 1).view(3, 3)
    view = x[:2, :2]
    reshape(view)
    change(view, x)
    if device == "sim":
        consistent(view)
    (view * torch.arange(view.numel(), device=device).view(view.shape)).sum().backward()
    return leaf.grad.tolist()


CHANGES = read_calls("later_changes", globals(), "v, x")
RESHAPES = read_calls("reshapes", globals(), "v")


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("reshape", RESHAPES)
def test_a_view_reshaped_in_place_has_the_cpus_gradients(reshape, change):
    gradients = [gradient_after(device, RESHAPES[reshape], CHANGES[change]) for device in ("sim", "cpu")]
    assert gradients[0] == gradients[1]


@pytest.mark.parametrize("reshape", RESHAPES)
def test_a_base_reshaped_in_place_leaves_its_views_what_they_are(reshape):
    found = []
    for device in ("cpu", "sim"):
        leaf = torch.arange(4.0, device=device, requires_grad=True)
        base = (leaf * 1).view(2, 2).clone()
        row = base[0]
        RESHAPES[reshape](base)
        base.mul_(3)
        row.mul_(torch.tensor([1.0, 2.0], device=device))
        (base.sum() + row[1]).backward()
        found.append((leaf.grad.tolist(), base.tolist(), tuple(base.shape), base.stride(), base._version))
    assert found[0] == found[1]


@pytest.mark.parametrize("flows", [True, False])
def test_shapes_that_change_out_of_sight_give_the_cpus_gradients_or_one_clear_error(flows):
    """By a function or an operator, not by the tensor's method: below Python nothing can be put in its place."""
    leaf = torch.arange(9.0, device="sim", requires_grad=True)
    x = (leaf * 1).view(3, 3) if flows else leaf.detach().clone().view(3, 3)
    view = x[:2, :2]
    torch.ops.aten.t_(view)
    consistent(view)
    (view + leaf[0]).sum().backward()  # nothing changes in place afterwards: all is as it was
    for change in (torch.Tensor.mul_, torch.Tensor.copy_, lambda v, scale: v.unsqueeze_(0).add_(scale)):
        with pytest.raises(NotImplementedError, match=r"cannot change this memory in place any more: a view of it got"):
            change(view, leaf[0])
    if not flows:  # then nothing is wrong until gradients flow
        assert x.mul_(2).tolist()[2] == [12, 14, 16]
    del x, view
    assert len([(leaf * 1).view(3, 3).mul_(2) for _ in range(20)]) == 20  # new memory, at the old address too


def test_a_parameter_is_reshaped_in_place_unless_others_share_its_memory():
    parameter = torch.nn.Parameter(torch.ones(2, 3, device="sim"))
    with torch.no_grad():
        parameter.t_()
    (parameter * 2).sum().backward()
    assert parameter.grad.shape == parameter.shape == (3, 2) and parameter.is_leaf
    row = parameter[0]
    with (
        torch.no_grad(),
        pytest.raises(NotImplementedError, match="cannot change the shape of a parameter by t_ while"),
    ):
        parameter.t_()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place operation"):
        parameter.t_()
    row.sum().backward()
    frozen = torch.nn.Parameter(torch.ones(2, 3, device="sim"), requires_grad=False)
    row = frozen[0]
    assert frozen.t_() is frozen and isinstance(frozen, torch.nn.Parameter) and frozen.shape == (3, 2)


def test_attributes_and_references_stay_with_the_tensor_and_later_hooks_are_called():
    leaf = torch.arange(4.0, device="sim", requires_grad=True)
    view, seen = (leaf * 1)[:2], []
    view.mark, known = "mine", {id(view): view}
    view.unsqueeze_(0)
    view.register_hook(lambda grad: seen.append(tuple(grad.shape)))
    view.retain_grad()
    (known[id(view)] * 2).sum().backward()
    assert view.mark == "mine" and seen == [(1, 2)] and view.grad.tolist() == [[2, 2]]
    assert leaf.grad.tolist() == [2, 2, 0, 0]
    for prepare in (torch.Tensor.retain_grad, lambda x: x.register_hook(print)):
        view = (leaf * 1)[:2]
        prepare(view)
        with pytest.raises(NotImplementedError, match=r"after retain_grad\(\) or register_hook\(\) while other"):
            view.unsqueeze_(0)
        alone = leaf * 1
        prepare(alone)
        assert alone.unsqueeze_(0).shape == (1, 4)


def test_views_that_autograd_keeps_from_changes_are_kept_from_changes_of_shape():
    for device in ("cpu", "sim"):
        leaf = torch.ones(2, 2, device=device, requires_grad=True)
        with pytest.raises(RuntimeError, match="is the output of a function that returns multiple views"):
            (leaf * 1).unbind(0)[0].unsqueeze_(0)
        with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad is being used in an in-"):
            leaf[0].unsqueeze_(0)
        with torch.no_grad():
            view = leaf[0]
        with pytest.raises(RuntimeError, match="A view was created in no_grad mode and is being modified inplace"):
            view.unsqueeze_(0)
        with pytest.raises(RuntimeError, match=r"t_\(\) expects a tensor with <= 2 dimensions, but self is 3D"):
            torch.ones(2, 2, 2, 2, device=device)[0].t_()
        saved = (leaf * 1).exp()
        saved.unsqueeze_(0)
        with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
            saved.sum().backward()
        with torch.inference_mode():
            assert torch.ones(2, 2, device=device)[0].unsqueeze_(0).shape == (1, 2)
            assert leaf.detach()[0].unsqueeze_(0).add_(1).tolist() == [[2, 2]]


# ---- programs drawn at random ---------------------------------------------------------------------------------------
def counted(seeds) -> Counter:
    """Return how many programs of these seeds end in which way, and how many have gradients that were compared."""
    counts = Counter()
    for seed in seeds:
        expected = view_programs.outcome(seed, "cpu")
        counts[view_programs.compare(expected, view_programs.outcome(seed, "sim"))] += 1
        counts["with gradients"] += expected[-1][1] is not None
    return counts


def test_programs_of_views_do_what_they_do_on_the_cpu():
    counts = counted(range(150))
    assert counts["silent difference"] == 0 and counts["needless error"] <= 1 and counts["same"] >= 143
    assert counts["with gradients"] >= 100


@pytest.mark.slow
def test_ten_thousand_programs_of_views_do_what_they_do_on_the_cpu():
    counts = counted(range(10_000))
    assert counts["silent difference"] == 0 and counts["needless error"] <= 50 and counts["other words"] <= 100
    assert counts["with gradients"] >= 7_000


def test_a_program_is_its_seeds_and_a_difference_is_seen():
    assert view_programs.text(3) == view_programs.text(3) != view_programs.text(4)
    expected = view_programs.outcome(3, "cpu")
    assert view_programs.compare(expected, expected) == "same"
    value, gradients, _ = expected[-1]
    wrong = [*expected[:-1], (value, "others", None)]
    assert gradients and view_programs.compare(expected, wrong) == "silent difference"
    refused = [*expected[:-1], (None, None, "NotImplementedError: no")]
    assert view_programs.compare(expected, refused) == "needless error"
    assert view_programs.compare(refused, expected) == "silent difference"
    assert view_programs.compare(refused, [*expected[:-1], (None, None, "ValueError")]) == "other words"
