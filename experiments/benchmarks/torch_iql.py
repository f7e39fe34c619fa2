"""One IQL update in eager PyTorch: an oracle for the JAX update and a yardstick for its speed.

Written from descriptions of the two published codes alone; it shares neither code nor constants
with ``appo_jax``. ``variant`` says whose update it is: ``lire`` (LiRE's, from which the paper's MR
and Oracle rows come) or ``jax`` (that of IQL's authors). In the symbols of the IQL paper
(Kostrikov et al. 2022) Q_i are ``critic[i]``, Q-hat_i ``target_critic[i]``, V ``value``, pi
``actor`` with ``log_std``, tau ``expectile``, beta ``temperature`` and gamma ``discount``;
``polyak`` is the rate of the targets.
"""

import copy
import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

HIDDEN = (256, 256)
LEARNING_RATE = 3e-4
LARGEST_WEIGHT = 100.0
LOG_STD_RANGE = {"lire": (-20.0, 2.0), "jax": (-5.0, 2.0)}


class Batch(NamedTuple):
    """What one update reads; float32, B transitions.

    Attributes:
        observations, next_observations: ``[B, observation_dim]``.
        actions: ``[B, action_dim]`` in [-1, 1].
        rewards: ``[B]``.
        terminations: ``[B]``, 1 where the step ended in a terminal state, else 0.
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    next_observations: Tensor
    terminations: Tensor


def mlp(inputs: int, outputs: int, variant: str) -> nn.Sequential:
    """Linear layers with ReLU between them: ``[..., inputs]`` to ``[..., outputs]``."""
    layers: list[nn.Module] = []
    for m, n in itertools.pairwise((inputs, *HIDDEN, outputs)):
        linear = nn.Linear(m, n)
        if variant == "jax":
            nn.init.orthogonal_(linear.weight, math.sqrt(2))
            nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Adam:
    """Adam with both codes' learning rate."""
    return torch.optim.Adam(parameters, lr=LEARNING_RATE)


def minimise(optimizer: torch.optim.Adam, loss: Tensor) -> Tensor:
    """One step on the optimiser's own parameters, whose ``.grad`` it sets, and on nothing else."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = torch.autograd.grad(loss, parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
    return loss.detach()


class IQL:
    """The parameters of one run and their update.

    After ``update``, the ``.grad`` of each parameter of ``critic``, ``value`` and ``actor``, and of
    ``log_std``, is the gradient of the one loss that moves it. ``follow_terminations`` ends the sum
    of future rewards at a terminal state, as IQL's authors do; LiRE doesn't. ``num_updates`` are
    those of the whole run, over which the actor's learning rate falls to 0 along a cosine.
    """

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        variant: str = "lire",
        expectile: float = 0.7,
        temperature: float = 3.0,
        discount: float = 0.99,
        polyak: float = 0.005,
        follow_terminations: bool = False,
        num_updates: int = 250_000,
    ) -> None:
        self.variant, self.follow_terminations = variant, follow_terminations
        self.expectile, self.temperature = expectile, temperature
        self.discount, self.polyak = discount, polyak
        self.critic = nn.ModuleList(mlp(observation_dim + action_dim, 1, variant) for _ in range(2))
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.value = mlp(observation_dim, 1, variant)
        self.actor = mlp(observation_dim, action_dim, variant)
        self.log_std = nn.Parameter(torch.zeros(action_dim))
        self.critic_optimizer = adam(self.critic.parameters())
        self.value_optimizer = adam(self.value.parameters())
        self.actor_optimizer = adam([*self.actor.parameters(), self.log_std])
        self.updates_done, self.num_updates = 0, num_updates

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One update, in the order of the variant's code.

        Returns:
            The scalar losses ``value``, ``critic`` and ``actor``, each before its own step.
        """
        return self.update_as_lire(batch) if self.variant == "lire" else self.update_as_jax(batch)

    def update_as_lire(self, batch: Batch) -> dict[str, Tensor]:
        """Policy and critics read the V from before its step."""
        losses = {}
        next_value = self.next_value(batch)
        advantage = self.advantage(batch)
        losses["value"] = minimise(self.value_optimizer, self.value_loss(advantage))
        losses["critic"] = minimise(self.critic_optimizer, self.critic_loss(batch, next_value))
        self.update_target()
        losses["actor"] = self.update_actor(batch, advantage.detach())
        return losses

    def update_as_jax(self, batch: Batch) -> dict[str, Tensor]:
        """V, policy, critics: the latter two read the new V."""
        losses = {}
        losses["value"] = minimise(self.value_optimizer, self.value_loss(self.advantage(batch)))
        losses["actor"] = self.update_actor(batch, self.advantage(batch).detach())
        next_value = self.next_value(batch)
        losses["critic"] = minimise(self.critic_optimizer, self.critic_loss(batch, next_value))
        self.update_target()
        return losses

    def next_value(self, batch: Batch) -> Tensor:
        """V at the next states as a constant, ``[B]``."""
        with torch.no_grad():
            return self.value(batch.next_observations).squeeze(1)

    def advantage(self, batch: Batch) -> Tensor:
        """The lower target critic at the data's actions minus V, ``[B]``, a function of V alone."""
        with torch.no_grad():
            pairs = torch.cat([batch.observations, batch.actions], dim=1)
            target_q = torch.minimum(*(critic(pairs) for critic in self.target_critic)).squeeze(1)
        return target_q - self.value(batch.observations).squeeze(1)

    def value_loss(self, advantage: Tensor) -> Tensor:
        """The expectile regression of V on the target critics."""
        below = (advantage < 0).float()
        return ((self.expectile - below).abs() * advantage.square()).mean()

    def critic_loss(self, batch: Batch, next_value: Tensor) -> Tensor:
        """Mean of the two critics' mean squared errors, or their sum in the variant ``jax``."""
        pairs = torch.cat([batch.observations, batch.actions], dim=1)
        goes_on = 1 - batch.terminations if self.follow_terminations else 1.0
        target = batch.rewards + self.discount * goes_on * next_value
        first, second = (
            functional.mse_loss(critic(pairs).squeeze(1), target) for critic in self.critic
        )
        return (first + second) / 2 if self.variant == "lire" else first + second

    @torch.no_grad()
    def update_target(self) -> None:
        """Polyak averaging of the critics into their targets."""
        targets, critics = self.target_critic.parameters(), self.critic.parameters()
        for target, critic in zip(targets, critics, strict=True):
            target.lerp_(critic, self.polyak)

    def update_actor(self, batch: Batch, advantage: Tensor) -> Tensor:
        """A step of the policy at this update's learning rate."""
        share_done = self.updates_done / self.num_updates
        for group in self.actor_optimizer.param_groups:
            group["lr"] = LEARNING_RATE * (1 + math.cos(math.pi * share_done)) / 2
        self.updates_done += 1
        return minimise(self.actor_optimizer, self.actor_loss(batch, advantage))

    def actor_loss(self, batch: Batch, advantage: Tensor) -> Tensor:
        """Weighted imitation of the data's actions under a Gaussian around tanh of the network."""
        weight = (self.temperature * advantage).exp().clamp(max=LARGEST_WEIGHT)
        mean = self.actor(batch.observations).tanh()
        log_std = self.log_std.clamp(*LOG_STD_RANGE[self.variant])
        standardised = (batch.actions - mean) / log_std.exp()
        log_prob = -0.5 * standardised.square() - log_std - 0.5 * math.log(2 * math.pi)
        return -(weight * log_prob.sum(dim=1)).mean()
