"""Draw the built-in digits from the full MNIST: make_digits.py SOURCE_DIR OUT.npz."""

import sys
from pathlib import Path

import numpy as np

from paceline.data.builtin import mnist
from paceline.errors import DataError

SEED = 20
PER_CLASS = {"train": 1000, "test": 200}
LIMIT_BYTES = 3_000_000


def draw(labels: np.ndarray, per_class: int, random: np.random.Generator) -> np.ndarray:
    """Indices of so many random samples of every class, shuffled."""
    chosen = [
        random.choice(np.flatnonzero(labels == label), per_class, replace=False)
        for label in np.unique(labels)
    ]
    return random.permutation(np.concatenate(chosen))


def write_digits(source: Path, out: Path, per_class: dict[str, int]) -> int:
    """Write the subset and return its size in bytes; the same input gives the same bytes."""
    arrays: dict[str, np.ndarray] = {}
    random = np.random.Generator(np.random.PCG64(SEED))
    for part, count in per_class.items():
        images, labels = mnist.read_part(source, part)
        chosen = draw(labels, count, random)
        arrays[f"x_{part}"], arrays[f"y_{part}"] = images[chosen], labels[chosen]
    np.savez_compressed(out, **arrays)
    return out.stat().st_size


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        size = write_digits(source, out, PER_CLASS)
    except DataError as error:
        sys.exit(f"make_digits: {error}")
    if size > LIMIT_BYTES:
        sys.exit(f"make_digits: {out} has {size} bytes, expected at most {LIMIT_BYTES}")
    print(f"{out}: {size} bytes")


if __name__ == "__main__":
    main()
