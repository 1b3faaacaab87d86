"""The commands ``seal`` and ``verify``: tell one's own models from anyone's, by a secret key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tdumpra.screen import say

FilesArgument = Annotated[
    list[Path], typer.Argument(help="Models, or any other files.", show_default=False, metavar="FILE...")
]
KeyOption = Annotated[
    Path, typer.Option("--key", help="File of the secret key: 32 random bytes.", show_default=False, metavar="KEY")
]


def register(app: typer.Typer, panel: str) -> None:
    """Add the two commands to the command line."""

    @app.command("seal", rich_help_panel=panel)
    def seal(files: FilesArgument, key: KeyOption) -> None:
        """Seal files with a secret key: writes FILE.seal beside each."""
        from tdumpra.seals import read_key, seal_file  # loads torch, which --help does without

        secret = read_key(key)
        for path in files:
            say(f"Written: {seal_file(path, secret)}")

    @app.command("verify", rich_help_panel=panel)
    def verify(files: FilesArgument, key: KeyOption) -> None:
        """Check that files were sealed with a secret key, and are unchanged since; fails if one was not."""
        from tdumpra.seals import read_key, verify_file

        secret = read_key(key)
        for path in files:
            verify_file(path, secret)
            say(f"{path} was sealed with this key")
