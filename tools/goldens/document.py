"""golden.json: token ids and figures of one golden, with the versions that made it."""

import json
from importlib.metadata import version

PACKAGES = ("transformers", "torch", "mlx-lm", "mlx")


def save_document(directory, content):
    made_with = {package: version(package) for package in PACKAGES}
    (directory / "golden.json").write_text(json.dumps(dict(made_with=made_with, **content)) + "\n")
