"""One update each of BC, CPL and DPPO in eager PyTorch, which learn an actor and nothing else.

Oracles for the JAX updates and yardsticks for their speed. Written from descriptions of the
published codes alone; nothing is shared with ``appo_jax``, neither code nor constants. In the
symbols of the papers (Hejna et al. 2024, An et al. 2023): pi is ``actor``; CPL's alpha ``alpha``
and lambda ``bias``; DPPO's lambda ``lam`` and T ``temperature``.

After an ``update``, the ``.grad`` of each parameter of ``actor`` is the loss's gradient.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


def network(
    inputs: int, width: int, outputs: int, gain: float | None = None, dropout: float = 0.0
) -> nn.Sequential:
    """Two hidden layers with ReLU, and tanh at the end.

    With a ``gain`` weights begin orthogonal and biases at 0. Dropout comes before the ReLU.
    """
    first, second, last = (
        nn.Linear(inputs, width),
        nn.Linear(width, width),
        nn.Linear(width, outputs),
    )
    if gain is not None:
        for linear in (first, second, last):
            nn.init.orthogonal_(linear.weight, gain)
            nn.init.zeros_(linear.bias)
    drop = [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(first, *drop, nn.ReLU(), second, *drop, nn.ReLU(), last, nn.Tanh())


class Transitions(NamedTuple):
    """Single steps: ``[B, observation_dim]``, ``[B, action_dim]``, and weights ``[B]``."""

    observations: Tensor
    actions: Tensor
    weights: Tensor


class Pairs(NamedTuple):
    """Labelled pairs: ``[P, 2, L, ...]``; labels ``[P]``, 1 where the second is preferred."""

    observations: Tensor
    actions: Tensor
    labels: Tensor


class Windows(NamedTuple):
    """Windows of the data: ``[B, L, ...]``, and the predictor's scores ``[B]``."""

    observations: Tensor
    actions: Tensor
    scores: Tensor


class BC:
    """Behaviour cloning: the weighted mean of squared distances."""

    def __init__(self, observation_dim: int, action_dim: int, width: int = 256) -> None:
        self.actor = network(observation_dim, width, action_dim)
        self.optimizer = torch.optim.Adam(self.actor.parameters(), lr=3e-4)

    def update(self, batch: Transitions) -> Tensor:
        """One step; returns the loss before it."""
        distance = (self.actor(batch.observations) - batch.actions).square().sum(dim=1)
        loss = torch.dot(batch.weights, distance) / batch.weights.sum()
        return descend(self.optimizer, loss)


class CPL:
    """Contrastive preference learning: cloning first, then the contrastive loss.

    Of ``num_updates`` two fifths clone, and over a fiftieth after them the rate rises.
    """

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        width: int = 512,
        alpha: float = 0.1,
        bias: float = 0.5,
        bc_coefficient: float = 0.0,
        dropout: float = 0.25,
        num_updates: int = 250_000,
    ) -> None:
        self.alpha, self.bias, self.bc_coefficient = alpha, bias, bc_coefficient
        self.clone_until, self.rises_over = round(num_updates * 2 / 5), num_updates / 50
        self.actor = network(observation_dim, width, action_dim, 1.0, dropout)
        self.optimizer = self.fresh_optimizer()
        self.updates_done = 0

    def fresh_optimizer(self) -> torch.optim.Adam:
        """Adam without memory."""
        return torch.optim.Adam(self.actor.parameters(), lr=1e-4)

    def update(self, batch: Pairs) -> Tensor:
        """One step of the phase that the count of updates says; returns the loss before it."""
        log_prob = -(self.actor(batch.observations) - batch.actions).square().sum(dim=-1)
        cloning = -log_prob.mean()
        if self.updates_done < self.clone_until:
            loss = cloning
        else:
            loss = self.contrastive(log_prob, batch.labels) + self.bc_coefficient * cloning
            if self.updates_done == self.clone_until:
                self.optimizer = self.fresh_optimizer()
            done = self.updates_done - self.clone_until + 1
            self.optimizer.param_groups[0]["lr"] = 1e-4 * min(1.0, done / self.rises_over)
        self.updates_done += 1
        return descend(self.optimizer, loss)

    def contrastive(self, log_prob: Tensor, labels: Tensor) -> Tensor:
        """Each side as the better one, by the label's share; log_prob ``[P, 2, L]``."""
        first, second = (self.alpha * log_prob.sum(dim=2)).unbind(dim=1)
        first_is_better = -functional.logsigmoid(first - self.bias * second)
        second_is_better = -functional.logsigmoid(second - self.bias * first)
        return torch.lerp(first_is_better, second_is_better, labels).mean()


class DPPO:
    """Direct preference-based policy optimisation: nearer to the better of two windows."""

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        width: int = 256,
        lam: float = 0.5,
        temperature: float = 0.1,
    ) -> None:
        self.lam, self.temperature = lam, temperature
        self.actor = network(observation_dim, width, action_dim, math.sqrt(2))
        self.optimizer = torch.optim.Adam(self.actor.parameters(), lr=3e-4)

    def update(self, batch: Windows) -> Tensor:
        """One step on all pairs of the batch, sorted by score; returns the loss before it."""
        order = batch.scores.argsort(descending=True)
        scores = batch.scores[order]
        miss = (self.actor(batch.observations[order]) - batch.actions[order]) / 2
        distance = torch.linalg.vector_norm(miss, dim=2).mean(dim=1)
        better, worse = torch.triu_indices(len(order), len(order), offset=1)
        differ = scores[better] > scores[worse]
        margin = self.lam * distance[worse[differ]] - distance[better[differ]]
        return descend(self.optimizer, -functional.logsigmoid(margin / self.temperature).mean())


def descend(optimizer: torch.optim.Adam, loss: Tensor) -> Tensor:
    """A step against the loss's gradient."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()
