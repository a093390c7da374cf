"""How far off a wrong prediction is: hierarchical metrics of zero-shot classification over a class taxonomy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hyvlm.data.catalog import SampleSet
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.task import TASKS, Outcome, Task
from hyvlm.evaluation.tasks.classification import check_classes, zero_shot
from hyvlm.evaluation.taxonomy import HIERARCHICAL, JOINING_ROOT, HierarchicalMetrics, Taxonomy
from hyvlm.models import DualEncoder

#: Nodes and edges of the graph that a data set's published numbers are over.
PUBLISHED_GRAPHS = {"imagenet": (1372, 1371)}


@TASKS.register("hierarchy")
@dataclass(frozen=True, kw_only=True)
class Hierarchy(Task):
    """TIE, LCA, Jaccard, hierarchical precision and recall of zero-shot predictions.

    Attributes:
        hierarchy: File of ``child parent`` lines that names every class (or its id, such as ImageNet's synsets) and has
            one root; None takes the data set's own hierarchy, and joins its trees by an artificial root if there are
            several.
    """

    version: ClassVar[int] = 1
    content: ClassVar[str] = "classes"

    resize: str = "crop"
    templates: str = "photo"
    hierarchy: str | None = None

    def check(self, model: DualEncoder, samples: SampleSet) -> None:
        super().check(model, samples)
        check_classes(samples, self.templates)
        taxonomy = self.taxonomy(samples)
        taxonomy.check_classes(nodes_of_classes(taxonomy, samples))

    def run(self, embedder: Embedder, samples: SampleSet) -> Outcome:
        taxonomy = self.taxonomy(samples)
        metrics = HierarchicalMetrics(taxonomy, nodes_of_classes(taxonomy, samples))
        result = zero_shot(embedder, samples, templates=self.templates, resize=self.resize, image_size=self.image_size)
        predictions = result.predictions
        notes = graph_notes(taxonomy, samples)
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
                "hierarchy": self.hierarchy or (samples.hierarchy.name if samples.hierarchy else samples.name),
                "hierarchy_nodes": len(taxonomy.nodes),
                "hierarchy_edges": len(taxonomy.edges),
                "hierarchy_hash": taxonomy.fingerprint,
                "hierarchy_joined_roots": list(taxonomy.joined_roots),
            },
            notes=[*notes, *result.notes],
        )

    def taxonomy(self, samples: SampleSet) -> Taxonomy:
        """The taxonomy to measure in. Raises ValueError if neither the user nor the data set names one."""
        path = self.hierarchy or samples.hierarchy
        if path is not None:
            return Taxonomy.read(path)
        if not samples.parents:
            raise ValueError(f"{samples.name} has no taxonomy of its classes: give a file of 'child parent' lines")
        return Taxonomy.from_parents(samples.parents, samples.classes)


def nodes_of_classes(taxonomy: Taxonomy, samples: SampleSet) -> tuple[str, ...]:
    """What the taxonomy calls the classes: their ids if it knows all of them, else their names."""
    ids = samples.class_ids
    return ids if ids and all(name in taxonomy.index for name in ids) else samples.classes


def graph_notes(taxonomy: Taxonomy, samples: SampleSet) -> list[str]:
    """A note if published numbers are over another graph than this one."""
    published = PUBLISHED_GRAPHS.get(samples.name.partition(":")[0])
    if published in (None, (len(taxonomy.nodes), len(taxonomy.edges))):
        return []
    return [
        f"the hierarchy has {len(taxonomy.nodes):,} nodes (hash {taxonomy.fingerprint}), the pruned tree of the "
        f"published numbers {published[0]:,}: not comparable with them"
    ]
