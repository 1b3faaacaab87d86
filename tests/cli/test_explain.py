"""``tdumpra explain`` from the command line's own entry point, and the pages that it leaves behind."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from parsed_page import Element, parse
from PIL import Image
from tests.support import fit_and_tune, make_problem
from tiny_runs import CLASS_NAMES, SIZE, colour_of, colours, embed_run, settings

from tdumpra.core.calibration import class_prior
from tdumpra.core.gate import GateThresholds
from tdumpra.data.dataset import Dataset
from tdumpra.method.bank import Exemplar, PrototypeBank
from tdumpra.method.decision import Decision
from tdumpra.networks.model_file import Model
from tdumpra.networks.predict import Predictor
from tdumpra.runs.model import assemble_model
from tdumpra.runs.outputs import TrainedOutputs, all_outputs

OPEN = GateThresholds(theta=0.9, beta=0.0, margin=0.0, delta=0.0, alpha=0.1)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return colours(60)


@pytest.fixture(scope="module")
def model(tmp_path_factory, data) -> Model:
    root = tmp_path_factory.mktemp("run")
    config = replace(settings(epochs=1), folder=str(root))
    embed_run(config, root, data)
    torch.use_deterministic_algorithms(False)
    (outputs,) = all_outputs(config)
    assert isinstance(outputs, TrainedOutputs)
    train = outputs.load().train
    bank = PrototypeBank.fit(train.z, train.y, 2, train.groups, 3, ids=train.ids)
    return assemble_model(outputs, data, Decision(bank=bank, thresholds=OPEN, kappa=5.0, prior=class_prior(train.y, 3)))


@pytest.fixture(scope="module")
def run(tmp_path_factory, model) -> Path:
    folder: Path = tmp_path_factory.mktemp("model")
    model.write(folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory, data) -> list[Path]:
    root = tmp_path_factory.mktemp("images")
    paths = [root / f"{data.manifest.records[row].id}.png" for row in data.rows("test")]
    for path, row in zip(paths, data.rows("test"), strict=True):
        Image.fromarray(colour_of(data.manifest.records[row])).save(path)
    return paths


@pytest.fixture(scope="module")
def originals(tmp_path_factory, data) -> Path:
    """The training images, as files."""
    root: Path = tmp_path_factory.mktemp("originals")
    for row in data.rows("train"):
        Image.fromarray(colour_of(data.manifest.records[row])).save(root / f"{data.manifest.records[row].id}.png")
    return root


def read(path: Path) -> Element:
    return parse(path.read_text(encoding="utf-8"))


def with_paths(model: Model) -> Model:
    """As of a ``csv:`` or ``folder:`` source, whose ids are relative paths."""
    bank = model.decision.bank
    exemplars = tuple(tuple(tuple(e._replace(id=f"im/{e.id}.png") for e in k) for k in c) for c in bank.exemplars)
    thumbnails = {f"im/{name}.png": picture for name, picture in model.thumbnails.items()}
    decision = replace(model.decision, bank=replace(bank, exemplars=exemplars))
    return replace(model, decision=decision, thumbnails=thumbnails)


def assert_seen(shown: Element, exemplar: Exemplar) -> None:
    assert "This image is itself one of the training images" in shown.text
    assert f"own group ({exemplar.group})" in shown.text
    alts = [image.attributes["alt"] for image in shown.all("img")]
    assert not any(alt.startswith(f"Training image {exemplar.id}") for alt in alts)


def test_a_page_for_each_image_and_its_sentence(tdumpra, run, model, images, tmp_path):
    done = tdumpra("explain", run, *images[:3], "--out", tmp_path / "pages", "--group", "none of them")
    assert (done.code, done.err) == (0, "")
    found = list(Predictor(model, device="cpu").predict(images[:3], evidence=True, groups=["none of them"] * 3))
    for path, prediction in zip(images[:3], found, strict=True):
        assert prediction.evidence is not None
        page = tmp_path / "pages" / f"{path.stem}.html"
        assert str(page) in done.out
        assert prediction.evidence.sentence in done.out
        shown = read(page)
        assert shown.one("h1").text == f"Prediction: {prediction.label}"
        statements = [each.text for each in shown.all(class_="statement")]
        assert statements == [clause.statement for clause in prediction.evidence.clauses if clause.asked]
        assert shown.one("div", class_="case-pictures").one("img")
        assert len(shown.all("article")[0].all("img")) >= 1
        assert not shown.all("div", class_="missing")


def test_a_name_that_is_no_text(tdumpra, run, images, tmp_path):
    odd = Path(os.fsdecode(os.fsencode(tmp_path / "b") + b"\xff.png"))
    odd.write_bytes(images[0].read_bytes())
    done = tdumpra("explain", run, odd, images[1], "--out", tmp_path / "pages")
    assert (done.code, done.err) == (0, "")
    pages = sorted((tmp_path / "pages").iterdir())
    assert len(pages) == 2
    assert "b\ufffd" in pages[0].read_text(encoding="utf-8")


def test_json_and_the_default_folder(tdumpra, run, images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = tdumpra("explain", run / "model.safetensors", images[0], "--json")
    (case,) = json.loads(done.out)
    assert case["page"] == str(Path("evidence") / f"{images[0].stem}.html")
    assert (tmp_path / case["page"]).is_file()
    assert case["evidence"]["class_names"] == list(CLASS_NAMES)
    assert case["evidence"]["group"] is None
    assert isinstance(case["evidence"]["matches"][0]["exemplars"][0][2], float)


def test_saliency_stands_beside_the_image(tdumpra, run, images, tmp_path):
    assert tdumpra("explain", run, images[0], "--saliency", "--out", tmp_path).code == 0
    case, heat = read(tmp_path / f"{images[0].stem}.html").one("div", class_="case-pictures").all("img")
    assert heat.attributes["alt"].startswith("Map over the case.")
    assert case.attributes["src"] != heat.attributes["src"]


def test_the_page_shows_the_photograph_and_not_the_framed_image(tdumpra, run, images, tmp_path):
    with Image.open(images[0]) as small:
        small.resize((1600, 1200)).save(tmp_path / "large.png")
    assert tdumpra("explain", run, tmp_path / "large.png", "--out", tmp_path).code == 0
    source = read(tmp_path / "large.html").one("div", class_="case-pictures").one("img").attributes["src"]
    shown = Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2])))
    assert shown.size == (512, 384)


def test_outputs_that_are_not_finite_are_no_matter_of_reading(tdumpra, model, images, tmp_path):
    state = {**model.classifier.state, "classifier.weight": model.classifier.state["classifier.weight"] * torch.nan}
    replace(model, classifier=replace(model.classifier, state=state)).write(tmp_path / "m.safetensors")
    for command in ("explain", "predict"):
        done = tdumpra(command, tmp_path / "m.safetensors", images[0])
        assert done.code == 2
        assert "not finite" in done.err
        assert "could be read" not in done.err


def test_a_broken_image_gets_a_sentence_and_the_others_a_page(tdumpra, run, images, tmp_path):
    (tmp_path / "text.png").write_text("no image")
    done = tdumpra("explain", run, tmp_path / "text.png", images[0], "--out", tmp_path / "pages")
    assert done.code == 0
    assert "text.png: " in done.out
    assert [each.name for each in (tmp_path / "pages").iterdir()] == [f"{images[0].stem}.html"]
    alone = tdumpra("explain", run, tmp_path / "text.png", "--out", tmp_path / "pages")
    assert alone.code == 2
    assert "none of 1 images could be explained" in alone.err
    assert "Traceback" not in alone.err


def test_images_of_the_same_name_do_not_overwrite_each_other(tdumpra, run, images, tmp_path):
    for side in ("left", "right"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "a.png").write_bytes(images[0].read_bytes())
    tdumpra("explain", run, tmp_path / "left", tmp_path / "right", "--out", tmp_path / "pages")
    assert len(list((tmp_path / "pages").iterdir())) == 2


class TestTheOwnLesion:
    def test_a_named_group_is_left_out(self, model, images):
        predictor = Predictor(model, device="cpu")
        (free,) = predictor.predict(images[:1], evidence=True)
        assert free.evidence is not None
        own = free.evidence.matches[0].exemplars[0].group
        (bound,) = predictor.predict(images[:1], evidence=True, groups=[own])
        assert bound.evidence is not None
        assert own not in {e.group for match in bound.evidence.shown for e in match.exemplars}
        assert bound.evidence.matches[0].own == 1
        assert set(predictor.pictures(bound.evidence)) == set(bound.evidence.exemplar_ids)

    def test_each_image_has_its_own_also_across_batches(self, model, images):
        predictor = Predictor(model, device="cpu")
        groups = [f"lesion {i}" for i in range(5)]
        found = list(predictor.predict(images[:5], evidence=True, groups=groups, batch_size=2))
        assert [each.evidence.group for each in found if each.evidence] == groups

    def test_as_many_groups_as_images(self, model, images):
        with pytest.raises(ValueError, match="groups needs one entry per image: 2, not 1"):
            list(Predictor(model, device="cpu").predict(images[:2], groups=["a"]))

    def test_a_training_image_is_known_by_its_content(self, tdumpra, run, model, originals, tmp_path):
        exemplar = model.decision.bank.exemplars[0][0][0]
        renamed = tmp_path / "renamed.png"
        renamed.write_bytes((originals / f"{exemplar.id}.png").read_bytes())
        tdumpra("explain", run, renamed, "--out", tmp_path)
        assert_seen(read(tmp_path / "renamed.html"), exemplar)

    def test_also_where_ids_are_paths(self, tdumpra, model, originals, tmp_path):
        exemplar = model.decision.bank.exemplars[0][0][0]
        with_paths(model).write(tmp_path / "m.safetensors")
        tdumpra("explain", tmp_path / "m.safetensors", originals / f"{exemplar.id}.png", "--out", tmp_path)
        assert_seen(read(tmp_path / f"{exemplar.id}.html"), exemplar._replace(id=f"im/{exemplar.id}.png"))

    def test_a_namesake_of_a_training_image_is_another_image(self, tdumpra, run, model, images, tmp_path):
        exemplar = model.decision.bank.exemplars[0][0][0]
        namesake = tmp_path / f"{exemplar.id}.png"
        namesake.write_bytes(images[0].read_bytes())
        done = tdumpra("explain", run, namesake, "--out", tmp_path, "--json")
        assert json.loads(done.out)[0]["evidence"]["group"] is None
        assert "one of the training images" not in read(tmp_path / f"{exemplar.id}.html").text.lower()

    def test_without_pictures_a_namesake_is_a_question(self, tdumpra, model, originals, tmp_path):
        exemplar = model.decision.bank.exemplars[0][0][0]
        replace(with_paths(model), thumbnails={}).write(tmp_path / "m.safetensors")
        case = ("explain", tmp_path / "m.safetensors", originals / f"{exemplar.id}.png", "--out", tmp_path)
        tdumpra(*case)
        shown = read(tmp_path / f"{exemplar.id}.html").text
        assert f"has the same name (im/{exemplar.id}.png), and there is no picture to compare the two by" in shown
        assert "This image is itself" not in shown
        tdumpra(*case, "--training-images", originals)  # the same bytes
        assert_seen(read(tmp_path / f"{exemplar.id}.html"), exemplar._replace(id=f"im/{exemplar.id}.png"))

    @pytest.mark.filterwarnings("default")
    def test_a_lesion_cut_out_is_compared_along_its_mask(self, tdumpra, model, data, tmp_path):
        exemplar = model.decision.bank.exemplars[0][0][0]
        classifier = model.classifier
        framing = replace(classifier.transform.framing, lesion_margin=0.0)
        classifier = replace(classifier, transform=replace(classifier.transform, framing=framing))
        retrieval = replace(model.retrieval, transform=classifier.transform)
        replace(model, classifier=classifier, retrieval=retrieval).write(tmp_path / "m.safetensors")
        record = next(each for each in data.manifest.records if each.id == exemplar.id)
        picture, mask = np.zeros((3 * SIZE, 3 * SIZE, 3), np.uint8), np.zeros((3 * SIZE, 3 * SIZE), np.uint8)
        middle = slice(SIZE, 2 * SIZE)
        picture[middle, middle], mask[middle, middle] = colour_of(record), 255
        (tmp_path / "masks").mkdir()
        Image.fromarray(picture).save(tmp_path / f"{exemplar.id}.png")
        Image.fromarray(mask).save(tmp_path / "masks" / f"{exemplar.id}_mask.png")
        case = ("explain", tmp_path / "m.safetensors", tmp_path / f"{exemplar.id}.png", "--out", tmp_path)
        done = tdumpra(*case, "--masks", tmp_path / "masks", "--saliency")
        assert (done.code, done.err) == (0, "")
        assert_seen(read(tmp_path / f"{exemplar.id}.html"), exemplar)
        done = tdumpra(*case)
        assert "an image without a mask is seen whole" in " ".join(done.err.split())
        shown = read(tmp_path / f"{exemplar.id}.html").text
        assert f"has the same name ({exemplar.id}), and there is no picture to compare the two by" in shown

    def test_where_nothing_else_is_left_the_page_says_so(self, run, model, images, tmp_path, tdumpra):
        bank = model.decision.bank
        lonely = tuple(tuple(tuple(e._replace(group="L") for e in k) for k in c) for c in bank.exemplars)
        decision = replace(model.decision, bank=replace(bank, exemplars=lonely))
        replace(model, decision=decision).write(tmp_path / "m.safetensors")
        tdumpra("explain", tmp_path / "m.safetensors", images[0], "--group", "L", "--out", tmp_path)
        shown = read(tmp_path / f"{images[0].stem}.html")
        assert all("show the case's own group" in article.text for article in shown.all("article"))
        assert len(shown.all("img")) == 1


class TestWithoutPictures:
    def test_a_private_model(self, tdumpra, model, images, tmp_path):
        replace(model, thumbnails={}).write(tmp_path / "m.safetensors")
        tdumpra("explain", tmp_path / "m.safetensors", images[0], "--out", tmp_path)
        shown = read(tmp_path / f"{images[0].stem}.html")
        assert "the model was saved without pictures (for privacy)" in shown.one(class_="missing").text
        assert len(shown.all("img")) == 1
        assert shown.all(class_="id")

    def test_the_originals_can_be_named(self, tdumpra, model, images, originals, tmp_path):
        replace(model, thumbnails={}).write(tmp_path / "m.safetensors")
        tdumpra("explain", tmp_path / "m.safetensors", images[0], "--training-images", originals, "--out", tmp_path)
        shown = read(tmp_path / f"{images[0].stem}.html")
        assert not shown.all(class_="missing")
        assert len(shown.all("img")) > 4

    def test_the_originals_of_ids_that_are_paths(self, tdumpra, model, images, originals, tmp_path):
        replace(with_paths(model), thumbnails={}).write(tmp_path / "m.safetensors")
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "im").symlink_to(originals)
        for sources in (tmp_path / "data", originals):
            tdumpra("explain", tmp_path / "m.safetensors", images[0], "--training-images", sources, "--out", tmp_path)
            shown = read(tmp_path / f"{images[0].stem}.html")
            assert not shown.all(class_="missing")
            assert len(shown.all("img")) > 4

    def test_some_have_moved(self, tdumpra, model, images, tmp_path):
        kept = dict(list(model.thumbnails.items())[::2])
        replace(model, thumbnails=kept).write(tmp_path / "m.safetensors")
        (tmp_path / "empty").mkdir()
        tdumpra("explain", tmp_path / "m.safetensors", images[0], "--images", tmp_path / "empty", "--out", tmp_path)
        shown = read(tmp_path / f"{images[0].stem}.html")
        said = shown.one(class_="missing").text
        nowhere = f"{tmp_path / 'empty'} has no readable image of that name, or several"
        assert f"the model holds no picture of them, and {nowhere}" in said
        assert shown.all(class_="no-picture")


def test_markup_in_names_of_classes_and_files(tdumpra, model, images, tmp_path):
    evil = "<script>alert(1)</script>"
    replace(model, class_names=(evil, "[bold]b[/]", "c")).write(tmp_path / "m.safetensors")
    path = tmp_path / "<img src=x>.png"
    path.write_bytes(images[0].read_bytes())
    done = tdumpra("explain", tmp_path / "m.safetensors", path, "--out", tmp_path / "pages")
    assert done.code == 0
    (page,) = (tmp_path / "pages").iterdir()
    html = page.read_text(encoding="utf-8")
    assert evil not in html
    assert "<img src=x>" not in html
    assert evil in parse(html).one("table", class_="opinions").text


@pytest.mark.parametrize("command", ["explain", "predict"])
class TestBadModels:
    def test_a_model_of_arrays(self, tdumpra, images, tmp_path, command):
        fit_and_tune(make_problem()).save(tmp_path / "model.safetensors")
        done = tdumpra(command, tmp_path, images[0])
        assert done.code == 2
        assert "has no network to look at images with. Load it with DualPathClassifier.load" in done.err
        assert "tdumpra run" in done.err

    def test_a_bank(self, tdumpra, model, images, tmp_path, command):
        model.decision.bank.save(tmp_path / "bank.safetensors")
        done = tdumpra(command, tmp_path / "bank.safetensors", images[0])
        assert "holds a tdumpra bank, where a model is needed: name model.safetensors" in done.err

    def test_a_folder_of_seeds(self, tdumpra, run, images, tmp_path, command, monkeypatch):
        monkeypatch.chdir(tmp_path)
        done = tdumpra(command, tmp_path, images[0])
        assert (done.code, "holds no model.safetensors: run tdumpra run to its end" in done.err) == (2, True)
        for seed in range(2):
            (tmp_path / f"seed-{seed}").mkdir()
            (tmp_path / f"seed-{seed}" / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes())
            done = tdumpra(command, tmp_path, images[0])
            assert done.code == 2 * seed
        assert "is a run of several seeds: name one, " in done.err


def test_bad_folders(tdumpra, run, images, tmp_path):
    (tmp_path / "file").write_text("")
    done = tdumpra("explain", run, images[0], "--out", tmp_path / "file")
    assert (done.code, "cannot make the folder" in done.err) == (2, True)
    done = tdumpra("explain", run, images[0], "--training-images", tmp_path / "gone", "--out", tmp_path)
    assert (done.code, "is no folder" in done.err) == (2, True)
    (tmp_path / "empty").mkdir()
    done = tdumpra("explain", run, tmp_path / "empty")
    assert (done.code, "holds no image" in done.err) == (2, True)


def test_labels_among_the_signals_are_whole_numbers(model, images):
    (found,) = Predictor(model, mode="eager", device="cpu").predict(images[0])
    assert found.signals is not None
    assert {type(found.signals[name]) for name in ("label_cls", "label_sim")} == {int}
    assert {type(v) for name, v in found.signals.items() if not name.startswith("label")} == {float}


def test_without_jinja2_one_line_names_the_extra(run, images):
    code = "import sys; sys.modules['jinja2'] = None; from tdumpra.cli.main import main; main()"
    command = [sys.executable, "-c", code, "explain", str(run), str(images[0])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 2
    assert "writing pages needs jinja2: install it with pip install 'tdumpra[report]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_pictures_are_those_of_the_model(model, images, data):
    predictor = Predictor(model, device="cpu")
    (found,) = predictor.predict(images[:1], evidence=True)
    assert found.evidence is not None
    record = {each.id: each for each in data.manifest.records}
    for name, picture in predictor.pictures(found.evidence).items():
        assert np.array_equal(picture, colour_of(record[name]))
