"""Settings of the data: the section ``[data]`` of a configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tdumpra.checks import check_count
from tdumpra.data.held_out import parse_hold_out
from tdumpra.data.images.framing import Framing
from tdumpra.data.splits import check_test_choice


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Where images come from, how they are split, and at which size they are kept."""

    source: str = "synthetic:"
    test_source: str | None = None  # for the protocol "external"
    protocol: Literal["grouped", "paper", "external"] = "grouped"
    split_seed: int = 0  # apart from the training seed: seeds differ in training, not in test set
    split_file: str | None = None  # read this split instead of drawing one
    hold_out: str | None = None  # "COLUMN=VALUE": all images of that value are the test, and the rest of their groups
    outer_folds: int | None = None  # test every group once, in so many folds; each is trained, tuned and scored apart
    fold: int | None = None  # one of the outer folds, counted from 0; all of them if left out
    test_share: float = 0.2
    val_share: float = 0.1  # of what is not test
    val_by_seed: bool = False  # each seed holds out lesions of its own: more to tune on, if tune.pool_seeds says so
    group_by: str | None = None  # a metadata column instead of the source's own grouping
    duplicates: str | None = None  # a table from_img,to_img of images that show the same thing: their groups are merged
    allow_missing: bool = False
    cache: str = "runs/cache"  # relative to the working folder
    framing: Framing = field(default_factory=Framing)  # of the cached images, from which crops are taken
    pipeline: Literal["auto", "workers", "device"] = "auto"
    workers: int = 2

    def __post_init__(self) -> None:
        check_count(self.workers, "workers", least=0)
        check_count(self.split_seed, "split_seed", least=0)
        check_test_choice(self.protocol, self.hold_out, self.outer_folds, self.fold)
        if self.hold_out is not None:
            parse_hold_out(self.hold_out)
        for name in ("split_file", "test_source"):
            for setting in ("hold_out", "outer_folds"):
                if None not in (getattr(self, name), getattr(self, setting)):
                    raise ValueError(f"{setting} and {name} both say which images are the test: choose one")
        if self.val_by_seed and self.split_file is not None:
            raise ValueError("val_by_seed draws validation anew for each seed, and split_file fixes it: choose one")
