"""One APPO update in eager PyTorch: an oracle for the JAX update and a yardstick for its speed.

A second implementation of the paper's update (APPO, ICLR 2025, section 5 and Algorithm 4) that
shares no code with ``appo_jax``. What the paper leaves open it reads as ``appo_jax`` does, so that
it can't tell whether the reading is right: log alpha in the temperature's loss, the range of the
log standard deviation, the slope of LeakyReLU, one action sample for all losses and one critic
index for the batch. The paper's symbols: phi_i are ``critic[i]``, bar phi_i ``target_critic[i]``,
psi ``value``, theta ``actor``, alpha ``exp(log_temperature)``, gamma ``discount`` and lambda
``lam``, the factor of the adversarial term.

Differs from the paper: the V loss looks at one state throughout, where the paper pairs V(s) with Q
at s_{h+1}; the actor loss has alpha log pi, where the paper prints alpha pi. Both are slips.
``pairwise_error=False`` is ``appo_jax``'s own, for episodes that can end.
"""

import copy
import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

HIDDEN = (256, 256, 256)
SLOPE = 0.01


class Batch(NamedTuple):
    """What one update reads; float32. B transitions, P pairs of segments with L steps each.

    Attributes:
        observations: ``[B, observation_dim]``.
        actions: ``[B, action_dim]`` in [-1, 1].
        segment_observations: ``[P, 2, L + 1, observation_dim]``, one more than actions.
        segment_actions: ``[P, 2, L, action_dim]``.
        segment_rewards: ``[P, 2, L]``, the learned reward.
        segment_terminations: ``[P, 2, L]``, 1 where the step ended in a terminal state, else 0.
    """

    observations: Tensor
    actions: Tensor
    segment_observations: Tensor
    segment_actions: Tensor
    segment_rewards: Tensor
    segment_terminations: Tensor


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """Linear layers with LeakyReLU between them: ``[..., inputs]`` to ``[..., outputs]``."""
    layers: list[nn.Module] = []
    for m, n in itertools.pairwise((inputs, *HIDDEN, outputs)):
        layers += [nn.Linear(m, n), nn.LeakyReLU(SLOPE)]
    return nn.Sequential(*layers[:-1])


def adam(parameters: Iterable[nn.Parameter], learning_rate: float) -> torch.optim.Adam:
    """Adam with the paper's defaults."""
    return torch.optim.Adam(parameters, lr=learning_rate)


