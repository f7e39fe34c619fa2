"""One update of Inverse Preference Learning in eager PyTorch: an oracle for the JAX update.

Written from a description of the published code alone; it shares neither code nor constants with
``appo_jax``. In the symbols of the paper (Hejna and Sadigh 2023) Q_i are ``critic[i]``, their
targets ``target_critic[i]``, V ``value``, pi ``actor`` with ``log_std``; c is the weight of the
chi^2 regulariser, w the share of the replay batch, ``beta`` divides the advantage in the policy's
weights, and ``polyak`` is the rate of the targets.
"""

import copy
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTHS = (256, 256, 256)
LEARNING_RATE = 3e-4
LARGEST_WEIGHT = 100.0
LOG_STD_RANGE = (-5.0, 2.0)


class Steps(NamedTuple):
    """Transitions; float32.

    Attributes:
        observations, next_observations: ``[..., observation_dim]``.
        actions: ``[..., action_dim]`` in [-1, 1].
        terminations: ``[...]``, 1 where the step ended in a terminal state, else 0.
    """

    observations: Tensor
    actions: Tensor
    next_observations: Tensor
    terminations: Tensor


class Batch(NamedTuple):
    """What one update reads: the crops of P pairs, and perhaps transitions of all data.

    Attributes:
        first, second: the two segments of each pair, their arrays ``[P, length, ...]``.
        labels: ``[P]``, probability that the second is preferred.
        replay: arrays ``[B, ...]``, or None.
    """

    first: Steps
    second: Steps
    labels: Tensor
    replay: Steps | None


def network(inputs: int, outputs: int) -> nn.Sequential:
    """Linear layers with ReLU between them, orthogonal weights and no biases to begin with."""
    modules: list[nn.Module] = []
    for width in WIDTHS:
        modules += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    modules.append(nn.Linear(inputs, outputs))
    for module in modules:
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight)
            nn.init.zeros_(module.bias)
    return nn.Sequential(*modules)


class IPL:
    """The parameters of one run and their update.

    After ``update``, the ``.grad`` of each parameter of ``critic``, ``value`` and ``actor``, and of
    ``log_std``, is the gradient of the one loss that moves it.
    """

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        c: float = 3.0,
        w: float = 0.5,
        expectile: float = 0.75,
        beta: float = 1 / 3,
        discount: float = 0.99,
        polyak: float = 0.005,
        target_clipping: bool = False,
    ) -> None:
        self.c, self.w, self.expectile, self.beta = c, w, expectile, beta
        self.discount, self.polyak, self.target_clipping = discount, polyak, target_clipping
        self.critic = nn.ModuleList(network(observation_dim + action_dim, 1) for _ in range(2))
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.value = network(observation_dim, 1)
        self.actor = network(observation_dim, action_dim)
        self.log_std = nn.Parameter(torch.zeros(action_dim))
        self.optimizers = {
            "value": torch.optim.Adam(self.value.parameters(), LEARNING_RATE),
            "critic": torch.optim.Adam(self.critic.parameters(), LEARNING_RATE),
            "actor": torch.optim.Adam([*self.actor.parameters(), self.log_std], LEARNING_RATE),
        }

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One update: V, critics, policy, target critics.

        Returns:
            The scalar losses ``value``, ``critic`` and ``actor``, each before its own step.
        """
        found = {}
        for name, loss in (
            ("value", self.value_loss),
            ("critic", self.critic_loss),
            ("actor", self.actor_loss),
        ):
            total = loss(batch)
            parameters = self.optimizers[name].param_groups[0]["params"]
            gradients = torch.autograd.grad(total, parameters)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            self.optimizers[name].step()
            found[name] = total.detach()
        self.update_target()
        return found

    def mixture(self, of: Callable[[Steps], Tensor], batch: Batch) -> Tensor:
        """The means over both segments and over the replay batch, weighed by w."""
        first, second = of(batch.first), of(batch.second)
        if batch.replay is None:
            return torch.cat([first.flatten(), second.flatten()]).mean()
        segments = (first.mean() + second.mean()) / 2
        return (1 - self.w) * segments + self.w * of(batch.replay).mean()

    def lower_target(self, steps: Steps) -> Tensor:
        """The lower target critic at the data's actions as a constant."""
        with torch.no_grad():
            return torch.minimum(*self.q(self.target_critic, steps))

    def q(self, critics: nn.ModuleList, steps: Steps) -> list[Tensor]:
        """What each critic gives, of the shape of the terminations."""
        inputs = torch.cat([steps.observations, steps.actions], dim=-1)
        return [critic(inputs).squeeze(-1) for critic in critics]

    def value_loss(self, batch: Batch) -> Tensor:
        """Expectile regression of V on the lower target critic."""

        def of(steps: Steps) -> Tensor:
            error = self.lower_target(steps) - self.value(steps.observations).squeeze(-1)
            share = torch.where(error < 0, 1 - self.expectile, self.expectile)
            return share * error.square()

        return self.mixture(of, batch)

    def implied(self, critic: int, steps: Steps) -> Tensor:
        """The reward that critic and V imply for each step."""
        with torch.no_grad():
            following = self.value(steps.next_observations).squeeze(-1)
            if self.target_clipping:
                largest = 1 / (self.c * (1 - self.discount))
                following = following.clamp(-largest, largest)
        goes_on = 1 - steps.terminations
        return self.q(self.critic, steps)[critic] - self.discount * goes_on * following

    def critic_loss(self, batch: Batch) -> Tensor:
        """Preferences of the implied rewards, and c times their squares; mean of both critics."""
        return (self.loss_of_critic(0, batch) + self.loss_of_critic(1, batch)) / 2

    def loss_of_critic(self, critic: int, batch: Batch) -> Tensor:
        """The same of one."""
        implied = functools.partial(self.implied, critic)
        logits = implied(batch.second).sum(dim=1) - implied(batch.first).sum(dim=1)
        preference = functional.binary_cross_entropy_with_logits(logits, batch.labels)
        return preference + self.c * self.mixture(lambda steps: implied(steps).square(), batch)

    def actor_loss(self, batch: Batch) -> Tensor:
        """Imitation of the data's actions weighed by exp(advantage / beta), at most 100."""

        def of(steps: Steps) -> Tensor:
            with torch.no_grad():
                value = self.value(steps.observations).squeeze(-1)
                weight = ((self.lower_target(steps) - value) / self.beta).exp()
                weight = weight.clamp(max=LARGEST_WEIGHT)
            mean = self.actor(steps.observations).tanh()
            std = self.log_std.clamp(*LOG_STD_RANGE).exp()
            standardised = (steps.actions - mean) / std
            log_prob = -0.5 * standardised.square() - std.log() - 0.5 * math.log(2 * math.pi)
            return -weight * log_prob.sum(dim=-1)

        return self.mixture(of, batch)

    @torch.no_grad()
    def update_target(self) -> None:
        """Polyak averaging of the critics into their targets."""
        for target, critic in zip(
            self.target_critic.parameters(), self.critic.parameters(), strict=True
        ):
            target.lerp_(critic, self.polyak)
