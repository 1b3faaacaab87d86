"""Writes that are done once: a request with a key that was seen before gets the answer that it got then."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import delete
from sqlalchemy.orm import Session

from tdumpra.server.refusals import RefusedError
from tdumpra.server.tables import Answer

REMEMBERED_DAYS = 7  # of a key: whoever tries again does so within minutes
_KEY = re.compile(r"[\x21-\x7e]{1,200}")


class Once:
    """One write of one account: its key, if it has one, and a digest of what was asked."""

    def __init__(self, account: str, key: str | None, *asked: bytes | str) -> None:
        if key is not None and not _KEY.fullmatch(key):
            raise RefusedError(400, "an Idempotency-Key has 1 to 200 visible ASCII characters")
        self._account, self._key = account, key
        digest = hashlib.sha256()
        for part in asked:
            data = part.encode() if isinstance(part, str) else part
            digest.update(len(data).to_bytes(8, "little") + data)
        self._request = digest.hexdigest()

    def earlier(self, session: Session) -> Any:
        """Return what the same request was answered before, or ``None``; refuse another request under its key."""
        if self._key is None:
            return None
        found = session.get(Answer, (self._account, self._key))
        if found is None:
            return None
        if found.request != self._request:
            raise RefusedError(409, f"the Idempotency-Key {self._key!r} was used for another request")
        return json.loads(found.body)

    def keep(self, session: Session, body: Any) -> None:
        """Remember the answer, in the transaction of the write itself."""
        if self._key is not None:
            text = json.dumps(body, ensure_ascii=False)
            session.execute(delete(Answer).where(Answer.created_at < _days_ago(REMEMBERED_DAYS)))
            session.add(Answer(account_id=self._account, key=self._key, request=self._request, body=text))


def _days_ago(days: int) -> str:
    return (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="milliseconds")
