"""The rows of thesis Table 5.6 whose features a variational autoencoder extracts (section 5.7.1).

Fifteen latent features of all static columns, then the table's network. The thesis prints nothing
of the autoencoder; here it has one hidden layer of 32 on either side, and trains with Adam on the
squared error and the divergence from a normal distribution (Kingma and Welling, "Auto-Encoding
Variational Bayes", 2014). Needs PyTorch (the extra ``sequence``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from studies.papers.thesis.data import Effort, Judged, judge, rows_of
from studies.papers.thesis.networks import Network, candidates
from wattcast.training.evaluation.scores import Floats
from wattcast.training.families import SEED

LATENT, HIDDEN, EPOCHS, BATCH, RATE = 15, 32, 200, 64, 1e-3
DIVERGENCE_WEIGHT = 1e-3
"""Of the divergence beside the mean squared error of inputs of 0..1: at one, all features fall to
the normal distribution and nothing is left of the rows."""

PRINTED_R2 = {"smaller": 0.3270, "larger": 0.00802}
"""Table 5.6."""


def encoded(vectors: Floats, others: Floats) -> tuple[Floats, Floats]:
    """Latent means ``[n, 15]`` and ``[m, 15]`` of an autoencoder trained on the first."""
    import torch
    from torch import nn

    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    width = vectors.shape[1]
    encoder = nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2 * LATENT))
    decoder = nn.Sequential(nn.Linear(LATENT, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, width))
    optimiser = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=RATE)
    data = torch.tensor(vectors, dtype=torch.float32)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(data)).split(BATCH):
            batch = data[rows]
            mean, log_variance = encoder(batch).chunk(2, dim=1)
            drawn = mean + torch.randn_like(mean) * torch.exp(log_variance / 2)
            divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
            loss = ((decoder(drawn) - batch) ** 2).mean() + DIVERGENCE_WEIGHT * divergence
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    def latent(rows: Floats) -> Floats:
        with torch.no_grad():
            found: Any = encoder(torch.tensor(rows, dtype=torch.float32))[:, :LATENT].numpy()
        return np.asarray(found, dtype=np.float64)

    return latent(vectors), latent(others)


def judge_autoencoder(frame: pd.DataFrame, epochs: int, effort: Effort) -> Judged:
    """The table's network, inverse time decay, on the latent features of one data set."""

    def fit_predict(vectors: Floats, watts: Floats, test: Floats) -> Floats:
        inputs = make_pipeline(SimpleImputer(strategy="median"), MinMaxScaler(clip=True))
        train, asked = encoded(inputs.fit_transform(vectors), inputs.transform(test))
        scale = MinMaxScaler(clip=True).fit(train)
        model = Network((64, 64, 128), "inverse time", epochs)
        return model.fit(scale.transform(train), watts).predict(scale.transform(asked))

    rows = rows_of(frame, candidates(frame))
    return judge("vae-ann", rows, fit_predict, replace(effort, assignments=1))
