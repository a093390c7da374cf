from __future__ import annotations

import copy

import pytest
import torch

from hyvlm.integrations.sdxl import conditioning, prompt_features, stretched_positions
from hyvlm.models import Tokenizer
from hyvlm.models.long_text import stretch_positions

CLIP_L, BIG_G = 24, 40
SHORT = "a red car beside a tall tree"
LONG = " ".join(f"a {colour} {thing} ," for colour in ("red", "green", "blue", "grey") for thing in ["car"] * 8)
PARTS = ("prompt_embeds", "negative_prompt_embeds", "pooled_prompt_embeds", "negative_pooled_prompt_embeds")


def original(pipe, **settings):
    with torch.no_grad():
        return dict(zip(PARTS, pipe.encode_prompt(do_classifier_free_guidance=True, **settings), strict=True))


def by_hand(model, text: str) -> torch.Tensor:
    """Tangent vectors of start, words and end, token by token from open_clip's blocks; (n, D)."""
    ids = torch.tensor(Tokenizer(248).ids(text))[None]
    tower, n = model.text_tower, ids.shape[1]
    with torch.no_grad():
        x = tower.token_embedding(ids) + tower.positional_embedding[:n]
        for block in tower.transformer.resblocks:
            x = block(x, attn_mask=torch.full((n, n), -torch.inf).triu(1))
        return tower.ln_final(x)[0] @ model.text_projection.weight.T * model.text_log_scale.exp()


@pytest.mark.parametrize("prompt", [SHORT, [SHORT, "a dog"]])
@pytest.mark.parametrize("negative", [None, "blurry"])
def test_alpha_0_is_the_pipelines_own_conditioning(tiny_pipe, tiny_model, prompt, negative) -> None:
    expected = original(tiny_pipe, prompt=prompt, negative_prompt=negative)
    ours = conditioning(tiny_pipe, tiny_model(), prompt, negative, alpha=0.0)
    for part in PARTS:
        torch.testing.assert_close(ours[part], expected[part], rtol=0, atol=0)


@pytest.mark.parametrize("dim", [CLIP_L, 16])
def test_alpha_1_fills_the_first_channels_and_touches_nothing_else(tiny_pipe, tiny_model, dim) -> None:
    """With dim 16 of 24: the case of a 512-wide model and the 768 channels of CLIP-L."""
    model = tiny_model(dim)
    expected = original(tiny_pipe, prompt=SHORT, negative_prompt="blurry")
    ours = conditioning(tiny_pipe, model, SHORT, "blurry")
    for part in ("prompt_embeds", "negative_prompt_embeds"):
        assert ours[part].shape == (1, 77, CLIP_L + BIG_G)
        assert torch.equal(ours[part][..., dim:], expected[part][..., dim:])
        assert (ours[part][..., :dim] != expected[part][..., :dim]).any(-1).all()
    assert torch.equal(ours["pooled_prompt_embeds"], expected["pooled_prompt_embeds"])
    assert torch.equal(ours["negative_pooled_prompt_embeds"], expected["negative_pooled_prompt_embeds"])
    words = by_hand(model, SHORT)
    torch.testing.assert_close(ours["prompt_embeds"][0, : len(words), :dim], words, rtol=1e-4, atol=1e-6)
    behind = ours["prompt_embeds"][0, len(words) :, :dim]
    torch.testing.assert_close(behind, words[-1:].expand_as(behind), rtol=1e-4, atol=1e-6)


def test_alpha_between_is_the_weighted_mean(tiny_pipe, tiny_model) -> None:
    ends = [conditioning(tiny_pipe, tiny_model(), SHORT, alpha=alpha)["prompt_embeds"] for alpha in (0.0, 1.0)]
    middle = conditioning(tiny_pipe, tiny_model(), SHORT, alpha=0.25)["prompt_embeds"]
    torch.testing.assert_close(middle, 0.75 * ends[0] + 0.25 * ends[1])


def test_padding_can_stay_the_pipelines(tiny_pipe, tiny_model) -> None:
    expected = original(tiny_pipe, prompt=SHORT)["prompt_embeds"]
    ours = conditioning(tiny_pipe, tiny_model(), SHORT, padding="original")["prompt_embeds"]
    n = len(Tokenizer().ids(SHORT))
    assert torch.equal(ours[:, n:], expected[:, n:])
    assert torch.equal(ours[:, :n], conditioning(tiny_pipe, tiny_model(), SHORT)["prompt_embeds"][:, :n])


