"""Tables, folders of images and tars of them."""

import io
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from paceline.comm.solo import SoloWorld
from paceline.config.reading import read_config
from paceline.data import DatasetSource, Shard, open_data, training_batches
from paceline.data.fingerprint import sum_samples
from paceline.errors import DataError
from paceline.training.datasets import open_datasets

ROWS = 50


def parquet(path, rows_per_group=8, **columns):
    pyarrow.parquet.write_table(pa.table(columns), path, row_group_size=rows_per_group)
    return str(path)


def take(spec, places=(49, 0, 20), **options):
    return open_data(spec, part="train", **options).take(np.array(places))


def test_parquet_by_row_groups(tmp_path):
    numbers = np.arange(ROWS)
    spec = parquet(tmp_path / "t.parquet", a=numbers / 2, b=numbers * 2, label=numbers)
    batch = take(spec)
    assert batch.targets.tolist() == [49, 0, 20]
    assert batch.targets.dtype == np.int64
    assert batch.inputs.tolist() == [[24.5, 98], [0, 0], [10, 40]]
    assert batch.inputs.dtype == np.float32
    source = open_data(spec, part="train")
    assert [block.last - block.first for block in source._blocks] == [8] * 6 + [2]
    seen = [
        n
        for rank in range(3)
        for batch in training_batches(source, shard=Shard(rank, 3), batch_size=4)
        for n in batch.targets.tolist()
    ]
    assert sorted(seen) == numbers.tolist()


def test_columns_by_name(tmp_path):
    numbers = np.arange(ROWS)
    lists = pa.array([[n, n + 1] for n in range(ROWS)], pa.list_(pa.float32()))
    spec = parquet(tmp_path / "t.parquet", a=numbers, b=numbers * 2, v=lists, w=numbers * 0.5)
    assert take(spec, keys=["v", "a"]).inputs.tolist() == [[49, 50], [0, 1], [20, 21]]
    mapped = take(spec, keys=[{"deep": "v", "wide": ["a", "b"]}, ["a", "w"]])
    assert mapped.inputs["deep"].shape == (3, 2)
    assert mapped.inputs["wide"].tolist() == [[49, 98], [0, 0], [20, 40]]
    assert mapped.targets.tolist() == [[49, 24.5], [0, 0], [20, 10]]
    assert take(spec, keys=["a", None]).targets is None
    with pytest.raises(DataError, match=r"t\.parquet has no column c; it has: a, b, v, w"):
        take(spec, keys=["a", "c"])
    with pytest.raises(DataError, match=r"column v of .*t\.parquet holds lists"):
        take(spec)


def test_what_a_table_cannot_give_is_told(tmp_path):
    numbers = list(range(ROWS))
    words = parquet(tmp_path / "w.parquet", a=numbers, label=["cat"] * ROWS)
    with pytest.raises(DataError, match=r"column label of .*w\.parquet holds string, expected num"):
        take(words)
    gaps = parquet(tmp_path / "g.parquet", a=[*numbers[:-1], None], label=numbers)
    assert len(open_data(gaps, part="train")) == ROWS
    with pytest.raises(DataError, match=r"column a of .*g\.parquet has 1 missing"):
        take(gaps)
    uneven = parquet(tmp_path / "u.parquet", v=[[1.0, 2], [1, 2, 3, 4], [1, 2, 3]], label=[0, 1, 2])
    with pytest.raises(DataError, match=r"column v of .*u\.parquet has lists of different"):
        take(uneven, (0, 1), keys=["v", "label"])
    longer = parquet(tmp_path / "l.parquet", 2, v=[[1.0]] * 2 + [[1.0, 2]] * 2, label=[0, 1, 2, 3])
    with pytest.raises(DataError, match=r"l\.parquet gave v of shape \(2, 2\), expected \(2, 1\)"):
        take(longer, (3,), keys=["v", "label"])
    (tmp_path / "d.parquet").write_bytes((tmp_path / "w.parquet").read_bytes()[:-20])
    with pytest.raises(DataError, match=r"d\.parquet cannot be read"):
        take(str(tmp_path / "d.parquet"))


@pytest.mark.parametrize("header", ["a,b,label\n", '\ufeff"a",b,label\r\n', ""])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "end", "blank"])
def test_csv_by_blocks_of_lines(tmp_path, monkeypatch, header, end, last):
    monkeypatch.setattr("paceline.data.formats.csv_file.BLOCK_BYTES", 100)
    lines = [f"{n},{n * 0.5},{n}" for n in range(ROWS)]
    lines.insert(10, "")
    tail = {"": "", "end": end, "blank": end + end}[last]
    (tmp_path / "t.csv").write_bytes((header + end.join(lines) + tail).encode())
    source = open_data(str(tmp_path / "t.csv"), part="train")
    assert len(source) == ROWS
    assert len(source._blocks) > 4
    batch = source.take(np.array([49, 0, 11]))
    assert batch.inputs.tolist() == [[49, 24.5], [0, 0], [11, 5.5]]
    assert batch.inputs.dtype == np.float32
    assert batch.targets.tolist() == [49, 0, 11]
    assert batch.targets.dtype == np.int64
    everything = source.take(np.arange(ROWS))
    assert everything.targets.tolist() == list(range(ROWS))