def minimise(optimizer: torch.optim.Adam, loss: Tensor) -> Tensor:
    """One step on the optimiser's own parameters, whose ``.grad`` it sets, and on nothing else."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = torch.autograd.grad(loss, parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
    return loss.detach()


class APPO:
    """The parameters of one run and their update.

    After ``update``, the ``.grad`` of each parameter of ``critic``, ``value`` and ``actor``, and of
    ``log_temperature``, is the gradient of the one loss that moves it.
    """

    log_std_range = (-20.0, 2.0)

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        lam: float = 0.03,
        discount: float = 0.99,
        tau: float = 0.001,
        pairwise_error: bool = True,
    ) -> None:
        self.pairwise_error = pairwise_error
        self.lam, self.discount, self.tau = lam, discount, tau
        self.target_entropy = -float(action_dim)
        self.critic = nn.ModuleList(mlp(observation_dim + action_dim, 1) for _ in range(2))
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.value = mlp(observation_dim, 1)
        self.actor = mlp(observation_dim, 2 * action_dim)
        self.log_temperature = nn.Parameter(torch.zeros(()))
        self.critic_optimizer = adam(self.critic.parameters(), 3e-4)
        self.value_optimizer = adam(self.value.parameters(), 3e-4)
        self.actor_optimizer = adam(self.actor.parameters(), 3e-5)
        self.temperature_optimizer = adam([self.log_temperature], 3e-4)

    def update(self, batch: Batch, noise: Tensor, i: int) -> dict[str, Tensor]:
        """Algorithm 4, lines 5 to 8, in their order.

        Args:
            batch: The transitions and pairs.
            noise: ``[B, action_dim]`` standard normal; one action for each state, for all losses.
            i: Which critic the actor loss reads, 0 or 1.

        Returns:
            The scalar losses ``critic`` (the sum over both), ``value``, ``actor``, ``temperature``,
            each before its own step.
        """
        action, log_prob = self.sample_action(batch.observations, noise)
        state_action = torch.cat([batch.observations, action], dim=1)
        constant = state_action.detach()
        losses = {}
        losses["critic"] = minimise(self.critic_optimizer, self.critic_loss(batch, constant))
        self.update_target()
        losses["value"] = minimise(
            self.value_optimizer, self.value_loss(batch.observations, constant)
        )
        losses["actor"] = minimise(self.actor_optimizer, self.actor_loss(state_action, log_prob, i))
        losses["temperature"] = minimise(
            self.temperature_optimizer, self.temperature_loss(log_prob.detach())
        )
        return losses

    def sample_action(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """A tanh-squashed Gaussian: actions ``[B, action_dim]`` and their log-densities ``[B]``."""
        mean, log_std = self.actor(observations).chunk(2, dim=1)
        log_std = log_std.clamp(*self.log_std_range)
        raw = mean + log_std.exp() * noise
        gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        log_slope = 2 * (math.log(2) - raw - functional.softplus(-2 * raw))
        return raw.tanh(), (gaussian - log_slope).sum(dim=1)

    def next_values(self, observations: Tensor) -> Tensor:
        """V as a constant: ``[..., observation_dim]`` to ``[...]``."""
        with torch.no_grad():
            return self.value(observations).squeeze(-1)

    def critic_loss(self, batch: Batch, policy_input: Tensor) -> Tensor:
        """Sum over i of ``lam L_adv + E``; ``policy_input`` holds s and pi(s), ``[B, ...]``."""
        data_input = torch.cat([batch.observations, batch.actions], dim=1)
        states, next_states = (
            batch.segment_observations[:, :, :-1],
            batch.segment_observations[:, :, 1:],
        )
        segment_input = torch.cat([states, batch.segment_actions], dim=3)
        v = self.next_values(next_states)
        target = self.discount * (1 - batch.segment_terminations) * v + batch.segment_rewards

        loss = torch.zeros(())
        for critic in self.critic:
            adversarial = (critic(policy_input) - critic(data_input)).mean()
            errors = (critic(segment_input).squeeze(3) - target).sum(dim=2)
            if self.pairwise_error:
                errors = errors[:, 0] - errors[:, 1]
            evaluation = errors.abs().mean()
            loss = loss + self.lam * adversarial + evaluation
        return loss

    @torch.no_grad()
    def update_target(self) -> None:
        """Polyak averaging of the critics into their targets."""
        targets, critics = self.target_critic.parameters(), self.critic.parameters()
        for target, critic in zip(targets, critics, strict=True):
            target.lerp_(critic, self.tau)

    def value_loss(self, observations: Tensor, policy_input: Tensor) -> Tensor:
        """Mean squared distance of V(s) to the lower target critic at the sampled action."""
        with torch.no_grad():
            target = torch.minimum(*(critic(policy_input) for critic in self.target_critic))
        return functional.mse_loss(self.value(observations), target)

    def actor_loss(self, state_action: Tensor, log_prob: Tensor, i: int) -> Tensor:
        """Mean of ``alpha log pi - Q_i``, to be minimised."""
        temperature = self.log_temperature.detach().exp()
        return (temperature * log_prob - self.critic[i](state_action).squeeze(1)).mean()

    def temperature_loss(self, log_prob: Tensor) -> Tensor:
        """``log alpha`` times the surplus of entropy over its target, as in SAC's code."""
        return self.log_temperature * (-log_prob - self.target_entropy).mean()
