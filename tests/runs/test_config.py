"""The settings of a run: defaults, TOML, and the sentence for what cannot be."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tdumpra.runs.config import Config, NetworkConfig, OutputFile, TrainConfig, config_text, read_config
from tdumpra.toml import ConfigError, to_toml


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def test_an_empty_file_is_the_default(tmp_path):
    assert read_config(write(tmp_path, "")) == Config()  # whose name is that of the file, run.toml


def test_a_run_without_a_name_is_called_after_its_file(tmp_path):
    path = tmp_path / "second try.toml"
    path.write_text("seeds = [1]")
    assert read_config(path).name == "second try"
    path.write_text('name = "first"')
    assert read_config(path).name == "first"


def test_the_papers_figures_are_the_defaults():
    train = Config().train
    assert (train.epochs, train.batch_size, train.learning_rate, train.weight_decay) == (20, 64, 1e-4, 1e-4)
    assert (train.contrastive_weight, train.contrastive_temperature, train.ema_momentum) == (0.03, 0.07, 0.999)
    assert train.contrastive_reduction == "mean"
    assert Config().network.embedding == 128
    assert Config().bank.n_prototypes == 5


def test_a_recipe_fills_what_the_file_leaves_out(tmp_path):
    text = 'recipe = "paper"\n[train]\nepochs = 3\n[data.framing]\nheight = 96\n[network]\nimage_size = 96\n'
    config = read_config(write(tmp_path, text), changes=["train.schedule=cosine"])
    assert config.recipe == "paper"
    assert (config.train.epochs, config.train.schedule) == (3, "cosine")  # the file's and the command line's win
    assert (config.data.framing.height, config.data.framing.width, config.network.image_size) == (96, 224, 96)
    assert (config.train.warmup_epochs, config.train.ema_warmup) == (0.0, False)
    assert config.train.contrastive_reduction == "sum"
    assert (config.data.protocol, config.tune.preset, config.seeds) == ("paper", "paper", (0, 1, 2))


def test_a_recipe_lies_below_the_files_that_are_extended(tmp_path):
    (tmp_path / "base.toml").write_text("seeds = [7]\n[train]\nepochs = 3\n")
    config = read_config(write(tmp_path, 'extends = "base.toml"\nrecipe = "paper"\n'))
    assert (config.seeds, config.train.epochs, config.train.schedule) == ((7,), 3, "constant")


def test_a_written_recipe_keeps_its_name_and_every_value(tmp_path):
    config = read_config(write(tmp_path, 'recipe = "paper"\n[train]\nepochs = 3\n'))
    text = config_text(config, tmp_path)
    assert 'recipe = "paper"' in text
    assert 'schedule = "constant"' in text
    assert read_config(write(tmp_path, text)) == config
    without = "\n".join(line for line in text.splitlines() if not line.startswith("recipe"))
    assert read_config(write(tmp_path, without)) == replace(config, recipe=None)


@pytest.mark.parametrize("changes", [[], ["recipe=papre"]])
def test_an_unknown_recipe(tmp_path, changes):
    with pytest.raises(ConfigError, match=r"recipe must be one of 'paper', not 'papre'"):
        read_config(write(tmp_path, "" if changes else 'recipe = "papre"'), changes=changes)


def test_without_a_file_the_changes_say_everything():
    assert read_config(None) == Config()
    assert read_config(None, changes=["name=x", "train.epochs=2"], seeds=(3,)).seeds == (3,)
    with pytest.raises(ConfigError, match=r"--set train\.epochs=0: "):
        read_config(None, changes=["train.epochs=0"])


def test_what_is_written_reads_back_the_same(tmp_path):
    config = read_config(
        write(
            tmp_path,
            """
            name = "Müller's [run]"
            seeds = [0, 1, 2]
            [data]
            source = "folder:/data/a\\\\b"
            framing = {height = 192, width = 256, fit = "crop", lesion_margin = 0.2}
            [network]
            mean = [0.1, 0.2, 0.3]
            [train]
            learning_rate = 1
            clip_norm = 1e-3
            """,
        )
    )
    assert config.train.learning_rate == 1.0
    assert config.data.source == "folder:/data/a\\b"
    again = tmp_path / "again.toml"
    again.write_text(to_toml(config), encoding="utf-8")
    assert read_config(again) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nlearning_rat = 1", r"unknown key train\.learning_rat; did you mean 'learning_rate'\?"),
        ("[trian]\nepochs = 1", r"unknown key trian; did you mean 'train'\?"),
        ("[train]\nepochs = 1.5", r"train\.epochs must be a whole number, not 1\.5"),
        ("[train]\nepochs = true", r"train\.epochs must be a whole number, not True"),
        ("[train]\nepochs = 0", r"\[train\] epochs must be at least 1, not 0"),
        ('[train]\nprecision = "fp8"', r"train\.precision must be one of '32-true', .*, not 'fp8'"),
        ("[train]\nema_momentum = 1.0", r"\[train\] ema_momentum must be at least 0 and below 1, not 1\.0"),
        ("[train]\nweight_decay = -1.0", r"\[train\] weight_decay must be 0 or more, not -1\.0"),
        ("[train]\ncontrastive_weight = nan", r"contrastive_weight must be 0 or more, not nan"),
        ("[sweep]\ncontrastive_weights = [0.1, -1.0]", r"contrastive_weights must be 0 or more, not \[0.1, -1.0\]"),
        ("[sweep]\ncontrastive_weights = [1, 1.0]", r"contrastive_weights must differ from each other"),
        ("[train]\nclip_norm = 0", r"\[train\] clip_norm must be a finite number above 0"),
        ("[train]\nlabel_smoothing = 2.0", r"label_smoothing must lie between 0 and 1"),
        ("[train]\ntrain_on_val = true", r"train\.train_on_val is gone.*train\.refit"),
        ('outputs = ["a.npz"]\n[train]\nrefit = true', "train.refit trains a second network, and outputs are saved"),
        ('[network]\nfinished = true\nweights = "timm"\n[train]\nrefit = true', "train.refit .* taken as it is"),
        ('[network]\nfrozen = true\nweights = "timm"\n[train]\nrefit = true', "train.refit .* taken as it is"),
        ("[train]\nrefit = true\n[tune]\nfolds = 5", "train.refit .* tune.folds"),
        ("[train]\nrefit = true\n[tune]\ncertify = true", "tune.certify .* train.refit"),
        ("[train]\nrefit = true\n[evaluate]\ntuning_replicates = 100", "evaluate.tuning_replicates .* train.refit"),
        ("[network]\nimage_size = 2", r"\[network\] image_size must be at least 8, not 2"),
        ("[network]\nmean = [0.5]", r"network\.mean must have 3 entries, not 1"),
        ("[data]\nworkers = -1", r"\[data\] workers must be at least 0"),
        ("[data]\nframing = 224", r"data\.framing must be a table"),
        ("[embed]\nbatch_size = 0", r"\[embed\] batch_size must be at least 1"),
        ("[bank]\nn_prototypes = 0", r"\[bank\] n_prototypes must be at least 1"),
        ("[augment]\nsize = 128", r"unknown key augment\.size"),
        ("[evaluate]\nseed = -1", r"evaluate\.seed must be at least 0, not -1"),
        ('name = ""', r"name is the name of a folder, .*, not ''"),
        ('name = ".."', r"name is the name of a folder, .*, not '\.\.'"),
        ('name = "../../x"', r"name is the name of a folder, .*, not '\.\./\.\./x'"),
        ("name = 'a\\b'", "name is the name of a folder"),
        ('outputs = [{file = "a.npz", backbone = "../x"}]', "backbone is the name of a folder"),
        ("seeds = []", "seeds must name at least one seed"),
        ("seeds = [1, 1]", "seeds must differ from each other"),
        ("seeds = [-1]", "a seed must be at least 0, not -1"),
        (
            "[network]\nfinished = true\nfrozen = true",
            "finished is a trained classifier, frozen a backbone",
        ),
        (
            '[network]\nfinished = true\nweights = "none"\nbackbone = "resnet18"',
            r"\[network\] finished takes 'resnet18' as it is, which is random without weights: name some",
        ),
        ('[network]\nfrozen = true\nweights = "none"', "frozen takes 'tf_efficientnet_lite0' as it is"),
        ("[embed]\nviews = 3", r"embed\.views must be one of 1, 2, 4, 8, not 3"),
        ('[data]\nval_by_seed = true\nsplit_file = "split.json"', "val_by_seed draws validation anew for each seed"),
        ("[tune]\npool_seeds = true\nfolds = 3", "pool_seeds excludes certify and folds"),
        ("[tune]\npool_seeds = true\ncertify = true", "pool_seeds excludes certify and folds"),
        ('[tune]\ncertify_classes = ["mel"]', "certify_classes is for certificates: set certify too"),
        ("[tune]\ncertify = true\nclass_harm = 2", "class_harm must lie between 0 and 1"),
        ('[tune]\npreset = "balancing"', r"tune\.preset must be one of 'default', .*'rebalancing', not 'balancing'"),
        ("name = ", "is not valid TOML"),
    ],
)
def test_what_cannot_be_is_said_with_its_key_and_file(tmp_path, text, message):
    with pytest.raises(ConfigError, match=rf"run\.toml.*{message}"):
        read_config(write(tmp_path, text))


def test_a_factory_may_bring_its_own_weights():
    assert NetworkConfig(backbone="mine:make", weights="none", finished=True).as_it_is


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml: No such file"):
        read_config(tmp_path / "none.toml")


def test_a_name_that_is_no_folder_may_hold_what_it_likes():
    assert Config(name="ham/lite0", folder="x").name == "ham/lite0"
    for name in ("ham/lite0", "a:b", " a "):
        with pytest.raises(ValueError, match="name is the name of a folder"):
            Config(name=name)


def test_an_empty_folder_is_no_place():
    with pytest.raises(ValueError, match="folder is where the run lives"):
        Config(folder=" ")


@pytest.fixture
def two_files(tmp_path, monkeypatch):
    """A configuration in ``study/``, which extends one in ``study/base/``, seen from above both."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study" / "base").mkdir(parents=True)
    (tmp_path / "study" / "base" / "base.toml").write_text(
        """
        outputs = ["a.npz", "ce=../b.npz"]
        [data]
        source = "csv:cases.csv"
        cache = "runs/cache"
        split_file = "/data/split.json"
        [network]
        weights = "lite"
        [bank]
        space = "runs/other"
        """
    )
    path = Path("study") / "run.toml"
    path.write_text('extends = "base/base.toml"\n[data]\ntest_source = "folder:images"\nduplicates = "../pairs.csv"')
    return path


