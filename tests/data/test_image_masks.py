"""Images with masks: pairs of folders and tables, numbers of classes, and geometry."""

import io

import numpy as np
import pytest
import torch
from pictures import encode, pairs
from PIL import Image

from zoo.data.image_masks import ImageMasks, PairAugmentation, list_pairs
from zoo.data.spec import IGNORE_INDEX
from zoo.errors import DataError, OptionError


def read(path, **options):
    given = {"classes": 4, "val": 0.25, "test": 0.25, "size": 16, "batch_size": 4, **options}
    data = ImageMasks(0, path=str(path), **given)
    data.check_source()
    for stage in ("fit", "test"):
        data.setup(stage)
    return data


def save_png(numbers, mode="L"):
    file = io.BytesIO()
    Image.fromarray(numbers, mode=mode).save(file, "PNG")
    return file.getvalue()


def test_pairs_of_folders_are_read(tmp_path):
    pairs(tmp_path, 8)
    data = read(tmp_path)
    images, masks = next(iter(data.train_dataloader()))
    assert images.shape == (4, 3, 16, 16)
    assert images.dtype == torch.uint8
    assert masks.shape == (4, 16, 16)
    assert set(masks.unique().tolist()) <= {0, 1, 2, 3}
    assert [data.count_samples(split) for split in ("train", "val", "test")] == [4, 2, 2]
    assert set(data.compute_baselines()) == {"test/accuracy", "test/miou", "test/loss"}


def test_baselines_leave_out_what_the_task_ignores(tmp_path):
    pairs(tmp_path, 8)
    data = read(tmp_path)
    everything = data.compute_baselines()["test/accuracy"]["majority class"]
    masks = data.subsets["test"].__getitems__([0, 1])[1].flatten()
    commonest = int(data.subsets["train"].__getitems__([0, 1, 2, 3])[1].flatten().mode().values)
    assert everything == pytest.approx((masks == commonest).float().mean().item())
    data.ignored_target = commonest
    found = data.compute_baselines()["test/accuracy"]["majority class"]
    counts = masks[masks != commonest].bincount()
    assert found in [pytest.approx(int(one) / int(counts.sum())) for one in counts if one]


@pytest.mark.parametrize("pack", [None, 64])
def test_images_that_keep_their_shapes_have_baselines(tmp_path, pack):
    for split, size in (("train", (40, 32)), ("val", (16, 16)), ("test", (24, 56))):
        pairs(tmp_path, 6, split=split, size=size)
    data = read(tmp_path, val="val", test="test", aspect="keep", pack=pack)
    counts = [
        sum(batch[-1][batch[-1] >= 0].flatten().bincount(minlength=4) for batch in loader)
        for loader in (data.train_dataloader(), data.test_dataloader())
    ]
    scores = data.compute_baselines()["test/accuracy"]
    right = counts[1][counts[0].argmax()] / counts[1].sum()
    assert scores["majority class"] == pytest.approx(float(right))
    assert "softmax regression per pixel" in scores


def test_masks_without_a_class_have_no_baselines(tmp_path):
    pairs(tmp_path, 8)
    data = read(tmp_path, ignore=(0, 1, 2, 3))
    assert data.compute_baselines() == {}


def test_folders_of_other_names_are_named(tmp_path):
    pairs(tmp_path, 8)
    with pytest.raises(
        DataError, match=r"folders photos and masks, but images, masks; set data.im"
    ):
        read(tmp_path, image="photos")


def test_folders_below_are_splits_and_numbers_may_start_at_one(tmp_path):
    for split in ("training", "validation"):
        pairs(tmp_path, 3, split=split, mask="annotations")
    options = {"train": "training", "val": "validation", "test": "validation"}
    data = read(tmp_path, mask="annotations", classes=3, first=1, **options)
    assert data.count_samples("train") == 3
    masks = next(iter(data.build_loader("test")))[1]
    assert set(masks.unique().tolist()) == {IGNORE_INDEX, 0, 1, 2}


