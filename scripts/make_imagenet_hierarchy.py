"""Make src/hyvlm/data/assets/imagenet_hierarchy.txt from WordNet 3.0: the 1,000 ImageNet classes and all above them.

    apt-get install wordnet-base
    python scripts/make_imagenet_hierarchy.py /usr/share/wordnet

One edge a line, "CHILD PARENT", sorted. Nodes are noun synsets: "n" and the eight digits of their offset in data.noun,
which are ImageNet's own ids. The edges are all hypernym pointers ("@", and "@i" of instances) on the way from a class
(timm's list of them) to the root n00001740, "entity"; a synset may have several parents.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from make_lexicon import read_data
from timm.data import ImageNetInfo

OUT = Path(__file__).parents[1] / "src/hyvlm/data/assets/imagenet_hierarchy.txt"
HYPERNYMS = ("@", "@i")


def edges_above(classes: list[str], noun_file: Path) -> list[tuple[str, str]]:
    """``(child, parent)`` of every synset on a way from one of ``classes`` to the root."""
    synsets = read_data(noun_file)
    edges, waiting, seen = [], list(classes), set(classes)
    while waiting:
        child = waiting.pop()
        parents = {"n" + above for sign in HYPERNYMS for above in synsets[child[1:]].to(sign, "n")}
        edges += [(child, parent) for parent in parents]
        waiting += parents - seen
        seen |= parents
    return sorted(edges)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wordnet", type=Path, help="folder with WordNet's data.noun")
    classes = ImageNetInfo().label_names()
    edges = edges_above(classes, parser.parse_args().wordnet / "data.noun")
    nodes = {node for edge in edges for node in edge}
    header = (
        f"# CHILD PARENT: {len(classes)} ImageNet classes and all above them, {len(nodes)} synsets, "
        f"{len(edges)} edges.\n"
        "# From WordNet 3.0, see WORDNET_LICENSE.\n"
    )
    OUT.write_text(header + "".join(f"{child} {parent}\n" for child, parent in edges), encoding="utf-8")
    print(f"{len(nodes)} synsets, {len(edges)} edges, {OUT.stat().st_size / 1000:.0f} kB: {OUT}")


if __name__ == "__main__":
    main()
