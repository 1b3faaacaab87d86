from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from tests.support import Array, alter_byte, equal_tensors, make_problem, unit

from tdumpra import PrototypeBank, spherical_kmeans, vmf_posterior
from tdumpra.artifacts import write_artifact
from tdumpra.core import rowwise
from tdumpra.core.kmeans import lloyd
from tdumpra.errors import ArtifactError
from tdumpra.method import clusters
from tdumpra.method.bank import KIND, SCHEMA


def directions(*degrees: float) -> Array:
    """Points on the unit circle: cosines are those of the differences of angles."""
    radians = np.deg2rad(degrees)
    return np.stack([np.cos(radians), np.sin(radians)], axis=1)


@pytest.fixture(scope="module")
def bank() -> PrototypeBank:
    train = make_problem().train
    return PrototypeBank.fit(train.z, train.y, 3, train.groups, ids=train.ids)


def live_prototypes(bank: PrototypeBank) -> list[tuple[int, int]]:
    return [(c, k) for c, k in np.argwhere(bank.mask.numpy())]


def test_it_prints_in_a_line(bank):
    assert repr(bank) == "PrototypeBank(12 prototypes of 4 classes in 8 dimensions)"
    near = PrototypeBank.fit(directions(0, 0.1, 90, 91), [0, 0, 1, 1], 2, list("abcd"), merge_above=0.9999)
    assert repr(near) == "PrototypeBank(3 prototypes of 2 classes in 2 dimensions, 1 merged)"


class TestSlots:
    def test_a_class_gets_as_many_prototypes_as_it_has_groups(self):
        # class 0: four rows of four groups; class 1: four rows of two groups, far apart
        z = directions(0, 30, 60, 90, 180, 181, 270, 271)
        y = [0, 0, 0, 0, 1, 1, 1, 1]
        groups = ["a", "b", "c", "d", "e", "e", "f", "f"]
        with pytest.warns(UserWarning, match=r"n_prototypes=3 is more than .*\(class 1 has 2\)"):
            bank = PrototypeBank.fit(z, y, 3, groups)
        assert bank.mask.tolist() == [[True, True, True], [True, True, False]]
        assert bank.prototypes.shape == (2, 3, 2)
        assert (bank.prototypes[1, 2] == 0).all()
        # the second class's prototypes are the mean directions of its two groups: 180.5 and 270.5 degrees
        np.testing.assert_allclose(np.sort(bank.prototypes[1, :2].numpy(), 0), np.sort(directions(180.5, 270.5), 0))

    def test_without_groups_each_row_counts(self):
        with pytest.warns(UserWarning, match="class 0 has 1, class 1 has 2"):
            bank = PrototypeBank.fit(directions(0, 90, 180), [0, 1, 1], 5)
        assert bank.mask.sum(1).tolist() == [1, 2]

    def test_enough_groups_raise_no_warning(self):
        assert PrototypeBank.fit(directions(0, 40, 90, 130), [0, 0, 1, 1], 2).mask.all()

    def test_duplicate_rows_leave_a_slot_dead_rather_than_two_alike(self):
        z = directions(0, 0, 0, 90, 120, 150)
        bank = PrototypeBank.fit(z, [0, 0, 0, 1, 1, 1], 3)
        assert bank.mask.sum(1).tolist() == [1, 3]

    def test_prototypes_are_those_of_k_means_largest_first(self):
        train = make_problem(dtype=np.float64).train
        bank = PrototypeBank.fit(train.z, train.y, 3, train.groups, seed=5)
        for c in range(4):
            clusters = spherical_kmeans(torch.from_numpy(unit(train.z[train.y == c])), 3, seed=5)
            sizes = torch.bincount(clusters.assignment)
            order = sizes.argsort(descending=True, stable=True)
            torch.testing.assert_close(bank.prototypes[c], clusters.centers[order])
            assert (bank.weight[c].diff() <= 0).all()
            np.testing.assert_allclose(bank.weight[c], (sizes[order] / sizes.sum()).numpy())

    def test_an_engine_of_ones_own_runs_the_clustering(self):
        runs = []

        def engine(x, centers, weight, *, max_iter):
            runs.append(len(x))
            return lloyd(x, centers, weight, max_iter=max_iter)

        PrototypeBank.fit(directions(0, 40, 90, 130, 170), [0, 0, 1, 1, 1], 2, engine=engine)
        assert set(runs) == {2, 3}

    def test_the_seed_decides(self):
        train = make_problem().train
        first, again = (PrototypeBank.fit(train.z, train.y, 3, seed=1) for _ in range(2))
        assert torch.equal(first.prototypes, again.prototypes)


