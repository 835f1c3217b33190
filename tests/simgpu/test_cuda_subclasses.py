"""Do tensors of a program's own class live on CUDA's face as on CUDA?"""

import copy

import pytest
import torch

from tests.simgpu.simulated import read_calls

FACE = {"memory": "1 GiB"}


class Image(torch.Tensor):
    """A tensor that knows how large its pixels are, and whose results know it too."""

    @staticmethod
    def __new__(cls, values, spacing=None):
        return torch.as_tensor(values).as_subclass(cls)

    def __init__(self, values, spacing=None):
        self.spacing = spacing

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs)
        if isinstance(result, Image):
            result.spacing = next((one.spacing for one in args if isinstance(one, Image)), None)
        return result

    def width_mm(self):
        return self.shape[-1] * self.spacing


@pytest.fixture
def image():
    return Image(torch.arange(6.0).view(2, 3), spacing=0.5).to("cuda")


KEEP_IT = read_calls("keep_the_class", globals(), "image")


@pytest.mark.parametrize("what", KEEP_IT)
def test_the_class_and_its_attributes_stay(image, what):
    result = KEEP_IT[what](image)
    assert isinstance(result, Image)
    assert (result.device, result.is_cuda, result.spacing) == (torch.device("cuda", 0), True, 0.5)
    assert result.width_mm() == result.shape[-1] / 2


def test_a_class_may_be_made_by_make_subclass(image):
    made = torch.Tensor._make_subclass(Image, torch.ones(2, device="cuda"), True)
    assert isinstance(made, Image)
    assert made.is_leaf
    assert made.requires_grad


def test_the_way_back_gives_the_class_itself(image):
    back = (image + 1).cpu()
    assert type(back) is Image
    assert back.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_its_type_passes_for_the_class(image):
    on_the_cpu = image.cpu()
    assert isinstance(on_the_cpu, type(image))
    assert type(image) == type(on_the_cpu)  # noqa: E721 - programs write it so
    assert {Image: "a writer of images"}[type(image)]
    assert isinstance(image + image.cpu().cuda(), Image)


def test_what_makes_another_of_its_class_may_make_it_on_the_cpu(image):
    assert type(type(image)(torch.ones(2), spacing=1)) is Image
    assert type(torch.ones(2).as_subclass(type(image))) is Image


def test_gradients_flow_through_it(image):
    weight = torch.ones(3, device="cuda", requires_grad=True)
    loss = (image * weight).sum()
    assert isinstance(loss, Image)
    loss.backward()
    assert weight.grad.tolist() == [3, 5, 7]
    leaf = copy.deepcopy(Image(torch.ones(2, device="cuda")).requires_grad_())
    assert leaf.is_leaf


def test_rules_of_devices_hold_for_it(image):
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        image + torch.ones(3)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        image + Image(torch.ones(3), spacing=0.5)
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        image.numpy()


def test_a_method_of_torch_tensor_is_known_by_its_name():
    seen = []

    class Told(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs)

    torch.ones(2, device="cuda").as_subclass(Told).to(torch.float64)
    assert seen == [torch.Tensor.to]


def test_a_tensor_that_is_none_any_more_is_plain(image):
    plain = image.as_subclass(torch.Tensor)
    assert not isinstance(plain, Image)
    assert (plain + 1).sum().item() == 21


def test_attributes_may_be_copied_as_a_whole(image):
    total = image.sum()
    total.__dict__ = copy.deepcopy(image.__dict__)
    another = image + 1
    another.__dict__.update(image.__dict__)
    assert (total.item(), total.spacing, another.tolist()) == (15, 0.5, [[1, 2, 3], [4, 5, 6]])


def test_a_plain_tensor_says_whose_it_is():
    assert type(torch.ones(2, device="cuda")).__module__ == "torch"


def test_its_memory_is_given_back(image):
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        another = image + 1
        another += another
    assert torch.cuda.memory_allocated() == before + another.untyped_storage().nbytes()
    del another
    assert torch.cuda.memory_allocated() == before