def test_a_csv_that_changes_its_mind_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.data.formats.csv_file.BLOCK_BYTES", 40)
    rows = [f"{n},{n}" for n in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,y", *(f"{row},3" for row in rows), "1,1.5,4"]))
    # Fractions may come later, where columns make a matrix, but not where one is named alone.
    assert take(str(tmp_path / "t.csv"), (20,)).inputs.tolist() == [[1, 1.5]]
    (tmp_path / "t.csv").write_text("\n".join(["a,y", *rows, "1,2.5"]))
    source = open_data(str(tmp_path / "t.csv"), part="train")
    with pytest.raises(DataError, match=r"t\.csv cannot be read.*2\.5"):
        source.take(np.array([20]))
    (tmp_path / "t.csv").write_text("\n".join(["a,y", *rows, "1,2,3"]))
    source = open_data(str(tmp_path / "t.csv"), part="train")
    with pytest.raises(DataError, match=r"t\.csv cannot be read.*[Ee]xpected 2 columns"):
        source.take(np.array([20]))


def test_lists_of_tables_may_hold_empty_ones(tmp_path):
    (tmp_path / "0.csv").write_text("a,y\n")
    (tmp_path / "1.csv").write_text("a,y\n1,2\n3,4")
    source = open_data(str(tmp_path / "*.csv"), part="train")
    assert source.take(np.array([1, 0])).targets.tolist() == [4, 2]
    (tmp_path / "2.csv").write_text("b,y\n1,2\n")
    with pytest.raises(DataError, match=r"2\.csv has no column a; it has: b, y"):
        open_data(str(tmp_path / "*.csv"), part="train")


def image(path, shade, size=(4, 3), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade if mode == "L" else (shade, 0, 1)).save(path)


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        image(tmp_path / "cats" / f"{number}.png", number)
        image(tmp_path / "ants" / "deep" / f"{number}.PNG", 10 + number)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "cats" / "notes.txt").write_text("no image")
    return tmp_path


def test_a_folder_of_images(folder):
    source = open_data(str(folder), part="train")
    assert isinstance(source, DatasetSource)
    batch = source.take(np.array([5, 0]))
    assert batch.inputs.shape == (2, 3, 3, 4)
    assert batch.inputs.dtype == np.uint8
    assert batch.inputs[:, :, 0, 0].tolist() == [[2, 0, 1], [10, 0, 1]]
    assert batch.targets.tolist() == [1, 0]
    assert take(f"{folder}?channels=last", (0,)).inputs.shape == (1, 3, 4, 3)
    assert take(f"{folder}?size=8x6&mode=L", (0,)).inputs.shape == (1, 1, 6, 8)
    assert sum_samples(source) == sum_samples(open_data(str(folder), part="train"))
    (folder / "cats" / "1.png").rename(folder / "cats" / "9.png")
    assert sum_samples(source) != sum_samples(open_data(str(folder), part="train"))


def test_images_that_do_not_fit_are_named(folder):
    image(folder / "cats" / "1.png", 1, size=(5, 5))
    (folder / "cats" / "2.png").write_bytes(b"\x89PNG\r\n\x1a\nno")
    with pytest.raises(DataError, match=r"1\.png has the shape .*\?size=WIDTHxHEIGHT"):
        take(str(folder), (0, 4))
    assert take(f"{folder}?size=4x3", (0, 4)).samples == 2
    with pytest.raises(DataError, match=r"cats/2\.png cannot be read"):
        take(str(folder), (5,))
    source = open_data(str(folder), part="train")
    (folder / "cats" / "0.png").unlink()
    with pytest.raises(DataError, match=r"cats/0\.png is gone"):
        source.take(np.array([3]))
    with pytest.raises(DataError, match="options that are not understood; expected"):
        take(f"{folder}?sise=3x4")


def test_a_grey_first_image_is_no_reason_to_drop_colours(folder):
    image(folder / "ants" / "deep" / "0.PNG", 7, mode="L")
    with pytest.raises(DataError, match=r"1\.PNG is in colour and the first image is grey"):
        take(str(folder), (0, 1))
    assert take(f"{folder}?mode=RGB", (0, 1)).inputs.shape == (2, 3, 3, 4)


def test_training_and_validation_have_the_same_classes(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("val")
    image(other / "cats" / "0.png", 1)
    config = read_config({"data": {"train": str(folder), "validation": str(other)}})
    with pytest.raises(DataError, match="differ in their folders, which are the classes: ants"):
        open_datasets(config, SoloWorld())
    (other / "ants").mkdir()
    _, validation = open_datasets(config, SoloWorld())
    assert validation.take(np.array([0])).targets.tolist() == [1]


def tar(path, samples, mode="w"):
    with tarfile.open(path, mode) as archive:
        for name, content in samples:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return str(path)


def png(shade):
    file = io.BytesIO()
    Image.new("L", (2, 2), shade).save(file, "PNG")
    return file.getvalue()


def test_tars_of_images_and_classes(tmp_path):
    for part in range(2):
        pairs = [
            item
            for n in range(part * 5, part * 5 + 5)
            for item in ((f"d/{n:04}.cls", b"%d\n" % n), (f"d/{n:04}.png", png(n)))
        ]
        tar(tmp_path / f"{part}.tar", pairs)
    batch = take(str(tmp_path / "*.tar"), (9, 0, 6))
    assert batch.targets.tolist() == [9, 0, 6]
    assert batch.inputs[:, 0, 0, 0].tolist() == [9, 0, 6]
    alone = tar(tmp_path / "alone.tar", [("a.png", png(1))])
    with pytest.raises(DataError, match=r"sample a in .*alone\.tar has only: \.png; expected"):
        take(alone, (0,))
    with pytest.raises(DataError, match=r"packed\.tar is not a tar, or a compressed"):
        take(tar(tmp_path / "packed.tar", [("a.png", png(1))], "w:gz"), (0,))
    odd = tar(tmp_path / "odd.tar", [("a.png", png(1)), ("a.cls", b"cat")])
    with pytest.raises(DataError, match=r"a\.cls in .*odd\.tar holds b'cat', expected the number"):
        take(odd, (0,))
