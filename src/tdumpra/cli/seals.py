"""The commands ``seal`` and ``verify``: tell one's own models from anyone's, and whole histories from broken ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tdumpra.screen import say

FilesArgument = Annotated[
    list[Path], typer.Argument(help="Models, or any other files.", show_default=False, metavar="FILE...")
]
_KEY_HELP = "File of the secret key: 32 random bytes."
KeyOption = Annotated[Path, typer.Option("--key", help=_KEY_HELP, show_default=False, metavar="KEY")]
MaybeKeyOption = Annotated[
    Path | None,
    typer.Option("--key", help=f"{_KEY_HELP} Without it, models alone are checked.", show_default=False, metavar="KEY"),
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
    def verify(files: FilesArgument, key: MaybeKeyOption = None) -> None:
        """Check that files were sealed with a secret key and are unchanged since, and that models' histories hold."""
        from tdumpra.seals import read_key, verify_file

        secret = None if key is None else read_key(key)
        for path in files:
            if secret is not None:
                verify_file(path, secret)
                say(f"{path} was sealed with this key")
        from tdumpra.cli.history import verify_histories

        for sentence in verify_histories(files, every=secret is None):
            say(sentence)
