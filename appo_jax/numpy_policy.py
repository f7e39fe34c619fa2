"""Reads what `experiments.export` wrote, with NumPy and nothing else: copy this file anywhere."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def load(folder: str | Path) -> Callable[[Any], np.ndarray]:
    """The policy: observations `[..., observation_dim]`, raw, to actions `[..., action_dim]`."""
    told = json.loads(Path(folder, "policy.json").read_text())
    if (told["format"], told["version"]) != ("appo-policy", 1):
        raise ValueError(f"{folder}: {told['format']} {told['version']}, expected appo-policy 1")
    data = Path(folder, "policy.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")  # the header's length, the header, the arrays
    tensors = {}
    for name, one in json.loads(data[8:start]).items():
        first, last = one["data_offsets"]
        flat = np.frombuffer(data[start + first : start + last], "<f4")
        tensors[name] = flat.reshape(one["shape"])
    mean, std = (np.array(told["normaliser"][name], "<f4") for name in ("mean", "std"))
    centre, half_range = (
        np.array(told["actions"][name], "<f4") for name in ("centre", "half_range")
    )

    def act(observations: Any) -> np.ndarray:
        outputs = (np.asarray(observations, "<f4") - mean) / std
        for layer in told["layers"]:
            outputs = outputs @ tensors[layer["weight"]] + tensors[layer["bias"]]
            if layer["activation"] == "leaky_relu":
                outputs = np.where(outputs > 0, outputs, layer["negative_slope"] * outputs)
        return centre + half_range * np.tanh(outputs[..., : len(centre)])

    return act
