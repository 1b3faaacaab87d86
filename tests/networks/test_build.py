"""Networks: the paper's backbones, factories, and finished classifiers as they are."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, cast

import pytest
import timm
import tiny_networks
import torch
import torchvision
from torch import Tensor, nn

from tdumpra.core.ema import EmaTeacher
from tdumpra.core.losses import joint_loss
from tdumpra.core.rowwise import normalise
from tdumpra.networks.build import (
    AttachedClassifier,
    DualHeadNetwork,
    FrozenEncoder,
    NetworkError,
    SeveralViews,
    arithmetic,
    build_network,
    refuse_larger_backbone,
)
from tdumpra.runs.config import NetworkConfig

PAPER = ("resnet101", "convnext_tiny", "efficientnet_b0", "vit_base_patch16_224", "swin_base_patch4_window7_224")


def config(backbone: str, **options: Any) -> NetworkConfig:
    values: dict[str, Any] = {"backbone": backbone, "weights": "none", "image_size": 32, "embedding": 8}
    return NetworkConfig(**(values | options))


@pytest.fixture
def images() -> Tensor:
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("backbone", PAPER)
def test_the_papers_backbones_train_a_step_embed_and_predict(backbone, images):
    torch.manual_seed(0)
    network: Any = build_network(config(backbone), 7).network.train()
    teacher = EmaTeacher(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
    labels = torch.tensor([0, 1, 0, 6])
    before = network.classifier.weight.detach().clone()
    encoding = network(images)
    joint_loss(encoding.logits, encoding.z, labels).total.backward()
    assert [name for name, p in network.named_parameters() if p.grad is None] == []
    optimizer.step()
    teacher.update(network)
    assert not torch.equal(before, network.classifier.weight)
    with torch.no_grad():
        student, followed = network.eval()(images), teacher(images)
    for each in (student, followed):
        assert each.logits.shape == (4, 7)
        assert each.z.shape == (4, 8)
        torch.testing.assert_close(each.z.norm(dim=1), torch.ones(4))
    assert not torch.equal(student.z, followed.z)


def test_heads_are_linear_and_a_two_layer_projection():
    network = build_network(config("tiny_networks:plain"), 3).network
    assert isinstance(network, DualHeadNetwork)
    linear = cast(nn.Linear, network.classifier)
    assert (linear.in_features, linear.out_features) == (16, 3)
    first, relu, second = cast(Any, network.projection)
    assert (first.in_features, first.out_features, second.out_features) == (16, 16, 8)
    assert isinstance(relu, nn.ReLU)


def test_logits_and_length_are_float32_under_autocast(images):
    network = build_network(config("tiny_networks:plain"), 3).network.eval()
    with torch.autocast("cpu", torch.bfloat16):
        encoding = network(images)
    assert encoding.logits.dtype == encoding.z.dtype == torch.float32
    torch.testing.assert_close(encoding.z.norm(dim=1), torch.ones(4))


def test_feature_maps_are_pooled(images):
    network: Any = build_network(config("tiny_networks:feature_map"), 3).network.eval()
    features = network.backbone(images).mean((2, 3))
    torch.testing.assert_close(network(images).logits, network.classifier(features))


def test_transformers_are_built_for_the_image_size():
    network: Any = build_network(config("vit_tiny_patch16_224", image_size=48), 3).network
    assert network.backbone.patch_embed.img_size == (48, 48)


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        ("resnet110", "unknown backbone 'resnet110': did you mean .*resnet101"),
        ("resnet18.foo", r"timm knows no weights 'foo' of resnet18; it has .*resnet18\.a1_in1k"),
        ("qqqqqqqq", r"timm\.list_models\(\) lists what there is"),
        ("tiny_networks:missing", "'tiny_networks:missing' cannot be imported: .*missing"),
        ("no_such_module:f", "cannot be imported: No module named 'no_such_module'"),
        ("tiny_networks:no_module", "must return an nn.Module, not object"),
    ],
)
def test_what_cannot_be_built_is_said(backbone, message):
    with pytest.raises(NetworkError, match=message):
        build_network(config(backbone), 3)


@pytest.mark.parametrize(("backbone", "size"), [("vit_tiny_patch16_224", 8), ("tiny_networks:plain", 8)])
def test_an_image_size_that_the_backbone_cannot_take(backbone, size):
    with pytest.raises(NetworkError, match=f"cannot take images of {size} px"):
        build_network(config(backbone, image_size=size), 3)


def test_normalisation_is_what_the_weights_expect_unless_given():
    assert build_network(config("tiny_networks:plain"), 3).mean == (0.485, 0.456, 0.406)
    lite = build_network(config("tf_efficientnet_lite0"), 3)
    assert (lite.mean, lite.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    own = build_network(config("tiny_networks:plain", mean=(0.1, 0.2, 0.3), std=(1.0, 1.0, 1.0)), 3)
    assert (own.mean, own.std) == ((0.1, 0.2, 0.3), (1.0, 1.0, 1.0))


# --- a finished classifier


def torchvision_classifier(num_classes: int) -> Any:
    torch.manual_seed(1)
    return torchvision.models.mobilenet_v3_small(num_classes=num_classes)


@pytest.fixture
def factory(monkeypatch):
    """Names a function as a configuration would."""

    def name(function: Any) -> str:
        monkeypatch.setattr(tiny_networks, "given", function, raising=False)
        return "tiny_networks:given"

    return name


def head_input(classifier: nn.Module, head: nn.Module, images: Tensor) -> Tensor:
    seen: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    classifier(images)
    handle.remove()
    return seen[0]


def build_finished(name: str, n_classes: int = 5, **options: Any) -> AttachedClassifier:
    network = build_network(config(name, finished=True, **options), n_classes).network.eval()
    assert isinstance(network, AttachedClassifier)
    return network


@torch.no_grad()
def test_a_finished_torchvision_classifier_keeps_its_logits(images, factory):
    own = torchvision_classifier(5).eval()
    encoding = build_finished(factory(torchvision_classifier))(images)
    assert torch.equal(encoding.logits, own(images))
    assert torch.equal(encoding.z, normalise(head_input(own, own.classifier[-1], images)))


@torch.no_grad()
def test_threads_of_a_finished_classifier_get_their_own_embeddings(factory):
    network = build_finished(factory(torchvision_classifier))
    pictures = [torch.full((1, 3, 32, 32), float(i)) for i in range(4)]
    wanted = [network(each).z for each in pictures]

    def ask(i: int) -> bool:
        with torch.no_grad():
            return torch.equal(network(pictures[i % 4]).z, wanted[i % 4])

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(ask, range(400)))


@torch.no_grad()
@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224", "convnext_atto", "test_efficientnet"])
def test_a_finished_timm_classifier_gives_its_pre_logits(name, images, tmp_path):
    torch.manual_seed(2)
    size: dict[str, Any] = {"img_size": 32} if name.startswith("vit") else {}
    own: Any = timm.create_model(name, num_classes=5, **size).eval()
    torch.save(own.state_dict(), tmp_path / "own.pth")
    encoding = build_finished(name, weights=str(tmp_path / "own.pth"))(images)
    assert torch.equal(encoding.logits, own(images))
    assert torch.equal(encoding.z, normalise(own.forward_head(own.forward_features(images), pre_logits=True)))


@torch.no_grad()
def test_a_finished_module_of_any_kind(images, factory):
    def make(num_classes: int) -> Any:
        torch.manual_seed(3)
        return tiny_networks.Tiny(num_classes, dropout=0.5)

    own = make(5).eval()
    network = build_finished(factory(make))
    encoding = network(images)
    assert torch.equal(encoding.logits, own(images))
    assert torch.equal(encoding.z, normalise(head_input(own, own.fc, images)))
    assert set(network.state_dict()) == {f"classifier.{name}" for name in own.state_dict()}  # nothing was added


@torch.no_grad()
def test_a_head_of_zeros_is_still_found(images, factory):
    """A layer of the same width before it must not be taken for the head."""

    def make(num_classes: int) -> nn.Module:
        body = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, num_classes), nn.ReLU())
        head = nn.Linear(num_classes, num_classes)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        return nn.Sequential(body, head)

    network = build_finished(factory(make))
    assert network._head == "1"


def test_a_classifier_without_a_linear_head_is_refused():
    with pytest.raises(NetworkError, match="no linear layer of the classifier gives its logits"):
        build_network(config("tiny_networks:without_linear_head", finished=True), 5)


def test_a_classifier_of_other_classes_is_refused(factory):
    with pytest.raises(NetworkError, match="gives 4 logits, and the data have 5 classes"):
        build_network(config(factory(lambda num_classes: tiny_networks.Tiny(4)), finished=True), 5)


def test_a_classifier_that_gives_no_tensor_is_refused(factory):
    class Wrapped(tiny_networks.Tiny):
        def forward(self, x: Tensor) -> Any:
            return {"logits": super().forward(x)}

    with pytest.raises(NetworkError, match=r"must give features .* not dict"):
        build_network(config(factory(Wrapped), finished=True), 5)


# --- several views of an image

SYMMETRIES: dict[int, list[Callable[[Tensor], Tensor]]] = {
    2: [lambda x: x.flip(3)],
    4: [lambda x: x.flip(3), lambda x: x.flip(2), lambda x: x.flip(2, 3)],
    8: [lambda x: x.flip(3), lambda x: x.flip(2), lambda x: x.transpose(2, 3), lambda x: x.rot90(1, (2, 3))],
}


@pytest.fixture
def one_view() -> nn.Module:
    torch.manual_seed(0)
    return build_network(config("tiny_networks:plain"), 3).network.eval()


@pytest.mark.parametrize("views", [2, 4, 8])
@torch.no_grad()
def test_mirrored_and_turned_images_are_the_same_to_several_views(one_view, images, views):
    network = SeveralViews(one_view, views).eval()
    seen = network(images)
    for turn in SYMMETRIES[views]:
        again = network(turn(images))
        torch.testing.assert_close(again.logits, seen.logits, atol=1e-5, rtol=0)
        torch.testing.assert_close(again.z, seen.z, atol=1e-5, rtol=0)
        assert not torch.allclose(one_view(turn(images)).logits, one_view(images).logits, atol=1e-3)


@pytest.mark.parametrize(("views", "beyond"), [(2, lambda x: x.flip(2)), (4, lambda x: x.transpose(2, 3))])
@torch.no_grad()
def test_fewer_views_know_fewer_symmetries(one_view, images, views, beyond):
    network = SeveralViews(one_view, views).eval()
    assert not torch.allclose(network(beyond(images)).logits, network(images).logits, atol=1e-3)


@torch.no_grad()
def test_probabilities_and_directions_are_averaged(one_view, images):
    turned = [images, images.flip(3), images.flip(2), images.flip(2, 3)]
    turned += [view.transpose(2, 3) for view in turned]
    for views in (2, 4, 8):
        alone = [one_view(view) for view in turned[:views]]
        found = SeveralViews(one_view, views)(images)
        mean = torch.stack([each.logits.softmax(1) for each in alone]).mean(0)
        torch.testing.assert_close(found.logits.exp(), mean)  # logarithms of probabilities
        torch.testing.assert_close(found.z, normalise(torch.stack([each.z for each in alone]).sum(0)))
        assert found.logits.dtype == found.z.dtype == torch.float32


# --- a backbone alone


@torch.no_grad()
def test_a_frozen_encoder_gives_the_backbones_features_and_no_opinion(images):
    network: Any = build_network(config("tiny_networks:seeded", frozen=True), 3).network.eval()
    assert isinstance(network, FrozenEncoder)
    found = network(images)
    assert found.logits.shape == (4, 3)
    assert not found.logits.any()
    torch.testing.assert_close(found.z, normalise(tiny_networks.seeded(0).eval()(images)))
    maps: Any = build_network(config("tiny_networks:feature_map", frozen=True), 3).network.eval()
    torch.testing.assert_close(maps(images).z, normalise(maps.backbone(images).mean((2, 3))))
    with torch.autocast("cpu", torch.bfloat16):
        assert network(images).z.dtype == network(images).logits.dtype == torch.float32


def float32_formats() -> tuple[str, str]:
    return cast(Any, torch.backends.cudnn).conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision


def test_float32_means_it_on_a_gpu(monkeypatch):
    """The switches are the process's own: they can be watched without a GPU."""
    before = float32_formats()
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # a CUDA one warns where there is none
    with arithmetic("float32", gpu):
        assert float32_formats() == ("ieee", "ieee")
        with arithmetic("float32", gpu):
            assert float32_formats() == ("ieee", "ieee")
        assert float32_formats() == ("ieee", "ieee")  # the outer block still asks for it
    assert float32_formats() == before
    with arithmetic("bfloat16", gpu), arithmetic("float32", torch.device("cpu")):
        assert float32_formats() == before


