"""A small residual network for images, with BatchNorm."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Stage(nn.Module):
    """Two 3x3 convolutions and a shortcut around them (He et al. 2016); with stride 2 the image is halved."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        self.shortcut = nn.Conv2d(channels, width, 1, stride, bias=False)
        self.shortcut_norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, H, W] to [B, width, H / stride, W / stride], sizes rounded up."""
        deep = F.relu(self.first_norm(self.first(x)))
        deep = self.second_norm(self.second(deep))
        return F.relu(deep + self.shortcut_norm(self.shortcut(x)))


class Cnn(nn.Module):
    """Stages whose width doubles, the mean over the image, and a linear layer; any image size fits.

    `forward` maps pixel_values [B, channels, H, W] to logits [B, num_classes].
    """

    def __init__(
        self, channels: int, num_classes: int, width: int = 32, num_stages: int = 3, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.channels = channels
        widths = [width * 2**stage for stage in range(num_stages)]
        before = [channels, *widths[:-1]]
        self.stages = nn.ModuleList(
            Stage(inner, outer, 1 if number == 0 else 2)
            for number, (inner, outer) in enumerate(zip(before, widths, strict=True))
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(widths[-1], num_classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw fresh weights from torch's global generator.

        Convolutions keep the variance through ReLU (He et al. 2015, fan out).
        """
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.BatchNorm2d | nn.Linear):
                module.reset_parameters()

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Logits [B, num_classes] of images [B, channels, H, W]."""
        x = pixel_values
        for stage in self.stages:
            x = stage(x)
        return self.head(self.dropout(x.mean(dim=(2, 3))))  # type: ignore[no-any-return]
