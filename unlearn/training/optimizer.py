"""Optimizers: their settings, and how they are built. torch is imported only when one is built."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from omegaconf import II

from unlearn.errors import UserError
from unlearn.setting import setting

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


@dataclass
class OptimizerConfig:
    """Base of all optimizers.

    pairs  whether it takes both gradients before they are combined, and gives the metric in which that is done
    """

    name: str = "adamw"
    lr: float = setting(
        "${times:${model.lr},${method.lr_scale}}", "learning rate (AutoLR: where its search starts)", above=0
    )
    weight_decay: float = setting(0.0, "decoupled weight decay", minimum=0)

    pairs: ClassVar[bool] = False

    @property
    def states(self) -> float:
        """Tensors of the size of the weights that the optimizer keeps."""
        return 0

    def check(self) -> None:
        """Raise UserError where something that the optimizer needs is not installed."""

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
    def states(self) -> float:
        return 2

    def build(self, parameters: Iterable[Tensor]) -> Optimizer:
        from torch.optim import AdamW

        return AdamW(
            parameters, lr=self.lr, betas=(self.beta1, self.beta2), eps=self.eps, weight_decay=self.weight_decay
        )


@dataclass
class AdamW8bit(AdamW):
    """AdamW with its state in 8 bits: a quarter of the memory in fp32 (bitsandbytes, 2110.02861)."""

    name: str = "adamw_8bit"

    @property
    def states(self) -> float:
        """In fp32; tensors of fewer than 4,096 entries keep a state of full precision."""
        return 0.5

    def check(self) -> None:
        if find_spec("bitsandbytes") is None:
            raise UserError(
                "optimizer=adamw_8bit: needs bitsandbytes (pip install 'unlearn-run[quantization]'); found none"
            )

    def build(self, parameters: Iterable[Tensor]) -> Optimizer:
        # Its signatures are untyped, and whether it is installed must not decide what a type checker says.
        kind = import_module("bitsandbytes.optim").AdamW8bit
        built: Optimizer = kind(
            parameters, lr=self.lr, betas=(self.beta1, self.beta2), eps=self.eps, weight_decay=self.weight_decay
        )
        return built


@dataclass
class AdamWPair(AdamW):
    """AdamW for method/combine=ngdiff_adam: its metric comes from both gradients before they are combined."""

    name: str = "adamw_pair"
    beta1: float = setting(
        0.0, "decay of the mean of gradients; above 0 the step may be uphill for an objective", minimum=0, below=1
    )

    pairs: ClassVar[bool] = True

    @property
    def states(self) -> float:
        return 2 if self.beta1 > 0 else 1

    def build(self, parameters: Iterable[Tensor]) -> Optimizer:
        from unlearn.training.adamw_pair import AdamWPair

        return AdamWPair(
            parameters, lr=self.lr, betas=(self.beta1, self.beta2), eps=self.eps, weight_decay=self.weight_decay
        )


@dataclass
class Sophia(OptimizerConfig):
    """Sign descent, slower where the curvature is large: Sophia with the constants of SOUL on TOFU (2404.18239)."""

    name: str = "sophia"
    weight_decay: float = setting(0.1, "decoupled weight decay", minimum=0)
    beta1: float = setting(0.9, "decay of the mean of gradients; 0.965 in Sophia's own code", minimum=0, below=1)
    beta2: float = setting(
        0.95, "decay of the mean of squared gradients; 0.99 in Sophia's own code", minimum=0, below=1
    )
    rho: float = setting(0.04, "the larger, the smaller the steps at a given curvature", above=0)
    batch_size: int = setting(
        II("trainer.batch_size"), "examples behind a gradient, by which its square becomes a curvature", minimum=1
    )

    @property
    def states(self) -> float:
        return 2

    def build(self, parameters: Iterable[Tensor]) -> Optimizer:
        from unlearn.training.sophia import Sophia

        betas = (self.beta1, self.beta2)
        return Sophia(parameters, self.lr, betas, self.rho, self.weight_decay, self.batch_size)


@dataclass
class SGD(OptimizerConfig):
    """Plain gradient descent: NGDiff's guarantee holds for the step really taken."""

    name: str = "sgd"
    momentum: float = setting(0.0, "share of the last update kept", minimum=0, below=1)

    @property
    def states(self) -> float:
        return 1 if self.momentum > 0 else 0

    def build(self, parameters: Iterable[Tensor]) -> Optimizer:
        from torch.optim import SGD

        return SGD(parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)


OPTIMIZERS: dict[str, type[OptimizerConfig]] = {
    "adamw": AdamW,
    "adamw_8bit": AdamW8bit,
    "adamw_pair": AdamWPair,
    "sophia": Sophia,
    "sgd": SGD,
}
