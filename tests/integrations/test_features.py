"""Vectors for scikit-learn, and CLIP's calls as the transformers library has them."""

import inspect
import pickle
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import hyvlm
from hyvlm.data import open_data
from hyvlm.integrations.features import Model, Processor, TangentFeatures
from hyvlm.models import build_model, save_model

TEXTS = ["a dog", "", "a photo of a red cube on a blue ball"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory):
    def save(manifold: str = "lorentz", **model) -> str:
        torch.manual_seed(0)
        image = {"image_size": 32, "patch": 8, "width": 48, "depth": 1, "heads": 4, "stem": True}
        text = {"width": 32, "depth": 1, "heads": 2, "context_length": 20}
        section = {"name": manifold, **({"factors": 2} if manifold == "product" else {})}
        built = build_model({"model": {"dim": 16, "image": image, "text": text, **model}, "manifold": section})
        return str(save_model(built, tmp_path_factory.mktemp("model")))

    return save


@pytest.fixture(scope="module")
def path(saved) -> str:
    return saved()


@pytest.fixture(scope="module")
def crops() -> tuple[list[Image.Image], np.ndarray]:
    """Part crops of scenes that are red or blue, and whether they are red."""
    samples = open_data("scenes", split="test")
    parts = [part for i in range(150) for part in samples[i].parts if {"red", "blue"} & set(part.text.split())]
    return [part.image for part in parts], np.array(["red" in part.text.split() for part in parts])


def pictures(count: int) -> list[Image.Image]:
    generator = np.random.default_rng(0)
    return [Image.fromarray(generator.integers(0, 256, (40, 50, 3), dtype=np.uint8)) for _ in range(count)]


@pytest.mark.parametrize("manifold", ["lorentz", "product", "euclidean", "sphere"])
def test_vectors_are_what_the_lift_takes(manifold: str, saved, tmp_path: Path) -> None:
    path = saved(manifold)
    model, preprocess, tokenizer = hyvlm.load(path)
    images = pictures(3)
    images[0].save(tmp_path / "0.png")
    found = TangentFeatures(path, batch_size=2).transform([tmp_path / "0.png", *images[1:]])
    texts = TangentFeatures(path, modality="text").fit_transform(np.array(TEXTS, dtype=object))
    with torch.no_grad():
        features = model.image_features(torch.stack([preprocess(image) for image in images]))
        words = model.text_features(tokenizer(TEXTS))
    scale = (16 / (2 if manifold == "product" else 1)) ** -0.5
    for got, expected in ((found, features), (texts, words)):
        expected = torch.nn.functional.normalize(expected) if manifold == "sphere" else expected * scale
        np.testing.assert_allclose(got, expected.numpy(), rtol=1e-4, atol=1e-6)
        assert got.dtype == np.float32
    assert TangentFeatures(path).transform([]).shape == (0, 16)


def test_a_pipeline_learns_from_part_crops(path: str, crops) -> None:
    images, labels = crops
    pipe = make_pipeline(TangentFeatures(path), StandardScaler(), LogisticRegression(max_iter=2000))
    half = len(images) // 2
    search = GridSearchCV(pipe, {"logisticregression__C": [0.1, 1.0]}, cv=2).fit(images[:half], labels[:half])
    chance = max(labels[half:].mean(), 1 - labels[half:].mean())
    assert search.score(images[half:], labels[half:]) > chance + 0.2
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(again.predict(images[:5]), search.predict(images[:5]))


def test_a_transformer_is_its_parameters(path: str, tmp_path: Path) -> None:
    features = TangentFeatures(path, modality="text", batch_size=3)
    assert features.get_params() == {"model": path, "modality": "text", "device": "cpu", "batch_size": 3}
    assert clone(features).get_params() == features.get_params()
    features.transform(TEXTS)
    joblib.dump(features, tmp_path / "features.joblib")
    assert (tmp_path / "features.joblib").stat().st_size < 2000  # no weights
    np.testing.assert_array_equal(joblib.load(tmp_path / "features.joblib").transform(TEXTS), features.transform(TEXTS))
    assert list(features.get_feature_names_out())[:2] == ["tangentfeatures0", "tangentfeatures1"]
    assert set(inspect.signature(TangentFeatures.__init__).parameters) - {"self"} == set(features.get_params())


