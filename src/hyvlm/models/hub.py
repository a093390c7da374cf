"""Names of released models and repositories of the Hugging Face hub, and how their files come here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import huggingface_hub
from huggingface_hub import errors

WEIGHTS, CONFIG = "model.safetensors", "config.json"
#: What a text that names a repository begins with.
HUB = "hf-hub:"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where on the hub a model lies.

    Attributes:
        repo: ``owner/name``.
        file: A file of weights in it; "" for a folder that :func:`hyvlm.models.pretrained.save_model` wrote.
        revision: A branch, tag or commit; None for the newest.
        layout: Of the file, as in :data:`hyvlm.models.released.LAYOUTS`; "" if its keys tell.
        licence: Of the weights, as their repository or project states it.
        trained_on: Data, as far as the project states them.
    """

    repo: str
    file: str = ""
    revision: str | None = None
    layout: str = ""
    licence: str = ""
    trained_on: str = ""

    @property
    def terms(self) -> str:
        """The licence as the end of a sentence."""
        return f"; licence of the weights: {self.licence}" if self.licence else ""

    def __str__(self) -> str:
        at = f" at {self.revision}" if self.revision else ""
        return f"{self.repo}{f', {self.file}' if self.file else ''}{at}"


def _lineage(method: str, size: str) -> Place:
    return Place(
        repo="avik-pal/hycoclip",
        file=f"{method}_vit_{size}.pth",
        layout=method,
        licence="CC BY-NC (not for commercial use)",
        trained_on="GRIT",
    )


def _uncha(size: str) -> Place:
    return Place(
        repo="hayeonkim/uncha", file=f"uncha_vit_{size}.pth", layout="uncha", licence="not stated", trained_on="GRIT"
    )


def _hyper3(repo: str) -> Place:
    return Place(repo=repo, file=WEIGHTS, layout="hyper3", licence="not stated", trained_on="data not stated")


#: Models on the hub by the names that people use.
RELEASED: Mapping[str, Place] = {
    **{f"{m}-vit-{s}-16": _lineage(m, s) for m in ("clip", "meru", "hycoclip") for s in ("s", "b")},
    **{f"uncha-vit-{s}-16": _uncha(s) for s in ("s", "b")},
    "hyper3-clip": _hyper3("hyper3labs/hyper3-clip"),
    "hyper3-clip-v1": _hyper3("hyper3labs/hyper3-clip-v1"),
}
_ALSO = {"hyper3-clip-v0.5": "hyper3-clip-v1"}


def on_hub(name: str) -> Place | None:
    """The place that a name stands for, or None for a text that names none.

    Args:
        name: One of :data:`RELEASED`, also as ``hycoclip_vit_b`` or ``hycoclip-vit-b``, or
            ``hf-hub:OWNER/REPO`` (a model that :func:`hyvlm.models.publish.push_to_hub` or another project published)
            or ``hf-hub:OWNER/REPO/FILE``. ``@REVISION`` at the end asks for a branch, tag or commit.
    Raises:
        ValueError: A text that begins with ``hf-hub:`` and goes on otherwise.
    """
    text, _, revision = name.partition("@")
    if name.startswith(HUB):
        found = re.fullmatch(r"([\w.-]+/[\w.-]+)(?:/(.+))?", text.removeprefix(HUB))
        if not found:
            raise ValueError(f"a model on the hub is named {HUB}OWNER/REPO[/FILE][@REVISION], got '{name}'")
        return Place(repo=found[1], file=found[2] or "", revision=revision or None)
    plain = text.lower().replace("_", "-")
    plain = _ALSO.get(plain, plain)
    place = RELEASED.get(plain) or RELEASED.get(f"{plain}-16")
    return replace(place, revision=revision or None) if place else None


def fetch(place: Place) -> Path:
    """The file of a place, or the folder that holds its ``model.safetensors``, from the hub's cache or the hub.

    Raises:
        FileNotFoundError: The hub has no such repository, revision or file.
        PermissionError: The repository asks for an agreement or a token.
        ConnectionError: The hub cannot be reached, or must not be (``HF_HUB_OFFLINE``), and the cache lacks the file.
    """
    if place.file:
        return _download(place, place.file)
    weights = _download(place, WEIGHTS)
    try:
        _download(place, CONFIG)
    except (FileNotFoundError, ConnectionError):
        return weights  # of another project, whose sizes are read from the weights
    return weights.parent


def _download(place: Place, file: str) -> Path:
    try:
        return Path(huggingface_hub.hf_hub_download(place.repo, file, revision=place.revision))
    except errors.GatedRepoError as error:
        raise PermissionError(
            f"{place.repo} on the hub asks for an agreement: accept it on its page, then run 'hf auth login'"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise ConnectionError(
            f"'{file}' of {place.repo} is not in {huggingface_hub.constants.HF_HUB_CACHE}, and the hub cannot be "
            "reached; name a local copy of the file instead"
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        raise FileNotFoundError(f"the hub has no '{file}' in {place.repo}{_at(place)}") from error
    except errors.HFValidationError as error:
        raise ValueError(f"the hub knows no such name: {' '.join(str(error).split())}") from error
    except Exception as error:  # the hub's client raises errors of its own and of its HTTP library
        raise ConnectionError(f"cannot fetch '{file}' of {place.repo}: {' '.join(str(error).split())}") from error


def _at(place: Place) -> str:
    return (
        f" at revision '{place.revision}', or wants a token for it" if place.revision else ", or wants a token for it"
    )
