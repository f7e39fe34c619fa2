"""A trained policy as files that others read without this package, or JAX.

A folder holds `policy.safetensors`, the actor's float32 weights `[inputs, outputs]` and biases, and
`policy.json`: their shapes, what the layers compute, normaliser, scale of actions, and the run's
whole config. `numpy_policy.load` is a reader.
"""

import json
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from appo_jax import numpy_policy, registry
from appo_jax.data import atomic
from appo_jax.networks import MLP
from appo_jax.policy import Policy, Saved
from appo_jax.types import InputError

FORMAT_VERSION = 1
NUM_CHECKED = 1000  # observations, drawn as the normaliser's mean and deviation say
TOLERANCE = 1e-5  # of half the range of an action: the order of summation differs


def write(saved: Saved, folder: Path) -> float:
    """Write `folder`, whole or not at all, and return how far the reader's actions are off at most.

    In shares of half an action's range, over `NUM_CHECKED` observations. Raises InputError where
    safetensors isn't installed, for an actor that isn't tanh of the first outputs of one MLP, and
    OSError when the folder can't be made or is there already.
    """
    try:
        from safetensors.numpy import save
    except ImportError as error:
        raise InputError(
            "safetensors isn't installed, expected what `pip install 'appo-jax[export]'` adds"
        ) from error
    layers, tensors = _layers(saved.policy)
    with atomic.new_folder(folder) as partial:
        # Not by its own writer, which lets nobody else read the file.
        (partial / "policy.safetensors").write_bytes(save(tensors))
        content = json.dumps(_described(saved, layers, tensors), indent=2)
        (partial / "policy.json").write_text(content + "\n")
        error_found = difference(saved.policy, partial)
        if not error_found <= TOLERANCE:  # NaN isn't either
            raise InputError(
                f"algorithm {saved.policy.algorithm!r}: read back, the actions differ by up to "
                f"{error_found:g} of half their range, expected an actor that is tanh of the first "
                f"outputs of one MLP; {folder} was not written"
            )
    return error_found


def difference(policy: Policy, folder: Path) -> float:
    """How far the actions of an exported policy are from `policy`'s at most; see `write`."""
    mean, std = (np.asarray(value) for value in (policy.normaliser.mean, policy.normaliser.std))
    noise = np.random.default_rng(0).standard_normal((NUM_CHECKED, len(mean)), np.float32)
    observations = mean + std * noise
    with jax.default_matmul_precision("highest"):  # else a GPU's products have ten bits
        expected = policy(observations)
    off = np.abs(numpy_policy.load(folder)(observations) - expected)
    return float(np.max(off / policy.actions.half_range))


def _layers(policy: Policy) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """What the layers of the actor's network compute, and their arrays by name."""
    network, params = _network(policy)
    layers: list[dict[str, Any]] = []
    tensors = {}
    for number in range(network.hidden_layers + 1):
        is_last = number == network.hidden_layers
        own = params["output" if is_last else f"hidden_{number}"]
        names = {"weight": f"layers.{number}.weight", "bias": f"layers.{number}.bias"}
        for name, key in (("weight", "kernel"), ("bias", "bias")):
            tensors[names[name]] = np.ascontiguousarray(own[key], np.float32)
        if is_last:
            layers.append({**names, "activation": "none"})
        else:
            slope = network.negative_slope
            layers.append({**names, "activation": "leaky_relu", "negative_slope": slope})
    return layers, tensors


def _network(policy: Policy) -> tuple[MLP, Any]:
    """The one network that `act` applies, and its parameters: seen while it is applied."""
    found: list[tuple[MLP, Any]] = []

    def see(call: Any, arguments: Any, named: Any, context: nn.module.InterceptorContext) -> Any:
        if isinstance(context.module, MLP):
            found.append((context.module, jax.device_get(context.module.variables["params"])))
        return call(*arguments, **named)

    # A compiled `act` would show tracers, or, compiled before, nothing.
    with jax.disable_jit(), nn.intercept_methods(see):
        policy(np.zeros(len(policy.normaliser.mean), np.float32))
    if len(found) != 1:
        learner = registry.algorithm(policy.algorithm).policy_learner
        raise InputError(
            f"algorithm {policy.algorithm!r}: {getattr(learner, '__name__', learner)}.act applies "
            f"{len(found)} networks.MLP, expected one, whose layers can be written"
        )
    return found[0]


def _described(
    saved: Saved, layers: list[dict[str, Any]], tensors: dict[str, np.ndarray]
) -> dict[str, Any]:
    policy = saved.policy
    return {
        "format": "appo-policy",
        "version": FORMAT_VERSION,
        "algorithm": policy.algorithm,
        "env_name": saved.config["env_name"],
        "update": saved.update,
        "observation_dim": len(policy.normaliser.mean),
        "action_dim": len(policy.actions.centre),
        "layers": layers,
        "squash": "tanh",  # of the first action_dim outputs
        "shapes": {name: list(tensor.shape) for name, tensor in tensors.items()},
        "normaliser": _lists(policy.normaliser, ("mean", "std")),
        "actions": _lists(policy.actions, ("centre", "half_range")),
        "config": dict(saved.config),
    }


def _lists(of: Any, names: tuple[str, ...]) -> dict[str, list[float]]:
    return {name: np.asarray(getattr(of, name), np.float32).tolist() for name in names}
