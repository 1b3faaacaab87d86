import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from tdumpra.core.ema import EmaTeacher


class Net(nn.Module):
    """Parameters, floating-point buffers, an integer buffer, a boolean one, and one that is not saved."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("passing", torch.rand(2), persistent=False)

    def forward(self, x):
        return self.drop(self.norm(self.linear(x)))


def tensors(module) -> dict[str, Any]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def values(module):
    return {name: tensor.detach().double().flatten().tolist() for name, tensor in tensors(module).items()}


def step(net, seed):
    """As a training step leaves it: new weights, new statistics, one more batch."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in net.parameters():
            tensor += torch.randn(tensor.shape, generator=generator)
    net.train()(torch.randn(8, 3, generator=generator))
    net.flags.logical_not_()
    net.passing.add_(1.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("warmup", [True, False])
def test_equals_the_equation(seed, warmup):
    student = Net(seed)
    teacher = EmaTeacher(student, momentum=0.6, warmup=warmup)
    expected = values(student)
    for t in range(12):
        step(student, seed + t)
        teacher.update(student)
        mu = min(0.6, (1 + t) / (10 + t)) if warmup else 0.6
        for name, new in values(student).items():
            if name in ("norm.num_batches_tracked", "flags"):
                expected[name] = new
            else:
                expected[name] = [mu * a + (1 - mu) * b for a, b in zip(expected[name], new, strict=True)]
        for name, ours in values(teacher.module).items():
            assert ours == pytest.approx(expected[name], rel=1e-5, abs=1e-6), name
    assert int(teacher.step) == 12


def test_by_hand():
    # 0.9 x 1 + 0.1 x 2 = 1.1; with warm-up the first momentum is (1 + 0) / (10 + 0) = 0.1: 0.1 x 1 + 0.9 x 2 = 1.9.
    student = nn.Linear(1, 1, bias=False)
    nn.init.constant_(student.weight, 1.0)
    plain, warm = EmaTeacher(student, 0.9, warmup=False), EmaTeacher(student, 0.9)
    nn.init.constant_(student.weight, 2.0)
    plain.update(student)
    warm.update(student)
    assert float(tensors(plain.module)["weight"]) == pytest.approx(1.1)
    assert float(tensors(warm.module)["weight"]) == pytest.approx(1.9)


def test_the_warm_up_schedule():
    teacher = EmaTeacher(nn.Linear(1, 1), momentum=0.999)
    assert [teacher.current_momentum(t) for t in (0, 1, 10)] == pytest.approx([1 / 10, 2 / 11, 11 / 20])
    schedule = [teacher.current_momentum(t) for t in range(20_000)]
    assert schedule == sorted(schedule)
    assert schedule[-1] == 0.999
    # (1 + t) / (10 + t) reaches 0.999 at t = 8990
    assert schedule[8989] < 0.999 == schedule[8990]
    assert EmaTeacher(nn.Linear(1, 1), momentum=0.999, warmup=False).current_momentum(0) == 0.999


def test_defaults_are_the_papers_momentum_with_warm_up():
    teacher = EmaTeacher(nn.Linear(1, 1))
    assert (teacher.momentum, teacher.warmup) == (0.999, True)


def test_momentum_zero_copies():
    student = Net()
    teacher = EmaTeacher(student, momentum=0.0)
    step(student, 1)
    teacher.update(student)
    assert values(teacher.module) == values(student)


def test_a_teacher_that_agrees_does_not_drift():
    student = Net()
    teacher = EmaTeacher(student)
    for _ in range(50):
        teacher.update(student)
    assert values(teacher.module) == values(student)


def test_the_student_is_copied_and_neither_changes_the_other():
    student = Net()
    before = values(student)
    teacher = EmaTeacher(student)
    step(student, 1)
    assert values(teacher.module) == before
    after = values(student)
    teacher.update(student)
    assert values(student) == after
    assert student.training
    assert all(parameter.requires_grad for parameter in student.parameters())


def test_no_gradient_is_recorded():
    student = Net()
    teacher = EmaTeacher(student)
    teacher.update(student)
    assert not any(tensor.requires_grad for tensor in tensors(teacher.module).values())
    assert not teacher(torch.randn(4, 3)).requires_grad


def test_it_is_in_evaluation_mode_from_the_start():
    teacher = EmaTeacher(Net().train())
    assert not any(module.training for module in teacher.modules())


def test_a_parents_train_does_not_reach_it():
    student = Net()
    parent = nn.ModuleDict({"student": student, "teacher": EmaTeacher(student)})
    parent.train()
    assert student.training
    assert not any(module.training for module in parent["teacher"].modules())
    x = torch.randn(6, 3)
    assert torch.equal(parent["teacher"](x), parent["teacher"](x))  # no dropout
    assert torch.equal(parent["teacher"](x), copy.deepcopy(student).eval()(x))


def test_half_precision_students_are_followed_in_float32():
    student = nn.Linear(1, 1, bias=False).half()
    nn.init.constant_(student.weight, 1.0)
    teacher = EmaTeacher(student, momentum=0.999, warmup=False)
    nn.init.constant_(student.weight, 2.0)
    for _ in range(100):
        teacher.update(student)
    weight = tensors(teacher.module)["weight"]
    assert weight.dtype == torch.float32
    # 2 - 0.999^100; in half precision a step of 0.001 towards 2 rounds to 1/1024 or to nothing
    assert float(weight) == pytest.approx(2 - 0.999**100, rel=1e-5)
    assert student.weight.dtype == torch.float16


def test_float64_stays_float64():
    teacher = EmaTeacher(nn.Linear(2, 2).double())
    assert teacher.module.weight.dtype == torch.float64


def test_state_dict_round_trip():
    student = Net()
    teacher = EmaTeacher(student, momentum=0.7)
    for t in range(3):
        step(student, t)
        teacher.update(student)
    state = copy.deepcopy(teacher.state_dict())
    twin = EmaTeacher(Net(seed=5), momentum=0.7)
    twin.load_state_dict(state)
    assert int(twin.step) == 3
    tensors(twin.module)["passing"].copy_(
        tensors(teacher.module)["passing"]
    )  # not part of a state dict, by its owner's wish
    step(student, 9)
    teacher.update(student)
    twin.update(student)
    assert values(twin) == values(teacher)


def test_a_network_without_floating_point_tensors():
    student = nn.Module()
    student.register_buffer("count", torch.tensor([3]))
    teacher = EmaTeacher(student)
    tensors(student)["count"].add_(4)
    teacher.update(student)
    assert tensors(teacher.module)["count"].tolist() == [7]


def test_tied_parameters_are_averaged_once():
    student = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    shared = nn.Parameter(torch.zeros(2, 2))
    student[0].weight = student[1].weight = shared
    teacher = EmaTeacher(student, momentum=0.5, warmup=False)
    nn.init.constant_(shared, 1.0)
    teacher.update(student)
    assert values(teacher.module) == {"0.weight": [0.5] * 4}


@pytest.mark.parametrize("momentum", [-0.1, 1.0, 1.5, float("nan")])
def test_bad_momentum(momentum):
    with pytest.raises(ValueError, match=rf"momentum must lie in \[0, 1\), not {momentum}"):
        EmaTeacher(nn.Linear(1, 1), momentum=momentum)


def test_another_network_is_refused_and_changes_nothing():
    teacher = EmaTeacher(nn.Linear(3, 2))
    before = values(teacher)
    with pytest.raises(ValueError, match="not the network that this teacher follows: 'bias' is in one only"):
        teacher.update(nn.Linear(3, 2, bias=False))
    # (1, 3) would broadcast to (2, 3)
    with pytest.raises(ValueError, match=r"'weight' has shape \(1, 3\), where the teacher has \(2, 3\)"):
        teacher.update(nn.Linear(3, 1))
    assert values(teacher) == before


def test_copies_and_pickles_hold_the_teacher_alone():
    student = nn.Linear(64, 64)
    teacher = EmaTeacher(student)
    before = len(pickle.dumps(teacher))
    teacher.update(student)
    assert len(pickle.dumps(teacher)) < before + 200
    twin = copy.deepcopy(teacher)
    twin.update(student)
    teacher.update(student)
    assert all(torch.equal(a, b) for a, b in zip(twin.parameters(), teacher.parameters(), strict=True))
