import itertools
from collections import Counter

import pytest
import torch

from hyvlm.data.sampler import GlobalBatches, train_loader
from hyvlm.data.views import TrainViews

CROP = {"name": "crop", "scale": [0.5, 1.0]}


def steps(n: int, batch_size: int, **settings: int) -> list[list[tuple[int, int]]]:
    return list(GlobalBatches(n, batch_size, **settings))


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize(("n", "batch_size"), [(10, 4), (12, 4), (3, 16), (1, 5), (100, 7)])
def test_ranks_share_every_step_of_the_same_global_order(world_size, n, batch_size):
    per_epoch = -(-n // batch_size)
    whole = steps(n, batch_size, steps=3 * per_epoch)
    ranks = [steps(n, batch_size, steps=3 * per_epoch, rank=r, world_size=world_size) for r in range(world_size)]
    assert {len(rank) for rank in ranks} == {3 * per_epoch}
    for step, parts in zip(whole, zip(*ranks, strict=True), strict=True):
        assert list(itertools.chain(*parts)) == step
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for epoch in range(3):
        seen = Counter(itertools.chain(*whole[epoch * per_epoch : (epoch + 1) * per_epoch]))
        assert seen == Counter((epoch, index) for index in range(n))


def test_epochs_and_seeds_differ_and_repeat():
    orders = [[i for batch in steps(50, 50, seed=seed, steps=2) for _, i in batch] for seed in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert orders[0][:50] != orders[0][50:]
    assert [i for batch in GlobalBatches(5, 2, steps=3, shuffle=False) for _, i in batch] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("stop", range(8))
def test_resuming_at_any_step_goes_on_as_if_never_stopped(stop):
    whole = steps(10, 4, steps=8, rank=1, world_size=2)
    resumed = steps(10, 4, steps=8, rank=1, world_size=2, start_step=stop)
    assert whole[:stop] + resumed == whole


def test_without_a_number_of_steps_it_never_ends():
    endless = GlobalBatches(3, 2)
    assert len(list(itertools.islice(endless, 1000))) == 1000
    with pytest.raises(TypeError):
        len(endless)
    assert len(GlobalBatches(3, 2, start_step=4, steps=9)) == 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n": 0}, "no samples"),
        ({"batch_size": 0}, "batch_size"),
        ({"rank": 2, "world_size": 2}, "rank 2 is outside a world of 2"),
        ({"start_step": 5, "steps": 4}, "start_step 5"),
    ],
)
def test_numbers_out_of_range_are_errors(settings, message):
    with pytest.raises(ValueError, match=message):
        GlobalBatches(**{"n": 5, "batch_size": 2, **settings})


def views(noise_set, tokenizer, **settings):
    return TrainViews(noise_set(10, bad=[3]), tokenizer, image_size=16, part_size=8, augment=CROP, **settings)


def test_workers_change_nothing(noise_set, tokenizer):
    data = views(noise_set, tokenizer, parts={"max": 2, "choice": "random"})
    alone = list(train_loader(data, 4, steps=5))
    helped = list(train_loader(data, 4, steps=5, workers=2))
    for a, b in zip(alone, helped, strict=True):
        assert a.keys == b.keys
        assert a.skipped == b.skipped
        for name in ("image", "text", "part_image", "part_text", "owner"):
            assert torch.equal(getattr(a, name), getattr(b, name)), name


def test_a_rank_without_samples_still_yields_every_step(noise_set, tokenizer):
    ranks = [list(train_loader(views(noise_set, tokenizer), 4, steps=6, rank=r, world_size=3)) for r in range(3)]
    tail = [rank[2] for rank in ranks]  # two samples for three ranks
    assert [len(b.image) + sum(b.skipped.values()) for b in tail] == [1, 1, 0]
    assert tail[2].image.shape == (0, 3, 16, 16)
    assert tail[2].part_image.shape == (0, 3, 8, 8)
    assert tail[2].text.shape[0] == tail[2].part_text.shape[0] == tail[2].owner.shape[0] == 0
    for epoch in range(2):
        seen = Counter(key for rank in ranks for batch in rank[3 * epoch : 3 * epoch + 3] for key in batch.keys)
        assert seen == Counter(str(i) for i in range(10) if i != 3)
        assert sum((b.skipped for rank in ranks for b in rank[3 * epoch : 3 * epoch + 3]), Counter()).total() == 1


def test_a_resumed_loader_gives_the_same_tensors(noise_set, tokenizer):
    data = views(noise_set, tokenizer)
    whole, resumed = list(train_loader(data, 4, steps=6)), list(train_loader(data, 4, steps=6, start_step=4))
    for a, b in zip(whole[4:], resumed, strict=True):
        assert a.keys == b.keys
        assert torch.equal(a.image, b.image)
        assert torch.equal(a.part_image, b.part_image)
