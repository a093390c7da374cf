"""Images and texts to points, once: every task of an evaluation draws on the same cached embeddings."""

from __future__ import annotations

import hashlib
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set, Sized
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hyvlm.data.catalog import SampleSet
from hyvlm.data.transforms import Transform, eval_transform
from hyvlm.evaluation.cache import CacheEntry, EmbeddingCache
from hyvlm.models import DualEncoder, Tokenizer, fingerprint
from hyvlm.types import BadSample, reasons

T = TypeVar("T")

#: Part of every key: goes up when the same inputs would give other embeddings.
CACHE_VERSION = 1
MAX_EXAMPLES = 5


@dataclass
class Annotation:
    """What is known of one image, apart from its pixels."""

    texts: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    ignored: list[int] = field(default_factory=list)
    part_texts: list[str] = field(default_factory=list)
    negatives: list[str] = field(default_factory=list)


@dataclass
class Annotated:
    """What is known of the samples of a set that could be used.

    Attributes:
        annotations: One for each of n samples.
        total: How many samples there are, those dropped when the set was opened included; ``total - n`` were skipped.
        skipped: Samples left out, by reason.
        examples: Where the first few of them are.
    """

    annotations: list[Annotation]
    total: int
    skipped: Counter[str]
    examples: list[str]


@dataclass
class ImageEmbeddings(Annotated):
    """Points of the images of a sample set that could be read; skipped parts are counted under "part: REASON".

    Attributes:
        points: ``(n, D)``, on the model's device.
        part_points: ``(m, D)`` points of the part crops, if they were asked for; in the order of ``part_texts``.
        part_owner: ``(m,)`` int64, the row of ``points`` that each part belongs to.
    """

    points: Tensor
    part_points: Tensor
    part_owner: Tensor

    def select(self, keep: Sequence[int], reason: str) -> ImageEmbeddings:
        """Only the images ``keep`` (increasing rows) and their parts; the others count as skipped for ``reason``."""
        part_points, part_owner = _parts_of(keep, len(self.points), self.part_points, self.part_owner)
        return ImageEmbeddings(
            points=self.points[list(keep)],
            annotations=[self.annotations[i] for i in keep],
            total=self.total,
            skipped=self.skipped + Counter({reason: len(self.points) - len(keep)}),
            examples=self.examples,
            part_points=part_points,
            part_owner=part_owner,
        )


def _parts_of(keep: Sequence[int], count: int, part_points: Tensor, part_owner: Tensor) -> tuple[Tensor, Tensor]:
    """The parts of the wholes ``keep`` out of ``count``, and their owners as places in ``keep``."""
    place = torch.full((count,), -1, device=part_owner.device)
    place[list(keep)] = torch.arange(len(keep), device=part_owner.device)
    owner = place[part_owner]
    return part_points[owner >= 0], owner[owner >= 0]