def test_relative_paths_count_from_the_file_that_names_them(two_files):
    config = read_config(two_files)
    assert config.data.source == "csv:study/base/cases.csv"
    assert config.data.test_source == "folder:study/images"
    assert config.data.duplicates == "pairs.csv"
    assert config.outputs == (
        OutputFile(file="study/base/a.npz"),
        OutputFile(file="study/b.npz", training="ce"),
    )
    assert (config.data.split_file, config.network.weights) == ("/data/split.json", "lite")
    assert (config.data.cache, config.bank.space) == ("runs/cache", "runs/other")  # where runs write


def test_a_written_configuration_means_the_same_from_anywhere(two_files, tmp_path, monkeypatch):
    config = read_config(two_files)
    kept = tmp_path / "runs" / "one" / "config.toml"
    kept.parent.mkdir(parents=True)
    kept.write_text(config_text(config, Path("runs") / "one"))
    assert read_config(kept) == read_config("runs/one/config.toml") == config
    monkeypatch.chdir(kept.parent)
    assert read_config("config.toml").data.source == "csv:../../study/base/cases.csv"


def test_changes_override_the_file(two_files):
    changes = [
        "train.epochs=5", "network.backbone=resnet18", "data.source=folder:mine", "augment.crop_area=[0.5, 1]",
        'name="5"', "train.epochs=7",
    ]  # fmt: skip
    config = read_config(two_files, changes=changes, seeds=(3, 4))
    assert (config.train.epochs, config.network.backbone, config.name, config.seeds) == (7, "resnet18", "5", (3, 4))
    assert config.data.source == "folder:mine"  # from the working folder, where the command is given
    assert config.augment.crop_area == (0.5, 1.0)
    assert config.data.duplicates == "pairs.csv"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("train.epoch=5", "--set train.epoch=5: unknown key train.epoch; did you mean 'epochs'?"),
        ("train.epochs=many", "--set train.epochs=many: train.epochs must be a whole number, not 'many'"),
        ("train.epochs=0", "--set train.epochs=0: [train] epochs must be at least 1, not 0"),
        ("data=3", "--set data=3: data must be a table [data], not 3"),
        ("seeds=[1, 1]", "--set seeds=[1, 1]: seeds must differ from each other"),
        ("train.epochs", "--set takes KEY=VALUE"),
        ("=5", "--set takes KEY=VALUE"),
        ("extends=other.toml", "unknown key extends"),
    ],
)
def test_a_change_has_the_same_errors_as_the_file(two_files, change, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        read_config(two_files, changes=[change])


def test_outputs_as_tables(tmp_path):
    tables = '[[outputs]]\nfile = "/a.npz"\ntraining = "joint"\nseed = 2\nbackbone = "net"\n'
    config = read_config(write(tmp_path, tables))
    assert config.outputs == (OutputFile(file="/a.npz", training="joint", seed=2, backbone="net"),)
    for wrong in (tables.replace("joint", "both"), tables.replace("seed = 2", "seed = -1"), "outputs = [3]"):
        with pytest.raises(ConfigError, match=r"outputs\[0\]"):
            read_config(write(tmp_path, wrong))


def test_a_setting_of_before_that_was_off_changes_nothing(tmp_path):
    (tmp_path / "run.toml").write_text("[train]\ntrain_on_val = false\nepochs = 3")
    assert read_config(tmp_path / "run.toml").train == TrainConfig(epochs=3)
    with pytest.raises(ConfigError, match=r"^--set .*train\.refit"):
        read_config(tmp_path / "run.toml", changes=["train.train_on_val=true"])
