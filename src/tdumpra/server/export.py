"""Decided cases as a data source: a table that ``csv:`` reads, and the images that it names."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterator
from typing import IO, Any

from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session, aliased
from starlette.responses import StreamingResponse

from tdumpra.screen import csv_text
from tdumpra.server.refusals import RefusedError
from tdumpra.server.service import Service
from tdumpra.server.tables import Case, Decision, Opinion

COLUMNS = ("image", "label", "group", "id", "model", "model_label", "classifier_label", "opened", "decided_by")
_BLOCK = 2**16
_IN_MEMORY = 2**20


def rows(session: Session) -> list[tuple[Case, Decision, Opinion]]:
    """Return the cases that are decided and not withdrawn, with their labels and what the model said."""
    newest = aliased(Decision)
    last = select(func.max(newest.number)).where(newest.case_id == Case.id).scalar_subquery()
    found = (
        select(Case, Decision, Opinion)
        .select_from(Case)
        .join(Decision, and_(Decision.case_id == Case.id, Decision.number == last))
        .join(Opinion, and_(Opinion.case_id == Case.id, Opinion.active))
        .where(Case.withdrawn_at.is_(None))
        .order_by(Case.number)
    )
    return [(case, decision, opinion) for case, decision, opinion in session.execute(found)]


def table(found: list[tuple[Case, Decision, Opinion]]) -> str:
    """Return the cases as CSV."""
    lines: list[tuple[Any, ...]] = [COLUMNS]
    for case, decision, opinion in found:
        lines.append(
            (
                f"images/{case.id}.png", decision.label, case.lesion or case.id, f"case-{case.number}",
                opinion.model_id, opinion.label, opinion.classifier, str(opinion.opened).lower(),
                "readers" if decision.agreed else "adjudicator",
            )
        )  # fmt: skip
    return csv_text(lines)


def response(service: Service) -> StreamingResponse:
    """Return a ZIP of the table and its images."""
    with service.database.read() as session:
        found = rows(session)
    if not found:
        raise RefusedError(409, "no case is decided yet: there is nothing to export")
    headers = {"Content-Disposition": 'attachment; filename="cases.zip"'}
    file = tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=str(service.store.incoming))  # noqa: SIM115
    try:
        write(service, found, file)  # before the answer begins: a disk that is full is told
    except BaseException:
        file.close()
        raise
    return StreamingResponse(_blocks(file), media_type="application/zip", headers=headers)


def write(service: Service, found: list[tuple[Case, Decision, Opinion]], file: IO[bytes]) -> None:
    """Write the ZIP; an image that was withdrawn since is left out with its row."""
    kept = []
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for row in found:
            path = service.store.image(row[0].image)
            if path.is_file():
                archive.write(path, f"images/{row[0].id}.png")
                kept.append(row)
        archive.writestr("cases.csv", table(kept))


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        file.seek(0)
        while block := file.read(_BLOCK):
            yield block