class TestMerging:
    # 0 and 2 degrees: cos 2° = 0.99939 > 0.999, so the two groups of rows there are one prototype; 90° is another.
    z = directions(-0.1, 0.1, 2, 90, 180, 225, 270)
    y = (0, 0, 0, 0, 1, 1, 1)

    def test_near_duplicates_are_merged_and_counted(self):
        bank = PrototypeBank.fit(self.z, self.y, 3)
        assert bank.merged == (1, 0)
        assert bank.mask.tolist() == [[True, True, False], [True, True, True]]
        # three rows of four; their mean direction lies at (−0.1 + 0.1 + 2) / 3 degrees to first order
        assert bank.weight[0].tolist() == [0.75, 0.25, 0]
        np.testing.assert_allclose(bank.prototypes[0, 0], directions(2 / 3)[0], atol=1e-5)
        assert {exemplar.id for exemplar in bank.exemplars[0][0]} == {"0", "1", "2"}

    def test_none_keeps_them_all(self):
        bank = PrototypeBank.fit(self.z, self.y, 3, merge_above=None)
        assert bank.merged == (0, 0)
        assert bank.mask.all()

    def test_the_limit_is_strict_and_can_be_set(self):
        # cos 45° = 0.70711: with a lower limit two neighbours of class 1 merge, into 202.5° or 247.5°; the third is
        # then 67.5° away, whose cosine is 0.38, and stays
        assert PrototypeBank.fit(self.z, self.y, 3, merge_above=0.70).merged == (1, 1)
        assert PrototypeBank.fit(self.z, self.y, 3, merge_above=0.71).merged == (1, 0)


class TestAbsentClasses:
    def test_a_class_without_rows_is_refused(self):
        with pytest.raises(ValueError, match=r"class 1 has no training row; pass n_classes=3 if that is meant"):
            PrototypeBank.fit(directions(0, 40, 90, 130), [0, 0, 2, 2], 2)

    def test_labels_from_one_are_told_from_an_empty_class(self):
        z, labels = directions(0, 40, 90, 130), [1, 1, 2, 2]
        with pytest.raises(ValueError, match="labels run from 1 to 2 and count from 0: subtract 1"):
            PrototypeBank.fit(z, labels, 2)
        assert PrototypeBank.fit(z, labels, 2, n_classes=3).mask.any(1).tolist() == [False, True, True]

    def test_unless_n_classes_says_that_it_is_meant(self):
        z = directions(0, 40, 90, 130)
        bank = PrototypeBank.fit(z, [0, 0, 2, 2], 2, n_classes=4)
        assert bank.n_classes == 4
        assert bank.mask.sum(1).tolist() == [2, 0, 2, 0]
        p = bank.posterior(z)
        assert (p[:, [1, 3]] == 0).all()
        np.testing.assert_allclose(p.sum(1), 1)
        assert bank.exemplars[1] == ()

    def test_one_class_is_no_task(self):
        with pytest.raises(ValueError, match="a single class"):
            PrototypeBank.fit(directions(0, 40), [0, 0], 1)