def test_without_a_negative_prompt_the_pipelines_rule_holds(tiny_pipe, tiny_model) -> None:
    ours = conditioning(tiny_pipe, tiny_model(), SHORT)
    assert not ours["negative_prompt_embeds"].any()
    assert not ours["negative_pooled_prompt_embeds"].any()
    tiny_pipe.register_to_config(force_zeros_for_empty_prompt=False)
    try:
        empty = conditioning(tiny_pipe, tiny_model(), SHORT)
    finally:
        tiny_pipe.register_to_config(force_zeros_for_empty_prompt=True)
    said = conditioning(tiny_pipe, tiny_model(), SHORT, "")
    assert torch.equal(empty["negative_prompt_embeds"], said["negative_prompt_embeds"])
    assert said["negative_prompt_embeds"][0, :, :CLIP_L].any()


def test_a_sphere_gives_the_features_themselves(tiny_model) -> None:
    model = tiny_model(manifold="sphere")
    ids = torch.tensor(Tokenizer().ids(SHORT))[None]
    vectors, inside = prompt_features(model, ids, 49407)
    with torch.no_grad():
        torch.testing.assert_close(vectors[:, -1], model.text_features(ids))
    assert inside.all()
    assert (vectors.norm(dim=-1) - 1).abs().min() > 1e-2, "not normalised"


def test_match_norm_keeps_directions_and_takes_the_originals_lengths(tiny_pipe, tiny_model) -> None:
    expected = original(tiny_pipe, prompt=SHORT)["prompt_embeds"][..., :CLIP_L]
    plain, matched = (
        conditioning(tiny_pipe, tiny_model(), SHORT, match_norm=match)["prompt_embeds"][..., :CLIP_L]
        for match in (False, True)
    )
    torch.testing.assert_close(matched.norm(dim=-1), expected.norm(dim=-1))
    torch.testing.assert_close(torch.cosine_similarity(matched, plain, dim=-1), torch.ones(1, 77))


def test_a_long_prompt_reads_stretched_positions(tiny_pipe, tiny_model) -> None:
    """At alpha 0, both encoders' states equal those of copies whose tables were stretched for good."""
    n = len(Tokenizer(248).ids(LONG))
    assert 77 < n < 248
    ours = conditioning(tiny_pipe, tiny_model(), LONG, "blurry", alpha=0.0)
    expected = []
    for encoder, tokenizer in (
        (tiny_pipe.text_encoder, tiny_pipe.tokenizer),
        (tiny_pipe.text_encoder_2, tiny_pipe.tokenizer_2),
    ):
        stretched = copy.deepcopy(encoder)
        module = next(m for m in stretched.modules() if hasattr(m, "position_embedding"))
        table = stretch_positions(module.position_embedding.weight.detach(), 248)
        module.position_embedding = torch.nn.Embedding.from_pretrained(table)
        module.position_ids = torch.arange(248)[None]
        ids = tokenizer(LONG, padding="max_length", max_length=248, return_tensors="pt").input_ids
        assert ids.shape == (1, 248)
        with torch.no_grad():
            expected.append(stretched(ids, output_hidden_states=True))
    states = torch.cat([output.hidden_states[-2] for output in expected], dim=-1)
    torch.testing.assert_close(ours["prompt_embeds"], states)
    torch.testing.assert_close(ours["pooled_prompt_embeds"], expected[1].text_embeds)
    assert ours["negative_prompt_embeds"].shape == ours["prompt_embeds"].shape
    replaced = conditioning(tiny_pipe, tiny_model(), LONG, "blurry")["prompt_embeds"]
    torch.testing.assert_close(replaced[0, :n, :CLIP_L], by_hand(tiny_model(), LONG), rtol=1e-4, atol=1e-6)
    assert torch.equal(replaced[..., CLIP_L:], ours["prompt_embeds"][..., CLIP_L:])


