"""Checks of a method as a whole: objectives, rule, optimizer, stop and requests that cannot go together.

All of it is read off what the parts declare of themselves (`needs`, `zero_at_start`, `metric`, ...), so that a new
objective or rule is judged without being named here.
"""

from __future__ import annotations

from pathlib import Path

from unlearn.cli.keys import show
from unlearn.config import MethodConfig, RunConfig
from unlearn.errors import UserError
from unlearn.gradients.combine import CombineRule, Gram, Losses, RuleState, Weights
from unlearn.models.sources import choose
from unlearn.training.optimizer import OPTIMIZERS, OptimizerConfig

ALTERNATES = ("refusals", "shuffled", "retained", "perturbed_answer")
"""Values of method.alternates that are no file."""


def method_faults(cfg: RunConfig) -> list[str]:
    """Parts of a method that make no sense together, one line each."""
    faults = [*_alternates(cfg), *_loss_ratios(cfg.method), *_one_sided(cfg.method), *_negation(cfg)]
    return [*faults, *conflicts(cfg.optimizer, cfg.method), *_stops(cfg), *_requests(cfg), *_evaluated_epochs(cfg)]


def _alternates(cfg: RunConfig) -> list[str]:
    method = cfg.method
    takers = [side for side in ("forget", "retain") if "alternates" in getattr(method, side).needs]
    if takers and cfg.data.name == "muse":
        part = getattr(method, takers[0])
        return [
            f"method/{takers[0]}={part.name}: needs questions, to which it teaches another answer; data=muse has texts"
        ]
    if not takers or method.alternates in ALTERNATES:
        return []
    line = f"method.alternates: needs {', '.join(ALTERNATES)} or a JSON-lines file"
    if method.alternates is None:
        part = getattr(method, takers[0])
        why = f"because method/{takers[0]}={part.name} takes another answer to the same question"
        return [f"{line}, {why}; found null"]
    path = Path(method.alternates).expanduser()
    if path.is_file():
        return []
    return [f"{line}; found {show(method.alternates)}, which is {'a folder' if path.is_dir() else 'no file'}"]


def _loss_ratios(method: MethodConfig) -> list[str]:
    rule = method.combine
    if rule.losses not in ("sizes", "logs") or not method.sides:
        return []
    faults, another = [], "choose another rule, as in method/combine=ngdiff"
    for side, part in (("forget", method.forget), ("retain", method.retain)):
        found = f"method/combine={rule.name}: needs two losses whose sizes can be compared; found {side}={part.name}"
        if part.zero_at_start:
            faults.append(f"{found}, which is 0 at the start model; {another}")
        elif "hidden" in part.needs:
            faults.append(f"{found}, a distance of activations; {another}")
        elif rule.losses == "sizes" and part.crosses_zero:
            faults.append(f"{found}, which crosses 0; {another}")
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
    if rule.losses == "retain" and method.sides and not in_nats:
        return [
            f"method/retain: needs a loss in nats per token, as nll, which method/combine={rule.name} holds under a "
            f"bound; found {show(retain.name)}"
        ]
    if forget.active == retain.active or rule.losses == "logs":
        return []
    missing, there = ("retain", forget) if forget.active else ("forget", retain)
    weights = _alone(rule, forget.active)
    if (weights.forget if forget.active else weights.retain) > 0:
        return []
    return [
        f"method/{missing}: needs an objective for method/combine={rule.name}; found none: the rule gives "
        f"{there.name} alone the weight 0 and nothing would move; choose one, or method/combine=linear"
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
    if method.combine.fixed is None:
        faults.append(
            f"method/combine: needs linear: {why}, so there is nothing to combine; found {show(method.combine.name)}"
        )
    if stop in ("holdout", "reference"):
        faults.append(f"trainer.stop: needs none or auto: {why}, so until its end the rows are known ever better; "
                      f"found {show(stop)}")  # fmt: skip
    for key in ("stop_forget_nll", "stop_forget_prob"):
        if getattr(cfg.trainer, key) is not None:
            faults.append(f"trainer.{key}: needs null: {why}, so until its end the rows are known ever better; "
                          f"found {show(getattr(cfg.trainer, key))}")  # fmt: skip
    return faults


def conflicts(optimizer: OptimizerConfig, method: MethodConfig) -> list[str]:
    """What does not go together of optimizer, rule and the method's wrappers, one line each."""
    lines = []
    in_metric = method.combine.metric == "optimizer"
    pairing = " or ".join(name for name, option in OPTIMIZERS.items() if option.pairs)
    if in_metric and not optimizer.pairs:
        lines.append(f"method.combine={method.combine.name}: needs optimizer={pairing}; found {optimizer.name}")
    if optimizer.pairs and not in_metric:
        lines.append(
            f"optimizer={optimizer.name}: needs a rule in its metric (method/combine=ngdiff_adam); "
            f"found {method.combine.name}"
        )
    if optimizer.pairs and method.separate_states:
        lines.append(f"method.separate_states: needs another optimizer; found {optimizer.name}, which combines them")
    if optimizer.pairs and method.saliency_std is not None:
        lines.append(f"method.saliency_std: voids the guarantee of optimizer={optimizer.name}; set it to null")
    if method.separate_states and method.saliency_std is not None:
        lines.append("method.saliency_std: has no gradient of its own to mask with method.separate_states=true")
    return lines


def _stops(cfg: RunConfig) -> list[str]:
    trainer, faults = cfg.trainer, []
    seen = cfg.method.sides
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
        if not cfg.suite.benchmark:
            faults.append(
                f"trainer.stop: reference needs a suite that scores the benchmark; found suite={cfg.suite.name}"
            )
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


def _requests(cfg: RunConfig) -> list[str]:
    trainer, faults = cfg.trainer, []
    # MUSE's sequential requests come with the data, which are not read yet: four of them.
    why = "data.split=sust" if cfg.data.split == "sust" else f"data.requests={cfg.data.requests}"
    requests = 4 if cfg.data.split == "sust" else cfg.data.requests
    if requests == 1 or "forget" not in cfg.method.sides:
        return []
    if trainer.stop == "reference":
        faults.append(
            "trainer.stop: reference scores the whole forget set, of which a request is only a part; needs auto, "
            f"holdout or none with {why}"
        )
    if trainer.max_steps is not None and trainer.max_steps < requests:
        faults.append(
            f"trainer.max_steps: needs a step for each of the {requests} requests of {why}, which share them; "
            f"found {trainer.max_steps}"
        )
    if cfg.suite.keep != "last":
        faults.append(
            f"suite.keep: needs last with {why}: the best epoch of one request has not forgotten those after it; "
            f"found {show(cfg.suite.keep)}"
        )
    return faults


def _evaluated_epochs(cfg: RunConfig) -> list[str]:
    if cfg.suite.every_epochs is None or cfg.method.forget.negation is None:
        return []
    return [
        f"suite.every_epochs: needs null with method/forget={cfg.method.forget.name}, which turns the weights round "
        f"after the last epoch only; found {cfg.suite.every_epochs}"
    ]
