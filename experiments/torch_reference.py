"""One APPO update in eager PyTorch: an oracle for the JAX update and a yardstick for its speed.

Written from the paper alone (APPO, ICLR 2025, section 5 and Algorithm 4); it shares neither code
nor constants with ``appo_jax``. The paper's symbols: phi_i are ``critic`` (both critics in one
stack, the first axis is i), bar phi_i ``target_critic``, psi ``value``, theta ``actor``, alpha
``exp(log_temperature)``, gamma ``discount`` and lambda ``lam``, the factor of the adversarial term.

Differs from the paper: the V loss looks at one state throughout, where the paper pairs V(s) with Q
at s_{h+1}; the actor loss has alpha log pi, where the paper prints alpha pi. Both are slips.
"""

import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

HIDDEN = (256, 256, 256)
SLOPE = 0.01
LOG_STD_RANGE = (-20.0, 2.0)


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


class MLP(nn.Module):
    """``members`` networks of one shape in a stack, LeakyReLU between layers, PyTorch's init."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.members = members
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for m, n in itertools.pairwise((inputs, *HIDDEN, outputs)):
            bound = 1 / math.sqrt(m)
            self.weights.append(nn.Parameter(torch.empty(members, m, n).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(members, 1, n).uniform_(-bound, bound)))

    def forward(self, x: Tensor) -> Tensor:
        """All members on the same input: ``[N, inputs]`` to ``[members, N, outputs]``."""
        x = x.expand(self.members, *x.shape)
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x if k == 0 else functional.leaky_relu_(x, SLOPE), weight)
        return x

    def member(self, i: int, x: Tensor) -> Tensor:
        """Member ``i`` alone: ``[N, inputs]`` to ``[N, outputs]``."""
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.addmm(bias[i], x if k == 0 else functional.leaky_relu_(x, SLOPE), weight[i])
        return x


def adam(parameters: Iterable[nn.Parameter], learning_rate: float) -> torch.optim.Adam:
    """Adam with the paper's defaults, all parameters in one kernel."""
    return torch.optim.Adam(parameters, lr=learning_rate, fused=True)


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

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        lam: float = 0.03,
        discount: float = 0.99,
        tau: float = 0.001,
    ) -> None:
        self.lam, self.discount, self.tau = lam, discount, tau
        self.target_entropy = -float(action_dim)
        self.critic = MLP(2, observation_dim + action_dim, 1)
        self.target_critic = MLP(2, observation_dim + action_dim, 1).requires_grad_(False)
        self.target_critic.load_state_dict(self.critic.state_dict())
        self.value = MLP(1, observation_dim, 1)
        self.actor = MLP(1, observation_dim, 2 * action_dim)
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
        mean, log_std = self.actor.member(0, observations).chunk(2, dim=1)
        log_std = log_std.clamp(*LOG_STD_RANGE)
        raw = mean + log_std.exp() * noise
        gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        log_slope = 2 * (math.log(2) - raw - functional.softplus(-2 * raw))
        return raw.tanh(), (gaussian - log_slope).sum(dim=1)

    def next_values(self, observations: Tensor) -> Tensor:
        """V as a constant: ``[N, observation_dim]`` to ``[N]``."""
        with torch.no_grad():
            return self.value.member(0, observations).squeeze(1)

    def critic_loss(self, batch: Batch, policy_input: Tensor) -> Tensor:
        """Sum over i of ``lam L_adv + E``; ``policy_input`` holds s and pi(s), ``[B, ...]``."""
        pairs, _, steps, _ = batch.segment_actions.shape
        data_input = torch.cat([batch.observations, batch.actions], dim=1)
        states = batch.segment_observations[:, :, :-1]
        segment_input = torch.cat([states, batch.segment_actions], dim=3).flatten(0, 2)
        inputs = [policy_input, data_input, segment_input]
        q = self.critic(torch.cat(inputs)).squeeze(2)
        q_policy, q_data, q_segment = q.split([len(x) for x in inputs], dim=1)

        next_states = batch.segment_observations[:, :, 1:].flatten(0, 2)
        v = self.next_values(next_states).view(pairs, 2, steps)
        target = self.discount * (1 - batch.segment_terminations) * v + batch.segment_rewards
        errors = (q_segment.view(2, pairs, 2, steps) - target).sum(dim=3)
        evaluation = (errors[..., 0] - errors[..., 1]).abs().mean(dim=1)
        adversarial = (q_policy - q_data).mean(dim=1)
        return (self.lam * adversarial + evaluation).sum()

    @torch.no_grad()
    def update_target(self) -> None:
        """Polyak averaging of the critics into their targets."""
        targets, critics = self.target_critic.parameters(), self.critic.parameters()
        for target, critic in zip(targets, critics, strict=True):
            target.lerp_(critic, self.tau)

    def value_loss(self, observations: Tensor, policy_input: Tensor) -> Tensor:
        """Mean squared distance of V(s) to the lower target critic at the sampled action."""
        with torch.no_grad():
            target = self.target_critic(policy_input).amin(dim=0)
        return functional.mse_loss(self.value.member(0, observations), target)

    def actor_loss(self, state_action: Tensor, log_prob: Tensor, i: int) -> Tensor:
        """Mean of ``alpha log pi - Q_i``, to be minimised."""
        temperature = self.log_temperature.detach().exp()
        return (temperature * log_prob - self.critic.member(i, state_action).squeeze(1)).mean()

    def temperature_loss(self, log_prob: Tensor) -> Tensor:
        """``log alpha`` times the surplus of entropy over its target, as in SAC's code."""
        return self.log_temperature * (-log_prob - self.target_entropy).mean()
