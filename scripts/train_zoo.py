"""Train the digits models of the zoo, minutes each on 2 cores: `python scripts/train_zoo.py [VARIANT...]`.

Writes weights/digits_<variant>.safetensors, whose metadata records the recipe and the accuracy. Choices are
made on validation images; the 1000 test images are looked at once, after training, to report. With --samples
it writes one test image of each digit, read rightly by all three models, to samples/ instead.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "models")]

from infsa_models import digits, zoo  # noqa: E402
from infsa_models.checkpoint import save_vit  # noqa: E402
from infsa_models.vit import ViT  # noqa: E402

SEED = 7
STEPS = 700
BATCH = 128
PEAK_LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.05
WARM_UP_SHARE = 0.1
TRAINED = tuple(zoo.DEFAULT_MODEL.values())


def main() -> None:
    """Parse the command line, then train each variant in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variants", nargs="*", default=["linear", "pure", "softmax"])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--validate-only", action="store_true", help="report validation accuracy, write nothing")
    parser.add_argument("--samples", action="store_true", help="write the sample images and stop")
    args = parser.parse_args()
    if args.samples:
        write_samples(zoo.SAMPLES_FOLDER)
        return
    for variant in args.variants:
        train(variant, args.steps, write=not args.validate_only)


def train(variant: str, steps: int, *, write: bool) -> None:
    """Train one variant from the fixed seed; write its weights and print its accuracies."""
    name = zoo.DEFAULT_MODEL[variant]
    torch.manual_seed(SEED)
    rng = np.random.RandomState(SEED)
    model = ViT(zoo.ZOO[name].config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_LEARNING_RATE, total_steps=steps, pct_start=WARM_UP_SHARE
    )
    validation = digits.validation_set(1000)
    started, running_loss = time.monotonic(), 0.0
    for step in range(1, steps + 1):
        batch = digits.train_batch(rng, BATCH)
        logits = model(torch.from_numpy(digits.normalize(batch.images)))
        loss = F.cross_entropy(logits, torch.from_numpy(batch.labels))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        running_loss += loss.item()
        if step % 100 == 0:
            shown = f"loss {running_loss / 100:.3f} validation {accuracy(model, validation):.3f}"
            print(f"{name} step {step} {shown} after {(time.monotonic() - started) / 60:.1f} min", flush=True)
            running_loss = 0.0
    if write:
        report(name, model, steps, accuracy(model, validation))


def report(name: str, model: ViT, steps: int, validation_accuracy: float) -> None:
    """Measure the test accuracy, once, and write the weights with what is known about them."""
    test_accuracy = accuracy(model, digits.test_set(1000))
    recipe = {"seed": SEED, "steps": steps, "batch": BATCH, "learning_rate": PEAK_LEARNING_RATE}
    facts = {"validation_accuracy": validation_accuracy, "test_accuracy": test_accuracy, "recipe": recipe}
    path = zoo.WEIGHTS_FOLDER / f"{name}.safetensors"
    path.parent.mkdir(exist_ok=True)
    save_vit(model, path, {key: json.dumps(value) for key, value in facts.items()})
    print(f"{path}: {json.dumps(facts)}")


def accuracy(model: ViT, data: digits.DigitImages) -> float:
    """Share of images whose digit is named rightly."""
    return float((predictions(model, data) == data.labels).mean())


@torch.inference_mode()
def predictions(model: ViT, data: digits.DigitImages) -> np.ndarray:
    """The digit that the model names in each image, [count]."""
    inputs = torch.from_numpy(digits.normalize(data.images))
    return torch.cat([model(part).argmax(dim=1) for part in inputs.split(250)]).numpy()


def write_samples(folder: Path) -> None:
    """Write, as a PNG named after it, the first test image of each digit that all three models read rightly."""
    folder.mkdir(exist_ok=True)
    data = digits.test_set(1000)
    right = np.logical_and.reduce([predictions(zoo.build(name), data) == data.labels for name in TRAINED])
    for digit in range(10):
        first = int(np.flatnonzero(right & (data.labels == digit))[0])
        Image.fromarray(data.images[first]).save(folder / f"digit_{digit}.png", optimize=True)


if __name__ == "__main__":
    main()