@dataclass
class Embedder:
    """A model with everything that turns samples and texts into points on its manifold.

    Attributes:
        batch_size: Images, or texts, at a time; results do not depend on it beyond rounding.
        workers: Processes that read images; 0 reads in this one.
        show_progress: Report on stderr how far a long pass is.
    """

    model: DualEncoder
    tokenizer: Tokenizer
    cache: EmbeddingCache = field(default_factory=EmbeddingCache)
    batch_size: int = 64
    workers: int = 0
    show_progress: bool = True

    def __post_init__(self) -> None:
        self.model_fingerprint: str = fingerprint(self.model)

    @property
    def device(self) -> torch.device:
        return self.model.pixel_mean.device

    @property
    def image_size(self) -> int:
        """Side in pixels of the images that the model was built for."""
        return int(self.model.config["model"]["image"]["image_size"])

    def transform(self, resize: str | None = None) -> Transform:
        """From a picture to pixels of the model's size; None is the model's own way, squashed if it has none."""
        return eval_transform(self.image_size, resize=resize or self.model.resize or "squash")

    def images(
        self,
        samples: SampleSet,
        *,
        resize: str = "squash",
        image_size: int | None = None,
        parts: bool = False,
        part_size: int | None = None,
    ) -> ImageEmbeddings:
        """Points of all images, and of their part crops if ``parts``.

        Args:
            resize: ``"squash"`` to a square, or ``"crop"`` the centre after resizing the short side.
            image_size, part_size: Side in pixels; None takes the model's own (``part_size``: that of the images).
        """
        size = image_size or self.image_size
        sizes = {"wholes": size, "parts": part_size or size} if parts else {"wholes": size}
        keys = {
            "wholes": self._key("images", images=_image_fingerprint(samples), size=size, resize=resize),
            "parts": self._key("parts", samples=samples.fingerprint, size=part_size or size, resize=resize),
            "annotations": self._annotations_key(samples),
        }
        needed = {"annotations", *sizes}
        found = {what: entry for what in needed if (entry := self.cache.get(keys[what])) is not None}

        def read(what: Set[str]) -> None:
            side = {name: eval_transform(sizes[name], resize=resize) for name in sizes if name in what}
            for name, entry in self._pass(samples, side.get("wholes"), side.get("parts")).items():
                self.cache.put(keys[name], entry)
                found[name] = entry

        if "wholes" in found and "annotations" not in found:  # the same images under other annotations
            read(needed - found.keys())
        used = set(found["annotations"].info["index"]) if "annotations" in found else set()
        incomplete = {name for name in sizes if name in found and not used <= set(found[name].info["index"])}
        if missing := (needed - found.keys()) | incomplete:
            read(missing)
        return self._join(found, samples)

    def annotations(self, samples: SampleSet) -> Annotated:
        """What is known of the samples, their images aside: for sets without images."""
        known = self.cache.get(self._annotations_key(samples))
        if known is None:
            known = self._pass(samples, None, None)["annotations"]
            self.cache.put(self._annotations_key(samples), known)
        return _annotated(known, samples)

    def _annotations_key(self, samples: SampleSet) -> dict[str, Any]:
        return self._key("annotations", samples=samples.fingerprint)

    def _join(self, found: Mapping[str, CacheEntry], samples: SampleSet) -> ImageEmbeddings:
        used = found["annotations"].info["index"]

        def rows(what: str) -> list[int]:
            place = {index: row for row, index in enumerate(found[what].info["index"])}
            return [place[index] for index in used]

        part_points, part_owner = torch.empty(0, self.model.dim), torch.empty(0, dtype=torch.long)
        if "parts" in found:
            parts = found["parts"]
            part_points, part_owner = _parts_of(
                rows("parts"), len(parts.info["index"]), parts.tensors["part_points"], parts.tensors["part_owner"]
            )
        return ImageEmbeddings(
            **vars(_annotated(found["annotations"], samples)),
            points=found["wholes"].tensors["points"][rows("wholes")].to(self.device),
            part_points=part_points.to(self.device),
            part_owner=part_owner.to(self.device),
        )

    def _pass(
        self, samples: SampleSet, transform: Transform | None, part_transform: Transform | None
    ) -> dict[str, CacheEntry]:
        """Read every sample once: "annotations", and where there is a transform the points of "wholes" and of "parts",
        all with their sample's index."""
        loader = DataLoader(
            _Reader(samples, transform, part_transform),
            batch_size=self.batch_size,
            num_workers=self.workers,
            collate_fn=list,
            generator=torch.Generator(),  # the default would draw from the global one, and so change a training run
        )
        points, part_points, owner = [], [], []
        index: list[int] = []
        annotations: list[dict[str, Any]] = []
        skipped: Counter[str] = Counter()
        examples: list[str] = []
        with evaluation_mode(self.model):
            for batch in self.progress(loader, f"{'images' if transform else 'samples'} of {samples.name}"):
                for item in batch:
                    skipped.update(item.reasons)
                    examples.extend(item.places)
                read = [item for item in batch if item.usable]
                for item in read:
                    owner += [len(index)] * len(item.parts)
                    index.append(item.index)
                    annotations.append(asdict(item.annotation))
                pixels = [item.pixels for item in read if item.pixels is not None]
                if pixels:
                    points.append(self._encode(pixels))
                crops = [crop for item in read for crop in item.parts]
                starts = range(0, len(crops), self.batch_size)
                part_points += [self._encode(crops[start : start + self.batch_size]) for start in starts]
        if not index:
            raise ValueError(f"no sample of {samples.name} could be used: {reasons(skipped) or 'it is empty'}")
        info = {"index": index}
        seen = {"annotations": annotations, "skipped": dict(skipped), "examples": examples[:MAX_EXAMPLES]}
        made = {"annotations": CacheEntry({}, info | seen)}
        if transform is not None:
            made["wholes"] = CacheEntry({"points": torch.cat(points)}, info)
        if part_transform is not None:
            of_parts = torch.cat(part_points) if part_points else torch.empty(0, self.model.dim)
            owners = torch.tensor(owner, dtype=torch.long)
            made["parts"] = CacheEntry({"part_points": of_parts, "part_owner": owners}, info)
        return made

    def _encode(self, pixels: Sequence[Tensor]) -> Tensor:
        return self.model.encode_image(torch.stack(list(pixels)).to(self.device)).cpu()

    def texts(self, texts: Sequence[str]) -> Tensor:
        """Points ``(N, D)`` of texts; equal texts are encoded once and get exactly equal points."""
        distinct = list(dict.fromkeys(texts))
        if not distinct:
            return torch.empty(0, self.model.dim, device=self.device)
        tokens = self.tokenizer(distinct)
        key = self._key("texts", tokens=_hash_tensor(tokens))
        entry = self.cache.get(key)
        if entry is None:
            order = (tokens != 0).sum(1).argsort(stable=True)  # texts of one length share a batch: little padding
            with evaluation_mode(self.model):
                batches = self.progress(order.split(self.batch_size), "texts")
                points = torch.cat([self.model.encode_text(tokens[rows].to(self.device)).cpu() for rows in batches])
            points = points[order.argsort()]
            entry = CacheEntry({"points": points})
            self.cache.put(key, entry)
        row = {text: i for i, text in enumerate(distinct)}
        return entry.tensors["points"][[row[text] for text in texts]].to(self.device)

    def class_points(self, classes: Sequence[str], templates: Sequence[str]) -> Tensor:
        """What stands for each class, see :meth:`DualEncoder.ensemble`; equal names, equal points."""
        distinct = list(dict.fromkeys(classes))
        prompts = [template.replace("{}", name) for name in distinct for template in templates]
        tokens = self.tokenizer(prompts).unflatten(0, (len(distinct), len(templates)))
        key = self._key("classes", tokens=_hash_tensor(tokens), prompts=len(templates))
        entry = self.cache.get(key)
        if entry is None:
            per_batch = max(1, self.batch_size // len(templates))
            with evaluation_mode(self.model):
                batches = self.progress(tokens.split(per_batch), "class prompts")
                points = torch.cat([self.model.class_points(part.to(self.device)).cpu() for part in batches])
            entry = CacheEntry({"points": points})
            self.cache.put(key, entry)
        row = {name: i for i, name in enumerate(distinct)}
        return entry.tensors["points"][[row[name] for name in classes]].to(self.device)

    def progress(self, items: Iterable[T], what: str, unit: str = "batch") -> Iterable[T]:
        """The items, with :func:`progress` unless it is off."""
        return progress(items, what, unit) if self.show_progress else items

    def _key(self, kind: str, **inputs: Any) -> dict[str, Any]:
        return {"version": CACHE_VERSION, "kind": kind, "model": self.model_fingerprint, **inputs}


@dataclass
class _Item:
    """One sample as a loader's process hands it over: usable or not, and what was dropped (reasons, and where)."""

    index: int
    usable: bool
    reasons: list[str]
    places: list[str]
    annotation: Annotation = field(default_factory=Annotation)
    pixels: Tensor | None = None
    parts: list[Tensor] = field(default_factory=list)


class _Reader(Dataset[_Item]):
    def __init__(self, samples: SampleSet, transform: Transform | None, part_transform: Transform | None) -> None:
        self.samples, self.transform, self.part_transform = samples, transform, part_transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> _Item:
        try:
            sample = self.samples[index]
            pixels = self.transform(sample.picture) if self.transform is not None else None
        except BadSample as error:
            return _Item(index, False, [error.reason], [str(error)])
        item = _Item(
            index, True, [f"part: {bad.reason}" for bad in sample.dropped], [str(bad) for bad in sample.dropped]
        )
        phrases = [part.text for part in sample.parts]
        item.annotation = Annotation(
            list(sample.texts), list(sample.labels), list(sample.ignored), phrases, list(sample.negatives)
        )
        item.pixels = pixels
        if self.part_transform is not None:
            item.parts = [self.part_transform(part.image) for part in sample.parts]
        return item


@contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients inside; afterwards every module is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


_bars: list[str] = []  #: What has a bar on the terminal: never more than one.


def progress(
    items: Iterable[T], what: str, unit: str = "batch", *, quiet_s: float = 5.0, every_s: float = 30.0
) -> Iterator[T]:
    """Iterate with a bar on a terminal; elsewhere with a plain line now and then, once ``quiet_s`` have passed.

    A pass within a pass has no bar of its own, but lines.
    """
    if sys.stderr.isatty():
        if _bars:
            yield from items
            return
        _bars.append(what)
        try:
            yield from track(items, description=what, console=Console(stderr=True), transient=True)
        finally:
            _bars.remove(what)
        return
    total = len(items) if isinstance(items, Sized) else None
    due = time.monotonic() + quiet_s
    for done, item in enumerate(items, start=1):
        yield item
        if time.monotonic() > due:
            print(f"{what}: {unit} {done}" + (f" of {total}" if total else ""), file=sys.stderr, flush=True)
            due = time.monotonic() + every_s


def _annotated(known: CacheEntry, samples: SampleSet) -> Annotated:
    return Annotated(
        annotations=[Annotation(**values) for values in known.info["annotations"]],
        total=len(samples) + _dropped_samples(samples),
        skipped=Counter(known.info["skipped"]) + Counter(samples.dropped),
        examples=[*samples.dropped_examples, *known.info["examples"]][:MAX_EXAMPLES],
    )


def _dropped_samples(samples: SampleSet) -> int:
    """Samples that were dropped when the set was opened; it also counts parts, and shards that are cut short."""
    return sum(n for reason, n in samples.dropped.items() if not reason.startswith(("part: ", "shard ")))


def _image_fingerprint(samples: SampleSet) -> str:
    """Equal for sets that show the same images in the same order under other annotations, where a set tells."""
    return str(getattr(samples, "image_fingerprint", samples.fingerprint))


def _hash_tensor(values: Tensor) -> str:
    return hashlib.sha256(f"{tuple(values.shape)}{values.dtype}".encode() + values.cpu().numpy().tobytes()).hexdigest()
