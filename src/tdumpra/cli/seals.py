"""The commands ``seal`` and ``verify``: tell one's own models from anyone's, and an export from its model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tdumpra.cli.export import CompareOption, verify_export
from tdumpra.cli.options import JsonOption, TrustOption
from tdumpra.screen import say

FilesArgument = Annotated[
    list[Path], typer.Argument(help="Models, or any other files.", show_default=False, metavar="FILE...")
]
_KEY = "File of the secret key: 32 random bytes."


def register(app: typer.Typer, panel: str) -> None:
    """Add the two commands to the command line."""

    @app.command("seal", rich_help_panel=panel)
    def seal(
        files: FilesArgument,
        key: Annotated[Path, typer.Option("--key", help=_KEY, show_default=False, metavar="KEY")],
    ) -> None:
        """Seal files with a secret key: writes FILE.seal beside each."""
        from tdumpra.seals import read_key, seal_file

        secret = read_key(key)
        for path in files:
            say(f"Written: {seal_file(path, secret)}")

    @app.command("verify", rich_help_panel=panel)
    def verify(
        files: Annotated[
            list[Path],
            typer.Argument(
                help="A model and its export, or with --key any files.", show_default=False, metavar="FILE..."
            ),
        ],
        key: Annotated[Path | None, typer.Option("--key", help=_KEY, show_default=False, metavar="KEY")] = None,
        images: CompareOption = None,
        int8: Annotated[
            bool, typer.Option("--int8", help="The export is quantised, and known to be another model.")
        ] = False,
        as_json: JsonOption = False,
        trust: TrustOption = None,
    ) -> None:
        """Check a model's seal, and that its export predicts as it does; with --key, who sealed files."""
        from tdumpra.runtime.exported import is_exported

        if key is not None:
            from tdumpra.seals import read_key, verify_file

            secret = read_key(key)
            for path in files:
                verify_file(path, secret)
                if not as_json:
                    say(f"{path} was sealed with this key")
        if len(files) == 2 and is_exported(files[1]):
            verify_export(files[0], files[1], images, int8=int8, as_json=as_json, trusted=trust or [])
        elif key is None:
            if len(files) > 1:
                raise ValueError("verify takes a model, or a model and its export (*.onnx, *.xml), or files with --key")
            _verify_model(files[0])


def _verify_model(path: Path) -> None:
    """Check the seal that a model, or an export, carries of its own bytes."""
    from tdumpra.runtime.exported import is_exported, read_exported

    if is_exported(path):
        read_exported(path)
    else:
        from tdumpra.cli.predict import model_file
        from tdumpra.networks.model_file import Model

        Model.read(model_file(path))
    say(f"{path} is whole: its bytes are those that were sealed when it was written")
