"""What a run counts beside its loss: samples, those left out, and those that lack what a relation looks at."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from hyvlm.data.collate import undivided
from hyvlm.types import Batch, LossOutput

#: Counts that deserve a warning if they reach all samples, and what to say of the data set then.
LACKING: Mapping[str, str] = MappingProxyType(
    {
        "short_is_whole": "no text of {} so far has a shorter one: see data.short_text",
        "without_part": "no sample of {} so far has a part, so relations of parts are 0: see data.parts",
        "without_query": "no sample of {} so far has a query that counts, so relations of queries are 0: "
        "see data.queries",
    }
)


class Tally:
    """What happened since the run (``counts``) or since the last logged line (``samples``) began, on this process.

    Args:
        views: The views that the objective names; parts and queries are missed only where it looks at them.
    """

    def __init__(self, views: Collection[str]) -> None:
        self.counts: Counter[str] = Counter()
        self.started = time.monotonic()
        self.parts, self.queries = (any(view.startswith(group) for view in views) for group in ("part_", "query_"))

    def add(self, batch: Batch, output: LossOutput) -> None:
        """Count one step."""
        samples = len(batch.image)
        self.counts["samples"] += samples
        self.counts["texts_cut"] += batch.truncated
        if len(batch.short_text):
            self.counts["short_is_whole"] += undivided(batch)
        if self.parts:
            self.counts["without_part"] += samples - len(batch.owner.unique())
        if self.queries:
            counting = (batch.query_parent >= 0) & (batch.query_weight > 0)
            self.counts["without_query"] += samples - len(batch.query_owner[counting].unique())
        if output.lift_bounded is not None:
            self.counts["lift_bounded"] += int(output.lift_bounded)
        self.counts.update({f"skipped/{reason}": count for reason, count in batch.skipped.items()})

    def seconds(self) -> float:
        """Time since the last logged line, without pauses."""
        return time.monotonic() - self.started

    def start_interval(self) -> None:
        """Begin the next line."""
        self.counts["samples"] = 0
        self.started = time.monotonic()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave what is done inside out of the throughput."""
        before = time.monotonic()
        yield
        self.started += time.monotonic() - before