class TestDescription:
    def test_weight_and_cohesion_by_hand(self, bank):
        train = make_problem().train
        z, prototypes = unit(train.z), bank.prototypes.numpy()
        for c in range(4):
            rows = np.flatnonzero(train.y == c)
            live = np.flatnonzero(bank.mask[c])
            nearest = [max(live, key=lambda k: float(z[i] @ prototypes[c, k])) for i in rows]
            for k in live:
                members = [i for i, own in zip(rows, nearest, strict=True) if own == k]
                assert bank.weight[c, k] == pytest.approx(len(members) / len(rows))
                cosines = [float(z[i] @ prototypes[c, k]) for i in members]
                assert bank.cohesion[c, k] == pytest.approx(sum(cosines) / len(cosines), abs=1e-6)

    def test_exemplars_are_the_nearest_row_of_each_group(self, bank):
        train = make_problem().train
        z, row_of = unit(train.z), {name: i for i, name in enumerate(train.ids)}
        for c, k in live_prototypes(bank):
            cosine = z @ bank.prototypes[c, k].numpy()
            members = [
                i
                for i in np.flatnonzero(train.y == c)
                if k == max(range(3), key=lambda j: float(z[i] @ bank.prototypes[c, j].numpy()))
            ]
            best: dict[str, float] = {}
            for i in members:
                best[train.groups[i]] = max(best.get(train.groups[i], -1.0), cosine[i])
            shown = bank.exemplars[c][k]
            assert len(shown) == min(8, len(best))
            assert len({each.group for each in shown}) == len(shown)
            assert [each.cosine for each in shown] == pytest.approx(sorted(best.values(), reverse=True)[:8], abs=2e-6)
            for each in shown:
                row = row_of[each.id]
                assert (train.y[row], train.groups[row]) == (c, each.group)
                assert cosine[row] == pytest.approx(each.cosine, abs=2e-6)

    def test_without_ids_rows_are_numbered(self):
        bank = PrototypeBank.fit(directions(0, 40, 90, 130), [0, 0, 1, 1], 1)
        assert sorted(each.id for each in bank.exemplars[1][0]) == ["2", "3"]

    def test_familiarity_is_the_percentile_of_the_top_cosine(self, bank):
        problem = make_problem()
        live = bank.prototypes[bank.mask].numpy().astype(np.float64)
        of_training = (unit(problem.train.z) @ live.T).max(1)
        of_queries = (unit(problem.test.z) @ live.T).max(1)
        expected = [100 * np.mean(of_training <= top) for top in of_queries]
        found = bank.familiarity(bank.similarity(torch.from_numpy(problem.test.z)))
        np.testing.assert_allclose(found, expected, atol=1e-3)

    def test_familiarity_of_the_strange_and_of_a_prototype_itself(self, bank):
        # orthogonal to all twelve would need more than eight columns: of many random rows, the farthest one
        rows = torch.from_numpy(np.random.default_rng(1).normal(size=(500, 8)))
        strange = rows[bank.similarity(rows).amax((1, 2)).argmin()]
        found = bank.familiarity(bank.similarity(torch.stack([bank.prototypes[0, 0].double(), strange])))
        assert found.tolist() == [100, 0]

    def test_dead_slots_are_never_familiar(self):
        # Class 0 has its one prototype at 13.9°, from which the row at 120° is far (cosine -0.28); class 2 has one at
        # 12.5°. The query lies opposite to both. A dead slot's cosine is 0, nearer than that row, and must not count.
        bank = PrototypeBank.fit(directions(0, 0, 0, 0, 120, 10, 15), [0, 0, 0, 0, 0, 2, 2], 1, n_classes=3)
        assert bank.reference[0] < -0.2
        assert float(bank.familiarity(bank.similarity(torch.from_numpy(directions(193))))) == 0

    def test_many_rows_keep_a_thousand_quantiles(self):
        rng = np.random.default_rng(0)
        z, y = rng.normal(size=(3000, 4)), rng.integers(0, 2, 3000)
        bank = PrototypeBank.fit(z, y, 2)
        assert len(bank.reference) == 1001
        tops = (unit(z) @ bank.prototypes.reshape(4, 4).numpy().T).max(1)
        queries = rng.normal(size=(50, 4))
        expected = [
            100 * np.mean(tops <= top) for top in (unit(queries) @ bank.prototypes.reshape(4, 4).numpy().T).max(1)
        ]
        np.testing.assert_allclose(bank.familiarity(bank.similarity(torch.from_numpy(queries))), expected, atol=0.2)


