"""Score an archive part by part; what is finished stays finished, whatever ends the process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from tdumpra.runtime.prediction import Prediction
from tdumpra.scoring.fetch import Found, fetch, read_found
from tdumpra.scoring.folder import Part, ScoreFolder
from tdumpra.scoring.listing import Entry
from tdumpra.scoring.rows import predictions_table

if TYPE_CHECKING:
    import pyarrow as pa

    from tdumpra.networks.predict import Predictor


class PartDone(NamedTuple):
    """A part that was just written."""

    part: Part
    broken: int


def score_parts(
    predictor: Predictor,
    folder: ScoreFolder,
    parts: Sequence[Part],
    *,
    on_image: Callable[[], object] = lambda: None,
    on_part: Callable[[PartDone], object] = lambda done: None,
) -> None:
    """Score the parts that are not finished yet. The next part is fetched while this one is predicted."""
    todo = folder.unfinished(parts)
    with TemporaryDirectory(prefix="tdumpra-score-") as scratch, ThreadPoolExecutor(1) as ahead:

        def place(part: Part) -> Path:
            return Path(scratch) / str(part.number)

        coming = [ahead.submit(fetch, folder.entries_of(part), place(part)) for part in todo[:1]]
        for part, following in zip_longest(todo, todo[1:]):
            found = coming.pop().result()
            if following is not None:
                coming.append(ahead.submit(fetch, folder.entries_of(following), place(following)))
            table = score_entries(predictor, folder.entries_of(part), found, folder.plan.embeddings, on_image)
            shutil.rmtree(place(part))
            folder.write_part(part, table)
            on_part(PartDone(part, len(table) - table["error"].null_count))


def score_entries(
    predictor: Predictor,
    entries: Sequence[Entry],
    found: Found,
    embeddings: bool,
    on_image: Callable[[], object] = lambda: None,
) -> pa.Table:
    """Return the rows of some images, which were found."""
    names, predictions = [Path(entry.id) for entry in entries], []
    for each in predictor.predict(names, embeddings=embeddings, read=read_found(found, predictor.framings)):
        predictions.append(each)
        on_image()
    return rows_of(predictor, entries, predictions, embeddings)


def rows_of(
    predictor: Predictor, entries: Sequence[Entry], predictions: Sequence[Prediction], embeddings: bool
) -> pa.Table:
    """Return the rows of some images from what was predicted of them."""
    width = predictor.model.decision.bank.width if embeddings else None
    return predictions_table([entry.id for entry in entries], predictions, predictor.model.class_names, width)
