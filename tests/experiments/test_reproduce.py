"""Which data set and which trainings a table of the paper is made from.

The command itself is tried in ``cli/test_experiments``.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from tests.support import output_files, save_problem

from tdumpra.data.settings import DataConfig
from tdumpra.errors import TdumpraError
from tdumpra.experiments import paper
from tdumpra.experiments.reproduce import entries, table, which_table
from tdumpra.runs.config import Config, NetworkConfig, OutputFile, TuneConfig, read_config

PAPER = read_config(None, changes=["recipe=paper", "data.source=ham10000:x"])


def made_up() -> Any:
    return defaultdict(lambda: defaultdict(lambda: 0.5))


def rows_of(config: Config) -> list[dict[str, Any]]:
    return [dict(row) for row in table("ham10000", {}, config, made_up()).rows]


class TestWhichTable:
    @pytest.mark.parametrize("source", ["synthetic:", "folder:x", "csv:ham10000.csv", "isic2018-task3:x"])
    @pytest.mark.parametrize("named", ["", "ham10000"])
    def test_another_source_is_refused_whatever_is_named(self, source, named):
        with pytest.raises(ValueError, match=f"the source of run is {source.split(':')[0]}"):
            which_table(named, Config(data=DataConfig(source=source)))

    def test_the_source_says_which(self):
        for dataset in paper.DATASETS:
            config = Config(data=DataConfig(source=f"{dataset}:x"))
            assert which_table("", config) == which_table(dataset, config) == dataset
        with pytest.raises(ValueError, match="the table of ham10000 cannot be made from isic2019"):
            which_table("ham10000", config)

    @pytest.mark.parametrize(
        ("dataset", "changes", "named"),
        [
            ("ham10000", {"group_by": "patient"}, "group_by"),
            ("ham10000", {"split_file": "split.json"}, "split_file"),
            ("isic2019", {"hold_out": "site=back"}, "hold_out"),
            ("ham10000", {"protocol": "external"}, "test_source"),
            ("ham10000", {"protocol": "external", "test_source": "csv:mine.csv"}, "test_source"),
            ("ham10000", {"protocol": "paper", "test_source": "isic2018-task3:x"}, "test_source"),
            ("isic2019", {"protocol": "external", "test_source": "isic2018-task3:x"}, "external"),
        ],
    )
    def test_a_test_of_which_the_title_would_not_be_true(self, dataset, changes, named):
        config = Config(data=DataConfig(source=f"{dataset}:x", **changes))
        with pytest.raises(ValueError, match=named):
            which_table("", config)
        assert which_table(dataset, replace(config, outputs=output_files("a.npz"))) == dataset  # they are not split

    def test_the_official_test_of_ham10000(self):
        data = DataConfig(source="ham10000:x", protocol="external", test_source="isic2018-task3:y")
        assert which_table("ham10000", Config(data=data)) == "ham10000"

    def test_saved_outputs_are_of_what_their_user_says(self):
        saved = Config(outputs=output_files("a.npz"))
        assert which_table("isic2019", saved) == "isic2019"
        assert which_table("", replace(saved, data=DataConfig(source="isic2019:"))) == "isic2019"
        with pytest.raises(ValueError, match="do not say which data set they are of"):
            which_table("", saved)
        with pytest.raises(ValueError, match="the table of ham10000 cannot be made from isic2019"):
            which_table("ham10000", replace(saved, data=DataConfig(source="isic2019:")))


def test_each_backbone_with_and_without_the_method():
    found = entries(replace(PAPER, network=NetworkConfig(weights="timm", image_size=96)), {})
    assert [entry.config.network.backbone for entry in found[::2]] == [each.timm for each in paper.BACKBONES]
    assert {entry.config.network.weights for entry in found} == {"timm"}
    assert {entry.config.network.image_size for entry in found} == {96}
    assert [entry.fusion for entry in found] == ["none", "gated"] * 5
    assert [entry.config.train.contrastive_weight > 0 for entry in found] == [False, True] * 5
    assert {entry.seeds for entry in found} == {(0, 1, 2)}
    assert {entry.seeds for entry in entries(replace(PAPER, seeds=(5,)), {})} == {(5,)}


def test_the_table_says_what_each_backbone_started_from():
    rows = [dict(row) for row in table("ham10000", {"ViT-B": "mine.pth"}, PAPER, made_up()).rows]
    told = {row["method"]: row["pretraining"] for row in rows}
    assert told["Swin-B"] == "swin_base_patch4_window7_224.ms_in1k"
    assert told["ViT-B"] == "file mine.pth"


def test_the_papers_figures_are_quoted_as_printed():
    rows = rows_of(PAPER)
    assert [row["paper_delta"] for row in rows if row["method"] == "with T-DuMpRa"] == [
        "+1.72%", "+2.21%", "+0.67%", "+2.61%", "+0.78%",
    ]  # fmt: skip


def test_saved_outputs_fill_the_papers_rows(tmp_path):
    files = [save_problem(tmp_path / f"{name}.npz") for name in "ab"]
    outputs = (
        OutputFile(file=str(files[0]), training="ce", backbone="ResNet-101"),
        OutputFile(file=str(files[1]), training="joint", backbone="ResNet-101"),
    )
    rows = rows_of(Config(outputs=outputs, tune=TuneConfig(preset="paper")))
    assert len(rows) == 10  # no row but the paper's
    at = next(i for i, row in enumerate(rows) if row["method"] == "ResNet-101")
    assert [row["seeds"] for row in rows[at : at + 2]] == [1, 1]
    assert [str(row["paper_accuracy"]) for row in rows[at : at + 2]] == ["0.8165 ± 0.0058", "0.8220 ± 0.0052"]
    assert rows[at]["accuracy"].mean == 0.5
    assert rows[at]["pretraining"] == "not known"
    assert rows[0]["accuracy"] == "not run"


def test_what_calibration_alone_brings_has_a_row_of_its_own():
    free = replace(PAPER, tune=TuneConfig(preset="free"))
    assert [row["method"] for row in rows_of(free)[:3]] == ["ConvNeXt-Tiny", "calibrated alone", "with T-DuMpRa"]
    assert [row["paper_accuracy"] is None for row in rows_of(free)[:3]] == [False, True, False]
    assert [row["method"] for row in rows_of(PAPER)[:2]] == ["ConvNeXt-Tiny", "with T-DuMpRa"]  # nothing is fitted
    adjusted = replace(PAPER, tune=TuneConfig(preset="paper", adjust_prior=True))
    assert rows_of(adjusted)[1]["method"] == "calibrated alone"


def test_files_are_not_taken_for_what_they_need_not_be(tmp_path):
    saved = Config(outputs=output_files(save_problem(tmp_path / "mine.npz")))
    found = table("ham10000", {}, saved, made_up())
    notes = "\n".join(found.notes)
    assert found.title.startswith("Saved outputs that are said to be of ham10000")
    assert "EMA teacher" not in notes
    assert "mine.npz" in notes  # whose training nobody told
    own = table("ham10000", {}, PAPER, made_up())
    assert own.title.startswith("ham10000, across backbones")
    assert "joint objective, EMA teacher, prototypes and gate" in own.notes[0]


def test_another_setting_than_the_papers_is_told():
    own = "\n".join(table("ham10000", {}, PAPER, made_up()).notes)
    assert 'The setting is that of recipe = "paper".' in own
    changed = replace(PAPER, seeds=(0,), data=replace(PAPER.data, protocol="grouped"))
    notes = "\n".join(table("ham10000", {}, changed, made_up()).notes)
    assert 'Not the setting of recipe = "paper": seeds, data.protocol differ.' in notes


def test_a_part_of_the_data_set_is_told():
    part, whole = ("\n".join(table("ham10000", {}, PAPER, made_up(), n).notes) for n in (8, 10_015))
    assert "The source has 8 images" in part
    assert "The source has" not in whole


def test_with_and_without_are_of_the_same_images():
    config = replace(PAPER, seeds=(0, 1))
    results = made_up()
    for entry, seed in itertools.product(entries(config, {}), (0, 1)):
        results[entry.cell(seed)]["test_rows"] = "old" if entry.fusion == "gated" else "new"
    with pytest.raises(TdumpraError, match="not scored on the same test images"):
        table("ham10000", {}, config, results)