class TestPosterior:
    @pytest.mark.parametrize(("kappa", "tau"), [(20.0, 1.0), (5.0, 0.3)])
    def test_it_is_the_mixture_posterior_of_its_prototypes(self, bank, kappa, tau):
        z = make_problem().test.z
        expected = vmf_posterior(z, bank.prototypes, bank.mask, kappa=kappa, tau=tau)
        np.testing.assert_allclose(bank.posterior(z, kappa=kappa, tau=tau), expected, atol=2e-6)

    def test_the_length_of_an_embedding_does_not_matter(self, bank):
        z = make_problem(dtype=np.float64).test.z
        np.testing.assert_allclose(bank.posterior(z * 1000), bank.posterior(z), atol=1e-12)

    def test_unequal_numbers_of_prototypes_are_no_handicap(self):
        # Class 0 has one prototype at 0°, class 1 has two, at 60° and 120°; the query stands at 45°. With kappa 2:
        # q_0 = 2 cos 45° + log(2/1) = 1.414214 + 0.693147 = 2.107361
        # q_1 = log(e^(2 cos 15°) + e^(2 cos 75°)) = log(6.902593 + 1.678072) = 2.149511
        # p_1 = 1 / (1 + e^(2.107361 - 2.149511)) = 0.510536
        with pytest.warns(UserWarning, match="class 0 has 1"):
            bank = PrototypeBank.fit(directions(0, 60, 120), [0, 1, 1], 2)
        assert bank.posterior(directions(45), kappa=2.0)[0, 1] == pytest.approx(0.510536, abs=1e-5)

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_kind_and_type_come_back(self, dtype):
        problem = make_problem(dtype=dtype)
        bank = PrototypeBank.fit(problem.train.z, problem.train.y, 3)
        assert bank.prototypes.dtype == (torch.float64 if dtype == np.float64 else torch.float32)
        p = bank.posterior(problem.test.z)
        assert isinstance(p, np.ndarray)
        assert p.dtype == dtype
        as_torch = bank.posterior(torch.from_numpy(problem.test.z))
        assert isinstance(as_torch, torch.Tensor)
        assert np.array_equal(as_torch.numpy(), p)

    def test_a_bank_in_float64_is_fitted_in_float64(self):
        # two rows 1e-9 apart: their mean direction is not representable in float32
        z = np.array([[1.0, 1e-9], [1.0, 3e-9], [0.0, 1.0]])
        with pytest.warns(UserWarning, match="class 1 has 1"):
            bank = PrototypeBank.fit(z, [0, 0, 1], 2, merge_above=0.9)
        assert bank.prototypes[0, 0, 1] == pytest.approx(2e-9, rel=1e-6)

    def test_nothing_handed_in_is_changed(self):
        train = make_problem().train
        z, y = train.z.copy(), train.y.copy()
        PrototypeBank.fit(z, y, 3, train.groups).posterior(z)
        assert np.array_equal(z, train.z)
        assert np.array_equal(y, train.y)


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "error", "message"),
        [
            ({"z": np.zeros((4, 2))}, ValueError, "z has all-zero rows.*4 rows"),
            ({"z": directions(0, 1, 2, np.nan)}, ValueError, r"z has NaN or infinite values in 1 row \(3\)"),
            ({"z": np.zeros((0, 2)), "labels": []}, ValueError, "z has no rows|no training"),
            ({"z": np.ones((4, 2), np.int64)}, TypeError, "z must hold floating-point numbers"),
            ({"class_names": ["nv"]}, ValueError, "class_names has 1 entries for 2 classes"),
            ({"labels": ["nv", "nv", "mel", "mel"]}, TypeError, "labels must be integers"),
            ({"labels": [0, 0, 1, -1]}, ValueError, "labels must be in the range 0 upwards; row 3 holds -1"),
            ({"labels": [0, 0, 1, 5], "n_classes": 3}, ValueError, "range 0 to 2; row 3 holds 5"),
            ({"labels": [0, 1]}, ValueError, "labels has 2 entries for 4 rows"),
            ({"groups": ["a", "b"]}, ValueError, "groups needs one entry per row: 4"),
            ({"groups": ["a", "b", "", "c"]}, ValueError, r"groups has empty entries in 1 row \(2\)"),
            ({"ids": ["a"]}, ValueError, "ids needs one entry per row: 4"),
            ({"n_prototypes": 0}, ValueError, "n_prototypes must be at least 1, not 0"),
            ({"n_prototypes": 2.5}, TypeError, "n_prototypes must be a whole number, not 2.5"),
            ({"n_classes": 1, "labels": [0, 0, 0, 0]}, ValueError, "n_classes must be at least 2"),
        ],
    )
    def test_fit(self, changes, error, message):
        arguments = {"z": directions(0, 40, 90, 130), "labels": [0, 0, 1, 1], "n_prototypes": 2, **changes}
        with pytest.raises(error, match=message):
            PrototypeBank.fit(**arguments)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"z": np.ones((2, 5))}, "z has width 5, and the bank was built on embeddings of width 8"),
            ({"z": np.zeros((2, 8))}, "all-zero rows"),
            ({"z": np.ones((2, 8)), "kappa": 0.0}, "kappa must be a finite number above 0"),
            ({"z": np.ones((2, 8)), "tau": -1.0}, "tau must be a finite number above 0"),
        ],
    )
    def test_posterior(self, bank, arguments, message):
        with pytest.raises(ValueError, match=message):
            bank.posterior(**arguments)


