"""AutoLR's probe: the optimizer takes its step once, and the retain loss is read before it, beyond it and behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unlearn.schedulers.autolr import MAX_FIRST_PROBES, NOISE, AutoLR, Fit, fit, inside_clip, next_lr
from unlearn.training.wrappers import Stepper


@dataclass
class Probe:
    """State of AutoLR in a run: the fitted learning rate, and whether the first search is over.

    `lr` is the rate without the horizon factor; `decay` of a step multiplies it and is never fed back into the fit.
    """

    settings: AutoLR
    lr: float
    settled: bool = False
    noise: float = NOISE

    @torch.no_grad()
    def step(
        self,
        optimizer: Stepper,
        parameters: Sequence[Tensor],
        retain_loss: Callable[[], float],
        loss_before: float | None = None,
        decay: float = 1.0,
    ) -> list[Fit]:
        """Take one optimizer step with the learning rate that the probe finds, and keep that rate.

        The optimizer's state advances once. `retain_loss` is the mean NLL of the probe rows at the present parameters,
        in nats; `loss_before` saves its evaluation at the start point where the training pass has it already.
        Parameters are placed by copy from the two kept sets. If anything fails on the way they are left where the step
        began.
        """
        lr = good = found = self.lr
        smoothing = self.settings.smoothing if self.settled else 0.0
        before = [parameter.detach().clone() for parameter in parameters]
        zero = retain_loss() if loss_before is None else loss_before
        set_lr(optimizer, lr * decay)
        optimizer.step()
        after = [parameter.detach().clone() for parameter in parameters]
        fits: list[Fit] = []
        try:
            for _ in range(1 if self.settled else MAX_FIRST_PROBES):
                tried = found
                _place(parameters, before, after, tried / lr)
                plus = retain_loss()
                _place(parameters, before, after, -tried / lr)
                minus = retain_loss()
                fits.append(fit(minus, zero, plus, tried * decay, self.settings.budget, self.noise))
                star = fits[-1].lr_star
                if star is None:
                    # Grown into a rate at which the loss is not finite: the one before was fine.
                    found = good if fits[-1].slope is None else tried
                    break
                good, found = tried, next_lr(self.settings, tried, star, smoothing)
                if inside_clip(self.settings, tried, star) or found == tried:
                    break
        except BaseException:
            _place(parameters, before, after, 0.0)
            raise
        self.settled = self.settled or fits[-1].lr_star is not None
        _place(parameters, before, after, found / lr)
        self.lr = found
        return fits


def _place(parameters: Sequence[Tensor], before: Sequence[Tensor], after: Sequence[Tensor], share: float) -> None:
    """Put parameters at `before + share (after - before)`; shares 0 and 1 are the kept copies to the bit."""
    for parameter, start, end in zip(parameters, before, after, strict=True):
        if share == 1.0:
            parameter.copy_(end)
        else:
            parameter.copy_(start)
            if share != 0.0:
                parameter.add_(end - start, alpha=share)


def set_lr(optimizer: Stepper, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
