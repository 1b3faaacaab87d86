"""The command ``score``: what it is called and takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tdumpra.cli.options import DeviceOption, JsonOption, TrustOption


def register(app: typer.Typer, panel: str) -> None:
    """Add the command."""
    app.command("score", rich_help_panel=panel)(_score)


def _score(
    model: Annotated[
        Path | None, typer.Argument(help="model.safetensors, or the folder of its run.", show_default=False)
    ] = None,
    source: Annotated[
        str | None,
        typer.Argument(help="A folder, a table (.csv, .parquet), .tar shards, or an address.", show_default=False),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the parts.", show_default=False)] = None,
    shard: Annotated[str, typer.Option(metavar="I/N", help="Score the I-th of N shares of the parts.")] = "1/1",
    part_size: Annotated[int, typer.Option(help="Images in a part.")] = 2048,
    engine: Annotated[str, typer.Option(help="local: this machine; ray: a Ray cluster.")] = "local",
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The Ray cluster; without it, one on this machine.", show_default=False),
    ] = None,
    decoders: Annotated[
        int | None,
        typer.Option(
            help="On Ray, actors that decode for each network; usually up to 16 for a GPU, none for a CPU.",
            show_default=False,
        ),
    ] = None,
    embeddings: Annotated[bool, typer.Option("--embeddings", help="Also keep each image's embedding.")] = False,
    eager: Annotated[bool, typer.Option("--eager", help="Ask the second network about every image.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only look whether every image has its row.")] = False,
    merge: Annotated[
        list[Path] | None,
        typer.Option("--merge", metavar="FOLDER", help="Join folders that machines filled apart.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
    device: DeviceOption = None,
    trust: TrustOption = None,
) -> None:
    """Predict an archive into Parquet parts; stop it and start it again as you like."""
    if out is None:
        raise ValueError("score needs a folder for its parts: --out FOLDER")
    from tdumpra.cli.score_commands import check_command, score_command

    if check or merge:
        if model is not None:
            raise ValueError("--check and --merge look at a finished folder: give --out FOLDER alone")
        check_command(out, merge or (), as_json=as_json)
        return
    if model is None or source is None:
        raise ValueError("score takes a model and a source, as in  tdumpra score runs/demo archive/ --out scores")
    score_command(
        model, source, out, shard=shard, part_size=part_size, engine=engine, address=address, decoders=decoders,
        embeddings=embeddings, as_json=as_json, mode="eager" if eager else "lazy", device=device, trusted=trust or (),
    )  # fmt: skip