class TestFile:
    def test_round_trip_to_the_bit(self, bank, tmp_path):
        bank.save(tmp_path / "bank.safetensors")
        loaded = PrototypeBank.load(tmp_path / "bank.safetensors")
        assert equal_tensors(bank.to_artifact().tensors, loaded.to_artifact().tensors)
        assert loaded.exemplars == bank.exemplars
        assert loaded.merged == bank.merged
        z = make_problem().test.z
        assert np.array_equal(bank.posterior(z), loaded.posterior(z))

    def test_one_altered_bit_anywhere_is_refused(self, bank, tmp_path):
        path = tmp_path / "bank.safetensors"
        bank.save(path)
        size = path.stat().st_size
        for position in np.random.default_rng(0).integers(0, size, 40):
            alter_byte(path, position)
            with pytest.raises(ArtifactError, match=r"altered|truncated|checksum|pickle"):
                PrototypeBank.load(path)
            alter_byte(path, position)
        PrototypeBank.load(path)  # every bit is back in its place

    @pytest.mark.parametrize(
        ("content", "message"),
        [(b"", "truncated"), (pickle.dumps({"prototypes": 1}), "pickle"), (b"PK\x03\x04....", "zip")],
    )
    def test_other_files_are_refused(self, tmp_path, content, message):
        path = tmp_path / "bank.safetensors"
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match=message):
            PrototypeBank.load(path)

    @pytest.mark.parametrize(
        ("kind", "schema", "message"),
        [(KIND, SCHEMA + 1, f"schema version {SCHEMA + 1}"), ("decision", SCHEMA, "holds a tdumpra decision")],
    )
    def test_another_schema_or_kind_is_refused(self, bank, tmp_path, kind, schema, message):
        path = tmp_path / "bank.safetensors"
        artifact = bank.to_artifact()
        write_artifact(path, kind=kind, schema=schema, tensors=artifact.tensors, meta=artifact.meta)
        with pytest.raises(ArtifactError, match=message):
            PrototypeBank.load(path)

    def test_no_length_of_a_header_is_taken_for_a_pickle_or_an_archive(self, tmp_path):
        """A file begins with its header's length: 0x..80 begins a pickle too, and 0x4b50 reads "PK"."""
        path = tmp_path / "bank.safetensors"

        def first_bytes(padding: int) -> bytes:
            ids = ["x" * padding, "b", "c", "d"]
            PrototypeBank.fit(directions(0, 40, 90, 130), [0, 0, 1, 1], 1, list("abcd"), ids=ids).save(path)
            assert PrototypeBank.load(path).mask.all()
            return bytes(path.read_bytes()[:2])

        lengths = [int.from_bytes(first_bytes(padding), "little") for padding in range(1, 300, 8)]
        assert any(length % 256 == 0x80 for length in lengths)
        assert first_bytes(1 + 0x4B50 - lengths[0]) == b"PK"

    def test_a_missing_file_is_refused(self, tmp_path):
        with pytest.raises(ArtifactError, match="cannot read"):
            PrototypeBank.load(tmp_path / "absent.safetensors")


