"""Models to the Hugging Face hub, with a model card that is written from the model and its run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import huggingface_hub
import yaml
from huggingface_hub import errors

import hyvlm
from hyvlm.config import load_config, to_dict
from hyvlm.models.dual_encoder import DualEncoder
from hyvlm.models.hub import HUB
from hyvlm.models.pretrained import save_model

#: What a card says of a run, and where its configuration has it.
_FACTS = {
    "objective": "objective.name",
    "training data": "data.train",
    "steps": "train.steps",
    "batch size": "train.batch_size",
    "learning rate": "train.lr",
    "weight decay": "train.weight_decay",
    "precision": "train.precision",
    "seed": "train.seed",
}


def push_to_hub(
    model: DualEncoder,
    repo: str,
    *,
    run: str | Path | None = None,
    licence: str | None = None,
    private: bool | None = None,
    revision: str | None = None,
    message: str = "Upload model",
) -> str:
    """Upload a model's weights, configuration and card; :func:`hyvlm.load` reads it as ``hf-hub:OWNER/NAME``.

    Args:
        model: What is published.
        repo: ``OWNER/NAME``, made if need be. The token is that of ``hf auth login`` or ``HF_TOKEN``.
        run: The folder of the run that trained it, for the card's facts of training.
        licence: The hub's name of a licence, such as "cc-by-nc-4.0"; None states none.
        private: Of a repository that is new; None takes the owner's default.
        revision: Branch to commit to; None for the main one.
        message: Of the commit.
    Returns:
        The commit's address.
    Raises:
        FileNotFoundError: ``run`` is no run folder.
        PermissionError: There is no token, or not the right one.
        ConnectionError: The hub cannot be reached.
        ValueError: ``repo`` is no name of a repository.
    """
    unnamed = f"a repository on the hub is named OWNER/NAME, got '{repo}'"
    if repo.count("/") != 1:
        raise ValueError(unnamed)
    card = model_card(model, repo, run=run, licence=licence)
    with tempfile.TemporaryDirectory() as folder:
        save_model(model, folder)
        (Path(folder) / "README.md").write_text(card, encoding="utf-8")
        hub = huggingface_hub.HfApi(library_name="hyvlm", library_version=hyvlm.__version__)
        try:
            hub.create_repo(repo, private=private, exist_ok=True)
            commit = hub.upload_folder(repo_id=repo, folder_path=folder, commit_message=message, revision=revision)
        except errors.HFValidationError as error:
            raise ValueError(unnamed) from error
        except errors.LocalTokenNotFoundError as error:
            raise PermissionError(f"no token to write to {repo}: run 'hf auth login' or set HF_TOKEN") from error
        except Exception as error:  # the hub's client raises errors of its own and of its HTTP library
            status = getattr(getattr(error, "response", None), "status_code", None)
            text = f"cannot write to {repo} on the hub: {' '.join(str(error).split())}"
            raise (PermissionError if status in (401, 403) else ConnectionError)(text) from error
    return str(commit.commit_url)


def model_card(model: DualEncoder, repo: str, *, run: str | Path | None = None, licence: str | None = None) -> str:
    """A card in Markdown: what the model is, how it was trained, how to load it. Arguments as in :func:`push_to_hub`.

    Of data that were read from a path, the card names the last part alone.
    """
    head = yaml.safe_dump(_head(licence), sort_keys=False)
    training = _training(Path(run)) if run is not None else {}
    method = training.get("objective")
    lines = [
        f"---\n{head}---\n",
        f"# {repo.rpartition('/')[2]}\n",
        f"An image-text model{f' trained with the objective `{method}`' if method else ''}, made with hyvlm "
        f"{hyvlm.__version__}.\n",
        "## Use\n",
        "```python\nimport hyvlm\n",
        f'model, preprocess, tokenizer = hyvlm.load("{HUB}{repo}")',
        f"x = model.encode_image(preprocess(picture).unsqueeze(0))  # (1, {model.dim}), points on model.manifold",
        f'y = model.encode_text(tokenizer(["a dog", "an animal"]))  # (2, {model.dim})',
        "model.score(x, y)                                         # (1, 2), higher is closer\n```\n",
        "## Model\n",
        _table(_facts(model)),
        "## Training\n",
        _table(training) if training else "The run that trained this model is not recorded.\n",
        "## Licence\n",
        f"`{licence}`\n" if licence else "No licence is stated.\n",
    ]
    return "\n".join(lines)


def _head(licence: str | None) -> dict[str, Any]:
    """Metadata that the hub reads."""
    stated = {"license": licence} if licence else {}
    tags = ["hyvlm", "hyperbolic", "vision-language"]
    return {**stated, "library_name": "hyvlm", "pipeline_tag": "zero-shot-image-classification", "tags": tags}


def _facts(model: DualEncoder) -> dict[str, object]:
    section, manifold = model.config["model"], model.config["manifold"]
    image, text = section["image"], section["text"]
    curvatures = model.manifold.describe().get("c")
    facts: dict[str, object] = {"manifold": manifold["name"]}
    if isinstance(curvatures, list):
        facts["curvatures -c"] = f"{len(curvatures)} factors, c from {min(curvatures):.4g} to {max(curvatures):.4g}"
    elif curvatures is not None:
        facts["curvature -c"] = f"c = {curvatures:.4g}{'' if manifold.get('learn', True) else ', fixed'}"
    facts |= {
        "ranks pairs by": section["score"].replace("_", " "),
        "read-out": section["readout"],
        "embedding": f"{model.dim} dimensions",
        "image tower": f"{image['depth']} blocks of {image['width']}, {image['heads']} heads, patch {image['patch']}, "
        f"images of {image['image_size']} pixels",
        "text tower": f"{text['depth']} blocks of {text['width']}, {text['heads']} heads, "
        f"{text['context_length']} tokens",
        "pixel mean": " ".join(f"{value:.4g}" for value in model.pixel_mean.flatten().tolist()),
        "pixel std": " ".join(f"{value:.4g}" for value in model.pixel_std.flatten().tolist()),
        "parameters": f"{sum(p.numel() for p in model.parameters()):,}",
    }
    return facts


def _training(run: Path) -> dict[str, object]:
    """What the card says of a run.

    Raises:
        FileNotFoundError: It has no ``config.yaml``.
    """
    file = run / "config.yaml"
    if not file.is_file():
        raise FileNotFoundError(f"'{run}' is no run folder: it has no config.yaml")
    config = to_dict(load_config(str(file)))
    facts: dict[str, object] = {}
    for name, key in _FACTS.items():
        section, _, field = key.partition(".")
        value = config.get(section, {}).get(field)
        if value is not None:
            facts[name] = Path(str(value)).name if name == "training data" else value
    return facts


def _table(facts: dict[str, object]) -> str:
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in facts.items()), ""])
