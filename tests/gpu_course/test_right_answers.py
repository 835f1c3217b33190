"""Are right answers accepted that are written in another way than the reference?"""

import ast
import re

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

import kernelcheck
from course_utils import devices
from gpu_course import catalogue, lesson05, lesson09, lesson10
from gpu_course.checks import Edit, edges, source_of
from tests.gpu_course.right_answers import stored


def clears_afterwards(model, optimizer, images, labels, device):
    loss = F.nll_loss(F.log_softmax(model(images.to(device)), dim=1), labels.to(device))
    parameters = list(model.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    optimizer.step()
    model.zero_grad()
    return loss.detach()


def names_the_logits(model, optimizer, scaler, images, labels, dtype, max_norm):
    optimizer.zero_grad()
    with torch.autocast(images.device.type, dtype=dtype):
        logits = model(images)
    logits = logits.float()
    loss = F.cross_entropy(logits, labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def reduces_and_broadcasts(values):
    both = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.reduce(both, dst=0)
    dist.broadcast(both, src=0)
    return both[0] / both[1]


def waits_for_futures(values):
    both = [values.double().sum(), torch.tensor(len(values))]
    for future in [dist.all_reduce(one, async_op=True).get_future() for one in both]:
        future.wait()
    return (both[0] / both[1]).float()


def functional():  # nested, so that it travels as an answer from a notebook does
    def global_mean(values):
        from torch.distributed import _functional_collectives

        both = torch.stack([values.sum(), values.new_tensor(len(values))])
        both = _functional_collectives.all_reduce(both, "avg", dist.group.WORLD)
        return both[0] / both[1]

    return global_mean


def goes_forward_again(line, stage, inputs, targets, loss_fn):
    gradients = []
    for kind, at in ((action[0], int(action[1:])) for action in line.split()):
        x = inputs[at].clone().requires_grad_()
        loss = loss_fn(stage(x), targets[at]) / len(inputs)
        if kind == "I":
            gradients += torch.autograd.grad(loss, x)
        elif kind == "W":
            loss.backward()
    return gradients


ANSWERS = [
    (lesson05.train_step, clears_afterwards),
    (lesson05.amp_step, names_the_logits),
    (lesson09.global_mean, reduces_and_broadcasts),
    (lesson09.global_mean, waits_for_futures),
    (lesson09.global_mean, functional()),
    (lesson10.last_rank, goes_forward_again),
]


SIMPLE = ast.Assign | ast.AugAssign | ast.Return | ast.Expr
EXERCISES = list(catalogue.registry())
TRIED = [
    one for one in EXERCISES if one.name != "block_sums" or not kernelcheck.why_not()
]  # which needs a C++ compiler
STYLES = [(exercise, other) for exercise in TRIED for other in exercise.alternatives]


@pytest.mark.parametrize(("exercise", "other"), STYLES, ids=[f"{e.lesson}-{e.name}" for e, _ in STYLES])
def test_another_style_is_right_and_shown(exercise, other, capsys):
    exercise.examine(other.answer, devices.check_devices())
    exercise.solution()
    shown = capsys.readouterr().out
    assert f"Another style: {other.cost}." in shown and not other.cost.endswith(".")
    assert len(re.findall(rf"^(?:def|class) {exercise.name}\b", shown, re.MULTILINE)) == 1 + len(exercise.alternatives)


STORED = [
    pytest.param(
        exercise,
        answer,
        id=f"{exercise.lesson}-{exercise.name}-{at}",
        marks=[pytest.mark.slow, *[pytest.mark.mistakes] * (at == 0)],  # `make test-units` tries those of the lesson
    )
    for exercise in TRIED
    for at, (_, answer) in enumerate(stored(exercise))
]
ENOUGH = 8  # of a budget that allows fewer, the text leaves no room


@pytest.mark.parametrize(("exercise", "answer"), STORED)
def test_a_stored_right_answer_is_accepted_with_room_to_spare(exercise, answer):
    full = used_up(exercise, answer.of(exercise.reference) if isinstance(answer, Edit) else answer)
    assert not full or full <= used_up(exercise, exercise.reference)  # as where the text says "once"


def used_up(exercise, answer):
    """Return the budgets, of those that leave room, of which `answer` uses more than nine tenths."""
    with edges.recording() as seen:
        exercise.examine(answer, devices.check_devices())
    return {(what, allowed) for what, used, allowed in seen.budgets if allowed >= ENOUGH and used > 0.9 * allowed}


def test_three_right_answers_in_other_styles_are_kept_of_each_exercise():
    kept = {one.name: len(stored(one)) + len(one.alternatives) for one in EXERCISES}
    assert kept and [name for name, count in kept.items() if count < 3] == []


def test_every_exercise_has_another_style():
    assert [exercise.name for exercise in EXERCISES if not exercise.alternatives] == []


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_hints_lead_to_the_answer_and_are_not_it(exercise):
    """No hint holds most of what the reference's simple statements say."""
    lines = [node for node in ast.walk(ast.parse(source_of(exercise.reference))) if isinstance(node, SIMPLE)][1:]
    said = [plain(ast.unparse(getattr(line, "value", None) or line)) for line in lines]
    assert len(exercise.task.hints) >= 3
    for hint in map(plain, exercise.task.hints):
        assert sum(len(text) for text in said if text in hint) <= 0.6 * sum(map(len, said)), hint


def plain(text: str) -> str:
    """Return `text` without white space, quotes of one kind."""
    return re.sub(r"\s", "", text).replace('"', "'")


@pytest.mark.parametrize(("exercise", "answer"), [
    pytest.param(exercise, answer, id=f"{exercise.lesson}-{answer.__name__}", marks=[pytest.mark.slow] * (at in (2, 3)))
    for at, (exercise, answer) in enumerate(ANSWERS)  # of those on ranks, one each
])  # fmt: skip
def test_a_right_answer_in_another_way_is_accepted(exercise, answer):
    exercise.examine(answer, devices.check_devices())
