"""Settings of a method that run and change nothing, or do something else than their names promise.

Read off what the parts declare of themselves, as in method_checks.py.
"""

from __future__ import annotations

from typing import NamedTuple

from unlearn.config import RunConfig
from unlearn.gradients.combine import RuleState
from unlearn.schedulers.autolr import AutoLR
from unlearn.training.optimizer import AdamW


class Idle(NamedTuple):
    """A key that does nothing here, with the reason. It stands for all keys below it too; "logger." for those alone."""

    key: str
    when: bool
    why: str


def method_idle(cfg: RunConfig, touched: set[str] | frozenset[str]) -> list[Idle]:
    """Settings of a method that change nothing beside the other ones."""
    method = cfg.method
    sides, rule = method.sides, method.combine
    needs = method.forget.needs | method.retain.needs
    scale_free = f"method/combine={rule.name} does not depend on the scale of a loss"
    copied = {"reference_logits", "reference_hidden"}
    return [
        Idle("method.alternates", "alternates" not in needs, "no objective takes other answers"),
        Idle("method.gamma", "forget" not in sides, "method/forget=none"),
        Idle("method.alpha", "retain" not in sides, "method/retain=none"),
        Idle("method.gamma", rule.scale_free, scale_free),
        Idle("method.alpha", rule.scale_free, scale_free),
        Idle("method.lr_scale", "optimizer.lr" in touched, "optimizer.lr is set too"),
        Idle("method.sam_rho", "forget" not in sides, "method/forget=none: there is no forget gradient"),
        Idle("method.saliency_std", not sides, "nothing is trained"),
        Idle("method.separate_states", len(sides) < 2, "there is one gradient only"),
        Idle("data.requests", "forget" not in sides, "method/forget=none"),
        Idle(
            "data.retain_rows",
            "retain" not in sides and not isinstance(cfg.scheduler, AutoLR),
            "method/retain=none",
        ),
        Idle("trainer.start_model_on_host", not needs & copied, "no objective needs a copy of the start model"),
        Idle(
            "trainer.start_model_on_host",
            cfg.model.adapter.name != "none",
            f"model/adapter={cfg.model.adapter.name} is switched off in place of a copy of the start model",
        ),
    ]


def method_warnings(cfg: RunConfig) -> list[str]:
    """Combinations that run, and do something else than their names promise."""
    return [*_of_the_rule(cfg), *_of_the_wrappers(cfg), *_of_the_data(cfg)]


def _of_the_rule(cfg: RunConfig) -> list[str]:
    method, rule = cfg.method, cfg.method.combine
    lines: list[str] = []
    if rule.fixed is None and len(method.sides) == 1:
        missing, left = ("retain", "forget") if "forget" in method.sides else ("forget", "retain")
        length = "at a length of its own" if rule.scale_free else "and nothing else"
        lines.append(
            f"method.combine={rule.name}: has one gradient only (method/{missing}=none): the {left} gradient, {length}"
        )
    for side in ("forget", "retain"):
        part = getattr(method, side)
        if part.zero_at_start and rule.ahead(RuleState()) is None and len(method.sides) == 2:
            lines.append(
                f"method.combine={rule.name}: the gradient of {side}={part.name} is zero at the start model, so that "
                "the first step follows rounding noise"
            )
    if method.forget.negation is not None and isinstance(cfg.scheduler, AutoLR):
        lines.append(
            f"scheduler={cfg.scheduler.name}: fits the retain loss along a training whose change is negated in the end "
            f"(method/forget={method.forget.name}); scheduler=constant does not"
        )
    return lines + _waiting(cfg)


def _waiting(cfg: RunConfig) -> list[str]:
    """A rule that begins to learn from the losses when the run is over, as far as epochs tell."""
    rule, trainer = cfg.method.combine, cfg.trainer
    if not cfg.method.sides or trainer.max_steps is not None or trainer.epochs > rule.waits:
        return []
    return [
        f"method.combine={rule.name}: its weights never move, because they wait for {rule.waits} epochs, and "
        f"trainer.epochs={trainer.epochs} is no more than that"
    ]


def _of_the_wrappers(cfg: RunConfig) -> list[str]:
    method, lines = cfg.method, []
    coefficients = {"gamma": method.gamma, "alpha": method.alpha}
    rescaled = method.separate_states and len(method.sides) == 2 and isinstance(cfg.optimizer, AdamW)
    if rescaled and method.combine.fixed is not None:
        lines += [
            f"method.{name}={value:g}: has no effect, because each of the two states of optimizer={cfg.optimizer.name} "
            "rescales its own gradient (method.separate_states=true)"
            for name, value in coefficients.items()
            if value != 1
        ]
    # The parameters of an adapter are in fp32 whatever the precision of the model.
    in_bf16 = cfg.trainer.precision == "bf16" and cfg.model.adapter.name == "none"
    if method.sam_rho is not None and "forget" in method.sides and in_bf16:
        lines.append(
            f"method.sam_rho={method.sam_rho:g}: is a distance over all weights, most of which stay where they are in "
            "trainer.precision=bf16; bf16_mixed keeps fp32 master weights"
        )
    return lines


def _of_the_data(cfg: RunConfig) -> list[str]:
    method, lines = cfg.method, []
    if cfg.data.retain_rows == "general" and "retain" in method.sides:
        lines.append(
            "data.retain_rows=general: the rows that are trained on are scored too, so that real_authors, world_facts "
            "and model_utility say less about what was not trained on"
        )
    trained = "alternates" in method.forget.needs | method.retain.needs
    if method.alternates == "perturbed_answer" and trained and cfg.suite.measures:
        lines.append(
            "method.alternates=perturbed_answer: truth ratio and forget quality score these very texts; give a file of "
            "other answers to keep them apart"
        )
    return lines
