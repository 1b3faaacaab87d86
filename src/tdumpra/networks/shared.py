"""How a predictor is shared: over a model hub, or in a folder laid out like one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from tdumpra.errors import MissingExtraError
from tdumpra.networks.model_file import Model


class Shared:
    """The three methods of model hubs. huggingface_hub does the work, and is imported when one of them is called."""

    def __init__(self, model: Model, **_: Any) -> None:
        self.model = model

    def save_pretrained(self, folder: str | Path, *, name: str | None = None, **options: Any) -> str | None:
        """Save model, card and ``config.json`` into a folder, as model hubs lay it out. Needs the extra ``hub``.

        ``name`` is the card's, the folder's if left out; other options as in huggingface_hub's ``ModelHubMixin``.
        """
        wrapped = _hub().of(self.model, name or Path(folder).resolve().name)
        saved: str | None = wrapped.save_pretrained(folder, config=wrapped.config, **options)
        return saved

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload model, card and ``config.json`` to a hub; options as in huggingface_hub's ``ModelHubMixin``."""
        wrapped = _hub().of(self.model, repo_id)
        return str(wrapped.push_to_hub(repo_id, config=wrapped.config, **options))

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        token: str | bool | None = None,
        **options: Any,
    ) -> Self:
        """Load a model from a folder that :meth:`save_pretrained` wrote, or from a hub. Needs the extra ``hub``.

        The sealed model file is all that is opened. Options as in the class, the others as in huggingface_hub.
        """
        wrapped = _hub().fetch(
            name, revision=revision, cache_dir=cache_dir, force_download=force_download,
            local_files_only=local_files_only, token=token,
        )  # fmt: skip
        return cls(wrapped.model, **options)


def _hub() -> Any:
    try:
        from tdumpra.networks.hub import HubModel
    except ModuleNotFoundError as error:
        if error.name != "huggingface_hub":
            raise
        raise MissingExtraError("huggingface_hub", "hub", "sharing models over a hub") from error
    return HubModel
