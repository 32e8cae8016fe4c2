"""The optimizer steps of one unlearning run.

For each step: the two gradients, their combination, the finite check, the learning rate, the update, one log line.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from unlearn import ranks
from unlearn.config import RunConfig
from unlearn.console import log, progress
from unlearn.data.batches import Batch
from unlearn.data.benchmark import even
from unlearn.data.encode import Encoder, Row
from unlearn.errors import Diverged
from unlearn.gradients.collect import Backward, Combined, combined_gradient
from unlearn.gradients.combine import RuleState, Weights
from unlearn.gradients.sharpness import sharp
from unlearn.models.adapter import checkpointing
from unlearn.objectives.logprobs import AnswerModel
from unlearn.objectives.objective import Objective
from unlearn.schedulers.autolr import NOISE, NOISE_BF16, AutoLR
from unlearn.training.feed import Feed
from unlearn.training.keep import Keeper
from unlearn.training.log import StepLog, note, step_line
from unlearn.training.probe import Probe, set_lr
from unlearn.training.start import StartModel
from unlearn.training.step import Autocast, aside, autocast_for, backward, has_dropout, known, mean_nll, seeded
from unlearn.training.stop import (
    HoldoutStop,
    ReferenceStop,
    RetainGuard,
    Stop,
    StopRule,
    TargetStop,
    stops_at_holdout,
)
from unlearn.training.weights import StartWeights
from unlearn.training.wrappers import build


@dataclass(frozen=True)
class Outcome:
    """What training did to the weights: relative L2 distance from the start, and how many tensors moved.

    requests  where there are several removal requests, for each after its last step: why it ended early if it did,
              NLL and probability of the rows of this and all earlier requests, and what was measured then
    kept      the evaluated point whose weights were kept; None where the last ones were
    """

    steps: int
    stop: Stop | None
    relative_l2: float
    changed_tensors: int
    tensors: int
    tokens: int
    requests: list[dict[str, Any]]
    kept: dict[str, Any] | None = None


class Unlearning:
    """One run's training: `train` changes the model in place and reports each step to `on_step`.

    rows, alternates, requests  see `Feed`
    knowledge   for trainer.stop=reference: how to measure what is known of the forget set, the reference's value, and
                its name
    on_epoch    called with the epoch and the number of steps when suite.every_epochs have passed, and at the end;
                gives the metrics, by which `keeper` decides whose weights stay
    on_request  called with the number of every removal request but the last one when it is over; gives its metrics
    In both the model is in eval mode, and the random state is put back afterwards.
    """

    def __init__(
        self,
        cfg: RunConfig,
        model: Any,
        rows: dict[str, list[Row]],
        alternates: dict[str, list[Row]],
        encoder: Encoder,
        device: torch.device,
        on_step: Callable[[StepLog], None],
        knowledge: tuple[Callable[[], float], float, str] | None = None,
        requests: Sequence[int] | None = None,
        on_epoch: Callable[[float, int], dict[str, Any]] | None = None,
        keeper: Keeper | None = None,
        on_request: Callable[[int], dict[str, Any]] | None = None,
    ) -> None:
        self.cfg, self.model, self.encoder, self.device, self.on_step = cfg, model, encoder, device, on_step
        self.knowledge, self.on_epoch, self.keeper, self.on_request = knowledge, on_epoch, keeper, on_request
        self.feed = Feed(
            cfg, rows, alternates, encoder.pad_id, device, requests or even(len(rows["forget"]), cfg.data.requests)
        )
        self.answer_model = AnswerModel(model)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.autocast: Autocast = autocast_for(cfg.trainer.precision, device)
        self.rule_state = RuleState(cfg.seed, steps_per_epoch=self.feed.pairs.steps_per_epoch)
        self.tokens = 0

    def train(self) -> Outcome:
        """Run all steps, or until a rule stops the run. Raises Diverged before a step that is not finite."""
        cfg = self.cfg
        weights = StartWeights(self.model)
        start = self._start_model()
        # All of them now: what they compare with is the start model's.
        watched = self.feed.rows["holdout"] if stops_at_holdout(cfg) else []
        holdout = self._known(watched) if watched else None
        rules = [self._stop_rules(request, holdout) for request in range(self.feed.pairs.requests)]
        if cfg.trainer.gradient_checkpointing:
            checkpointing(self.model, on=True)
        requests: list[dict[str, Any]] = []
        steps, stop = 0, None
        # Dropout of its own in every process: they have different rows.
        with seeded(cfg.seed + ranks.rank(), self.device), progress() as bars:
            bar = bars.add_task("unlearning", total=self.feed.pairs.total, note="")
            for request in range(self.feed.pairs.requests):
                optimizer, probe = self._optimizer()
                self.model.train()
                stop = None
                for step in self.feed.pairs.steps_of(request):
                    try:
                        line = self._step(step, optimizer, probe, start)
                    except Diverged:
                        # What is kept must be what the method gives out, not what it was about to negate.
                        if cfg.method.forget.negation is not None:
                            weights.negate(cfg.method.forget.negation)
                        raise
                    steps += 1
                    self.on_step(line)
                    bars.update(bar, advance=1, note=note(line))
                    epoch = self.feed.pairs.epoch_of(step)
                    reasons = [rule.reached(line, epoch.is_integer()) for rule in rules[request]]
                    if reason := ranks.agree(next(filter(None, reasons), None)):
                        stop = Stop(step + 1, reason)
                    if self._evaluates(step, stop is not None):
                        self._evaluate(epoch, step + 1)
                    if stop is not None:
                        break
                self.model.eval()
                requests += self._close(request, weights, stop)
        if cfg.trainer.gradient_checkpointing:
            checkpointing(self.model, on=False)
        for parameter in self.parameters:
            parameter.grad = None
        kept = self.keeper.restore(self.parameters) if self.keeper is not None else None
        return Outcome(steps, stop, *weights.distance(), self.tokens, requests, kept)

    def _evaluates(self, step: int, stopped: bool) -> bool:
        """Whether the model is evaluated after this step: every so many epochs, and after the last one."""
        every, pairs = self.cfg.suite.every_epochs, self.feed.pairs
        if every is None or self.on_epoch is None:
            return False
        last = (stopped and pairs.request_of(step) == pairs.requests - 1) or step + 1 == pairs.total
        return last or (pairs.epoch_of(step) / every).is_integer()

    def _evaluate(self, epoch: float, steps: int) -> None:
        assert self.on_epoch is not None
        with self._aside():
            values = self.on_epoch(epoch, steps)
        if self.keeper is not None:
            self.keeper.see(epoch, steps, values, self.parameters)

    def _aside(self) -> AbstractContextManager[None]:
        return aside(self.model, self.device, self.cfg.trainer.gradient_checkpointing)

    def _known(self, rows: Sequence[Row]) -> tuple[float, float]:
        return known(self.answer_model, rows, self.feed.whole(rows), self.autocast)

    def _optimizer(self) -> tuple[Any, Probe | None]:
        """A fresh optimizer, and AutoLR's probe where the scheduler is AutoLR."""
        cfg = self.cfg
        optimizer = build(cfg.optimizer, cfg.method, self.parameters)
        if not isinstance(cfg.scheduler, AutoLR):
            return optimizer, None
        noise = NOISE_BF16 if cfg.trainer.precision == "bf16" else NOISE
        return optimizer, Probe(cfg.scheduler, cfg.optimizer.lr, noise=noise)

    def _close(self, request: int, weights: StartWeights, stop: Stop | None) -> list[dict[str, Any]]:
        """End a removal request: negate its task vector where the method does so, and see what is left of its rows.

        Task vectors of later requests go on from the weights as trained, not as negated (SSU, 2406.10952).
        """
        negation = self.cfg.method.forget.negation
        goes_on = negation is not None and request + 1 < self.feed.pairs.requests
        trained = [parameter.detach().clone() for parameter in self.parameters] if goes_on else []
        if negation is not None:
            weights.negate(negation)
        if self.feed.pairs.requests == 1:
            return []
        seen = self.feed.rows["forget"][: self.feed.pairs.rows_of(request).stop]
        nll, prob = self._known(seen)
        values = None
        if self.on_request is not None and request + 1 < self.feed.pairs.requests:
            with self._aside():
                values = self.on_request(request)
        for parameter, value in zip(self.parameters, trained, strict=False):
            parameter.data.copy_(value)
        entry = {"request": request + 1, "rows": len(seen), "nll": nll, "prob": prob}
        return [{**entry, "stop": stop and stop.reason, "values": values}]

    def _step(self, step: int, optimizer: Any, probe: Probe | None, start: StartModel) -> StepLog:
        began = time.perf_counter()
        method = self.cfg.method
        forget_batches, retain_batches = self.feed.at(step)
        forget = self._backward(method.forget, forget_batches, start, step)
        if forget is not None and method.sam_rho is not None:
            forget = sharp(forget, self.parameters, method.sam_rho)
        combined = combined_gradient(
            self.parameters,
            method.combine,
            self.rule_state,
            self._backward(method.retain, retain_batches, start, step),
            forget,
            coefficients=Weights(method.alpha, method.gamma),
            apart=method.separate_states,
            preconditioner=getattr(optimizer, "preconditioner", None),
        )
        self._check_finite(step, combined)
        self._clip(combined)
        if method.separate_states:
            optimizer.forget_grads = combined.forget_grads
        lr, probed = self._update(step, optimizer, probe, retain_batches, combined)
        seconds = time.perf_counter() - began
        passed = [
            *(forget_batches or [] if combined.forget else []), *(retain_batches or [] if combined.retain else [])
        ]  # fmt: skip
        tokens = round(ranks.total([sum(int(batch.attention_mask_BT.sum()) for batch in passed)])[0])
        self.tokens += tokens
        line = step_line(step, self.feed.pairs.epoch_of(step), combined, lr, tokens, seconds)
        return {**line, "probe": probed} if probed is not None else line

    def _backward(
        self, objective: Objective, batches: list[Batch] | None, start: StartModel, step: int
    ) -> Backward | None:
        # A process without rows takes part in a step that others have rows for.
        if not objective.active or batches is None:
            return None
        return partial(backward, start.complete, objective, batches, self.autocast, step)

    def _clip(self, combined: Combined) -> None:
        """Shorten the combined gradient (and, where it is kept apart, the forget part of it) to the norm allowed."""
        clip = self.cfg.trainer.clip_norm
        if clip is None or combined.norm <= clip:
            return
        for grad in [parameter.grad for parameter in self.parameters] + list(combined.forget_grads or ()):
            if grad is not None:
                grad.mul_(clip / combined.norm)

    def _update(
        self, step: int, optimizer: Any, probe: Probe | None, retain_batches: list[Batch] | None, combined: Combined
    ) -> tuple[float, StepLog | None]:
        """Take the optimizer step, with a probe where one is due: the lr it was taken with, and what the probe saw."""
        scheduler = self.cfg.scheduler
        # Every removal request is a training of its own, with its own schedule and its own first probe.
        steps = self.feed.pairs.steps_of(self.feed.pairs.request_of(step))
        own_step = step - steps.start
        decay = scheduler.factor(own_step, len(steps))
        if probe is None or not scheduler.due(own_step):
            lr = (self.cfg.optimizer.lr if probe is None else probe.lr) * decay
            set_lr(optimizer, lr)
            optimizer.step()
            return lr, None
        loss_before = None
        fresh = self.feed.fresh_retain(step, scheduler.probe_batches * self.cfg.trainer.batch_size)
        if scheduler.probe == "fresh" and fresh is not None:
            retain_batches = fresh
        elif combined.retain is not None and self.cfg.trainer.precision != "bf16_mixed" and not has_dropout(self.model):
            loss_before = combined.retain.nll
        # Always at the precision of the weights: the noise of a bf16 pass would drown the differences.
        retain_loss = partial(mean_nll, self.answer_model, retain_batches or [], nullcontext)
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
            f"diverged at step {step + 1} of {self.feed.pairs.total}: {losses}, {norms}; the weights before it are kept"
        )

    def _start_model(self) -> StartModel:
        """Ask the start model what has to be known of it before the first step changes it."""
        cfg, feed = self.cfg, self.feed
        start = StartModel(cfg, self.answer_model, self.encoder, self.autocast)
        objectives = {"forget": cfg.method.forget, "retain": cfg.method.retain}
        for side, objective in objectives.items():
            if objective.needs & {"reference_logp", "targets"}:
                start.remember(objective, feed.whole(feed.with_alternates(side)))
        start.freeze(self.device, cfg.trainer.start_model_on_host)
        if "reinforced_logits" in start.needs:
            start.reinforce(cfg, feed.rows["forget"], self.device, feed.pad_id)
        for (side, objective), places in zip(objectives.items(), feed.pairs.at(0), strict=True):
            start.check(objective, feed.whole(feed.pick(side, places)))
        return start

    def _stop_rules(self, request: int, holdout: tuple[float, float] | None) -> list[StopRule]:
        """The rules that end a request early, with what they compare with measured now."""
        trainer, pairs = self.cfg.trainer, self.feed.pairs
        rules: list[StopRule] = []
        window = math.ceil(len(pairs.rows_of(request)) / trainer.batch_size)
        if holdout is not None:
            rules.append(HoldoutStop(*holdout, window))
        if trainer.stop_forget_nll is not None or trainer.stop_forget_prob is not None:
            rules.append(TargetStop(trainer, window))
        if trainer.stop_retain_ratio is not None:
            places = {place for step in pairs.steps_of(request)[:window] for place in pairs.at(step)[1]}
            batches = self.feed.whole(self.feed.pick("retain", sorted(places)))
            start_nll = mean_nll(self.answer_model, batches, self.autocast)
            rules.append(RetainGuard(start_nll, trainer.stop_retain_ratio, window))
        if self.knowledge is not None:
            measure, limit, name = self.knowledge

            def measured() -> float:
                with self._aside():
                    return measure()

            rules.append(ReferenceStop(measured, limit, name))
        return rules
