"""The model: two towers, a projection each, a learnable scale each, and the manifold that their points live on."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from hyvlm.config import check_types
from hyvlm.geometry import (
    MANIFOLDS,
    Euclidean,
    HasAngles,
    Lorentz,
    Manifold,
    Modality,
    Product,
    ProductEuclidean,
    ProductLorentz,
    Sphere,
    angle_similarity,
)
from hyvlm.models.presets import ModelConfig, resolve_model
from hyvlm.models.towers import ImageTower, TextTower
from hyvlm.registry import unknown
from hyvlm.types import Tokens

#: How far floating pixels may lie outside [0, 1]: rounding, nothing more.
PIXEL_SLACK = 1e-3


class DualEncoder(nn.Module):
    """Images and texts to points of one manifold.

    Features (tower, then projection) are vectors of the tangent space at the origin; scaled and lifted they are points.
    The same towers serve wholes and parts. The scales start at ``1 / sqrt(D)``, so that points start near unit norm
    (Desai et al. 2023; for a product of factors, D is a factor's), and stay at most 1. The sphere knows no length:
    there they are the constant 1.

    Args:
        config: Shapes of the towers, width D of the embedding, pixel statistics.
        manifold: Where points live and what scores them: a recipe's ``manifold`` section (:func:`build_manifold`).
    Attributes:
        image_log_scale, text_log_scale: Logarithms of the scales: scalars, or ``(F,)`` for a product of F factors.
        pixel_mean, pixel_std: Buffers ``(3, 1, 1)``, for pixels in [0, 1].
        config: Plain dict that :func:`build_model` builds this model from; saved beside the weights.
    """

    pixel_mean: Tensor
    pixel_std: Tensor
    image_log_scale: Tensor
    text_log_scale: Tensor

    def __init__(self, config: ModelConfig, manifold: Mapping[str, Any]) -> None:
        super().__init__()
        self.config: dict[str, Any] = {"model": config.to_dict(), "manifold": dict(manifold)}
        self.manifold = build_manifold(manifold)
        if config.score == "exterior_angle" and not isinstance(self.manifold, HasAngles):
            raise ValueError(f"model.score=exterior_angle: {manifold['name']!r} has no exterior angle")
        self.image_tower = ImageTower(**asdict(config.image))
        self.text_tower = TextTower(**asdict(config.text))
        self.image_projection = nn.Linear(config.image.width, config.dim, bias=config.projection_bias)
        self.text_projection = nn.Linear(config.text.width, config.dim, bias=config.projection_bias)
        for projection in (self.image_projection, self.text_projection):
            nn.init.normal_(projection.weight, std=projection.in_features**-0.5)
            if config.projection_bias:
                nn.init.zeros_(projection.bias)
        for name in ("image_log_scale", "text_log_scale"):
            if isinstance(self.manifold, Sphere):
                self.register_buffer(name, torch.zeros(()), persistent=False)
            else:
                self.register_parameter(name, nn.Parameter(_initial_log_scale(config.dim, self.manifold)))
        self.register_buffer("pixel_mean", torch.tensor(config.pixel_mean).view(3, 1, 1))
        self.register_buffer("pixel_std", torch.tensor(config.pixel_std).view(3, 1, 1))

    @property
    def dim(self) -> int:
        """Width D of features and points."""
        return self.image_projection.out_features

    @property
    def resize(self) -> str | None:
        """How evaluation brings images to size, "squash" or "crop"; None leaves it to the task."""
        resize = str(self.config["model"]["resize"])
        return None if resize == "by_task" else resize

    @property
    def by_angle(self) -> bool:
        """Whether pairs are ranked by an angle, which has a direction."""
        return bool(self.config["model"]["score"] == "exterior_angle")

    @property
    def as_trained(self) -> bool:
        """Whether read-out ranks by what contrast was trained on, not as the method's released evaluation."""
        return bool(self.config["model"]["readout"] == "trained")

    def image_features(self, pixels: Tensor) -> Tensor:
        """Tangent vectors before scaling, ``(B, D)``.

        Args:
            pixels: ``(B, 3, H, W)``, uint8 in 0..255 or floating in [0, 1], not normalised; H and W are any
                multiples of the patch. B may be 0.
        Raises:
            TypeError: If pixels are no tensor.
            ValueError: For another shape or type, or floating pixels outside [0, 1].
        """
        return cast(Tensor, self.image_projection(self.image_tower(self._normalised(pixels))))

    def image_outputs(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """What the image tower gives before the projection; arguments as in :meth:`image_features`.

        Returns:
            The pooled output ``(B, W)``, and those of the patches ``(B, rows * columns, W)``, row by row.
        """
        return self.image_tower.tokens(self._normalised(pixels))

    def text_outputs(self, tokens: Tensor) -> Tensor:
        """What the text tower gives before the projection, ``(B, W)``; arguments as in :meth:`text_features`."""
        self._check_tokens(tokens)
        return cast(Tensor, self.text_tower(tokens))

    def _normalised(self, pixels: Tensor) -> Tensor:
        full = self._full_scale(pixels)
        return (pixels.to(self.pixel_mean.dtype) - full * self.pixel_mean) / (full * self.pixel_std)

    def _full_scale(self, pixels: Tensor) -> float:
        """What white is in ``pixels``, after checking that they are what :meth:`image_features` takes."""
        _check_tensor(pixels, "images")
        patch = self.image_tower.patch
        height, width = pixels.shape[2:] if pixels.ndim == 4 and pixels.shape[1] == 3 else (0, 0)
        if not height or not width or height % patch or width % patch:
            raise ValueError(f"images must be (B, 3, H, W), H and W divisible by {patch}, got {tuple(pixels.shape)}")
        if pixels.dtype == torch.uint8:
            return 255.0
        if not pixels.is_floating_point():
            raise ValueError(f"pixels must be uint8 in 0..255 or floating in [0, 1], got {pixels.dtype}")
        if len(pixels):
            low, high = (bound.item() for bound in pixels.detach().aminmax())
            if low < -PIXEL_SLACK or high > 1 + PIXEL_SLACK:
                raise ValueError(
                    "pixels must be uint8 in 0..255 or floating in [0, 1] and not normalised, "
                    f"got {pixels.dtype} from {low:.4g} to {high:.4g}"
                )
        return 1.0

    def text_features(self, tokens: Tensor) -> Tensor:
        """Tangent vectors before scaling, ``(B, D)``, of token ids ``(B, L)``, 0-padded. B may be 0.

        The cost is that of the texts' own lengths, not of L; padding does not change a feature.

        Raises:
            TypeError: If tokens are no tensor.
            ValueError: If L exceeds the context length, tokens are not a matrix of whole numbers, or one is not in the
                vocabulary.
        """
        return cast(Tensor, self.text_projection(self.text_outputs(tokens)))

    def _check_tokens(self, tokens: Tensor) -> None:
        """Raise what :meth:`text_features` says."""
        _check_tensor(tokens, "tokens")
        context = self.text_tower.context_length
        if tokens.ndim != 2 or tokens.is_floating_point() or not 1 <= tokens.shape[1] <= context:
            raise ValueError(
                f"tokens must be whole numbers (B, L), 1 <= L <= {context}, got {tokens.dtype} {tuple(tokens.shape)}"
            )
        if len(tokens):
            low, high = (int(bound) for bound in tokens.aminmax())
            if low < 0 or high >= self.text_tower.vocab_size:
                raise ValueError(f"token ids must be 0 to {self.text_tower.vocab_size - 1}, got {low} to {high}")

    def lift_image(self, features: Tensor) -> Tensor:
        """Image features ``(..., D)`` to points ``(..., D)``, in float32 (float64 stays) whatever the autocast."""
        return self._lift(features, self.image_log_scale)

    def lift_text(self, features: Tensor) -> Tensor:
        """Text features ``(..., D)`` to points ``(..., D)``, in float32 (float64 stays) whatever the autocast."""
        return self._lift(features, self.text_log_scale)

    def _lift(self, features: Tensor, log_scale: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            blocks = _at_least_float32(features).unflatten(-1, (log_scale.numel(), -1))  # one, or one per factor
            return self.manifold.lift((blocks * log_scale.exp().unsqueeze(-1)).flatten(-2))

    def encode_image(self, pixels: Tensor) -> Tensor:
        """Points ``(B, D)`` of images; see :meth:`image_features`."""
        return self.lift_image(self.image_features(pixels))

    def encode_text(self, tokens: Tensor) -> Tensor:
        """Points ``(B, D)`` of texts; see :meth:`text_features`."""
        return self.lift_text(self.text_features(tokens))

    def encode_image_tokens(self, pixels: Tensor) -> tuple[Tensor, Tokens]:
        """Points of images and of their patches, from one pass; arguments as in :meth:`image_features`.

        A token's feature (the tokens of HyFL-CLIP, Eq. 17) is the tower's output there, after the final norm, through
        the image projection; it is scaled and lifted like the image's own. One lift takes all, so that the manifold's
        count of bounded vectors is of images and tokens together.

        Returns:
            Points ``(B, D)``, those of :meth:`encode_image`; points ``(B, T, D)`` of the T = rows * columns patches,
            row by row, without the class token, all of which count.
        """
        pooled, patches = self.image_outputs(pixels)
        features = self.image_projection(torch.cat([pooled.unsqueeze(1), patches], dim=1))
        points, tokens = self.lift_image(features).tensor_split([1], dim=1)
        return points.squeeze(1), Tokens(tokens, torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device))

    def encode_text_tokens(self, tokens: Tensor) -> tuple[Tensor, Tokens]:
        """Points of texts and of their tokens, from one pass; arguments as in :meth:`text_features`.

        Token features as in :meth:`encode_image_tokens`, with the text's projection and scale.

        Returns:
            Points ``(B, D)``, those of :meth:`encode_text`; points ``(B, T, D)`` of the tokens, T the length of the
            batch's longest text, column j for column j of ``tokens``. The mask leaves out start, end and padding (an
            empty text has no token that counts); what is left out lies at the origin.
        """
        self._check_tokens(tokens)
        pooled, words = self.text_tower.tokens(tokens)
        place = torch.arange(words.shape[1], device=words.device)
        end = tokens.argmax(-1, keepdim=True) if len(tokens) else tokens[:, :1]
        mask = (place > 0) & (place < end)
        features = self.text_projection(torch.cat([pooled.unsqueeze(1), words], dim=1))
        features = features.masked_fill(~nn.functional.pad(mask, (1, 0), value=True).unsqueeze(-1), 0.0)
        points, lifted = self.lift_text(features).tensor_split([1], dim=1)
        return points.squeeze(1), Tokens(lifted, mask)

    def class_points(self, tokens: Tensor, *, chunk: int = 1024) -> Tensor:
        """What stands for each class at read-out, from its prompts: see :meth:`ensemble`.

        Args:
            tokens: ``(C, P, L)``, P prompts a class.
            chunk: Texts that pass the tower at a time; bounds memory, changes no result.
        """
        if tokens.ndim != 3:
            raise ValueError(f"prompts must be (classes, prompts, L), got {tuple(tokens.shape)}")
        features = torch.cat([self.text_features(t) for t in tokens.flatten(0, 1).split(chunk)])
        return self.ensemble(features.unflatten(0, tokens.shape[:2]))

    def ensemble(self, features: Tensor) -> Tensor:
        """Features of prompts ``(C, P, D)`` to what :meth:`class_score` takes: one point per class, ``(C, D)``.

        The mean is taken in the tangent space, before scaling and lift; on the sphere, of normalised features. A model
        that ranks by angle keeps all prompts, ``(C, P, D)`` points: the mean is one of scores (as released).
        """
        if self.by_angle:
            return self.lift_text(features)
        with torch.autocast(features.device.type, enabled=False):
            mean = self.manifold.average_features(_at_least_float32(features), dim=1)
        return self.lift_text(mean)

    def score(self, images: Tensor, texts: Tensor, *, by: Modality = "image") -> Tensor:
        """What ranks images against texts, ``(N, M)``, higher is closer; as ``model.score`` and ``readout`` say.

        Args:
            images, texts: Points ``(N, D)`` and ``(M, D)``.
            by: Who asks: "image" ranks texts for every image, "text" images for every text. Only a score by angle has
                a direction; for points of one modality, which have none, use ``model.manifold.score``.
        """
        if self.by_angle:
            if (by == "image") == self.as_trained:
                return angle_similarity(self._with_angles, images, texts, at="image")
            return angle_similarity(self._with_angles, texts, images, at="text").mT
        if not self.as_trained and isinstance(self.manifold, ProductLorentz):
            return self.manifold.pairwise_inner(images, texts)
        return self.manifold.score(images, texts)

    def class_score(self, images: Tensor, classes: Tensor) -> Tensor:
        """What ranks classes for every image, ``(N, C)``: the score, or the mean over a class's prompts of the angle.

        Args:
            images: Points ``(N, D)``.
            classes: What :meth:`class_points` gives, ``(C, D)`` or, by angle, ``(C, P, D)``.
        """
        if not self.by_angle:
            return self.score(images, classes)
        scores = angle_similarity(self._with_angles, images, classes.flatten(0, 1), at="image")
        return scores.unflatten(1, classes.shape[:2]).mean(-1)

    @property
    def _with_angles(self) -> HasAngles:
        assert isinstance(self.manifold, HasAngles)  # checked when the model was built
        return self.manifold

    def flat(self) -> DualEncoder:
        """The same model read without the exponential map: points are the tangent vectors, in flat space.

        Towers, projections and scales are shared, not copied; cones keep their size by ``R = 2K/sqrt(c)``. The score
        stays what it was trained on, with distances and angles of flat space.

        Raises:
            ValueError: The manifold has no exponential map (CLIP's sphere).
        Source: How Hyperbolic Are Hyperbolic Vision-Language Models?, section 4.2.
        """
        if not isinstance(self.manifold, Lorentz | Euclidean | ProductLorentz | ProductEuclidean):
            raise ValueError(
                f"the manifold {type(self.manifold).__name__} has no exponential map that could be dropped"
            )
        space = self.manifold.flat()
        twin = copy.copy(self)
        twin._modules = {**self._modules, "manifold": space}  # a copied module shares the dictionary of its children
        if isinstance(space, ProductEuclidean):
            settings = {"name": "flat_product", "factors": space.factors, "metric": space.metric}
            settings["aperture_radius"] = space.factor.aperture_radius
        else:
            settings = {"name": "euclidean", "aperture_radius": space.aperture_radius}
        twin.config = {**self.config, "manifold": settings}
        return twin

    @torch.no_grad()
    def constrain_(self) -> None:
        """Bring scales and curvature back inside their bounds; call after an optimizer step."""
        self.image_log_scale.clamp_(max=0.0)
        self.text_log_scale.clamp_(max=0.0)
        self.manifold.constrain_()


def _check_tensor(value: object, what: str) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} must be a torch.Tensor, a batch of them stacked, got {type(value).__name__}")


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _initial_log_scale(dim: int, manifold: Manifold) -> Tensor:
    if isinstance(manifold, Product):
        if dim % manifold.factors:
            raise ValueError(f"model.dim must be divisible by manifold.factors, got {dim} and {manifold.factors}")
        return torch.full((manifold.factors,), -0.5 * math.log(dim / manifold.factors))
    return torch.tensor(-0.5 * math.log(dim))


#: Keys of a manifold that take one number a factor where it is a product, and else one number.
PER_FACTOR = frozenset({"c", "aperture_radius"})


def build_manifold(section: Mapping[str, Any]) -> Manifold:
    """The manifold that a recipe's ``manifold`` section describes: ``name`` and that class's keyword arguments.

    Raises:
        ValueError: For an unknown name or key, or a value the manifold refuses.
    """
    if "name" not in section:
        raise ValueError(f"manifold.name is missing; known: {', '.join(MANIFOLDS)}")
    settings = {key: value for key, value in section.items() if key != "name"}
    manifold = MANIFOLDS[str(section["name"])]
    parameters = {
        key: parameter
        for key, parameter in inspect.signature(manifold).parameters.items()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }
    for key in settings:
        if key not in parameters:
            raise ValueError(unknown("manifold key", str(key), [*parameters, "name"]))
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in settings:
            raise ValueError(f"manifold.{key} is missing; '{section['name']}' needs it")
    check_types(manifold, settings, "manifold")
    for key in PER_FACTOR & settings.keys():
        if "factors" not in parameters and not isinstance(settings[key], int | float):
            name, value = section["name"], list(settings[key])
            raise ValueError(f"manifold.{key} must be one number: '{name}' has no factors, got {value}")
    try:
        return manifold(**settings)
    except TypeError as error:
        raise ValueError(f"manifold '{section['name']}' cannot be built from {settings}: {error}") from error


def build_model(config: Mapping[str, Any] | DictConfig) -> DualEncoder:
    """A freshly initialised model.

    Args:
        config: A recipe, or its two sections ``model`` (see :func:`hyvlm.models.presets.resolve_model`) and
            ``manifold`` (see :func:`build_manifold`). ``image_size``, if given, overrides ``model.image.image_size``:
            a recipe says once, among its data, how large the whole images are. Other sections are not looked at.
    Raises:
        ValueError: If a section is missing or says something that no model has; one sentence that names the key.
    """
    if isinstance(config, DictConfig):
        config = cast(Mapping[str, Any], OmegaConf.to_container(config, resolve=True))
    for section in ("model", "manifold"):
        if not isinstance(config.get(section), Mapping):
            raise ValueError(f"the configuration needs a section '{section}' with keys, got {config.get(section)!r}")
    model = dict(config["model"])
    if config.get("image_size") is not None:
        model["image"] = {**model.get("image", {}), "image_size": config["image_size"]}
    return DualEncoder(resolve_model(model), config["manifold"])
