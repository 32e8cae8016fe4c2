"""The optimizer steps of one unlearning run.

For each step: the two gradients, their combination, the finite check, the learning rate, the update, one log line.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from unlearn.config import RunConfig
from unlearn.console import log, progress
from unlearn.data.batches import Batch, Pairing, by_length, micro_batches
from unlearn.data.encode import Row, answer_tokens
from unlearn.errors import Diverged
from unlearn.gradients.collect import Backward, Combined, combined_gradient
from unlearn.objectives.logprobs import AnswerModel
from unlearn.objectives.objective import Objective
from unlearn.schedulers.autolr import NOISE, NOISE_BF16, AutoLR
from unlearn.training.probe import Probe, set_lr
from unlearn.training.step import Autocast, Reference, autocast_for, backward, has_dropout, mean_nll, sequence_logp
from unlearn.training.stop import HoldoutStop, Stop, forgets, stops_at_holdout

StepLog = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What training did to the weights: relative L2 distance from the start, and how many tensors moved."""

    steps: int
    stop: Stop | None
    relative_l2: float
    changed_tensors: int
    tensors: int
    tokens: int


def pairing(cfg: RunConfig, n_forget: int, n_retain: int) -> Pairing:
    """Order of rows; without a forget objective the retain set is what an epoch visits."""
    anchor = cfg.data.anchor if forgets(cfg) else "retain"
    return Pairing(n_forget, n_retain, cfg.trainer.batch_size, cfg.seed, anchor)


def total_steps(cfg: RunConfig, pairs: Pairing) -> int:
    return cfg.trainer.max_steps or cfg.trainer.epochs * pairs.steps_per_epoch