class TestManyRows:
    def test_a_part_of_a_large_class_is_clustered_and_every_row_counts(self, monkeypatch):
        rng = np.random.default_rng(0)
        y = np.repeat([0, 1], [600, 40])
        z = directions(*np.where(y == 0, rng.choice([0, 60], 640), 180)) + 0.05 * rng.normal(size=(640, 2))
        whole = PrototypeBank.fit(z, y, 2)
        monkeypatch.setattr(clusters, "CLUSTERED_ROWS", 200)
        with pytest.warns(UserWarning, match="class 0 has 600.* from 200 of them"):
            part = PrototypeBank.fit(z, y, 2)
        # two clear modes: passes over all rows end where clustering all of them did
        assert part.prototypes.numpy() == pytest.approx(whole.prototypes.numpy(), abs=1e-6)
        assert part.weight.numpy() == pytest.approx(whole.weight.numpy(), abs=1e-6)
        assert part.reference.shape == whole.reference.shape

    def test_some_rows_at_a_time_give_the_same_bank(self, bank, monkeypatch):
        for module in (clusters, rowwise):
            monkeypatch.setattr(module, "BLOCK", 50)
        train = make_problem().train
        again = PrototypeBank.fit(train.z, train.y, 3, train.groups, ids=train.ids)
        for name in ("prototypes", "weight", "cohesion", "reference"):
            torch.testing.assert_close(getattr(again, name), getattr(bank, name), rtol=1e-6, atol=1e-6)
        assert [[[e.id for e in k] for k in c] for c in again.exemplars] == [
            [[e.id for e in k] for k in c] for c in bank.exemplars
        ]


class TestWeights:
    def test_one_each_changes_nothing(self, bank):
        train = make_problem().train
        weighted = PrototypeBank.fit(train.z, train.y, 3, train.groups, ids=train.ids, weights=np.ones(len(train.y)))
        torch.testing.assert_close(weighted.prototypes, bank.prototypes)
        assert weighted.exemplars == bank.exemplars

    def test_a_heavy_row_draws_its_prototype(self):
        # one prototype at the mean direction of 0 and 90 degrees, where the second counts three times: 71.6 degrees
        bank = PrototypeBank.fit(directions(0, 90, 180, 180), [0, 0, 1, 1], 1, weights=[1, 3, 1, 1])
        np.testing.assert_allclose(bank.prototypes[0, 0], directions(np.rad2deg(np.arctan2(3, 1)))[0], atol=1e-6)

    def test_shares_count_weights(self):
        z, y = directions(0, 1, 90, 180, 270), [0, 0, 0, 1, 1]
        bank = PrototypeBank.fit(z, y, 2, list("abcde"), weights=[1, 1, 6, 1, 1], merge_above=None)
        assert bank.weight[0].tolist() == [0.75, 0.25]
        np.testing.assert_allclose(bank.prototypes[0, 0], directions(90)[0], atol=1e-6)

    @pytest.mark.parametrize("weights", [[1.0], [1, 1, 1, 0], [1, 1, 1, -1], [1, 1, 1, np.nan]])
    def test_refused(self, weights):
        with pytest.raises(ValueError, match="weights needs one positive number per row"):
            PrototypeBank.fit(directions(0, 1, 90, 180), [0, 0, 1, 1], 1, weights=weights)
