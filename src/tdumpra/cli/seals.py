"""The commands ``seal`` and ``verify``: tell one's own models from anyone's, whole histories from broken ones, and an
export from its model.
"""

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
        from tdumpra.seals import read_key, seal_file

        secret = read_key(key)
        for path in files:
            say(f"Written: {seal_file(path, secret)}")

    @app.command("verify", rich_help_panel=panel)
    def verify(
        files: Annotated[
            list[Path],
            typer.Argument(
                help="Models, or a model and its export; any files with --key.", show_default=False, metavar="FILE..."
            ),
        ],
        key: MaybeKeyOption = None,
        images: CompareOption = None,
        engine: Annotated[
            str, typer.Option(help="That runs the export: auto (what it was exported to), onnx or openvino.")
        ] = "auto",
        int8: Annotated[
            bool, typer.Option("--int8", help="The export is quantised, and known to be another model.")
        ] = False,
        as_json: JsonOption = False,
        trust: TrustOption = None,
    ) -> None:
        """Check seals and models' histories, and that an export predicts as its model does; with --key, who sealed."""
        if key is not None:
            from tdumpra.seals import read_key, verify_file

            secret = read_key(key)
            for path in files:
                verify_file(path, secret)
                if not as_json:
                    say(f"{path} was sealed with this key")
        from tdumpra.runtime.exported import is_exported, read_exported, retrieval_path

        exports, others = ([path for path in files if is_exported(path) == kind] for kind in (True, False))
        parts = {retrieval_path(path) for path in exports}  # a second network is read with the file of its classifier
        exports = [path for path in exports if path not in parts]
        if len(exports) > 1 and as_json:
            raise ValueError(f"--json tells of one export, and there are {len(exports)}: verify them one by one")
        if len(others) == 1 and exports:
            for path in exports:
                verify_export(others[0], path, images, engine=engine, int8=int8, as_json=as_json, trusted=trust or [])
            return
        for path in exports:
            read_exported(path)
            say(f"{path} is whole: its bytes are those that were sealed when it was written")
        if others:
            from tdumpra.cli.history import verify_histories

            for sentence in verify_histories(others, every=key is None):
                say(sentence)
