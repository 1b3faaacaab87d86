"""The data source: records, groups, posteriors, and pixels that depend on nothing but the record."""

from __future__ import annotations

import multiprocessing
import pickle
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.synthetic import bayes_posterior, synthetic_manifest
from tdumpra.data.synthetic.latent import draw_lesions
from tdumpra.data.synthetic.modes import CLASS_NAMES, CLASS_SHARES


@pytest.fixture(scope="module")
def manifest():
    return synthetic_manifest(n=240, seed=2, size=48)


@pytest.fixture(scope="module")
def pictures(manifest):
    return np.stack([manifest.reader(record) for record in manifest.records])


def test_the_classes_are_those_of_ham10000(manifest):
    assert manifest.class_names == ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc") == CLASS_NAMES


def test_records_are_unique_and_numerous_as_asked(manifest):
    assert len(manifest) == 240
    assert len({record.id for record in manifest.records}) == 240
    assert set(manifest.labels) == set(range(7))
    assert all(record.path is None and record.split is None for record in manifest.records)


def test_a_lesion_has_one_to_three_photographs_and_one_answer(manifest):
    counts = Counter(manifest.groups.tolist())
    assert set(counts.values()) == {1, 2, 3}
    answers = defaultdict(set)
    for record in manifest.records:
        answers[record.group].add((record.label, record.meta["mode"], record.meta["posterior"]))
    assert all(len(answer) == 1 for answer in answers.values())


def test_the_default_has_a_long_tail_with_a_floor():
    default = synthetic_manifest()
    shares = np.bincount(default.labels, minlength=7) / len(default)
    np.testing.assert_allclose(shares, list(CLASS_SHARES.values()), atol=0.025)
    lesions = {label: len({r.group for r in default.records if r.label == label}) for label in range(7)}
    assert min(lesions.values()) >= 25  # so that each part of a grouped 70/10/20 split has some of every class


def test_the_posterior_survives_its_journey_through_the_records(manifest):
    p = bayes_posterior(manifest)
    numbers = [int(record.group.split("_")[1]) for record in manifest.records]
    drawn = draw_lesions(max(numbers) + 1, seed=2)
    np.testing.assert_array_equal(p, drawn.posterior[numbers])
    part = replace(manifest, records=manifest.records[10:20])
    np.testing.assert_array_equal(bayes_posterior(part), p[10:20])


def test_ambiguous_records_say_so(manifest):
    p = bayes_posterior(manifest)
    ambiguous = np.array([record.meta["ambiguous"] == "yes" for record in manifest.records])
    assert ambiguous.mean() == pytest.approx(0.2, abs=0.06)
    assert p[ambiguous].max(1).mean() < 0.7 < 0.98 < p[~ambiguous].max(1).mean()


def test_other_data_have_no_posterior():
    record = Record("ISIC_1", Path("a.jpg"), 0, "g")
    real = Manifest("real", ("a", "b"), (record,), synthetic_manifest(n=1).reader)
    with pytest.raises(ValueError, match="'ISIC_1'"):
        bayes_posterior(real)
    with pytest.raises(ValueError, match="'ISIC_1'"):
        real.reader(record)


@pytest.mark.parametrize("size", [32, 33, 96, 512])
def test_pictures_come_in_the_size_asked_for(size):
    one = synthetic_manifest(n=1, size=size)
    picture = one.reader(one.records[0])
    assert picture.shape == (size, size, 3)
    assert picture.dtype == np.uint8


def test_pixels_do_not_depend_on_the_order(manifest, pictures):
    for i in (239, 0, 120):
        np.testing.assert_array_equal(manifest.reader(manifest.records[i]), pictures[i])


def test_pixels_do_not_depend_on_the_process(manifest, pictures):
    assert pickle.loads(pickle.dumps(manifest.reader)) == manifest.reader
    chosen = [5, 3, 4]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        elsewhere = pool.map(manifest.reader, [manifest.records[i] for i in chosen])
    np.testing.assert_array_equal(np.stack(elsewhere), pictures[chosen])


def test_pixels_do_not_depend_on_the_number_of_records(manifest, pictures):
    fewer = synthetic_manifest(n=10, seed=2, size=48)
    np.testing.assert_array_equal(fewer.reader(fewer.records[9]), pictures[9])


def test_another_seed_or_size_is_another_data_set(manifest):
    others = [synthetic_manifest(n=240, seed=4, size=48), synthetic_manifest(n=240, seed=2, size=64)]
    assert len({manifest.fingerprint, *(other.fingerprint for other in others)}) == 3
    assert manifest.fingerprint == synthetic_manifest(n=240, seed=2, size=48).fingerprint


def test_a_lesion_keeps_its_looks_when_the_picture_grows():
    small, large = synthetic_manifest(n=8, size=64), synthetic_manifest(n=8, size=128)
    for record in small.records:
        shrunk = large.reader(record).reshape(64, 2, 64, 2, 3).mean((1, 3))
        blurred = [ndimage.gaussian_filter(p.astype(float), (1, 1, 0)) for p in (small.reader(record), shrunk)]
        assert np.corrcoef(blurred[0].ravel(), blurred[1].ravel())[0, 1] > 0.97


def test_photographs_of_a_lesion_resemble_each_other_and_are_not_copies(manifest, pictures):
    contrast = pictures[:, 16:32, 16:32].mean((1, 2)) - np.median(pictures[:, :6], axis=(1, 2))  # lesion against skin
    groups = manifest.groups
    first, second = np.triu_indices(len(groups), 1)
    distance = np.linalg.norm(contrast[first] - contrast[second], axis=1)
    same_lesion = groups[first] == groups[second]
    same_class = (manifest.labels[first] == manifest.labels[second]) & ~same_lesion
    assert np.median(distance[same_lesion]) < 0.6 * np.median(distance[same_class])
    assert (pictures[first[same_lesion]] != pictures[second[same_lesion]]).any((1, 2, 3)).all()


def test_pictures_have_the_colours_of_dermoscopy(pictures):
    """HAM10000: skin (206, 159, 167) with a spread of about 20 a channel, lesions darker than that in every channel."""
    skin = np.median(pictures[:, :6], axis=(1, 2))
    np.testing.assert_allclose(skin.mean(0), [206, 159, 167], atol=15)
    assert ((skin.std(0) > 10) & (skin.std(0) < 35)).all()
    assert (pictures[:, 18:30, 18:30].mean((0, 1, 2)) < skin.mean(0) - 15).all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n": 0}, ValueError, "n must be at least 1, not 0"),
        ({"n": 1.5}, TypeError, "n must be a whole number, not 1.5"),
        ({"seed": -3}, ValueError, "seed must be at least 0, not -3"),
        ({"size": 16}, ValueError, "size must be at least 32, not 16"),
        ({"size": 1024}, ValueError, "size must be at most 512, not 1024"),
        ({"ambiguous": 0.5}, ValueError, "ambiguous must lie between 0 and 0.4, not 0.5"),
        ({"ambiguous": float("nan")}, ValueError, "ambiguous must lie between 0 and 0.4, not nan"),
    ],
)
def test_bad_arguments_get_a_sentence(arguments, error, message):
    with pytest.raises(error, match=message):
        synthetic_manifest(**arguments)
