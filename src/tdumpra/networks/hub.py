"""Models on a hub, or in a folder laid out like one, by huggingface_hub's own mixin. Needs the extra ``hub``.

A folder holds ``model.safetensors`` (sealed), ``README.md`` (the model card) and ``config.json`` (for people and the
hub's counters: nothing is read from it). Nothing is unpickled on the way in: the one file that is opened is the sealed
one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelHubMixin, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from tdumpra import __version__
from tdumpra.errors import ArtifactError, InputFileError
from tdumpra.networks.card import model_card
from tdumpra.networks.model_file import Model

FILE = "model.safetensors"


class HubModel(ModelHubMixin, library_name="tdumpra", tags=["tdumpra"]):
    """A model file between this machine and a hub."""

    model: Model
    name: str = "model"

    @classmethod
    def of(cls, model: Model, name: str) -> HubModel:
        """Wrap a model. The mixin would write whatever goes through ``__init__`` into ``config.json``."""
        wrapped = cls()
        wrapped.model, wrapped.name = model, name
        return wrapped

    @classmethod
    def fetch(cls, name: str | Path, **options: Any) -> HubModel:
        """Read a folder, or what a hub has under this name; options as in ``ModelHubMixin.from_pretrained``."""
        try:
            fetched: HubModel = cls.from_pretrained(name, **options)
        except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
            reason = " ".join(str(error).split("\n")[0].split())
            raise ArtifactError(f"{name} is no folder, and no hub gave its {FILE}: {reason}") from error
        return fetched

    @property
    def config(self) -> dict[str, Any]:
        """Return what stands in ``config.json``."""
        return {
            "library_name": "tdumpra",
            "tdumpra_version": __version__,
            "architectures": [self.model.classifier.network.backbone],
            "image_size": self.model.classifier.transform.size,
            "id2label": {str(number): name for number, name in enumerate(self.model.class_names)},
        }

    def generate_model_card(self, *_: Any, **__: Any) -> ModelCard:
        """Return our own card, in place of the mixin's template."""
        return ModelCard(model_card(self.model, self.name))

    def _save_pretrained(self, save_directory: Path) -> None:
        place = save_directory / FILE
        if place.exists():
            raise ArtifactError(f"{place} exists, and models are never changed in place: name another folder")
        self.model.write(place)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        **_: Any,
    ) -> HubModel:
        place = Path(model_id)
        if place.is_dir():
            if not (place / FILE).is_file():
                raise InputFileError(f"{place} holds no {FILE}")
            return cls.of(Model.read(place / FILE), place.name)
        path = hf_hub_download(
            model_id, FILE, revision=revision, cache_dir=cache_dir, force_download=force_download,
            local_files_only=local_files_only, token=token,
        )  # fmt: skip
        return cls.of(Model.read(path), model_id)
