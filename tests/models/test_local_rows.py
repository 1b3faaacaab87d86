"""From a source to rows: the same as prediction gives, and nothing that the model has seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from local_models import local_arrays, local_folder, picture
from PIL import Image
from tests.support import make_problem

from tdumpra.data.images.appearance import appearance
from tdumpra.errors import InputFileError, SourceError
from tdumpra.method.local_outputs import write_local_outputs
from tdumpra.models.local_rows import is_outputs_file, read_rows
from tdumpra.networks.predict import Predictor


def write_csv(path: Path, folder: Path, rows: list[str], header: str = "image,label,group") -> str:
    path.write_text("\n".join([header, *rows]) + "\n")
    return f"csv:{path}"


def test_rows_are_what_prediction_decides_on(image_model, away):
    found = read_rows(image_model, f"folder:{away}")
    files = sorted(away.rglob("*.png"))
    assert found.rows.ids.tolist() == [path.relative_to(away).as_posix() for path in files]
    assert not found.rows.grouped.any()
    assert found.rows.y.tolist() == [("amber", "blue", "cyan").index(path.parent.name) for path in files]
    decided = image_model.decision.decide(torch.from_numpy(found.rows.p).double(), torch.from_numpy(found.rows.z))
    predictions = Predictor(image_model.content, mode="eager").predict(files)
    expected = np.array([list(each.probabilities.values()) for each in predictions])
    np.testing.assert_allclose(decided.p.numpy(), expected, atol=1e-5)
    looks = appearance(np.stack([np.asarray(Image.open(path)) for path in files]))
    np.testing.assert_array_equal(found.rows.content, looks.content)
    np.testing.assert_allclose(np.asarray(found.rows.colours), looks.colours)
    assert np.asarray(found.rows.features).shape == (30, 16)
    assert found.rows.has_features.all()


def test_labels_may_be_partial_or_missing(image_model, away, tmp_path):
    files = sorted(away.rglob("*.png"))[:6]
    rows = [f"{path},{'amber' if i < 2 else ''},g{i}" for i, path in enumerate(files)]
    found = read_rows(image_model, write_csv(tmp_path / "some.csv", away, rows))
    assert found.rows.y.tolist() == [0, 0, -1, -1, -1, -1]
    assert any("4 of 6 rows have no label" in note for note in found.notes)
    bare = write_csv(tmp_path / "none.csv", away, [str(path) for path in files], header="image")
    assert read_rows(image_model, bare).rows.y.tolist() == [-1] * 6
    flat = tmp_path / "flat"
    flat.mkdir()
    (flat / "one.png").write_bytes(files[0].read_bytes())
    assert read_rows(image_model, f"folder:{flat}").rows.y.tolist() == [-1]


def test_one_class_alone_will_do(image_model, tmp_path):
    found = read_rows(image_model, f"folder:{local_folder(tmp_path, [1, 1, 1])}")
    assert found.rows.y.tolist() == [1, 1, 1]


def test_a_broken_image_is_left_out_and_named(image_model, tmp_path):
    folder = local_folder(tmp_path / "a", [0, 1, 2])
    (folder / "blue" / "torn.png").write_bytes(b"no picture")
    found = read_rows(image_model, f"folder:{folder}")
    assert len(found.rows) == 3
    assert any("torn.png" in note for note in found.notes)
    for path in folder.rglob("case*.png"):
        path.unlink()
    with pytest.raises(SourceError, match="none of 1 images"):
        read_rows(image_model, f"folder:{folder}")


def test_unknown_classes_are_refused_and_near_names_suggested(image_model, away, tmp_path):
    files = sorted(away.rglob("*.png"))[:3]
    source = write_csv(tmp_path / "x.csv", away, [f"{path},ambre,g{i}" for i, path in enumerate(files)])
    with pytest.raises(SourceError, match=r"3 rows of the class 'ambre'.*did you mean 'amber'"):
        read_rows(image_model, source)
    assert read_rows(image_model, source, rename={"ambre": "amber"}).rows.y.tolist() == [0, 0, 0]
    assert read_rows(image_model, source, new_classes=["ambre"]).rows.y.tolist() == [3, 3, 3]
    upper = write_csv(tmp_path / "y.csv", away, [f"{files[0]},Amber,g"])
    assert read_rows(image_model, upper).rows.y.tolist() == [0]


@pytest.mark.parametrize("part", ["train", "validation"])
def test_groups_and_images_of_the_model_are_refused_by_name(image_model, away, tmp_path, part):
    files, kept = sorted(away.rglob("*.png"))[:3], getattr(image_model.record, part)
    rows = [f"{files[0]},amber,{kept.groups[0]}", f"{files[1]},amber,{kept.groups[-1]}", f"{files[2]},amber,other"]
    source = write_csv(tmp_path / "x.csv", away, rows)
    with pytest.raises(SourceError, match=rf"2 groups of .*{str(kept.groups[0])!r}.*--prefix"):
        read_rows(image_model, source)
    found = read_rows(image_model, source, prefix="graz-").rows
    assert found.groups[0] == f"graz-{kept.groups[0]}"
    named = write_csv(tmp_path / "y.csv", away, [f"{files[0]},amber,{kept.ids[3]}"], header="image,label,id")
    with pytest.raises(SourceError, match=r"1 images of"):
        read_rows(image_model, named)


def test_images_of_the_model_are_found_by_content(image_model, tmp_path):
    folder, kept = local_folder(tmp_path, [0, 1, 2]), image_model.record.train
    seed, label = int(kept.ids[4][5:]), int(kept.y[4])
    Image.fromarray(picture(seed, label)).save(folder / "amber" / "holiday.png")
    with pytest.raises(SourceError, match=rf"1 images .*'amber/holiday.png', which is {str(kept.ids[4])!r}"):
        read_rows(image_model, f"folder:{folder}")


def test_a_file_of_outputs_serves_a_model_of_arrays(array_model, tmp_path):
    rows = make_problem(5).test
    found = read_rows(array_model, str(local_arrays(tmp_path / "away.npz"))).rows
    np.testing.assert_allclose(found.p, rows.p, atol=1e-6)
    np.testing.assert_array_equal(found.z, rows.z)
    assert found.y.tolist() == rows.y.tolist()
    assert found.features is None
    with pytest.raises(InputFileError, match="no network to look at images"):
        read_rows(array_model, "synthetic:n=10")


def test_labels_of_a_file_may_be_missing(array_model, tmp_path):
    y = make_problem(5).test.y.copy()
    y[:3] = -1
    assert read_rows(array_model, str(local_arrays(tmp_path / "a.npz", y=y))).rows.y.tolist() == y.tolist()
    bare = read_rows(array_model, str(local_arrays(tmp_path / "b.npz", y=None, group=None, id=None))).rows
    assert (bare.y == -1).all()
    assert not bare.grouped.any()
    assert not bare.named.any()


def test_of_a_file_with_splits_the_test_rows_are_taken(array_model, tmp_path):
    split = np.arange(160) % 3
    found = read_rows(array_model, str(local_arrays(tmp_path / "a.npz", split=split)))
    assert len(found.rows) == (split == 2).sum()
    assert "test rows" in found.notes[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"z": np.ones((160, 5), np.float32)}, "width 5.*width 8"),
        ({"p": np.full((160, 3), 1 / 3, np.float32), "y": None}, "3 classes.*has 4"),
        ({"y": np.full(160, 7)}, "it holds 7"),
        ({"group": np.array(["train-0"] * 160)}, "1 groups .* among the training groups .*'train-0'"),
        ({"id": np.array([f"val-image-{i}" for i in range(160)])}, "160 images .* validation images"),
        ({"classes": np.array(["0", "1", "2", "four"])}, "'four', which the model's classifier does not know"),
        ({"classes": np.array(["0", "1", "2", "3", "3"])}, "classes must name each of the 4 classes of p once"),
        ({"classes": np.array(["0", "1", "2", "2"])}, "classes must name each of the 4 classes of p once"),
        ({"split": np.zeros(160, np.int8)}, "no test rows"),
        ({"z": None}, "lacks z"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(array_model, tmp_path, changes, words):
    path = local_arrays(tmp_path / "away.npz", **changes)
    with pytest.raises((InputFileError, SourceError), match=words):
        read_rows(array_model, str(path))


def test_a_files_own_order_of_classes_is_followed(array_model, tmp_path):
    rows = make_problem(5).test
    order = np.array([2, 0, 3, 1])  # column i of the file is class order[i] of the model
    path = local_arrays(tmp_path / "a.npz", p=rows.p[:, order], y=order.argsort()[rows.y], classes=order.astype(str))
    found = read_rows(array_model, str(path)).rows
    np.testing.assert_allclose(found.p, rows.p, atol=1e-6)
    assert found.y.tolist() == rows.y.tolist()


def test_a_source_is_told_from_a_file_of_outputs():
    assert is_outputs_file("some/outputs.npz")
    assert is_outputs_file("rows.PARQUET")
    assert not is_outputs_file("csv:rows.csv")
    assert not is_outputs_file("medmnist:derma.npz")
    assert not is_outputs_file("synthetic:")


@pytest.mark.parametrize("names", [{}, {"group": None, "id": None}], ids=["named", "without names"])
@pytest.mark.parametrize("part", ["train", "val"])
def test_rows_of_the_model_are_found_by_their_embeddings(array_model, tmp_path, part, names):
    z = make_problem(5).test.z.copy()
    z[[3, 7]] = getattr(make_problem(0), part).z[:2]
    path = local_arrays(tmp_path / "away.npz", z=z, **names)
    word = {"train": "training", "val": "validation"}[part]
    with pytest.raises(SourceError, match=f"2 rows of .* have the very embeddings of {word} rows"):
        read_rows(array_model, str(path))


def test_copies_inside_a_source_are_told(array_model, image_model, tmp_path):
    z = make_problem(5).test.z.copy()
    z[150] = z[0]
    local = read_rows(array_model, str(local_arrays(tmp_path / "away.npz", z=z)))
    assert local.rows.groups[150] != local.rows.groups[0]
    assert local.rows.kin[150] == local.rows.kin[0]
    assert any("1 groups hold copies" in note for note in local.notes)
    folder = local_folder(tmp_path / "images", [0, 1, 2])
    Image.fromarray(picture(5001, 1)).save(folder / "blue" / "twin.png")  # the pixels of the second image
    found = read_rows(image_model, f"folder:{folder}")
    assert len(set(found.rows.kin)) == 3
    assert any("1 groups hold copies" in note for note in found.notes)


def test_classes_of_a_file_are_renamed(array_model, tmp_path):
    rows = make_problem(5).test
    theirs = np.array(["zero", "1", "2", "3"])
    path = local_arrays(tmp_path / "away.npz", classes=theirs, y=theirs[rows.y])
    with pytest.raises(InputFileError, match=r"'zero'.*--rename zero=NAME"):
        read_rows(array_model, str(path))
    found = read_rows(array_model, str(path), rename={"zero": "0"}).rows
    assert found.y.tolist() == rows.y.tolist()
    np.testing.assert_allclose(found.p, rows.p, atol=1e-6)
    with pytest.raises(InputFileError, match="two of its classes are one after --rename"):
        read_rows(array_model, str(path), rename={"zero": "1"})
    with pytest.raises(ValueError, match=r"--rename names 'zeroo'.*did you mean 'zero'"):
        read_rows(array_model, str(path), rename={"zeroo": "0"})


def test_a_column_of_groups_is_for_tables_of_images(array_model, tmp_path):
    with pytest.raises(ValueError, match="--group-by names a column of a table of images"):
        read_rows(array_model, str(local_arrays(tmp_path / "away.npz")), group_by="patient")


def test_a_hint_names_the_class_that_nearly_matches(image_model, away, tmp_path):
    files = sorted(away.rglob("*.png"))[:2]
    source = write_csv(tmp_path / "x.csv", away, [f"{path},am ber,g{i}" for i, path in enumerate(files)])
    with pytest.raises(
        SourceError, match=r"--rename 'am ber=amber', leave these rows out.*--new-class 'am ber'; did you"
    ):
        read_rows(image_model, source)
    with pytest.raises(ValueError, match=r"--rename names 'ambr'"):
        read_rows(image_model, source, rename={"ambr": "amber"})


def test_outputs_of_another_network_are_refused_and_unknown_ones_told(image_model, away, tmp_path):
    """The widths agree; only features can tell."""
    own = read_rows(image_model, f"folder:{away}").rows
    columns: dict[str, Any] = {"p": own.p, "z": own.z, "y": own.y, "features": own.features}
    np.savez(tmp_path / "own.npz", **columns)
    assert not any("network" in note for note in read_rows(image_model, str(tmp_path / "own.npz")).notes)
    np.savez(tmp_path / "half.npz", **{**columns, "features": np.asarray(own.features).astype(np.float16)})
    read_rows(image_model, str(tmp_path / "half.npz"))
    np.savez(tmp_path / "other.npz", **{**columns, "p": np.roll(own.p, 1, axis=1)})
    with pytest.raises(InputFileError, match="outputs of another network"):
        read_rows(image_model, str(tmp_path / "other.npz"))
    for name, features in (("none", None), ("wide", np.ones((30, 99)))):
        np.savez(
            tmp_path / f"{name}.npz", **{k: v for k, v in {**columns, "features": features}.items() if v is not None}
        )
        assert any("nothing in" in note for note in read_rows(image_model, str(tmp_path / f"{name}.npz")).notes)


def test_saved_outputs_are_the_rows_of_the_images(image_model, away, tmp_path):
    found = read_rows(image_model, f"folder:{away}", prefix="there-")
    network = image_model.content.networks_fingerprint
    found.rows.y[:2] = -1
    metadata = {name: np.full(30, "b") for name in ("site", "file", "allow_pickle")}
    write_local_outputs(tmp_path / "own.npz", found.rows, found.class_names, metadata, network)
    again = read_rows(image_model, str(tmp_path / "own.npz"))
    for name in ("ids", "groups", "y", "z", "features"):
        np.testing.assert_array_equal(getattr(found.rows, name), getattr(again.rows, name))
    np.testing.assert_allclose(found.rows.p, again.rows.p, rtol=1e-14)  # rows are made to sum up to one again
    assert {name: column.tolist() for name, column in again.metadata.items()} == dict.fromkeys(metadata, ["b"] * 30)
    assert not any("network" in note for note in again.notes)


@pytest.mark.parametrize("suffix", ["npz", "csv"])
def test_a_file_that_names_another_network_is_refused(image_model, away, tmp_path, suffix):
    """Its probabilities would pass: they are the model's own."""
    rows, path = read_rows(image_model, f"folder:{away}").rows, tmp_path / f"other.{suffix}"

    def write(network: list[str]) -> str:
        if suffix == "npz":
            np.savez(path, p=rows.p, z=rows.z, y=rows.y, network_fingerprint=network)
            return str(path)
        columns = {f"{name}_{i}": each for name in ("p", "z") for i, each in enumerate(getattr(rows, name).T)}
        pd.DataFrame({**columns, "y": rows.y, "network_fingerprint": network}).to_csv(path, index=False)
        return str(path)

    own = image_model.content.networks_fingerprint
    assert not any("network" in note for note in read_rows(image_model, write([own] * 30)).notes)
    with pytest.raises(InputFileError, match="outputs of other networks"):
        read_rows(image_model, write(["0123"] * 30))
    with pytest.raises(InputFileError, match="several networks"):
        read_rows(image_model, write(["0123", *[own] * 29]))
