"""Write the description of the server's API:  python -m sitegen.openapi"""

from __future__ import annotations

import json
from pathlib import Path

from tdumpra.server.app import openapi

PLACE = Path(__file__).parents[1] / "docs" / "openapi.json"


def text() -> str:
    """The document as it lies in the repository."""
    return json.dumps(openapi(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PLACE.write_text(text(), encoding="utf-8")
