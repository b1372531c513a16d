# SPDX-License-Identifier: Apache-2.0
"""Finds the images that the demo trains on, and reads them without any package but numpy.

Fashion-MNIST as Debian's `dataset-fashion-mnist` installs it (60,000 + 10,000 images of 28 by 28, Zalando Research,
MIT licence), or else the handwritten digits that lie beside this file (see `data/README.md`). Pixels stay bytes until
a batch is made: four ranks on one machine would otherwise hold four float copies of everything.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

SIDE = 28
FASHION_FOLDERS = (Path("/usr/share/datasets/fashion-mnist"),)
FASHION_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
DIGITS_FILE = Path(__file__).parent / "data" / "digits.csv.gz"
DIGITS_TRAINED = 1197  # two thirds; 600 remain, so that one image is a sixth of a point of accuracy
IDX_UBYTE = 0x08

Name = Literal["fashion-mnist", "digits"]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Images:
    """A data set: images as uint8[n, 28, 28], labels as uint8[n] in 0..9."""

    name: Name
    source: str
    train_images: Bytes
    train_labels: Bytes
    test_images: Bytes
    test_labels: Bytes
    mean: float
    deviation: float
    epochs: int
    """Passes that suit it, at |batch| images per rank and step."""
    batch: int


def fashion_folder() -> Path | None:
    """The folder that holds all four files of Fashion-MNIST, or None."""
    for folder in FASHION_FOLDERS:
        if all((folder / name).is_file() for name in FASHION_FILES):
            return folder
    return None


def load(name: Name | Literal["auto"] = "auto") -> Images:
    """Reads a data set; "auto" takes Fashion-MNIST where it is installed, else the digits.

    Raises FileNotFoundError, saying what to install, when the one that is asked for is not there, and ValueError for a
    file that is not what its name says.
    """
    folder = fashion_folder()
    if name == "digits" or (name == "auto" and folder is None):
        return _digits()
    if folder is None:
        raise FileNotFoundError(
            f"Fashion-MNIST is not in {' or '.join(map(str, FASHION_FOLDERS))}: "
            "install Debian's dataset-fashion-mnist, or take --data digits"
        )
    return _fashion(folder)


def _fashion(folder: Path) -> Images:
    train_images, train_labels, test_images, test_labels = (read_idx(folder / name) for name in FASHION_FILES)
    return _images(
        "fashion-mnist",
        f"Fashion-MNIST in {folder}",
        (train_images, train_labels, test_images, test_labels),
        epochs=4,
        batch=64,
    )


def _digits() -> Images:
    with gzip.open(DIGITS_FILE, "rt", encoding="ascii") as file:
        table = np.loadtxt(file, dtype=np.uint8, delimiter=",", ndmin=2)
    if table.shape[1] != 65:
        raise ValueError(f"{DIGITS_FILE}: a line has {table.shape[1]} values; it must have 64 pixels and a label")
    images, labels = _enlarge(table[:, :64].reshape(-1, 8, 8)), table[:, 64]
    # The lines lie in order of the writers: a fixed shuffle gives both parts some of each hand.
    order = np.random.default_rng(1998).permutation(len(labels))
    train, test = order[:DIGITS_TRAINED], order[DIGITS_TRAINED:]
    return _images(
        "digits",
        "UCI handwritten digits, E. Alpaydin and C. Kaynak 1998, CC BY 4.0",
        (images[train], labels[train], images[test], labels[test]),
        epochs=30,
        batch=16,
    )


def _images(name: Name, source: str, parts: tuple[Bytes, Bytes, Bytes, Bytes], epochs: int, batch: int) -> Images:
    train_images, train_labels, test_images, test_labels = parts
    for images, labels in ((train_images, train_labels), (test_images, test_labels)):
        if images.shape[1:] != (SIDE, SIDE) or len(images) != len(labels) or not len(labels) or labels.max() > 9:
            raise ValueError(
                f"{source}: images of shape {images.shape} with {len(labels)} labels; "
                f"it must be one label in 0..9 for each image of {SIDE} by {SIDE}"
            )
    pixels = train_images[:: max(1, len(train_images) // 2000)] / 255.0
    return Images(
        name, source, *parts, mean=float(pixels.mean()), deviation=float(pixels.std()), epochs=epochs, batch=batch
    )


def _enlarge(images: Bytes) -> Bytes:
    """Bilinear from 8 by 8 values of 0..16 to 28 by 28 of 0..255, with pixel centres kept in place."""
    at = np.clip((np.arange(SIDE) + 0.5) * 8 / SIDE - 0.5, 0, 7)
    low = np.minimum(at.astype(int), 6)
    part = at - low
    weights = np.zeros((SIDE, 8))
    weights[np.arange(SIDE), low] = 1 - part
    weights[np.arange(SIDE), low + 1] = part
    large: Bytes = np.rint(weights @ images.astype(float) @ weights.T * (255 / 16)).astype(np.uint8)
    return large


def read_idx(path: Path) -> Bytes:
    """Reads a gzipped IDX file of unsigned bytes: two zero bytes, a type, the rank, and each dimension in 4 bytes.

    Raises ValueError naming the file and what is wrong with it.
    """
    raw = gzip.decompress(path.read_bytes())
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != IDX_UBYTE:
        raise ValueError(f"{path}: starts with {raw[:4].hex(' ')}; an IDX file of bytes starts with 00 00 08")
    rank = raw[3]
    shape = tuple(int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(rank))
    values = np.frombuffer(raw, np.uint8, offset=min(len(raw), 4 + 4 * rank))
    if values.size != np.prod(shape, dtype=np.int64):
        raise ValueError(f"{path}: holds {values.size} values; its header says {shape}")
    array: Bytes = values.reshape(shape)
    return array