class Unlearning:
    """One run's training: `train` changes the model in place and reports each step to `on_step`."""

    def __init__(
        self,
        cfg: RunConfig,
        model: Any,
        forget: Sequence[Row],
        retain: Sequence[Row],
        holdout: Sequence[Row],
        pad_id: int,
        device: torch.device,
        on_step: Callable[[StepLog], None],
    ) -> None:
        self.cfg, self.model, self.pad_id, self.device, self.on_step = cfg, model, pad_id, device, on_step
        self.forget, self.retain, self.holdout = forget, retain, holdout
        self.answer_model = AnswerModel(model)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.autocast: Autocast = autocast_for(cfg.trainer.precision, device)
        self.micro = cfg.trainer.micro_batch_size or cfg.trainer.batch_size
        self.pairs = pairing(cfg, len(forget), len(retain))
        self.total = total_steps(cfg, self.pairs)
        self.tokens = 0

    def train(self) -> Outcome:
        """Run all steps, or until a rule stops the run. Raises Diverged before a step that is not finite."""
        cfg = self.cfg
        start = [parameter.detach().to("cpu", copy=True) for parameter in self.parameters]
        reference = self._reference()
        stop_rule = self._stop_rule()
        if cfg.trainer.gradient_checkpointing:
            _checkpointing(self.model, "enable")
        optimizer = cfg.optimizer.build(self.parameters)
        probe = None
        if isinstance(cfg.scheduler, AutoLR):
            noise = NOISE_BF16 if cfg.trainer.precision == "bf16" else NOISE
            probe = Probe(cfg.scheduler, cfg.optimizer.lr, noise=noise)
        self.model.train()
        stop: Stop | None = None
        step = 0
        with progress() as bars:
            bar = bars.add_task("unlearning", total=self.total, note="")
            while step < self.total and stop is None:
                line = self._step(step, optimizer, probe, reference)
                step += 1
                self.on_step(line)
                bars.update(bar, advance=1, note=note(line))
                reason = stop_rule.reached(line["nll_forget"], line["prob_forget"]) if stop_rule is not None else None
                stop = Stop(step, reason) if reason is not None else None
        self.model.eval()
        if cfg.trainer.gradient_checkpointing:
            _checkpointing(self.model, "disable")
        return Outcome(step, stop, *self._distance(start), self.tokens)

    def _step(self, step: int, optimizer: Any, probe: Probe | None, reference: Reference) -> StepLog:
        began = time.perf_counter()
        forget_rows, retain_rows = self.pairs.at(step)
        forget_batches = self._batches(self.forget, forget_rows)
        retain_batches = self._batches(self.retain, retain_rows)
        method = self.cfg.method
        combined = combined_gradient(
            self.parameters,
            method.combine,
            self._backward(method.retain, retain_batches, reference),
            self._backward(method.forget, forget_batches, reference),
        )
        self._check_finite(step, combined)
        if self.cfg.trainer.clip_norm is not None and combined.norm > self.cfg.trainer.clip_norm:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(self.cfg.trainer.clip_norm / combined.norm)
        lr, probed = self._update(step, optimizer, probe, retain_batches, combined)
        seconds = time.perf_counter() - began
        passed = [*(forget_batches if combined.forget else ()), *(retain_batches if combined.retain else ())]
        tokens = sum(int(batch.attention_mask_BT.sum()) for batch in passed)
        self.tokens += tokens
        return self._line(step, combined, lr, probed, tokens, seconds)

    def _backward(self, objective: Objective, batches: list[Batch], reference: Reference) -> Backward | None:
        if not objective.active or not batches:
            return None
        return partial(backward, self.answer_model, objective, batches, reference, self.autocast)

    def _update(
        self, step: int, optimizer: Any, probe: Probe | None, retain_batches: list[Batch], combined: Combined
    ) -> tuple[float, StepLog | None]:
        """Take the optimizer step, with a probe where one is due: the lr it was taken with, and what the probe saw."""
        scheduler = self.cfg.scheduler
        if probe is None or not scheduler.due(step):
            lr = (self.cfg.optimizer.lr if probe is None else probe.lr) * scheduler.factor(step, self.total)
            set_lr(optimizer, lr)
            optimizer.step()
            return lr, None
        loss_before = None
        fresh = self.pairs.fresh_retain(step, scheduler.probe_batches * self.cfg.trainer.batch_size)
        if scheduler.probe == "fresh" and fresh:
            retain_batches = self._batches(self.retain, fresh)
        elif combined.retain is not None and self.cfg.trainer.precision != "bf16_mixed" and not has_dropout(self.model):
            loss_before = combined.retain.nll
        # Always at the precision of the weights: the noise of a bf16 pass would drown the differences.
        retain_loss = partial(mean_nll, self.answer_model, retain_batches, nullcontext)
        decay = scheduler.factor(step, self.total)
        fits = probe.step(optimizer, self.parameters, retain_loss, loss_before, decay)
        last = fits[-1]
        star = last.lr_star if last.lr_star is not None and math.isfinite(last.lr_star) else None
        if last.lr_star is None:
            log.info("step %d: lr probe: %s", step + 1, last.note)
        return probe.lr * decay, {
            "slope": last.slope,
            "curvature": last.curvature,
            "lr_star": star,
            "note": last.note,
            "tries": len(fits),
        }

    def _check_finite(self, step: int, combined: Combined) -> None:
        """A bad step is refused before it reaches the weights."""
        if combined.finite:
            return
        parts = {"retain": combined.retain, "forget": combined.forget}
        losses = ", ".join(f"{name} loss {part.loss:g}" for name, part in parts.items() if part is not None)
        norms = f"gradient norm {combined.norm:g}"
        if combined.gram is not None:
            norms += f" (retain {combined.gram.norm_retain:g}, forget {combined.gram.norm_forget:g})"
        raise Diverged(
            f"diverged at step {step + 1} of {self.total}: {losses}, {norms}; the weights before it are kept"
        )

    def _line(
        self, step: int, combined: Combined, lr: float, probed: StepLog | None, tokens: int, seconds: float
    ) -> StepLog:
        gram = combined.gram
        line: StepLog = {
            "step": step + 1,
            "epoch": round((step + 1) / self.pairs.steps_per_epoch, 4),
            "loss_forget": combined.forget.loss if combined.forget else None,
            "loss_retain": combined.retain.loss if combined.retain else None,
            "nll_forget": combined.forget.nll if combined.forget else None,
            "nll_retain": combined.retain.nll if combined.retain else None,
            "prob_forget": combined.forget.prob if combined.forget else None,
            "prob_retain": combined.retain.prob if combined.retain else None,
            "norm_forget": gram.norm_forget if gram else None,
            "norm_retain": gram.norm_retain if gram else None,
            "norm": combined.norm,
            "cosine": gram.cosine if gram else None,
            "weight_forget": combined.weights.forget,
            "weight_retain": combined.weights.retain,
            "lr": lr,
            "tokens_per_s": round(tokens / seconds, 1),
            "seconds": round(seconds, 4),
        }
        return {**line, "probe": probed} if probed is not None else line

    def _batches(self, rows: Sequence[Row], places: Sequence[int]) -> list[Batch]:
        chosen = [rows[place] for place in places]
        return [batch.to(self.device) for batch in micro_batches(chosen, self.micro, self.pad_id)]

    def _reference(self) -> Reference:
        """What the objectives need of the start model: log-probabilities of the forget rows, or a frozen copy."""
        method = self.cfg.method
        needs = method.forget.needs | method.retain.needs
        logp: dict[str, float] = {}
        if "reference_logp" in needs:
            logp = sequence_logp(self.answer_model, self._all(self.forget), self.autocast)
        frozen = None
        if "reference_logits" in needs:
            frozen = AnswerModel(copy.deepcopy(self.model).requires_grad_(False).eval())
        return Reference(logp, frozen)

    def _all(self, rows: Sequence[Row]) -> list[Batch]:
        budget = max(self.micro, 1) * max(len(row.input_ids) for row in rows)
        return [batch.to(self.device) for _, batch in by_length(rows, budget, self.pad_id)]

    def _stop_rule(self) -> HoldoutStop | None:
        if not stops_at_holdout(self.cfg) or not self.holdout:
            return None
        logp = sequence_logp(self.answer_model, self._all(self.holdout), self.autocast)
        nll = -sum(logp.values()) / answer_tokens(self.holdout)
        prob = sum(math.exp(logp[row.id] / row.n_answer) for row in self.holdout) / len(self.holdout)
        return HoldoutStop(nll, prob, math.ceil(len(self.forget) / self.cfg.trainer.batch_size))

    @torch.no_grad()
    def _distance(self, start: list[torch.Tensor]) -> tuple[float, int, int]:
        moved, size, changed = 0.0, 0.0, 0
        for before, parameter in zip(start, self.parameters, strict=True):
            after = parameter.detach().to("cpu")
            changed += int(not torch.equal(before, after))
            moved += (after.double() - before.double()).square().sum().item()
            size += before.double().square().sum().item()
        return math.sqrt(moved / size) if size > 0 else math.inf, changed, len(start)


def note(line: StepLog) -> str:
    """The numbers behind the progress bar."""
    words = {
        "nll_forget": "forget",
        "nll_retain": "retain",
        "norm_forget": "|gF|",
        "norm_retain": "|gR|",
        "cosine": "cos",
        "weight_forget": "wF",
        "weight_retain": "wR",
        "lr": "lr",
    }
    return " ".join(f"{word} {line[key]:.3g}" for key, word in words.items() if line.get(key) is not None)


def _checkpointing(model: Any, what: str) -> None:
    """Switch gradient checkpointing; transformers 5.24 gave the switch the name that it keeps in 6."""
    new = getattr(model, f"activation_checkpointing_{what}", None)
    (new or getattr(model, f"gradient_checkpointing_{what}"))()
