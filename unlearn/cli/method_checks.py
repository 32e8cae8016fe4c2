"""Checks of a method as a whole: objectives, rule, optimizer and stop that cannot go together, or need not.

All of it is read off what the parts declare of themselves (`needs`, `zero_at_start`, `metric`, ...), so that a new
objective or rule is judged without being named here.
"""

from __future__ import annotations

from typing import NamedTuple

from unlearn.cli.keys import show
from unlearn.config import MethodConfig, RunConfig
from unlearn.errors import UserError
from unlearn.gradients.combine import CombineRule, Gram, Linear, Losses, RuleState, Weights
from unlearn.models.sources import choose
from unlearn.objectives.objective import Objective
from unlearn.schedulers.autolr import AutoLR
from unlearn.training.optimizer import conflicts


class Idle(NamedTuple):
    """A key that does nothing here, with the reason. It stands for all keys below it too; "logger." for those alone."""

    key: str
    when: bool
    why: str


def method_faults(cfg: RunConfig) -> list[str]:
    """Parts of a method that make no sense together, one line each."""
    faults = [*_alternates(cfg.method), *_layers(cfg.method), *_loss_ratios(cfg.method), *_one_sided(cfg.method)]
    return [*faults, *_negation(cfg), *conflicts(cfg.optimizer, cfg.method), *_stops(cfg)]


def _alternates(method: MethodConfig) -> list[str]:
    if method.alternates is not None:
        return []
    return [
        f"method.alternates: needs refusals, shuffled, a column as perturbed_answer or a file, because method/{side}="
        f"{part.name} takes another answer to the same question; found null"
        for side, part in (("forget", method.forget), ("retain", method.retain))
        if "alternates" in part.needs
    ][:1]


def _layers(method: MethodConfig) -> list[str]:
    if not all("hidden" in part.needs for part in (method.forget, method.retain)):
        return []
    if method.forget.layer == method.retain.layer:
        return []
    return [
        f"method.retain.layer: needs the layer that method/forget={method.forget.name} steers "
        f"(method.forget.layer={show(method.forget.layer)}); found {show(method.retain.layer)}"
    ]


def _loss_ratios(method: MethodConfig) -> list[str]:
    rule = method.combine
    if rule.losses not in ("sizes", "logs") or not (method.forget.active or method.retain.active):
        return []
    faults, another = [], "choose another rule, as in method/combine=ngdiff"
    for side, part in (("forget", method.forget), ("retain", method.retain)):
        found = f"method/combine={rule.name}: needs two losses whose sizes can be compared; found {side}={part.name}"
        if part.zero_at_start:
            faults.append(f"{found}, which is 0 at the start model; {another}")
        elif "hidden" in part.needs:
            faults.append(f"{found}, a distance of activations; {another}")
        elif rule.losses == "logs" and not part.active:
            faults.append(f"{found}; {another}")
        elif rule.losses == "logs" and not part.nonnegative:
            faults.append(
                f"method/combine={rule.name}: needs losses that are never negative, for their logarithms; found {side}="
                f"{part.name}; choose another one, as in method/{side}={'npo' if side == 'forget' else 'nll'}"
            )
    return faults


def _one_sided(method: MethodConfig) -> list[str]:
    """Rules that come to nothing with the objectives at hand."""
    forget, retain, rule = method.forget, method.retain, method.combine
    in_nats = retain.active and retain.unit == "token" and "hidden" not in retain.needs
    if rule.losses == "retain" and (forget.active or retain.active) and not in_nats:
        return [
            f"method/retain: needs a loss in nats per token, as nll, which method/combine={rule.name} holds under a "
            f"bound; found {show(retain.name)}"
        ]
    if forget.active == retain.active or rule.losses == "logs":
        return []
    missing, there = ("retain", forget) if forget.active else ("forget", retain)
    weights = _alone(rule, forget.active)
    if isinstance(rule, Linear) or (weights.forget if forget.active else weights.retain) > 0:
        return []
    only = "forget_only" if forget.active else "retain_only"
    return [
        f"method/{missing}: needs an objective for method/combine={rule.name}; found none: the rule gives "
        f"{there.name} alone the weight 0 and nothing would move; choose one, or method/combine={only}"
    ]


def _alone(rule: CombineRule, forget: bool) -> Weights:
    """What a rule makes of one gradient of length 1 and loss 1, where the other objective is missing."""
    state = RuleState()
    gram, losses = (Gram(0, 0, 1), Losses(0, 1)) if forget else (Gram(1, 0, 0), Losses(1, 0))
    return rule.ahead(state) or rule.weights(gram, losses, state)


def _negation(cfg: RunConfig) -> list[str]:
    method, stop = cfg.method, cfg.trainer.stop
    if method.forget.negation is None:
        return []
    why = f"method/forget={method.forget.name} trains on the forget rows, and what that changed is then negated"
    faults = []
    if method.retain.active:
        faults.append(f"method/retain: needs none: {why}, retain loss included; found {show(method.retain.name)}")
    if not isinstance(method.combine, Linear):
        faults.append(
            f"method/combine: needs forget_only: {why}, so there is nothing to combine; "
            f"found {show(method.combine.name)}"
        )
    if stop in ("holdout", "reference"):
        faults.append(f"trainer.stop: needs none or auto: {why}, so until its end the rows are known ever better; "
                      f"found {show(stop)}")  # fmt: skip
    for key in ("stop_forget_nll", "stop_forget_prob"):
        if getattr(cfg.trainer, key) is not None:
            faults.append(f"trainer.{key}: needs null: {why}, so until its end the rows are known ever better; "
                          f"found {show(getattr(cfg.trainer, key))}")  # fmt: skip
    return faults