def test_threads_do_not_undo_each_others_float32(monkeypatch):
    before, gpu = float32_formats(), torch.device("cuda")
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    first, second = arithmetic("float32", gpu), arithmetic("float32", gpu)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # the one that came first leaves first
    assert float32_formats() == ("ieee", "ieee")
    second.__exit__(None, None, None)
    assert float32_formats() == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_float32_on_a_gpu_keeps_all_digits():
    """Left to itself, cuDNN rounds a convolution's inputs to eleven bits; half a thousand products show it."""
    torch.manual_seed(0)
    layer, images = nn.Conv2d(64, 64, 3, dtype=torch.float64), torch.randn(4, 64, 32, 32, dtype=torch.float64)
    exact = layer(images)
    layer, images = layer.float().cuda(), images.float().cuda()
    left_to_itself = (layer(images).cpu() - exact).abs().max()
    with arithmetic("float32", images.device):
        asked_for = (layer(images).cpu() - exact).abs().max()
    with arithmetic("bfloat16", images.device):
        coarse = (layer(images).cpu() - exact).abs().max()
    assert asked_for < 1e-5 < left_to_itself < coarse


def test_a_network_that_cannot_be_laid_out_without_numbers_is_not_refused(monkeypatch):
    def count(name: str, **_: object) -> nn.Module:
        return nn.Linear(len(torch.arange(3).unique()), 1)

    monkeypatch.setattr("timm.create_model", count)
    for size in (64, 224):
        refuse_larger_backbone(NetworkConfig(backbone="regnetv_040", image_size=size), 2, 0)
