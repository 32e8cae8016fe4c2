"""Optimizers: their settings, and how they are built. torch is imported only when one is built."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omegaconf import II

from unlearn.setting import setting

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


@dataclass
class OptimizerConfig:
    """Base of all optimizers."""

    name: str = "adamw"
    lr: float = setting(II("model.lr"), "learning rate (AutoLR: where its search starts)", above=0)
    weight_decay: float = setting(0.0, "decoupled weight decay", minimum=0)

    @property
    def states(self) -> int:
        """Tensors of the size of the weights that the optimizer keeps."""
        return 0

    def build(self, parameters: Iterable[Tensor]) -> Optimizer:
        raise TypeError(f"the optimizer '{self.name}' is abstract")


@dataclass
class AdamW(OptimizerConfig):
    """AdamW: blind to a constant factor on the gradient, so only the ratio of the two weights matters."""

    name: str = "adamw"
    beta1: float = setting(0.9, "decay of the mean of gradients", minimum=0, below=1)
    beta2: float = setting(0.999, "decay of the mean of squared gradients", minimum=0, below=1)
    eps: float = setting(1e-8, "added to the denominator", above=0)

    @property
    def states(self) -> int:
        return 2

    def build(self, parameters: Iterable[Tensor]) -> Optimizer:
        from torch.optim import AdamW

        return AdamW(
            parameters, lr=self.lr, betas=(self.beta1, self.beta2), eps=self.eps, weight_decay=self.weight_decay
        )


@dataclass
class SGD(OptimizerConfig):
    """Plain gradient descent: the only optimizer for which NGDiff's guarantee holds for the step really taken."""

    name: str = "sgd"
    momentum: float = setting(0.0, "share of the last update kept", minimum=0, below=1)

    @property
    def states(self) -> int:
        return 1 if self.momentum > 0 else 0

    def build(self, parameters: Iterable[Tensor]) -> Optimizer:
        from torch.optim import SGD

        return SGD(parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)


OPTIMIZERS: dict[str, type[OptimizerConfig]] = {"adamw": AdamW, "sgd": SGD}