def test_a_table_of_files_and_masks_is_read(tmp_path):
    import datasets

    features = datasets.Features(photo=datasets.Image(), annotation=datasets.Image())
    masks = [save_png(np.full((8, 8), number, np.uint8)) for number in range(8)]
    rows = {
        "photo": [{"bytes": encode(number), "path": None} for number in range(8)],
        "annotation": [{"bytes": mask, "path": None} for mask in masks],
    }
    table = datasets.Dataset.from_dict(rows, features)
    table.to_parquet(tmp_path / "train.parquet")
    data = read(tmp_path, image="photo", mask="annotation", classes=5, ignore=(5, 6, 7))
    found = torch.cat(
        [one for split in ("train", "val", "test") for _, one in data.build_loader(split)]
    )
    counts = {number: int((found == number).sum()) // 256 for number in found.unique().tolist()}
    assert counts == {IGNORE_INDEX: 3, 0: 1, 1: 1, 2: 1, 3: 1, 4: 1}


@pytest.mark.parametrize("augment", [{"flip": 1.0}, {"area": 0.2, "flip": 0.5}])
def test_masks_move_with_their_images(tmp_path, augment):
    """The image of each pair is its mask in grey."""
    rng = np.random.default_rng(0)
    for number in range(8):
        blocks = np.kron(rng.integers(0, 2, (4, 5), np.uint8), np.ones((16, 16), np.uint8))
        for folder, levels in (("images", 255 * blocks), ("masks", blocks)):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / f"{number}.png").write_bytes(save_png(levels))
    data = read(tmp_path, classes=2, size=64, channels=1, augment=PairAugmentation(**augment))
    plain = read(tmp_path, classes=2, size=64, channels=1)
    keys = [(0, number) for number in range(4)]
    images, masks, _ = data.build_loader("train").dataset.__getitems__(keys)
    assert not torch.equal(masks, plain.build_loader("train").dataset.__getitems__(keys)[1])
    # but for pixels on borders, where bicubic resizing is in between
    assert ((images[:, 0] > 127) == (masks == 1)).float().mean() > 0.97


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda mask: np.full_like(mask, 9),
            "number 9 in a mask, and 4 classes from 0; set data.classes",
        ),
        (lambda mask: mask[:8], "mask and image differ in size, 40 x 8 and 40 x 32 pixels"),
        (lambda mask: np.stack([mask] * 3, -1), r"a mask with colours \(RGB\)"),
    ],
)
def test_a_mask_that_cannot_be_followed_is_named(tmp_path, change, message):
    pairs(tmp_path, 8)
    for path in (tmp_path / "masks").iterdir():
        numbers = change(np.asarray(Image.open(path)))
        Image.fromarray(numbers).save(path)
    with pytest.raises(DataError, match=message):
        next(iter(read(tmp_path).build_loader("train")))


def test_a_file_without_its_pair_is_named(tmp_path):
    pairs(tmp_path, 4)
    (tmp_path / "masks" / "2.png").unlink()
    with pytest.raises(
        DataError, match=r"images/2.png has no file of the same name in .*masks \(1 of 4"
    ):
        list_pairs(tmp_path / "images", tmp_path / "masks")


@pytest.mark.parametrize(
    ("options", "key"), [({"classes": None}, "classes"), ({"classes": ("a", "a")}, "classes")]
)
def test_options_that_cannot_work_are_refused(tmp_path, options, key):
    with pytest.raises(OptionError) as error:
        read(tmp_path, **options)
    assert error.value.key == key


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("options", "key", "message"),
    [
        ({"first": 2**40}, "first", "numbers of masks have 16 bits, up to 65,535"),
        ({"classes": 33_000}, "classes", "33,000; to save memory, .* at most 32,767"),
        ({"classes": 2**40}, "classes", "do not fit into memory, expected at most 1,048,576"),
    ],
)
def test_numbers_beyond_a_mask_are_refused_with_the_reason(tmp_path, options, key, message):
    with pytest.raises(OptionError, match=message) as error:
        ImageMasks(0, path=str(tmp_path), **{"classes": 2, **options})
    assert error.value.key == key


@pytest.mark.robustness
@pytest.mark.parametrize(("folder", "other"), [("images", "masks"), ("masks", "images")])
def test_a_damaged_picture_of_a_pair_is_named_itself(tmp_path, folder, other):
    pairs(tmp_path, 8)
    for path in (tmp_path / folder).iterdir():
        path.write_bytes(b"no picture")
    with pytest.raises(DataError, match=rf"/{folder}/.* not an image") as error:
        list(read(tmp_path).build_loader("train"))
    assert f"/{other}/" not in str(error.value)


@pytest.mark.robustness
@pytest.mark.parametrize("kind", ["jpg", "tiff"])
def test_masks_of_lossy_files_are_refused(tmp_path, kind):
    pairs(tmp_path, 8)
    for path in (tmp_path / "masks").iterdir():
        options = {"compression": "jpeg"} if kind == "tiff" else {}
        Image.open(path).convert("L").save(path.with_suffix(f".{kind}"), **options)
        path.unlink()
    data = ImageMasks(0, path=str(tmp_path), classes=4, size=16, val=0.25, test=0.25)
    with pytest.raises(DataError, match="lossy format, which changes the numbers of classes"):
        data.check_classes("train")
    data.setup("fit")
    with pytest.raises(DataError, match="lossy format"):
        list(data.build_loader("train"))