def test_new_weights_at_a_path_are_seen(saved) -> None:
    path = saved()
    features = TangentFeatures(path, modality="text")
    before = features.transform(TEXTS)
    model = hyvlm.load(path)[0]
    with torch.no_grad():
        model.text_projection.weight *= 2
    save_model(model, path)
    np.testing.assert_allclose(features.transform(TEXTS), 2 * before, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "given", "complaint"),
    [
        ({"modality": "sound"}, ["x"], "unknown modality 'sound'"),
        ({"batch_size": 0}, ["x"], "batch_size must be 1 or more"),
        ({"modality": "text"}, "a dog", "X must be a sequence of texts, got one str"),
        ({"modality": "text"}, ["a dog", 3], "texts are expected, got int in place 1"),
        ({"batch_size": 1}, [Image.new("RGB", (4, 4)), "no.jpg"], r"the image in place 1 cannot be used: .*no\.jpg"),
        ({}, [np.zeros((4, 4))], r"got float64 \(4, 4\) in place 0"),
    ],
)
def test_wrong_input_is_one_line(settings: dict, given: object, complaint: str, path: str) -> None:
    with pytest.raises(ValueError, match=complaint) as error:
        TangentFeatures(path, **settings).transform(given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("manifold", "settings"),
    [
        ("lorentz", {}),
        ("sphere", {}),
        ("product", {"readout": "published"}),
        ("lorentz", {"score": "exterior_angle"}),
    ],
)
def test_code_for_clip_works(manifold: str, settings: dict[str, str], saved) -> None:
    model = Model.from_pretrained(path := saved(manifold, **settings), logit_scale=5.0)
    processor = Processor.from_pretrained(path)
    inputs = processor(text=TEXTS, images=pictures(2), return_tensors="pt", padding=True).to(model.device)
    with torch.no_grad():
        outputs = model(**inputs)
        features = model.get_image_features(pixel_values=inputs.pixel_values)
        texts = model.get_text_features(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
    probabilities = outputs.logits_per_image.softmax(dim=1)
    assert probabilities.shape == (2, 3)
    assert torch.equal(outputs[0], outputs["logits_per_image"])
    assert torch.equal(outputs.image_embeds, features)
    assert torch.equal(outputs.text_embeds, texts)
    score = model.encoder.score(features, texts)
    assert torch.equal(outputs.logits_per_image.argsort(1), score.argsort(1))
    assert torch.equal(
        outputs.logits_per_text.argsort(1), model.encoder.score(features, texts, by="text").mT.argsort(1)
    )
    if settings:
        torch.testing.assert_close(outputs.logits_per_image, 5 * score)
    elif manifold == "lorentz":
        torch.testing.assert_close(
            outputs.logits_per_image, -5 * model.encoder.manifold.pairwise_distance(features, texts)
        )


def test_the_calls_are_those_of_transformers(path: str, clip_tokenizer) -> None:
    ours, theirs = Model.from_pretrained(path), transformers.CLIPModel
    for name in ("forward", "get_image_features", "get_text_features"):
        known = inspect.signature(getattr(theirs, name)).parameters
        assert set(inspect.signature(getattr(ours, name)).parameters) <= set(known)
    known = transformers.CLIPProcessor(transformers.CLIPImageProcessor(), clip_tokenizer())
    expected = known(text=TEXTS, images=pictures(2), return_tensors="pt", padding=True)
    found = Processor.from_pretrained(path)(text=TEXTS, images=pictures(2), return_tensors="pt", padding=True)
    assert set(found) == set(expected)
    assert torch.equal(found.attention_mask, expected["attention_mask"])
    mask = found.attention_mask.bool()
    assert torch.equal(found.input_ids[mask], expected["input_ids"][mask])
    assert found.pixel_values.dtype == torch.uint8


def test_a_processor_says_what_it_does_not_take(path: str) -> None:
    processor = Processor.from_pretrained(path)
    assert processor(text="a dog", padding="max_length").input_ids.shape == (1, 20)
    assert isinstance(processor(text="a dog", return_tensors="np").input_ids, np.ndarray)
    assert processor(images=np.zeros((9, 9, 3), np.uint8))["pixel_values"].shape == (1, 3, 32, 32)
    long = " ".join(["dog"] * 30)
    assert processor(text=long).input_ids.shape == (1, 20)
    for arguments, complaint in (
        ({}, "give text, images or both"),
        ({"text": "a", "return_tensors": "tf"}, "return_tensors is 'pt' or 'np', got 'tf'"),
        ({"text": "a", "padding": False}, "padding is True"),
        ({"text": long, "truncation": False}, "the text in place 0 is longer than the context of 20 tokens"),
        ({"images": []}, "images is empty"),
    ):
        with pytest.raises(ValueError, match=complaint):
            processor(**arguments)
    with pytest.raises(AttributeError):
        processor(text="a").pixel_values  # noqa: B018