def _stops(cfg: RunConfig) -> list[str]:
    trainer, faults = cfg.trainer, []
    seen = weighted(cfg.method)
    if not seen:
        return []
    for key in ("stop_forget_nll", "stop_forget_prob", "stop_retain_ratio"):
        side = key.split("_")[1]
        if getattr(trainer, key) is not None and side not in seen:
            faults.append(
                f"trainer.{key}: needs a {side} objective that takes part in the steps; found "
                f"{show(getattr(trainer, key))} with none; choose one, or trainer.{key}=null"
            )
    if trainer.stop == "reference" and "forget" in seen:
        if cfg.suite.name == "none":
            faults.append("trainer.stop: reference needs a suite that measures what is known; found suite=none")
        elif _reference(cfg) is None:
            faults.append(
                f"trainer.stop: reference needs a reference model; found none for {cfg.model.name} "
                f"(model.reference={cfg.model.reference}); set model.reference=train or a path"
            )
    return faults


def _reference(cfg: RunConfig) -> str | None:
    """The reference that will be used; a fault of the models is reported where they are checked."""
    try:
        return choose(cfg, "")[1]
    except UserError:
        return ""


def weighted(method: MethodConfig) -> set[str]:
    """The sides whose objective takes part in the steps: there is one, and its weight is not fixed at 0."""
    fixed = method.combine.fixed or Weights(1, 1)
    sides = {"forget": (method.forget, fixed.forget), "retain": (method.retain, fixed.retain)}
    return {side for side, (part, weight) in sides.items() if part.active and weight > 0}


def method_idle(cfg: RunConfig, touched: set[str] | frozenset[str]) -> list[Idle]:
    """Settings of a method that change nothing beside the other ones."""
    method = cfg.method
    forget, retain, rule = method.forget, method.retain, method.combine
    needs = forget.needs | retain.needs
    scale_free = f"method/combine={rule.name} does not depend on the scale of a loss"
    copied = {"reference_logits", "reference_hidden"}
    return [
        Idle("method.alternates", "alternates" not in needs, "no objective takes other answers"),
        Idle("method.gamma", "forget" not in weighted(method), "the forget objective takes no part in the steps"),
        Idle("method.alpha", "retain" not in weighted(method), "the retain objective takes no part in the steps"),
        Idle("method.gamma", rule.scale_free, scale_free),
        Idle("method.alpha", rule.scale_free, scale_free),
        Idle("method.lr_scale", "optimizer.lr" in touched, "optimizer.lr is set too"),
        Idle("method.sam_rho", not forget.active, "method/forget=none: there is no forget gradient"),
        Idle("method.saliency_std", not (forget.active or retain.active), "nothing is trained"),
        Idle("method.separate_states", len(weighted(method)) < 2, "there is one gradient only"),
        Idle("data.requests", not forget.active, "method/forget=none"),
        Idle(
            "data.retain_rows",
            not retain.active and not isinstance(cfg.scheduler, AutoLR),
            "method/retain=none",
        ),
        Idle("trainer.reference_on_host", not needs & copied, "no objective needs a copy of the start model"),
        Idle(
            "trainer.reference_on_host",
            cfg.model.adapter.name != "none",
            f"model/adapter={cfg.model.adapter.name} is switched off in place of a copy of the start model",
        ),
    ]


def method_warnings(cfg: RunConfig) -> list[str]:
    """Combinations that run, and do something else than their names promise."""
    forget, retain, rule = cfg.method.forget, cfg.method.retain, cfg.method.combine
    lines: list[str] = []
    if isinstance(rule, Linear) and rule.c == 1 and forget.active:
        lines.append(f"method.forget={forget.name}: is not trained, because method.combine.c=1 gives it the weight 0")
    if isinstance(rule, Linear) and rule.c == 0 and retain.active:
        lines.append(f"method.retain={retain.name}: is not trained, because method.combine.c=0 gives it the weight 0")
    if not isinstance(rule, Linear) and forget.active != retain.active:
        missing, left = ("retain", "forget") if forget.active else ("forget", "retain")
        length = "at a length of its own" if rule.scale_free else "and nothing else"
        lines.append(
            f"method.combine={rule.name}: has one gradient only (method/{missing}=none): the {left} gradient, {length}"
        )
    for side, part in (("forget", forget), ("retain", retain)):
        if _starts_at_zero(part) and rule.scale_free and forget.active and retain.active:
            lines.append(
                f"method.combine={rule.name}: the gradient of {side}={part.name} is zero at the start model, so its "
                "share of the first step is rounding noise"
            )
    if forget.negation is not None and isinstance(cfg.scheduler, AutoLR):
        lines.append(
            f"scheduler={cfg.scheduler.name}: fits the retain loss along a training whose change is negated in the end "
            f"(method/forget={forget.name}); scheduler=constant does not"
        )
    if cfg.data.retain_rows == "general" and retain.active:
        lines.append(
            "data.retain_rows=general: the rows that are trained on are scored too, so that real_authors, world_facts "
            "and model_utility say less about what was not trained on"
        )
    return lines


def _starts_at_zero(part: Objective) -> bool:
    return part.active and part.zero_at_start
