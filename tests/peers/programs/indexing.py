"""A replay of plain programs: tensors with a row for each transition."""

from dataclasses import fields

import torch

from ding_lite.rl import Transitions


def draw(replay, batch):
    chosen = torch.randint(len(replay), (batch,))
    return Transitions(*(getattr(replay, one.name)[chosen] for one in fields(Transitions)))
