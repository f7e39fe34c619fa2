"""Preference Transformer's reward learning in eager PyTorch: an oracle for the JAX learner.

Written from a description of the published code alone; it shares neither code nor constants with
``appo_jax``. In the symbols of the paper (Kim et al. 2023) a segment is ``(s_1, a_1, ..., s_L,
a_L)``, x_t is the output of the causal transformer at step t, r_hat_t a reward and z_i what
preference attention makes of them. Each step is two tokens, the action's before the state's.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, LAYERS = 256, 4, 1
TIMESTEPS = 1001  # rows of the table of timesteps, of which row 0 is the padding's
MASKED = -1e4
LOW_RATE, HIGH_RATE, WARM_UP = 1e-4, 1e-3, 0.1
WEIGHT_DECAY = 1e-4


class Batch(NamedTuple):
    """B labelled pairs of segments of L steps; float32.

    Attributes:
        states: ``[B, 2, L, state_dim]``.
        actions: ``[B, 2, L, action_dim]``.
        labels: ``[B]``, 1 where the second segment is preferred, 0 the first, 0.5 neither.
    """

    states: Tensor
    actions: Tensor
    labels: Tensor


class Block(nn.Module):
    """A layer of GPT-2, LayerNorm first, with ReLU in its feed-forward half."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, tokens: Tensor, is_token: Tensor) -> Tensor:
        """``[N, T, WIDTH]`` and ``[N, T]``, False for padding, to ``[N, T, WIDTH]``."""
        tokens = tokens + self.attend(self.norm_1(tokens), is_token)
        return tokens + self.down(functional.relu(self.up(self.norm_2(tokens))))

    def attend(self, inputs: Tensor, is_token: Tensor) -> Tensor:
        """Causal attention by heads."""
        count, tokens, _ = inputs.shape
        query, key, value = (
            part.reshape(count, tokens, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in self.query_key_value(inputs).chunk(3, dim=-1)
        )
        scores = query @ key.transpose(2, 3) / math.sqrt(WIDTH // HEADS)
        sees = self.sees(tokens) & is_token[:, None, None, :]
        weights = scores.masked_fill(~sees, MASKED).softmax(dim=-1)
        return self.projection((weights @ value).transpose(1, 2).reshape(count, tokens, WIDTH))

    def sees(self, tokens: int) -> Tensor:
        """``[T, T]``, True where a token (row) sees another."""
        return torch.ones(tokens, tokens, dtype=torch.bool).tril()


class PreferenceTransformer(nn.Module):
    """The network. ``weighted_sum`` is the paper's preference attention, else a head of two layers.

    There is no dropout here.
    """

    def __init__(self, state_dim: int, action_dim: int, weighted_sum: bool = True) -> None:
        super().__init__()
        self.weighted_sum = weighted_sum
        self.embed_state, self.embed_action = (
            nn.Linear(dim, WIDTH) for dim in (state_dim, action_dim)
        )
        self.embed_timestep = nn.Embedding(TIMESTEPS, WIDTH)
        self.norm_tokens, self.norm_out = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        if weighted_sum:
            self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.value = nn.Linear(WIDTH, 1)
        else:
            self.head, self.value = nn.Linear(WIDTH, WIDTH // 2), nn.Linear(WIDTH // 2, 1)

    def outputs(self, states: Tensor, actions: Tensor, timesteps: Tensor) -> Tensor:
        """The x_t, ``[N, L, WIDTH]``, of ``[N, L, ...]``; a timestep of 0 is padding."""
        timestep = self.embed_timestep(timesteps)
        pair = self.embed_action(actions) + timestep, self.embed_state(states) + timestep
        tokens = self.norm_tokens(torch.stack(pair, dim=2).flatten(1, 2))
        is_token = (timesteps > 0).repeat_interleave(2, dim=1)
        for block in self.blocks:
            tokens = block(tokens, is_token)
        return self.norm_out(tokens)[:, 1::2]

    def rewards(self, outputs: Tensor) -> Tensor:
        """The r_hat_t, ``[N, L]``."""
        hidden = outputs if self.weighted_sum else functional.relu(self.head(outputs))
        return self.value(hidden).squeeze(-1)

    def scores(self, states: Tensor, actions: Tensor) -> Tensor:
        """Of whole segments, ``[N]``."""
        timesteps = torch.arange(1, states.shape[1] + 1).expand(states.shape[:2])
        outputs = self.outputs(states, actions, timesteps)
        rewards = self.rewards(outputs)
        if self.weighted_sum:
            weights = (self.query(outputs) @ self.key(outputs).transpose(1, 2)).softmax(dim=-1)
            rewards = (weights @ rewards[..., None]).squeeze(-1)
        return rewards.mean(dim=1)

    def last_reward(self, states: Tensor, actions: Tensor, length: int) -> Tensor:
        """r_hat at the last of k <= ``length`` steps ``[k, ...]``, padded on the left."""
        missing = length - len(states)
        timesteps = torch.cat([torch.zeros(missing), torch.arange(1, len(states) + 1)]).long()
        states, actions = (
            functional.pad(each, (0, 0, missing, 0))[None] for each in (states, actions)
        )
        return self.rewards(self.outputs(states, actions, timesteps[None]))[0, -1]


class Learner:
    """A network and its fit of ``num_updates`` updates.

    After ``update`` the ``.grad`` of each parameter is the gradient of the loss that moved it.
    """

    def __init__(self, network: PreferenceTransformer, num_updates: int) -> None:
        self.network, self.num_updates, self.updates_done = network, num_updates, 0
        self.optimizer = torch.optim.AdamW(network.parameters(), weight_decay=WEIGHT_DECAY)

    def rate(self, done: int) -> float:
        """The learning rate after ``done`` updates."""
        warm = WARM_UP * self.num_updates
        if done < warm:
            return LOW_RATE + (HIGH_RATE - LOW_RATE) * done / warm
        share = (done - warm) / (self.num_updates - warm)
        return LOW_RATE + (HIGH_RATE - LOW_RATE) * (1 + math.cos(math.pi * share)) / 2

    def loss(self, batch: Batch) -> Tensor:
        """Cross entropy of the two segments' scores and the soft labels, mean over pairs."""
        count, _, *rest = batch.states.shape
        states = batch.states.reshape(2 * count, *rest)
        actions = batch.actions.reshape(2 * count, *batch.actions.shape[2:])
        scores = self.network.scores(states, actions).reshape(count, 2)
        targets = torch.stack([1 - batch.labels, batch.labels], dim=1)
        return functional.cross_entropy(scores, targets)

    def update(self, batch: Batch) -> Tensor:
        """One step; returns the loss before it."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(self.updates_done)
        self.updates_done += 1
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()
