from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support import output_files

from tdumpra.data.images.framing import Framing
from tdumpra.runs.config import Config, DataConfig, EmbedConfig, NetworkConfig, TrainConfig, TuneConfig, read_config
from tdumpra.runs.idle_settings import idle_settings

SAVED = Config(outputs=output_files("net_joint_seed0.npz"))


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(seeds=(1, 2), train=TrainConfig(epochs=3), tune=TuneConfig(pool_seeds=True)),
        SAVED,
        replace(SAVED, tune=TuneConfig(preset="paper")),
        replace(SAVED, data=DataConfig(source="isic2019:x"), train=TrainConfig(contrastive_weight=0.0)),
        replace(SAVED, outputs=output_files("a_seed0.npz", "a_seed1.npz"), tune=TuneConfig(pool_seeds=True)),
        replace(read_config(None, changes=["recipe=paper"]), outputs=SAVED.outputs),
    ],
)
def test_nothing_to_say(config):
    assert list(idle_settings(config)) == []


def test_settings_of_training_beside_saved_outputs():
    train = TrainConfig(epochs=3, contrastive_weight=0.1)
    config = replace(SAVED, seeds=(4,), train=train, embed=EmbedConfig(views=2))
    assert list(idle_settings(config)) == ["outputs are saved ones: seeds, train.epochs, embed.views do nothing here"]
    alone = replace(SAVED, train=TrainConfig(precision="bf16-mixed"))
    assert list(idle_settings(alone)) == ["outputs are saved ones: train.precision does nothing here"]


def test_images_that_are_kept_smaller_than_the_network_takes_them():
    small = Config(data=DataConfig(framing=Framing(height=64, width=48)))
    (note,) = idle_settings(small)
    assert "64×48" in note
    assert "224" in note
    assert not list(idle_settings(replace(small, network=NetworkConfig(image_size=64))))
    assert not list(idle_settings(Config(data=DataConfig(framing=Framing(height=192, width=256)))))


@pytest.mark.parametrize("outputs", [(), output_files("a_seed0.npz"), output_files("a_seed0.npz", "b_seed0.npz")])
def test_one_seed_to_pool(outputs):
    (note,) = idle_settings(Config(outputs=outputs, tune=TuneConfig(pool_seeds=True)))
    assert note.startswith("tune.pool_seeds has one seed to pool")


@pytest.mark.parametrize("chosen", [{"hold_out": "site=wien"}, {"outer_folds": 5}])
def test_a_share_of_a_test_that_is_not_drawn(chosen):
    (note,) = idle_settings(Config(data=DataConfig(test_share=0.3, **chosen)))
    assert note.startswith(f"data.test_share does nothing here: data.{next(iter(chosen))}")
    assert not list(idle_settings(Config(data=DataConfig(**chosen))))


def test_folds_are_not_seeds_to_pool():
    (note,) = idle_settings(Config(data=DataConfig(outer_folds=2), tune=TuneConfig(pool_seeds=True)))
    assert note.startswith("tune.pool_seeds has one seed to pool")
