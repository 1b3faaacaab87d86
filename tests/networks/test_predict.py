"""Prediction: lazy and eager agree, and an image is decided as its table row is."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_models import OPEN, decide, make_model
from tiny_runs import CLASS_NAMES, SIZE, colour_of, embed_run, launched, settings, silent, train_run
from torch import Tensor, nn

from tdumpra.core.gate import GateThresholds
from tdumpra.data.dataset import Dataset, open_data
from tdumpra.data.images import new, workers
from tdumpra.data.images.decode import decode_file
from tdumpra.data.images.framing import Framing
from tdumpra.data.manifest import Record
from tdumpra.method.decision import Decision
from tdumpra.method.evidence import explain
from tdumpra.networks.build import Encoding
from tdumpra.networks.model_file import Model
from tdumpra.networks.predict import Predictor
from tdumpra.runs.config import Config
from tdumpra.runs.pixel_stages import embed_stage
from tdumpra.runs.tables import read_tables, table_outputs

BAND = 1e-5  # around a threshold, where rounding may decide


def probabilities(predictions: list[Any]) -> np.ndarray:
    return np.array([list(each.probabilities.values()) for each in predictions])


# --- lazy and eager


def test_lazy_and_eager_agree(model, images):
    lazy, eager = Predictor(model, mode="lazy"), Predictor(model, mode="eager")
    assert lazy.decide([]) == []
    few, all_of_them = list(lazy.predict(images, batch_size=7)), list(eager.predict(images, batch_size=5))
    np.testing.assert_allclose(probabilities(few), probabilities(all_of_them), atol=1e-6)
    for a, b in zip(few, all_of_them, strict=True):
        assert b.signals is not None
        near = abs(b.signals["gamma_cls"] - OPEN.theta) < BAND
        assert near or (a.label, a.opened) == (b.label, b.opened)
        assert near or (a.signals is None) == (b.signals["gamma_cls"] >= OPEN.theta)
    assert 0 < sum(each.opened for each in few) < len(few)


def test_the_second_network_sees_the_rows_below_theta_alone(model, images):
    eager = list(Predictor(model, mode="eager").predict(images))
    below = sum(each.signals["gamma_cls"] < OPEN.theta for each in eager if each.signals)
    lazy = Predictor(model)
    list(lazy.predict(images, batch_size=4))
    assert lazy.rows_seen == len(images)
    assert lazy.rows_matched == below
    assert 0 < below < len(images)


def test_evidence_asks_the_second_network_about_every_image(model, images):
    predictor = Predictor(model)
    for each in predictor.predict(images[:6], evidence=True):
        assert each.evidence is not None
        assert each.signals is not None
        assert each.evidence.class_names == CLASS_NAMES
        assert each.evidence.class_names[each.evidence.label] == each.label
    assert predictor.rows_matched == 6


def test_a_shut_gate_asks_nobody_and_returns_the_classifier(model, images):
    shut = replace(model, decision=replace(model.decision, thresholds=GateThresholds.shut()))
    predictor = Predictor(shut)
    assert not any(each.opened or each.signals for each in predictor.predict(images))
    assert predictor.rows_matched == 0


def test_with_evidence_an_image_is_decoded_once_and_decided_once(model, images, monkeypatch, tmp_path):
    def counted(name: str, function: Any) -> Any:
        def call(*args: Any) -> Any:
            with (tmp_path / name).open("a") as file:  # images are decoded in another process
                file.write("x")
            return function(*args)

        return call

    monkeypatch.setattr(new, "decode_file", counted("decoded", decode_file))
    monkeypatch.setattr(Decision, "decide", counted("decided", Decision.decide))
    for path, each in zip(images[:5], Predictor(model).predict(images[:5], evidence=True), strict=True):
        assert each.evidence is not None
        assert each.pixels is not None
        assert np.array_equal(each.pixels, np.asarray(Image.open(path)))
        assert each.evidence.p == tuple(each.probabilities.values())
        assert each.evidence.opened == each.opened
    assert (tmp_path / "decoded").read_text() == "xxxxx"
    assert (tmp_path / "decided").read_text() == "x"


def test_evidence_is_that_of_the_row_alone(model, images):
    predictor = Predictor(model)
    with torch.inference_mode():
        pixels = model.classifier.transform(torch.from_numpy(np.stack([np.asarray(Image.open(p)) for p in images[:4]])))
        p, z = predictor._classifier(pixels).logits.double().softmax(1), predictor.embed(pixels)
    for i, each in enumerate(predictor.predict(images[:4], evidence=True)):
        alone = explain(model.decision, p[i : i + 1], z[i : i + 1], class_names=CLASS_NAMES)
        assert each.evidence is not None
        assert each.evidence.sentence == alone.sentence
        assert each.evidence.p == pytest.approx(alone.p)
        assert [match.prototype for match in each.evidence.matches] == [match.prototype for match in alone.matches]


# --- neither the batch size nor the number of workers matters


@pytest.mark.parametrize("share", [0.2, 0.45, 0.9])
def test_results_depend_neither_on_the_batch_size_nor_on_the_workers(model, images, monkeypatch, share):
    """Thresholds lie between two rows, so that none is within rounding of them."""
    once = replace(model, decision=replace(model.decision, thresholds=GateThresholds.shut()))
    top = np.sort(probabilities(list(Predictor(once).predict(images))).max(1))
    row = max(range(1, len(top)), key=lambda i: (top[i] - top[i - 1] > 4 * BAND, -abs(i / len(top) - share)))
    theta = float(top[row - 1 : row + 1].mean())
    asking = replace(model, decision=replace(model.decision, thresholds=replace(OPEN, theta=theta)))
    paths = [images[i % len(images)] for i in range(3 * len(images))]
    expected: list[Any] = []
    for batch_size, cores in ((16, 1), (1, 2), (7, 3), (64, 2)):
        monkeypatch.setattr(workers, "available_cores", lambda cores=cores: cores)
        predictor = Predictor(asking)
        found = list(predictor.predict(paths, batch_size=batch_size))
        expected = expected or found
        assert [each.path for each in found] == list(map(str, paths))
        assert predictor.rows_matched == 3 * row
        assert [(a.label, a.opened) for a in found] == [(b.label, b.opened) for b in expected]
        np.testing.assert_allclose(probabilities(found), probabilities(expected), rtol=0, atol=BAND)


def test_embeddings_and_features_come_for_every_image(model, folder, config, images):
    test = table_outputs(config, read_tables(folder)).test
    predictor = Predictor(model)
    found = list(predictor.predict(images, embeddings=True, batch_size=5))
    assert predictor.rows_matched == len(images)
    z = np.stack([each.embedding for each in found if each.embedding is not None])
    np.testing.assert_allclose(z, test.z.numpy(), atol=1e-6)
    head, bias = (model.classifier.state[f"classifier.{name}"].numpy() for name in ("weight", "bias"))
    features = np.stack([each.features for each in found if each.features is not None])
    shares = torch.from_numpy(features @ head.T + bias).double().softmax(1)
    np.testing.assert_allclose(model.decision.classifier(shares), model.decision.classifier(test.p), atol=1e-6)
    assert next(predictor.predict(images[:1])).embedding is None


# --- outputs that are no numbers


class Broken(nn.Module):
    """A network whose output is ``value`` wherever an image is dark."""

    def __init__(self, network: nn.Module, field: str, value: float) -> None:
        super().__init__()
        self.network, self.field, self.value = network, field, value

    def forward(self, pixels: Tensor) -> Encoding:
        encoding: Encoding = self.network(pixels)
        output = getattr(encoding, self.field).clone()
        output[pixels.amax((1, 2, 3)) <= pixels.amin((1, 2, 3))] = self.value
        return encoding._replace(**{self.field: output})


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("evidence", [True, False])
def test_an_image_whose_logits_are_not_finite_is_an_error_and_the_others_go_on(
    model, images, tmp_path, value, evidence
):
    Image.fromarray(np.zeros((SIZE, SIZE, 3), np.uint8)).save(tmp_path / "dark.png")
    grey = replace(model.classifier, transform=replace(model.classifier.transform, mean=(0.5,) * 3, std=(0.5,) * 3))
    alike = replace(model, classifier=grey, retrieval=replace(model.retrieval, transform=grey.transform))
    predictor = Predictor(alike)
    good = list(predictor.predict(images[:2]))
    predictor._classifier = Broken(predictor._classifier, "logits", value)
    first, dark, second = predictor.predict([images[0], tmp_path / "dark.png", images[1]], evidence=evidence)
    assert (dark.label, dark.probabilities, dark.evidence) == ("", {}, None)
    assert dark.error
    assert [first.label, second.label] == [each.label for each in good]


def test_an_embedding_that_is_not_finite_is_an_error(model, images):
    predictor = Predictor(model, mode="eager")
    predictor._retrieval = nn.Sequential(predictor.matcher[0], Nan())
    assert all(each.error for each in predictor.predict(images[:2]))


class Nan(nn.Module):
    def forward(self, encoding: Encoding) -> Encoding:
        return encoding._replace(z=encoding.z * torch.nan)


# --- the same code for a table row and an image


@pytest.mark.parametrize("mode", ["lazy", "eager"])
def test_an_image_is_decided_as_its_row_of_the_table(model, folder, config, images, mode):
    test = table_outputs(config, read_tables(folder)).test
    decided = model.decision.decide(test.p, test.z)
    predictions = list(Predictor(model, mode=mode).predict(images, batch_size=config.embed.batch_size))
    np.testing.assert_allclose(probabilities(predictions), decided.p.numpy(), atol=1e-6)
    assert [each.opened for each in predictions] == decided.opened.tolist()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_model_computes_as_its_tables_did_whatever_training_used(config, data, images, tmp_path, precision):
    rough = replace(config, train=replace(config.train, precision="bf16-mixed"))
    rough = replace(rough, embed=replace(rough.embed, precision=precision))
    folder = embed_run(rough, tmp_path, data)
    torch.use_deterministic_algorithms(False)
    model = make_model(rough, data, folder)
    model.write(folder.model)
    test = table_outputs(rough, read_tables(folder)).test
    expected = model.decision.decide(test.p, test.z).p.numpy()
    as_tuned, float32, bfloat16 = (
        probabilities(list(Predictor.load(folder.model, precision=given).predict(images, batch_size=8)))
        for given in (None, "float32", "bfloat16")
    )
    np.testing.assert_allclose(as_tuned, expected, atol=1e-6)
    assert np.array_equal(as_tuned, float32 if precision == "float32" else bfloat16)
    assert not np.allclose(float32, bfloat16, atol=1e-4)


def test_another_precision_is_embedded_again(config, data, tmp_path):
    folder = embed_run(config, tmp_path, data)
    again: dict[str, Any] = {"fabric": launched(config), "console": silent()}
    assert not embed_stage(config, data, folder, **again)
    assert embed_stage(replace(config, embed=replace(config.embed, precision="bfloat16")), data, folder, **again)
    torch.use_deterministic_algorithms(False)


# --- which networks


def test_one_pass_where_classifier_and_bank_are_one_network(config, data, folder, images):
    tuned = replace(config, tune=replace(config.tune, classifier="teacher"))
    model = make_model(tuned, data, folder)
    assert model.retrieval is None
    predictor = Predictor(model)
    predictions = list(predictor.predict(images))
    assert predictor.rows_matched == 0
    assert all(each.signals is not None for each in predictions)
    test = table_outputs(tuned, read_tables(folder)).test
    np.testing.assert_allclose(probabilities(predictions), model.decision.decide(test.p, test.z).p.numpy(), atol=1e-6)


def test_the_students_own_space_is_one_pass_too(config, data, folder):
    own = replace(config, bank=replace(config.bank, space="student"))
    model = make_model(own, data, folder)
    assert model.retrieval is None


def test_the_second_opinion_of_another_run_with_other_preprocessing(config, data, folder, images, tmp_path):
    other = settings("tiny_networks:without_norm", epochs=1)
    other = replace(
        other,
        seeds=(1,),
        network=replace(other.network, embedding=5, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7)),
        data=replace(other.data, framing=Framing(height=SIZE, width=SIZE)),
    )
    second = train_run(other, tmp_path / "other", data, seed=1)
    embed_stage(other, data, second, fabric=launched(other), console=silent())
    torch.use_deterministic_algorithms(False)
    joint = replace(config, bank=replace(config.bank, space=str(second.root)))
    decision = decide(joint, folder)
    assert decision.bank.width == 5
    model = make_model(joint, data, folder, decision)
    assert model.retrieval is not None
    assert model.retrieval.transform.mean == (0.1, 0.2, 0.3)
    model.write(tmp_path / "m.safetensors")
    predictions = list(Predictor.load(tmp_path / "m.safetensors").predict(images))
    test = table_outputs(joint, read_tables(folder)).test
    np.testing.assert_allclose(probabilities(predictions), decision.decide(test.p, test.z).p.numpy(), atol=1e-6)


def test_a_finished_classifier_is_its_own_second_path(tmp_path, data, images):
    config = settings("tiny_networks:seeded")
    config = replace(config, network=replace(config.network, finished=True))
    folder = embed_run(config, tmp_path, data)
    assert not folder.checkpoint("last").exists()  # nothing was trained
    model = make_model(config, data, folder)
    assert model.retrieval is None
    model.write(folder.model)
    predictions = list(Predictor.load(folder.model).predict(images))
    test = table_outputs(config, read_tables(folder)).test
    np.testing.assert_allclose(probabilities(predictions), model.decision.decide(test.p, test.z).p.numpy(), atol=1e-6)


def test_several_views_stay_with_the_model(config, data, images, tmp_path):
    looking = replace(config, embed=replace(config.embed, views=4))
    folder = embed_run(looking, tmp_path / "run", data)
    torch.use_deterministic_algorithms(False)
    model = make_model(looking, data, folder)
    model.write(folder.model)
    read = Model.read(folder.model)
    assert read.retrieval is not None
    assert (read.classifier.views, read.retrieval.views) == (4, 4)
    predictions = list(Predictor(read, mode="eager").predict(images))
    test = table_outputs(looking, read_tables(folder)).test
    np.testing.assert_allclose(probabilities(predictions), model.decision.decide(test.p, test.z).p.numpy(), atol=1e-6)
    for path in images:
        Image.fromarray(np.asarray(Image.open(path))[::-1, ::-1]).save(tmp_path / path.name)
    turned = list(Predictor(read, mode="eager").predict([tmp_path / path.name for path in images]))
    np.testing.assert_allclose(probabilities(turned), probabilities(predictions), atol=1e-5)
    once = replace(read, classifier=replace(read.classifier, views=1))
    assert np.abs(probabilities(list(Predictor(once).predict(images))) - probabilities(predictions)).max() > 1e-3


def test_a_bank_in_the_space_of_a_frozen_encoder(config, data, folder, images, tmp_path):
    alone = settings("tiny_networks:seeded")
    alone = replace(alone, network=replace(alone.network, frozen=True), embed=replace(alone.embed, views=2))
    frozen = embed_run(alone, tmp_path / "frozen", data)
    torch.use_deterministic_algorithms(False)
    joint = replace(config, bank=replace(config.bank, space=str(frozen.root)))
    model = make_model(joint, data, folder)
    assert model.retrieval is not None
    assert (model.retrieval.network.frozen, model.retrieval.views, model.classifier.views) == (True, 2, 1)
    model.write(tmp_path / "m.safetensors")
    predictions = list(Predictor.load(tmp_path / "m.safetensors").predict(images))
    test = table_outputs(joint, read_tables(folder)).test
    np.testing.assert_allclose(probabilities(predictions), model.decision.decide(test.p, test.z).p.numpy(), atol=1e-6)
    assert any(each.opened for each in predictions)


def test_bfloat16_is_near(model, images):
    """Activations keep eight bits, 0.4 %: through a few layers probabilities move by about a hundredth."""
    exact = list(Predictor(model, mode="eager").predict(images))
    rough = list(Predictor(model, mode="eager", precision="bfloat16").predict(images))
    same = [a.opened == b.opened for a, b in zip(exact, rough, strict=True)]
    assert np.mean(same) > 0.7
    assert np.abs(probabilities(exact) - probabilities(rough)).max(1)[same].max() < 0.05


# --- images


def test_a_broken_image_among_good_ones(model, images, tmp_path):
    (tmp_path / "text.png").write_text("not an image")
    paths = [images[0], tmp_path / "text.png", tmp_path / "gone.png", images[1]]
    predictions = list(Predictor(model).predict(paths))
    assert [each.error is None for each in predictions] == [True, False, False, True]
    assert [each.path for each in predictions] == [str(path) for path in paths]
    assert predictions[1].label == ""
    assert predictions[1].probabilities == {}
    good = list(Predictor(model).predict(images[:2]))
    assert [predictions[0], predictions[3]] == good
    only_broken = list(Predictor(model).predict(paths[1:3], batch_size=1))
    assert all(each.error for each in only_broken)


def test_one_image_twice_and_a_single_path(model, images):
    twice, (once,) = (list(Predictor(model).predict(given)) for given in ([images[0], images[0]], images[0]))
    assert twice[0] == twice[1]
    np.testing.assert_allclose(probabilities(twice[:1]), probabilities([once]), atol=1e-6)
    assert list(Predictor(model).predict([])) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "greedy"}, "mode must be 'lazy' or 'eager', not 'greedy'"),
        ({"precision": "int8"}, "precision must be 'float32' or 'bfloat16', not 'int8'"),
        ({"device": "toaster"}, "device must be 'cpu', 'cuda' or the like, not 'toaster'"),
        ({"device": "meta"}, "the device 'meta' holds no numbers"),
        ({"device": "vulkan"}, "PyTorch cannot compute on the device 'vulkan' here: use 'cpu'"),
        pytest.param(
            {"device": "cuda"},
            "cannot compute on the device 'cuda' here",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here"),
        ),
    ],
)
def test_bad_options(model, options, message):
    with pytest.raises(ValueError, match=message):
        Predictor(model, **options)


# --- lesions that are cut out


@pytest.fixture(scope="module")
def lesions(tmp_path_factory) -> Path:
    """A small coloured square in a large picture, a different surrounding for each image, and masks of the squares."""
    root: Path = tmp_path_factory.mktemp("lesions")
    (root / "masks").mkdir()
    lines, rng = ["image,label,group,mask"], np.random.default_rng(0)
    for i in range(60):
        name, label = f"image{i:04d}", i // 2 % 3
        picture, mask = np.empty((48, 64, 3), np.uint8), np.zeros((48, 64), np.uint8)
        picture[:] = rng.integers(0, 255, 3)
        top, left = rng.integers(0, 48 - SIZE), rng.integers(0, 64 - SIZE)
        spot = (slice(top, top + SIZE), slice(left, left + SIZE))
        picture[spot], mask[spot] = colour_of(Record(name, None, label, "g")), 255
        Image.fromarray(picture).save(root / f"{name}.png")
        Image.fromarray(mask).save(root / "masks" / f"{name}_segmentation.png")
        lines.append(f"{name}.png,{CLASS_NAMES[label]},group{i // 2},masks/{name}_segmentation.png")
    (root / "table.csv").write_text("\n".join(lines) + "\n")
    return root


def cut_out(config: Config, lesions: Path, root: Path) -> tuple[Config, Dataset]:
    framing = Framing(height=SIZE, width=SIZE, lesion_margin=0.0)
    source = replace(config.data, source=f"csv:{lesions / 'table.csv'}", cache=str(root / "cache"), framing=framing)
    return replace(config, data=source), open_data(source)


def of_the_test(data: Dataset) -> tuple[list[Path], list[Path]]:
    records = [data.manifest.records[row] for row in data.rows("test")]
    return [record.path for record in records if record.path], [record.mask for record in records if record.mask]


def test_a_lesion_is_cut_out_of_a_new_image_too(config, lesions, tmp_path):
    config, data = cut_out(config, lesions, tmp_path)
    folder = embed_run(config, tmp_path / "run", data)
    torch.use_deterministic_algorithms(False)
    model = make_model(config, data, folder)
    predictor = Predictor(model)
    assert predictor.cuts_out
    paths, masks = of_the_test(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictions = list(predictor.predict(paths, masks=masks))
    test = table_outputs(config, read_tables(folder)).test
    expected = model.decision.decide(test.p, test.z).p.numpy()
    np.testing.assert_allclose(probabilities(predictions), expected, atol=1e-6)
    with pytest.warns(UserWarning, match="an image without a mask is seen whole"):
        whole = list(predictor.predict(paths))
    assert np.abs(probabilities(whole) - expected).max() > 0.01


def test_only_the_second_network_sees_the_lesion_cut_out(config, lesions, tmp_path):
    second, data = cut_out(replace(settings("tiny_networks:without_norm", epochs=1), seeds=(1,)), lesions, tmp_path)
    other = train_run(second, tmp_path / "other", data, seed=1)
    embed_stage(second, data, other, fabric=launched(second), console=silent())
    whole = replace(second.data, framing=replace(second.data.framing, lesion_margin=None))
    joint = replace(config, data=whole, bank=replace(config.bank, space=str(other.root)))
    folder = embed_run(joint, tmp_path / "run", open_data(whole))
    torch.use_deterministic_algorithms(False)
    predictor = Predictor(make_model(joint, open_data(whole), folder))
    paths, masks = of_the_test(data)
    test = table_outputs(joint, read_tables(folder)).test
    expected = predictor.model.decision.decide(test.p, test.z).p.numpy()
    np.testing.assert_allclose(probabilities(list(predictor.predict(paths, masks=masks))), expected, atol=1e-6)
    (broken := tmp_path / "broken.png").write_bytes(b"no image")
    first, *rest = predictor.predict(paths, masks=[broken, *masks[1:]], evidence=True)
    assert first.error is not None
    assert "its lesion mask" in first.error
    np.testing.assert_allclose(probabilities(rest), expected[1:], atol=1e-6)


def test_a_whole_frame_asks_for_no_mask(model, images):
    predictor = Predictor(model)
    assert not predictor.cuts_out
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(predictor.predict(images[:2]))
    with pytest.warns(UserWarning, match="their masks change nothing"):
        list(predictor.predict(images[:2], masks=[images[0], None]))
    with pytest.raises(ValueError, match="masks needs one entry per image: 2, not 1"):
        list(predictor.predict(images[:2], masks=["a.png"]))
