"""How far off a wrong prediction is: hierarchical metrics of zero-shot classification over a class taxonomy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hyvlm.data.catalog import SampleSet
from hyvlm.evaluation.classification import check_classes, zero_shot
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.task import TASKS, Outcome, Task
from hyvlm.evaluation.taxonomy import HIERARCHICAL, JOINING_ROOT, HierarchicalMetrics, Taxonomy
from hyvlm.models import DualEncoder


@TASKS.register("hierarchy")
@dataclass(frozen=True, kw_only=True)
class Hierarchy(Task):
    """TIE, LCA, Jaccard, hierarchical precision and recall of zero-shot predictions.

    Attributes:
        hierarchy: File of ``child parent`` lines that names every class and has one root; None takes the data set's
            own taxonomy, and joins its trees by an artificial root if there are several.
    """

    version: ClassVar[int] = 1
    content: ClassVar[str] = "classes"

    resize: str = "crop"
    templates: str = "photo"
    hierarchy: str | None = None

    def check(self, model: DualEncoder, samples: SampleSet) -> None:
        super().check(model, samples)
        check_classes(samples, self.templates)
        self.taxonomy(samples).check_classes(samples.classes)

    def run(self, embedder: Embedder, samples: SampleSet) -> Outcome:
        taxonomy = self.taxonomy(samples)
        metrics = HierarchicalMetrics(taxonomy, samples.classes)
        result = zero_shot(embedder, samples, templates=self.templates, resize=self.resize, image_size=self.image_size)
        predictions = result.predictions
        notes = []
        if taxonomy.joined_roots:
            notes.append(
                f"the taxonomy of {samples.name} has {len(taxonomy.joined_roots)} roots; the artificial root "
                f"{JOINING_ROOT!r} joins them"
            )
        return Outcome(
            scores=metrics.means(predictions.predicted.numpy(), result.target.numpy()),
            units={name: unit for name, (unit, _) in HIERARCHICAL.items()},
            n=len(result.target),
            total=result.images.total,
            skipped=result.images.skipped,
            skipped_examples=result.images.examples,
            ties={"images": predictions.tied},
            details={
                **result.details,
                "hierarchy": self.hierarchy or samples.name,
                "hierarchy_nodes": len(taxonomy.nodes),
                "hierarchy_edges": len(taxonomy.edges),
                "hierarchy_hash": taxonomy.fingerprint,
                "hierarchy_joined_roots": list(taxonomy.joined_roots),
            },
            notes=[*notes, *result.notes],
        )

    def taxonomy(self, samples: SampleSet) -> Taxonomy:
        """The taxonomy to measure in. Raises ValueError if neither the user nor the data set names one."""
        if self.hierarchy is not None:
            return Taxonomy.read(self.hierarchy)
        if not samples.parents:
            raise ValueError(f"{samples.name} has no taxonomy of its classes: give a file of 'child parent' lines")
        return Taxonomy.from_parents(samples.parents, samples.classes)
