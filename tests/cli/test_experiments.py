"""The commands from end to end, on small files and, where they are at hand, on real outputs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import make_problem, output_files, save_problem, seed_arrays

from tdumpra.artifacts import read_json
from tdumpra.evaluation.story import NO_GROUPS
from tdumpra.networks.weights import HubError
from tdumpra.toml import to_toml

OUTPUTS = Path(os.environ.get("TDUMPRA_OUTPUTS", Path(__file__).parents[3] / "shared" / "outputs"))
REAL = sorted(OUTPUTS.glob("lite0_*_seed0.npz"))
TABLE_FORMS = ("csv", "json", "md", "tex")
PNG = b"\x89PNG"


Run = Callable[..., Any]


@pytest.fixture
def run(tdumpra: Run) -> Run:
    return tdumpra


def write_outputs(path: Path, seed: int = 0, *, n_classes: int = 4, **changes: Any) -> Path:
    arrays = seed_arrays(seed, n_classes=n_classes)
    arrays |= {"pt": arrays["p"], "zt": arrays["z"]}
    np.savez(path, **{**arrays, **changes})
    return path


def write_config(folder: Path, outputs: list[Path], text: str = "", *, preset: str = "paper-swapped") -> Path:
    path = folder / "run.toml"
    tables = to_toml({"outputs": [asdict(each) for each in output_files(*outputs)]})
    path.write_text(f'name = "small"\n[tune]\npreset = "{preset}"\n[evaluate]\nbootstrap = 20\n{text}\n{tables}')
    return path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    files = [
        write_outputs(tmp_path / name, seed)
        for seed, name in enumerate(("net_ce_seed0.npz", "net_joint_seed0.npz", "net_joint_seed1.npz"))
    ]
    return write_config(tmp_path, files)


class TestTune:
    def test_gate_json(self, run, tmp_path):
        path = write_config(tmp_path, [write_outputs(tmp_path / "net_ce_seed0.npz")], preset="free")
        ran = run("tune", path, "--out", tmp_path / "out")
        assert ran.code == 0, ran.err
        gate = read_json(tmp_path / "out" / "gate.json", kind="gate", schema=1)
        assert gate["tried"]["settings"] > 20_000
        assert gate["cases"]["rows"] == 200
        assert gate["best"]["objective"] - gate["base"]["objective"] == pytest.approx(gate["won_by"]["objective"])
        assert gate["best"]["gate"] in {"the five clauses", "the calibrated gate", "the shut gate"}
        assert gate["sentence"] in ran.out

    def test_certify_and_folds(self, run, tmp_path):
        file = write_outputs(tmp_path / "a.npz")
        for setting, key in (("certify = true", "certificate"), ("folds = 3", "out_of_fold")):
            path = write_config(tmp_path, [file])
            path.write_text(path.read_text().replace("[tune]", f"[tune]\n{setting}"))
            ran = run("tune", path, "--json", "--out", tmp_path / key)
            assert json.loads(ran.out)[key]["sentence"]

    def test_costs(self, run, tmp_path):
        path = write_config(tmp_path, [write_outputs(tmp_path / "a.npz")])
        costs = [[0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1], [9, 9, 9, 0]]
        path.write_text(path.read_text().replace("[tune]", f'[tune]\nobjective = "cost"\ncosts = {costs}'))
        found = json.loads(run("evaluate", path, "--json", "--out", tmp_path / "o").out)
        assert found["costs"]["gate"]["likeliest"] < found["costs"]["student"]["likeliest"]
        assert found["retrieval_worth"]["objective"] == "cost"

    def test_a_setting_that_does_nothing_is_named(self, run, config, tmp_path):
        config.write_text(config.read_text() + "[network]\nbackbone = 'resnet50'\n")
        done = run("tune", config, "--out", tmp_path / "o", "--json")
        assert "note: outputs are saved ones: network.backbone does nothing here\n" in done.err
        json.loads(done.out)


@pytest.mark.parametrize("command", ["tune", "evaluate"])
@pytest.mark.parametrize("grouped", [True, False])
def test_outputs_without_groups_are_said_to_have_none(run, tmp_path, command, grouped):
    file = save_problem(tmp_path / "a.npz", leave_out=() if grouped else ("group",))
    ran = run(command, write_config(tmp_path, [file]), "--out", tmp_path / "out")
    assert ran.code == 0, ran.err
    assert (NO_GROUPS in ran.out.splitlines()) is not grouped


class TestChanges:
    def test_settings_from_the_command_line(self, run, tmp_path):
        path = write_config(tmp_path, [write_outputs(tmp_path / "net.npz")])
        changed = ("--set", "tune.preset=paper", "--set", "name=other", "--set", "bank.n_prototypes=2")
        ran = run("tune", path, *changed, "--seeds", "3,4", "--out", tmp_path / "out")
        assert ran.code == 0, ran.err
        assert "note: outputs are saved ones: seeds does nothing here" in ran.err
        plan = ("--out", tmp_path / "out", "--plan", "--json")
        for given, finished in ((changed, True), ((), False)):
            (cell,) = json.loads(run("tune", path, *given, *plan).out)["cells"]
            assert cell["finished"] == finished

    @pytest.mark.parametrize("command", ["run", "train", "embed", "bank", "tune", "evaluate", "ablate", "sweep"])
    def test_every_command_with_a_configuration_takes_them(self, run, config, command):
        for given, sentence in (
            (("--set", "tune.preset=papr"), "--set tune.preset=papr: tune.preset must be one of"),
            (("--set", "tune.presets=paper"), "unknown key tune.presets; did you mean 'preset'?"),
            (("--seeds", "0,a"), "--seeds takes whole numbers"),
        ):
            ran = run(command, config, *given)
            assert (ran.code, ran.err.count("\n")) == (2, 1)
            assert sentence in ran.err


class TestEvaluate:
    def test_one_file(self, run, tmp_path):
        path = write_config(tmp_path, [write_outputs(tmp_path / "net_joint_seed0.npz")])
        ran = run("evaluate", path, "--out", tmp_path / "out")
        assert ran.code == 0, ran.err
        found = read_json(tmp_path / "out" / "evaluation.json", kind="evaluation", schema=1)
        assert 0 < found["comparators"]["gate"]["accuracy"] < 1
        assert found["gate"]["n"] == 160
        assert found["seeds"] == [0]
        assert "comparators_std" not in found  # one seed has no deviation
        for suffix in TABLE_FORMS:
            assert (tmp_path / "out" / f"comparators.{suffix}").stat().st_size
        for name in ("reliability", "risk_coverage", "comparators"):
            assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(PNG)
        assert "(with the bank)" in ran.out or "retrieval" in ran.out

    def test_models_and_seeds(self, run, config, tmp_path):
        found = json.loads(run("evaluate", config, "--json", "--out", tmp_path / "out").out)
        assert list(found["models"]) == ["net_ce", "net_joint"]
        assert found["comparators"] == found["models"]["net_ce"]["comparators"]
        joint = found["models"]["net_joint"]
        accuracies = [each["comparators"]["gate"]["accuracy"] for each in joint["by_seed"].values()]
        assert joint["comparators"]["gate"]["accuracy"] == pytest.approx(np.mean(accuracies))
        assert joint["comparators_std"]["gate"]["accuracy"] == pytest.approx(np.std(accuracies, ddof=1))
        assert joint["gate"]["fixed"] == sum(each["gate"]["fixed"] for each in joint["by_seed"].values())
        assert 0 <= joint["gate"]["sign_flip_p"] <= 1
        assert joint["gate"]["mcnemar_p"] is None
        assert any(each["where"] == "gate.mcnemar_p" for each in joint["undefined"])

    @pytest.mark.parametrize("together", [True, False])
    def test_one_choice_for_all_seeds_is_told_once(self, run, tmp_path, together):
        files = [write_outputs(tmp_path / f"net_joint_seed{seed}.npz", seed) for seed in (0, 1)]
        path = write_config(tmp_path, files)
        path.write_text(path.read_text().replace("[tune]", f"[tune]\npool_seeds = {str(together).lower()}"))
        found = json.loads(run("evaluate", path, "--json", "--out", tmp_path / "o").out)
        told = found["tuning"]
        assert told.count("settings were tried on") == (1 if together else 2)
        assert told.startswith("for all seeds: " if together else "seed 0: ")
        note = "the seeds share validation lesions"
        assert sum(note in each for each in found["notes"]) == together  # of both seeds, and told once
        assert run("evaluate", path, "--out", tmp_path / "o").out.count(note) == together

    @pytest.mark.parametrize("command", ["tune", "evaluate"])
    def test_one_choice_is_judged_on_seeds_that_had_no_say(self, run, tmp_path, command):
        arrays = seed_arrays()
        own = arrays["split"] != 2  # the test lesions are shared
        files = [
            write_outputs(
                tmp_path / f"net_joint_seed{i}.npz",
                i,
                group=np.where(own, np.char.add(f"{i}-", arrays["group"]), arrays["group"]),
            )
            for i in (0, 1)
        ]
        path = write_config(tmp_path, files)
        path.write_text(path.read_text().replace("[tune]", "[tune]\npool_seeds = true"))
        ran = run(command, path, "--out", tmp_path / "o")
        assert "chosen without the seed that it is judged on, 400 rows" in " ".join(ran.out.split())

    def test_the_sign_flip_test_takes_seeds_of_a_lesion_together(self, run, tmp_path):
        """The same run twice doubles every lesion's difference: the flips' p-value must not shrink."""
        first = write_outputs(tmp_path / "net_joint_seed0.npz")
        second = write_outputs(tmp_path / "net_joint_seed1.npz")
        found = json.loads(
            run("evaluate", write_config(tmp_path, [first, second]), "--json", "--out", tmp_path / "o").out
        )
        alone = found["by_seed"]["0"]["gate"]
        assert found["gate"]["sign_flip_p"] == pytest.approx(alone["sign_flip_p"])
        assert found["gate"]["fixed"] == 2 * alone["fixed"]

    def test_the_order_of_test_rows_does_not_matter(self, run, tmp_path):
        """Without groups a row is known by its id, and not by its place in the file."""
        arrays: dict[str, Any] = seed_arrays(1)
        straight = np.arange(len(arrays["y"]))
        test = straight[arrays["split"] == 2]
        mixed = np.concatenate([straight[arrays["split"] != 2], np.random.default_rng(0).permutation(test)])
        found: list[dict[str, Any]] = []
        for rows in (straight, mixed):
            folder = tmp_path / str(len(found))
            folder.mkdir()
            files = [folder / f"net_seed{seed}.npz" for seed in (0, 1)]
            save_problem(files[0], leave_out=("group",))
            np.savez(files[1], **{key: array[rows] for key, array in arrays.items() if key != "group"})
            path = write_config(folder, files)
            found.append(json.loads(run("evaluate", path, "--json", "--out", folder / "o").out))
        first, other = (each["paired"]["logit_adjusted"] for each in found)
        assert other["sign_flip_p"] == pytest.approx(first["sign_flip_p"])
        assert other["accuracy"]["interval"] == pytest.approx(first["accuracy"]["interval"])
        assert found[0]["gate"]["sign_flip_p"] == pytest.approx(found[1]["gate"]["sign_flip_p"])

    def test_subgroups_from_a_table(self, run, tmp_path):
        file = write_outputs(tmp_path / "a.npz")
        ids = make_problem(0).test.ids
        lines = ["image_id,sex", *(f"{name},{'f' if i % 2 else 'm'}" for i, name in enumerate(ids))]
        (tmp_path / "meta.csv").write_text("\n".join(lines))
        path = write_config(tmp_path, [file], 'subgroups = ["sex"]\nmetadata = "meta.csv"')  # beside the config
        found = json.loads(run("evaluate", path, "--json", "--out", tmp_path / "o").out)
        assert {name: part["n"] for name, part in found["subgroups"]["sex"].items()} == {"f": 80, "m": 80}

    def test_subgroups_from_the_outputs(self, run, tmp_path):
        site = np.array(["arm", "leg"] * 300)
        path = write_config(tmp_path, [write_outputs(tmp_path / "a.npz", site=site)], 'subgroups = ["site"]')
        found = json.loads(run("evaluate", path, "--json", "--out", tmp_path / "o").out)
        assert list(found["subgroups"]["site"]) == ["arm", "leg"]


class TestExperiments:
    def test_ablate(self, run, config, tmp_path):
        ran = run("ablate", config, "--out", tmp_path / "out")
        assert ran.code == 0, ran.err
        rows = json.loads((tmp_path / "out" / "ablation.json").read_text())["rows"]
        assert [row["seeds"] for row in rows] == [1, 1, 2, 2, 2, 2]
        assert rows[0]["accuracy"]["std"] is None
        assert rows[2]["accuracy"]["std"] is not None
        assert rows[5]["paper_accuracy"]["mean"] == 0.9020
        assert rows[0]["fixed"] == rows[0]["broken"] == 0
        assert "One seed has no standard deviation." in (tmp_path / "out" / "ablation.md").read_text()

    def test_ablate_without_a_ce_training(self, run, tmp_path):
        path = write_config(tmp_path, [write_outputs(tmp_path / "mine.npz")])
        ran = run("ablate", path, "--json", "--out", tmp_path / "out")
        found = json.loads(ran.out)
        assert [row["accuracy"] == "no outputs" for row in found["rows"]] == [True, True, False, False, False, False]
        assert any("trained without the contrastive loss" in note for note in found["notes"])

    def test_sweep(self, run, tmp_path):
        path = write_config(tmp_path, [write_outputs(tmp_path / "net_joint_seed0.npz")])
        ran = run("sweep", path, "--out", tmp_path / "out")
        assert ran.code == 0, ran.err
        for name in ("theta", "beta", "alpha", "K", "kappa", "tau", "D", "lambda", "summary"):
            for suffix in TABLE_FORMS:
                assert (tmp_path / "out" / "sweep" / f"sweep_{name}.{suffix}").stat().st_size
        for name in ("sweep_theta", "sweep_beta", "sweep_others", "surface"):
            assert (tmp_path / "out" / "sweep" / f"{name}_net_joint_seed0.png").read_bytes().startswith(PNG)
        rows = json.loads((tmp_path / "out" / "sweep" / "sweep_theta.json").read_text())["rows"]
        for split in ("validation", "test"):
            opened = [row["opened"] for row in rows if row["split"] == split]
            assert opened == sorted(opened)  # raising theta opens the gate more often

    @pytest.mark.parametrize("how", ["dataset", "source"])
    def test_reproduce(self, run, config, tmp_path, how):
        arguments = ("ham10000", config) if how == "dataset" else (config, "--set", "data.source=ham10000:")
        ran = run("reproduce", *arguments, "--out", tmp_path / "out")
        assert ran.code == 0, ran.err
        table = json.loads((tmp_path / "out" / "table_ham10000.json").read_text())
        assert len(table["rows"]) == 12  # the paper's five backbones and ours, without and with
        assert "the split of the saved outputs" in table["title"]
        ours = table["rows"][-2:]
        assert [row["method"] for row in ours] == ["net", "with T-DuMpRa"]
        assert ours[0]["accuracy"]["std"] is None
        assert ours[1]["accuracy"]["std"] is not None
        gain = 100 * (ours[1]["accuracy"]["mean"] / ours[0]["accuracy"]["mean"] - 1)
        assert ours[1]["delta"] == f"{gain:+.2f}%"
        assert table["rows"][0]["accuracy"] == "not run"
        assert table["rows"][1]["paper_delta"] == "+1.72%"

    def test_a_plan_needs_no_more_than_the_tables(self, run, tmp_path, monkeypatch, ham_folder):
        monkeypatch.chdir(tmp_path)
        for part in ham_folder.glob("HAM10000_images_part_*"):
            shutil.rmtree(part)
        planned = json.loads(run("reproduce", "ham10000", "--data", ham_folder, "--plan", "--json").out)
        assert len(planned["cells"]) == 30  # five backbones, without and with, three seeds
        assert planned["seconds"] is None
        assert not Path("runs").exists()

    @pytest.mark.parametrize("command", ["reproduce", "run"])
    def test_a_plan_without_images_does_not_promise_a_run(self, run, tmp_path, monkeypatch, ham_folder, command):
        monkeypatch.chdir(tmp_path)
        Path("run.toml").write_text(f'[data]\nsource = "ham10000:{ham_folder}"\n')
        for part in ham_folder.glob("HAM10000_images_part_*"):
            shutil.rmtree(part)
        (note,) = [line for line in run(command, "run.toml", "--plan").out.splitlines() if "8 of 8" in line]
        assert "would be refused" in note
        assert "unpack" not in note
        (ham_folder / "HAM10000_images_part_1.zip").touch()
        ran = run(command, "run.toml", "--plan", "--json")
        assert ran.code == 0
        (note,) = [note for note in json.loads(ran.out)["notes"] if "8 of 8" in note]
        assert "unpack HAM10000_images_part_1.zip" in note
        if command == "reproduce":
            assert "unpack HAM10000_images_part_1.zip" in run(command, "run.toml").err

    def test_tables_fit_on_a_narrow_screen(self, run, config, tmp_path):
        wide, narrow = (run("reproduce", "ham10000", config, "--out", tmp_path / "out", columns=c) for c in (200, 80))
        assert "0.8800 ± 0.0032" in wide.out
        table = narrow.out[: narrow.out.index("• ")].splitlines()
        assert max(map(len, table)) <= 80
        assert sum(line.startswith(" with T-DuMpRa ") for line in table) == 6
        assert not any("±" in line for line in table)
        rows = table[next(i for i, line in enumerate(table) if "───" in line) + 1 :]
        assert len([line for line in rows if line.strip()]) == 12  # a line for each row
        assert "Standard deviations do not fit on this screen; the files have them." in narrow.out

    def test_plan_runs_nothing_and_knows_what_is_finished(self, run, config, tmp_path):
        planned = json.loads(run("ablate", config, "--plan", "--json", "--out", tmp_path / "out").out)
        assert len(planned["cells"]) == 10
        assert planned["seconds"] > 0
        assert not (tmp_path / "out").exists()
        run("ablate", config, "--out", tmp_path / "out")
        ran = run("ablate", config, "--plan", "--out", tmp_path / "out")
        assert "10 of 10 cells are finished; 0 would run" in ran.out

    def test_a_second_run_computes_nothing(self, run, config, tmp_path, monkeypatch):
        run("reproduce", "ham10000", config, "--out", tmp_path / "out")
        before = (tmp_path / "out" / "table_ham10000.csv").read_text()
        monkeypatch.setattr("tdumpra.experiments.reproduce.score", lambda *_, **__: pytest.fail("computed again"))
        assert run("reproduce", "ham10000", config, "--out", tmp_path / "out").code == 0
        assert (tmp_path / "out" / "table_ham10000.csv").read_text() == before

    def test_without_matplotlib(self, run, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        path = write_config(tmp_path, [write_outputs(tmp_path / "a.npz")])
        ran = run("evaluate", path, "--out", tmp_path / "out")
        assert ran.code == 0
        assert "No figures: drawing figures needs matplotlib: install it with  pip install 'tdumpra[report]'" in ran.out
        assert (tmp_path / "out" / "evaluation.json").exists()


class TestMistakes:
    @pytest.mark.parametrize("command", ["tune", "evaluate", "sweep"])
    def test_no_outputs(self, run, tmp_path, command):
        path = tmp_path / "run.toml"
        path.write_text('name = "x"\n')
        ran = run(command, path, "--out", tmp_path / "out")
        assert ran.code == 2
        assert "does not exist: run tdumpra train and tdumpra embed first" in ran.err

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('[tune]\nobjectiv = "nll"', "unknown key tune.objectiv; did you mean 'objective'?"),
            ("[tune]\nfolds = 1", "folds must be 0, or at least 2"),
            ("[tune]\nfolds = 3\ncertify = true", "certify and folds exclude each other"),
            ("[tune]\ntraining_rows = true", "training_rows is for cross-fitting"),
            ('[tune]\nobjective = "cost"', "the objective cost needs costs"),
            ("[tune]\ncosts = [[0, 1], [1, 0]]", "costs are given for 2 classes where there are 4"),
            ('[evaluate]\nsubgroups = ["sex"]', "subgroups names 'sex'; the outputs carry no metadata columns"),
            ('[evaluate]\nmetadata = "nowhere.csv"', "nowhere.csv is not a readable .csv table"),
        ],
    )
    def test_one_line_and_exit_code_two(self, run, tmp_path, text, message):
        file = write_outputs(tmp_path / "a.npz")
        path = tmp_path / "run.toml"
        path.write_text(f"outputs = [{json.dumps(str(file))}]\n{text}\n")
        ran = run("evaluate", path, "--out", tmp_path / "out")
        assert ran.code == 2
        assert message in ran.err
        assert ran.err.count("\n") == 1

    def test_seeds_with_other_classes(self, run, tmp_path):
        files = [write_outputs(tmp_path / f"net_joint_seed{c}.npz", n_classes=c) for c in (4, 5)]
        ran = run("evaluate", write_config(tmp_path, files), "--out", tmp_path / "out")
        assert ran.code == 2
        assert "has 5 classes and" in ran.err

    @pytest.mark.parametrize("command", ["tune", "evaluate"])
    def test_seeds_that_are_pooled_with_classes_in_another_order(self, run, tmp_path, command):
        files = [
            write_outputs(tmp_path / f"net_joint_seed{i}.npz", i, classes=list(names))
            for i, names in enumerate(("abcd", "abdc"))
        ]
        path = write_config(tmp_path, files)
        path.write_text(path.read_text().replace("[tune]", "[tune]\npool_seeds = true"))
        ran = run(command, path, "--out", tmp_path / "out")
        assert ran.code == 2
        assert f"{files[1]} has the classes a, b, d, c, and {files[0]} has a, b, c, d" in ran.err

    def test_seeds_with_other_test_rows(self, run, tmp_path):
        arrays: dict[str, Any] = seed_arrays(1)
        kept = np.arange(len(arrays["y"])) != len(arrays["y"]) - 1
        np.savez(tmp_path / "net_seed1.npz", **{name: array[kept] for name, array in arrays.items()})
        files = [save_problem(tmp_path / "net_seed0.npz"), tmp_path / "net_seed1.npz"]
        ran = run("evaluate", write_config(tmp_path, files), "--out", tmp_path / "out")
        assert ran.code == 2
        assert f"{files[1]} and {files[0]} differ in the number of test rows (159 and 160)" in ran.err
        assert not (tmp_path / "out").exists()  # before the work, not after it

    def test_outputs_in_place_of_a_configuration(self, run, tmp_path):
        ran = run("evaluate", write_outputs(tmp_path / "a.npz"))
        assert (ran.code, "for saved outputs there is tdumpra attach" in ran.err) == (2, True)

    @pytest.mark.parametrize("source", ["folder:pictures", "synthetic:", ""])
    @pytest.mark.parametrize("named", [(), ("ham10000",)])
    def test_a_source_that_the_paper_does_not_know(self, run, tmp_path, monkeypatch, source, named):
        monkeypatch.chdir(tmp_path)
        Path("run.toml").write_text(f'[data]\nsource = "{source}"\n' if source else "")
        for plan in (("--plan",), ()):
            ran = run("reproduce", *named, "run.toml", *plan)
            assert (ran.code, ran.err.count("\n")) == (2, 1)
            assert "the paper has tables for ham10000 and isic2019" in ran.err
        assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]

    def test_saved_outputs_of_nobody_knows_what(self, run, config, tmp_path):
        ran = run("reproduce", config, "--out", tmp_path / "out")
        assert (ran.code, "tdumpra reproduce ham10000 CONFIG" in " ".join(ran.err.split())) == (2, True)
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("ham10000",), "needs its images: give their folder with --data DIR"),
            (("ham10000", "--plan"), "needs its images"),
            (("ham10000", "--data", "nowhere"), "nowhere"),
            (("isic2019", "--data", "ham"), "ISIC_2019"),
            (("ham10000", "--data", "ham", "--weights", "ViT-C=none"), "did you mean 'ViT-B'"),
            (
                ("ham10000", "--data", "ham", "--set", "data.source=synthetic:"),
                "ham10000-paper is synthetic",
            ),
            (("ham10000", "--data", "ham", "--set", "data.group_by=sex"), "data.group_by"),
            (("ham10000", "--data", "ham", "--set", "data.protocol=external", "--plan"), "isic2018-task3:DIR"),
        ],
    )
    def test_reproduce_without_its_data(self, run, tmp_path, monkeypatch, ham_folder, arguments, message):
        monkeypatch.chdir(tmp_path)
        ran = run("reproduce", *arguments)
        assert (ran.code, ran.err.count("\n")) == (2, 1)
        assert message in ran.err
        assert [path.name for path in tmp_path.iterdir()] == ["ham"]

    def test_weights_that_cannot_be_had_are_told_before_anything_is_written(
        self, run, tmp_path, monkeypatch, ham_folder
    ):
        def offline(*_: Any) -> None:
            raise HubError("no network")

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("tdumpra.networks.build.build_network", offline)
        ran = run("reproduce", "ham10000", "--data", ham_folder)
        assert ran.code == 2
        assert "--weights ConvNeXt-Tiny=FILE" in ran.err
        assert [path.name for path in tmp_path.iterdir()] == ["ham"]

    def test_a_missing_file_and_a_wrong_table(self, run, tmp_path):
        ran = run("evaluate", write_config(tmp_path, [tmp_path / "gone.npz"]), "--out", tmp_path / "out")
        assert (ran.code, "gone.npz" in ran.err) == (2, True)
        ran = run("reproduce", "cifar10", "--out", tmp_path / "out")
        assert (ran.code, "reproduce takes ham10000 or isic2019" in ran.err) == (2, True)

    def test_validation_without_a_class_is_said(self, run, tmp_path):
        problem = make_problem(0)
        rows = [np.concatenate(column) for column in zip(*problem, strict=True)]
        split = np.repeat([0, 1, 2], [len(part.y) for part in problem])
        kept = ~((split == 1) & (rows[2] == 3))
        arrays = dict(zip(("p", "z", "y", "group", "id", "split"), [*rows, split], strict=True))
        np.savez(tmp_path / "a.npz", **{name: array[kept] for name, array in arrays.items()})
        ran = run("tune", write_config(tmp_path, [tmp_path / "a.npz"]), "--out", tmp_path / "out")
        assert ran.code == 0
        assert "validation has no row of class 3" in ran.out


@pytest.mark.skipif(len(REAL) < 2, reason=f"needs the real outputs in {OUTPUTS.name}; set TDUMPRA_OUTPUTS")
class TestRealOutputs:
    @pytest.fixture
    def real(self, tmp_path: Path) -> Path:
        return write_config(tmp_path, REAL, preset="default")

    def test_evaluate(self, run, real, tmp_path):
        found = json.loads(run("evaluate", real, "--json", "--out", tmp_path / "out").out)
        ce, joint = found["models"]["lite0_ce"], found["models"]["lite0_joint"]
        assert ce["comparators"]["student"]["accuracy"] == pytest.approx(0.8137, abs=5e-5)
        assert joint["comparators"]["student"]["accuracy"] == pytest.approx(0.8164, abs=5e-5)
        assert ce["comparators"]["oracle"]["accuracy"] > joint["comparators"]["oracle"]["accuracy"]

    def test_ablate_and_reproduce(self, run, real, tmp_path):
        assert run("ablate", real, "--out", tmp_path / "out").code == 0
        assert run("reproduce", "isic2019", real, "--out", tmp_path / "out").code == 0
        assert (tmp_path / "out" / "table_isic2019.tex").exists()

    @pytest.mark.slow
    def test_sweep(self, run, real, tmp_path):
        assert run("sweep", real, "--out", tmp_path / "out").code == 0
        assert (tmp_path / "out" / "sweep" / "sweep_others_lite0_ce_seed0.png").exists()
