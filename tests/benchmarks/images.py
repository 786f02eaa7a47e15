"""What random crops of files cost a data worker, and what the rest costs the training process.

    python tests/benchmarks/images.py [rounds] [to]

Generated JPEGs of 500 x 400 pixels. Each image is decoded by zoo and by Pillow alone, with the same
crop, each of them first in turn, on one thread, in seconds of the processor; the ratio is the median over rounds. The device
part has images of 8 x 8 pixels and ten classes, so that what takes time is to start operations, not to compute them.
"""

import io
import json
import platform
import statistics
import time
from datetime import UTC, datetime

import numpy as np
import torch
from PIL import Image, __version__

from zoo.data.random_crop import RandomCrop
from zoo.data.vision import Augmentation, ImageDecoder, ImageTransform
from zoo.version import __version__ as zoo_version

COUNT, BATCH, SIDE, SIZE = 64, 256, 224, (500, 400)
CROP = RandomCrop(0, 0.08, 0.5)
DECODER = ImageDecoder((SIDE, SIDE), 3, "crop")
DEVICE_PARTS = {
    "vit_s16_*_imagenet": Augmentation(area=0.08, flip=0.5, randaugment=1, mixup=0.8, cutmix=1.0),
    "vit_b16_*_imagenet": Augmentation(area=0.08, flip=0.5),
    "cutmix": Augmentation(cutmix=1.0),
    "crop": Augmentation(crop=4),
}


def make_files():
    rng, files = np.random.default_rng(0), []
    for _ in range(COUNT):
        small = Image.fromarray(rng.integers(0, 256, (32, 40, 3), dtype=np.uint8))
        large = np.asarray(small.resize(SIZE, Image.Resampling.BICUBIC)).astype(int)
        noisy = (large + rng.integers(-6, 7, large.shape)).clip(0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(noisy).save(file, "JPEG", quality=92)
        files.append(file.getvalue())
    return files


def decode_with_zoo(content, number):
    return DECODER.decode(content, CROP.draw(0, number))


def decode_with_pillow(content, number):
    box, is_flipped = CROP.draw(0, number).draw_box(*SIZE)
    image = Image.open(io.BytesIO(content)).convert("RGB").crop(box)
    image = image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    if is_flipped:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def measure_decoding(rounds):
    files, found = make_files(), []
    for _ in range(rounds):
        seconds = [0.0, 0.0]
        for number, content in enumerate(files):
            # the second one finds the file in the processor's cache
            for which in (0, 1) if number % 2 else (1, 0):
                decode = (decode_with_zoo, decode_with_pillow)[which]
                start = time.process_time()
                decode(content, number)
                seconds[which] += time.process_time() - start
        found.append([COUNT / each for each in seconds])
    return found


def measure_host(augment, rounds):
    images = torch.randint(256, (BATCH, 3, 8, 8), dtype=torch.uint8)
    transform = ImageTransform(3, (0.5,), (0.5,), augment)
    seconds = []
    for seed in range(rounds + 1):
        torch.manual_seed(seed)
        start = time.process_time()
        transform(images, torch.arange(BATCH) % 10, training=True, classes=10)
        seconds.append(time.process_time() - start)
    return [1e6 * each / BATCH for each in seconds[1:]]


def main(rounds, to):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rates = measure_decoding(rounds)
    host = {name: measure_host(one, 3 * rounds) for name, one in DEVICE_PARTS.items()}
    result = {
        "zoo_version": zoo_version,
        "created": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "command": f"python tests/benchmarks/images.py {rounds} {to}".strip(),
        "machine": {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "pillow": __version__,
            "threads": 1,
        },
        "images_per_second": {
            "zoo": statistics.median(one for one, _ in rates),
            "pillow": statistics.median(other for _, other in rates),
            "ratio": statistics.median(one / other for one, other in rates),
            "values": rates,
        },
        "host_microseconds_per_image": {
            name: {"mean": statistics.mean(each), "median": statistics.median(each)}
            for name, each in host.items()
        },
    }
    text = json.dumps(result, indent=1)
    print(text)
    if to:
        with open(to, "w", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    from arguments import make_parser, positive

    parser = make_parser(__doc__)
    parser.add_argument("rounds", nargs="?", type=positive, default=7)
    parser.add_argument("to", nargs="?", default="")
    known = parser.parse_args()
    main(known.rounds, known.to)
