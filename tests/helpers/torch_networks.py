"""Networks of the PyTorch references beside ours: the same parameters, compared by layer.

Import it after `pytest.importorskip("torch")`.
"""

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

# Two thread pools on the same cores wait for each other's spinning threads.
torch.set_num_threads(1)


def to_tensor(array: Any) -> Any:
    """An array, in single precision."""
    return torch.tensor(np.asarray(array, np.float32))


def by_layer(network: Any, of: str) -> Iterator[tuple[str, str, np.ndarray]]:
    """(layer, leaf, array) as our networks have them, each parameter's `data` or `grad`."""
    for layer, modules in _linears(network):
        kernels = [getattr(module.weight, of).numpy().T for module in modules]
        biases = [getattr(module.bias, of).numpy() for module in modules]
        for leaf, arrays in (("kernel", kernels), ("bias", biases)):
            yield layer, leaf, np.stack(arrays) if len(arrays) > 1 else arrays[0]


def copy_params(network: Any, params: Any, of: str = "data") -> None:
    """Give a network ours, by layer, as its parameters' `data` or `grad`."""
    for layer, modules in _linears(network):
        for index, module in enumerate(modules):
            member = index if len(modules) > 1 else slice(None)
            kernel, bias = (to_tensor(params[layer][leaf][member]) for leaf in ("kernel", "bias"))
            setattr(module.weight, of, kernel.T.contiguous())
            setattr(module.bias, of, bias)


def nearest_to_kink(reference: Any, names: Iterable[str], *inputs: Any) -> float:
    """How near to zero a pre-activation of the named networks comes in an update of a copy."""
    nearest: list[float] = []

    def record(_: Any, inputs: Any) -> None:
        nearest.append(float(inputs[0].detach().abs().min()))

    probe = copy.deepcopy(reference)
    for name in names:
        for module in getattr(probe, name).modules():
            if isinstance(module, (torch.nn.ReLU, torch.nn.LeakyReLU)):
                module.register_forward_pre_hook(record)
    probe.update(*inputs)
    return min(nearest)


def relative_error(found: Any, expected: Any) -> float:
    """The distance of two arrays over the length of the second."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def assert_same_moves(
    network: Any, before: Any, after: Any, tolerance: float, what: str = "parameters"
) -> None:
    """Raise AssertionError unless a network is where ours is, within a share of how far it moved.

    before, after: our parameters, by layer.
    """
    moved = error = 0.0
    for layer, leaf, expected in by_layer(network, "data"):
        moved += np.sum((expected - np.asarray(before[layer][leaf])) ** 2)
        error += np.sum((expected - np.asarray(after[layer][leaf])) ** 2)
    assert error <= tolerance**2 * moved, f"{what}: {error**0.5} of {moved**0.5}"


def _linears(network: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """(layer, the modules of all members of a network)."""
    members = network if isinstance(network, torch.nn.ModuleList) else [network]
    layers = [[m for m in member if isinstance(m, torch.nn.Linear)] for member in members]
    names = [f"hidden_{index}" for index in range(len(layers[0]) - 1)]
    yield from zip([*names, "output"], zip(*layers, strict=True), strict=True)
