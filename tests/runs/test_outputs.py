"""Where outputs come from: what a configuration says of its files, and what is read from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support import make_problem, output_files, save_problem, without_training_rows

from tdumpra.errors import ArtifactError, InputFileError, TdumpraError
from tdumpra.method.output_files import SplitOutputs
from tdumpra.runs.config import BankConfig, Config, OutputFile, TrainConfig, TuneConfig
from tdumpra.runs.outputs import SavedOutputs, TrainedOutputs, all_outputs, unknown_of_files, variant_outputs
from tdumpra.runs.table_stages import gate_made_from

WITHOUT = TrainConfig(contrastive_weight=0.0)
TOLD = (OutputFile(file="a.npz", training="ce", seed=0), OutputFile(file="b.npz", training="joint", seed=3))


def load(config: Config) -> SplitOutputs:
    (outputs,) = all_outputs(config)
    return outputs.load()


def seeds_of_variant(config: Config) -> list[int]:
    return [each.seed for each in variant_outputs(config)]


class TestWhatTheConfigurationSays:
    def test_of_files(self):
        plain, ce, joint, other, seed = (
            OutputFile(file="a.npz"),
            OutputFile(file="b.npz", training="ce"),
            OutputFile(file="c.npz", training="joint"),
            OutputFile(file="d.npz", training="ce"),
            OutputFile(file="e.npz", training="joint", seed=7, backbone="net"),
        )
        found = all_outputs(Config(name="mine", outputs=(plain, ce, joint, other, seed)))
        assert [(each.origin.name, each.model, each.seed) for each in found] == [
            ("a.npz", "mine", 0), ("b.npz", "mine_ce", 0), ("c.npz", "mine_joint", 0), ("d.npz", "mine_ce", 1),
            ("e.npz", "net_joint", 7),
        ]  # fmt: skip
        assert all(isinstance(each, SavedOutputs) for each in found)

    def test_a_files_name_means_nothing(self):
        (found,) = all_outputs(Config(name="mine", outputs=(OutputFile(file="lite0_ce_seed3.npz"),)))
        assert (found.model, found.training, found.seed) == ("mine", None, 0)

    def test_each_has_a_place_of_its_own(self, tmp_path):
        config = Config(folder=str(tmp_path), outputs=TOLD)
        assert [each.place for each in all_outputs(config)] == [tmp_path / "run_ce_seed0", tmp_path / "run_joint_seed3"]
        assert [each.place for each in all_outputs(config, Path("o"))] == [
            Path("o/run_ce_seed0"), Path("o/run_joint_seed3"),
        ]  # fmt: skip
        (alone,) = all_outputs(replace(config, outputs=TOLD[:1]))
        assert alone.place == tmp_path

    def test_of_its_own_seeds(self, tmp_path):
        config = Config(folder=str(tmp_path), seeds=(0, 2))
        found = all_outputs(config)
        assert [(each.seed, each.place) for each in found] == [(s, tmp_path / f"seed-{s}") for s in (0, 2)]
        assert all(isinstance(each, TrainedOutputs) and not each.may_train for each in found)
        elsewhere = all_outputs(config, tmp_path / "out")
        assert [each.place for each in elsewhere] == [tmp_path / "out" / f"seed-{s}" for s in (0, 2)]
        assert [each.origin for each in elsewhere] == [each.origin for each in found]

    def test_the_same_seed_twice(self):
        twice = OutputFile(file="c.npz", training="ce", seed=0)
        with pytest.raises(TdumpraError, match="both of run_ce, seed 0"):
            all_outputs(Config(outputs=(*TOLD, twice)))


class TestVariants:
    def test_the_training_decides_which_file_answers(self):
        assert seeds_of_variant(Config(outputs=TOLD)) == [3]
        assert seeds_of_variant(Config(outputs=TOLD, train=WITHOUT)) == [0]

    def test_a_file_that_does_not_say_stands_for_the_joint_objective(self):
        config = Config(outputs=(OutputFile(file="mine.npz"),))
        assert seeds_of_variant(config) == [0]
        assert seeds_of_variant(replace(config, train=WITHOUT)) == []

    def test_training_and_seed_tell_variants_apart_and_the_name_does_not(self):
        def identity(config: Config, number: int = 0) -> dict[str, object]:
            return variant_outputs(config)[number].identity()

        both = Config(seeds=(0, 1))
        assert identity(both, 0) != identity(both, 1)
        assert identity(Config()) != identity(Config(train=WITHOUT))
        assert identity(Config()) == identity(Config(name="other"))


class TestContents:
    def test_what_was_not_made_is_missed(self, tmp_path):
        (never,) = all_outputs(Config(folder=str(tmp_path)))
        for read in (never.load, never.identity):
            with pytest.raises(ArtifactError, match="tdumpra embed"):
                read()
        (gone,) = all_outputs(Config(outputs=TOLD[:1]))
        for read in (gone.load, gone.identity):
            with pytest.raises(InputFileError, match=r"a\.npz does not exist"):
                read()

    def test_they_are_named_by_what_is_in_them(self, tmp_path):
        first, second = (save_problem(tmp_path / f"{name}.npz") for name in "ab")
        (a,), (b,) = (all_outputs(Config(outputs=output_files(file))) for file in (first, second))
        assert a.identity() == b.identity()
        before = b.load().test.p
        save_problem(second, seed=1)
        assert a.identity() != b.identity()
        assert not torch.equal(b.load().test.p, before)

    def test_what_is_pooled_is_part_of_the_name(self, tmp_path):
        paths = [save_problem(tmp_path / f"net_joint_seed{seed}.npz", seed) for seed in (0, 1)]
        config = Config(outputs=output_files(*paths), tune=TuneConfig(pool_seeds=True))
        first, second = all_outputs(config)
        assert [other.seed for each in (first, second) for other in each.others] == [1, 0]
        before, alone = first.identity(), first.own_identity()
        assert before != alone
        save_problem(paths[1], seed=2)
        assert first.identity() != before
        assert first.own_identity() == alone
        apart = all_outputs(replace(config, tune=TuneConfig()))[0]
        assert (apart.others, apart.identity()) == ((), alone)

    def test_only_seeds_of_one_model_are_pooled(self):
        found = all_outputs(Config(outputs=TOLD, tune=TuneConfig(pool_seeds=True)))
        assert [each.others for each in found] == [(), ()]

    def test_the_teacher_classifies_where_the_configuration_says_so(self, tmp_path):
        teacher = np.concatenate([part.p for part in make_problem(0)])[:, ::-1]
        files = output_files(save_problem(tmp_path / "net.npz", pt=teacher))
        student, asked = (Config(outputs=files, tune=TuneConfig(classifier=who)) for who in ("student", "teacher"))
        before, after = load(student), load(asked)
        for own, swapped in ((before.validation, after.validation), (before.test, after.test)):
            assert own.p_teacher is not None
            assert torch.equal(swapped.p, own.p_teacher)
            assert not torch.equal(swapped.p, own.p)
        assert after.train.p is None  # only the student's is known
        assert after.fingerprint != before.fingerprint
        names = {gate_made_from(all_outputs(config)[0]) for config in (student, asked)}
        assert len(names) == 2

    def test_a_teacher_that_the_file_lacks_is_missed(self, tmp_path):
        files = output_files(save_problem(tmp_path / "net.npz"))
        with pytest.raises(InputFileError, match="has no pt"):
            load(Config(outputs=files, tune=TuneConfig(classifier="teacher")))

    def test_the_space_is_that_of_the_bank(self, tmp_path):
        made = make_problem(0)
        z = np.concatenate([part.z for part in made])
        files = output_files(save_problem(tmp_path / "net.npz", 0, zt=z[:, ::-1]))
        for space, wanted in (("teacher", z[:, ::-1]), ("student", z)):
            found = load(Config(outputs=files, bank=BankConfig(space=space))).train.z
            np.testing.assert_allclose(found, wanted[: len(made.train.y)], atol=1e-6)
        with pytest.raises(TdumpraError, match="runs/other"):
            load(Config(outputs=files, bank=BankConfig(space="runs/other")))

    @pytest.mark.parametrize("missing", [1, 3])
    def test_a_class_without_a_training_row_is_refused(self, tmp_path, missing):
        names = np.array(["nv", "bcc", "bkl", "mel"])
        files = output_files(without_training_rows(tmp_path / "net.npz", missing, classes=names))
        with pytest.raises(InputFileError, match=rf"class {missing} \('{names[missing]}'\) has no training row"):
            load(Config(outputs=files))
        assert load(Config(outputs=files, bank=BankConfig(n_classes=4))).n_classes == 4
        with pytest.raises(InputFileError, match=r"4 classes .* 5"):
            load(Config(outputs=files, bank=BankConfig(n_classes=5)))


def test_what_files_do_not_say_is_said(tmp_path):
    z = np.concatenate([part.z for part in make_problem(0)])
    save_problem(tmp_path / "mine.npz")
    save_problem(tmp_path / "net_joint_seed1.npz", zt=z[:, ::-1])
    files = output_files(tmp_path / "mine.npz", tmp_path / "net_joint_seed1.npz")
    protocol, training, teacher = unknown_of_files(Config(outputs=files))
    assert "protocol" in protocol
    for note in (training, teacher):
        assert "mine.npz" in note
        assert "net_joint_seed1.npz" not in note
    assert len(unknown_of_files(Config(outputs=files[1:]))) == 1
    assert unknown_of_files(Config()) == []
