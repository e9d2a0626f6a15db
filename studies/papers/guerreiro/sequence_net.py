"""The sequence model of Guerreiro et al. in PyTorch: its training and its export to ONNX.

An embedding for each field of a token, an LSTM of two layers of 50 that reads a kernel's tokens,
and a head each for time, power and energy on its last state and the clocks (100, 70, ReLU). Adam
at 0.005 (encoder) and 0.01 (heads), batches of 8 of like length, smooth L1 loss; a batch trains one
head, another one each epoch: all as the paper has it. Ours are: loops folded into how often a token
runs, logarithms of scales, embeddings that begin at 0 (an opcode no microbenchmark has then says
nothing), dropout and a falling rate, because tests come from other programs.

PyTorch is the extra ``sequence``; nothing that serves imports it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from wattcast.models.papers.scaling.card import OPCODES, REMEMBERED, SPACES, TYPES
from wattcast.models.papers.scaling.code import Stream, encoded
from wattcast.models.papers.scaling.use import Floats

SIZES = (len(OPCODES), len(SPACES) + 1, len(TYPES) + 1, 10, REMEMBERED + 1, 3)
WIDTHS = (10, 4, 6, 2, 3, 2)
"""Values of each field of a token, and numbers that stand for one in the encoder."""

HIDDEN, LAYERS, HEAD = 50, 2, (100, 70)
RATES = (0.005, 0.01)
BATCH = 8
DROPOUT, DECAY, NEAR = 0.2, 1e-4, 0.05
"""Chosen once, not searched; ``NEAR`` is where the loss turns from squares to magnitudes."""

Pair = tuple[Tensor, Tensor]


class SequenceNet(nn.Module):
    """The encoder and its three heads."""

    def __init__(self) -> None:
        super().__init__()
        sizes = zip(SIZES, WIDTHS, strict=True)
        self.fields = nn.ModuleList([nn.Embedding(size, width) for size, width in sizes])
        for field in self.fields:
            nn.init.zeros_(field.weight)
        self.encoder = nn.LSTM(sum(WIDTHS) + 1, HIDDEN, LAYERS, batch_first=True, dropout=DROPOUT)
        self.heads = nn.ModuleList([_head() for _ in range(3)])

    def embedded(self, tokens: Tensor, repeats: Tensor) -> Tensor:
        """``[..., n, 28]`` of fields ``[..., n, 6]`` and repeats ``[..., n]``."""
        parts = [field(tokens[..., at]) for at, field in enumerate(self.fields)]
        return torch.cat([*parts, repeats.unsqueeze(-1)], -1)

    def latent(self, batch: Sequence[Pair]) -> Tensor:
        """The encoder's last state of each kernel, ``[b, 50]``."""
        padded = [nn.utils.rnn.pad_sequence(list(part), True) for part in zip(*batch, strict=True)]
        lengths = torch.tensor([len(tokens) for tokens, _ in batch])
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedded(padded[0], padded[1]), lengths, batch_first=True, enforce_sorted=False
        )
        return nn.functional.dropout(self.encoder(packed)[1][0][-1], DROPOUT, self.training)

    def forward(self, tokens: Tensor, repeats: Tensor, clocks: Tensor) -> Tensor:
        """Logarithms ``[m, 3]`` of one kernel's scales up to constants, at clocks ``[m, 2]``."""
        state = self.encoder(self.embedded(tokens, repeats).unsqueeze(0))[1][0][-1]
        inputs = torch.cat([state.expand(clocks.shape[0], -1), clocks], -1)
        return torch.cat([head(inputs) for head in self.heads], -1)


def _head() -> nn.Sequential:
    first, second = HEAD
    layers = [nn.Linear(HIDDEN + 2, first), nn.ReLU(), nn.Dropout(DROPOUT)]
    return nn.Sequential(*layers, nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 1))


def _tensors(stream: Stream) -> Pair:
    tokens, repeats = encoded(stream)
    return torch.from_numpy(tokens), torch.from_numpy(repeats)


def train_sequence(
    streams: Sequence[Stream],
    logs: Floats,
    clocks: Floats,
    reference: int,
    seed: int,
    epochs: int = 30,
) -> SequenceNet:
    """A network fitted to ``logs [n, m, 3]`` of time, power and energy over those at the pair
    numbered ``reference`` of ``clocks [m, 2]``, which are shares of that pair."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    net = SequenceNet()
    coder = [*net.fields.parameters(), *net.encoder.parameters()]
    groups = [
        {"params": part, "lr": rate}
        for part, rate in zip((coder, [*net.heads.parameters()]), RATES, strict=True)
    ]
    pairs = [_tensors(stream) for stream in streams]
    order = np.argsort([len(tokens) for tokens, _ in pairs], kind="stable")
    batches = [order[at : at + BATCH].tolist() for at in range(0, len(order), BATCH)]
    adam = torch.optim.Adam(groups, weight_decay=DECAY)
    steps = epochs * len(batches)
    rate = torch.optim.lr_scheduler.OneCycleLR(adam, max_lr=list(RATES), total_steps=steps)
    targets = torch.tensor(logs, dtype=torch.float32)
    at_clocks = torch.tensor(clocks, dtype=torch.float32)
    loss_of = nn.SmoothL1Loss(beta=NEAR)
    net.train()
    for epoch in range(epochs):
        for at in rng.permutation(len(batches)):
            batch, head = batches[at], (int(at) + epoch) % 3
            state = net.latent([pairs[one] for one in batch]).unsqueeze(1)
            both = state.expand(-1, len(clocks), -1), at_clocks.expand(len(batch), -1, -1)
            told = net.heads[head](torch.cat(both, -1)).squeeze(-1)
            loss = loss_of(told - told[:, reference : reference + 1], targets[batch, :, head])
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            adam.step()
            rate.step()
    net.eval()
    return net


def predict_logs(net: SequenceNet, stream: Stream, clocks: Floats) -> Floats:
    """What ``SequenceScaling.heads`` tells, by PyTorch: ``[m, 3]``."""
    with torch.no_grad():
        told = net(*_tensors(stream), torch.tensor(clocks, dtype=torch.float32))
    return np.asarray(told, dtype=np.float64)


def export_sequence(net: SequenceNet, path: Path) -> None:
    """Write the network as ONNX: ``tokens [n, 6]``, ``repeats [n]``, ``clocks [m, 2]`` ->
    ``logs [m, 3]``."""
    sample = torch.zeros(5, 6, dtype=torch.int64), torch.zeros(5), torch.ones(3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's of its own age, and of traced shapes
        torch.onnx.export(
            net,
            sample,
            str(path),
            input_names=["tokens", "repeats", "clocks"],
            output_names=["logs"],
            dynamic_axes={"tokens": {0: "n"}, "repeats": {0: "n"}, "clocks": {0: "m"}},
            opset_version=17,
            dynamo=False,
        )