def test_a_long_prompt_leaves_the_pipeline_as_it_was(tiny_pipe, tiny_model) -> None:
    weights = {k: v.clone() for k, v in tiny_pipe.text_encoder.state_dict().items()}
    before = original(tiny_pipe, prompt=SHORT)
    conditioning(tiny_pipe, tiny_model(), LONG)
    with pytest.raises(RuntimeError, match="inside"), stretched_positions(tiny_pipe, 248):
        raise RuntimeError("inside")
    after = original(tiny_pipe, prompt=SHORT)
    assert all(torch.equal(before[part], after[part]) for part in PARTS)
    assert tiny_pipe.tokenizer.model_max_length == tiny_pipe.tokenizer_2.model_max_length == 77
    for encoder in (tiny_pipe.text_encoder, tiny_pipe.text_encoder_2):
        module = next(m for m in encoder.modules() if hasattr(m, "position_embedding"))
        assert len(module.position_embedding.weight) == module.position_ids.shape[1] == 77
    now = tiny_pipe.text_encoder.state_dict()
    assert now.keys() == weights.keys()
    assert all(torch.equal(now[k], v) for k, v in weights.items())


def test_encoders_that_are_not_in_memory_are_refused(tiny_pipe, tiny_model, monkeypatch) -> None:
    monkeypatch.setattr(tiny_pipe, "text_encoder_2", copy.deepcopy(tiny_pipe.text_encoder_2).to("meta"))
    with pytest.raises(ValueError, match="enable_model_cpu_offload"):
        conditioning(tiny_pipe, tiny_model(), LONG)


def test_a_short_prompt_beside_a_long_one_shares_its_length(tiny_pipe, tiny_model) -> None:
    ours = conditioning(tiny_pipe, tiny_model(), [SHORT, LONG])
    assert ours["prompt_embeds"].shape[:2] == ours["negative_prompt_embeds"].shape[:2] == (2, 248)


def test_text_beyond_the_models_context_is_cut_before_the_end_token(tiny_pipe, tiny_model) -> None:
    model = tiny_model()
    ours = conditioning(tiny_pipe, model, LONG * 4)["prompt_embeds"]
    ids = Tokenizer(248)(LONG * 4)
    torch.testing.assert_close(ours[..., :CLIP_L], prompt_features(model, ids, 49407)[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("prompt", [SHORT, LONG])
def test_the_pipeline_draws_with_it(tiny_pipe, tiny_model, prompt) -> None:
    def draw(alpha: float):
        given = conditioning(tiny_pipe, tiny_model(), [prompt, "a dog"], "blurry", alpha=alpha)
        generator = torch.Generator().manual_seed(0)
        return tiny_pipe(
            **given, num_images_per_prompt=2, num_inference_steps=2, generator=generator, output_type="np"
        ).images

    images = draw(1.0)
    assert images.shape == (4, 16, 16, 3)
    assert (images != draw(0.0)).any()


def test_the_pipelines_dtype_is_kept(tiny_pipe, tiny_model) -> None:
    tiny_pipe.to(torch.bfloat16)
    try:
        expected = original(tiny_pipe, prompt=SHORT)
        ours = conditioning(tiny_pipe, tiny_model(), SHORT, alpha=0.0)
        replaced = conditioning(tiny_pipe, tiny_model(), SHORT)
    finally:
        tiny_pipe.to(torch.float32)
    assert all(ours[part].dtype == replaced[part].dtype == torch.bfloat16 for part in PARTS)
    assert all(torch.equal(ours[part], expected[part]) for part in PARTS)


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({"dim": 32}, {}, "32 wide, the pipeline's CLIP-L has 24"),
        ({"vocabulary": 300}, {}, "share a vocabulary"),
        ({"context": 40}, {}, "at most 40 tokens, the pipeline 77"),
        ({}, {"alpha": 1.5}, "alpha must be 0"),
        ({}, {"padding": "zero"}, "unknown padding 'zero'"),
        ({}, {"negative_prompt": ["a", "b"]}, "as many as there are prompts, 1, got 2"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(tiny_pipe, tiny_model, changes, settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        conditioning(tiny_pipe, tiny_model(**changes), SHORT, **settings)


def test_a_token_added_to_the_pipeline_is_named(tiny_pipe, tiny_model, monkeypatch, clip_tokenizer) -> None:
    tokenizer = clip_tokenizer()
    tokenizer.add_tokens("<my-cat>")
    monkeypatch.setattr(tiny_pipe, "tokenizer", tokenizer)
    monkeypatch.setattr(tiny_pipe, "text_encoder", _grown(tiny_pipe.text_encoder))
    with pytest.raises(ValueError, match="<my-cat>"):
        conditioning(tiny_pipe, tiny_model(), "a photo of <my-cat>")


def _grown(encoder):
    encoder = copy.deepcopy(encoder)
    encoder.resize_token_embeddings(49409)
    return encoder
