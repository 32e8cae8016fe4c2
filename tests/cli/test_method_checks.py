"""Which combinations are refused, which warn, and that all others pass; the presets as help and docs read them."""

from __future__ import annotations

from collections import Counter
from copy import copy
from itertools import product
from pathlib import Path

import pytest
from hydra.types import RunMode
from omegaconf import OmegaConf

from tests.cli.composing import config, faults, plain_composer, read_conf_once, write
from unlearn.cli.checks import cross_checks, no_effect
from unlearn.cli.compose import Choice
from unlearn.cli.keys import select
from unlearn.cli.method_checks import ALTERNATES
from unlearn.cli.overrides import check
from unlearn.cli.presets import FAMILIES, read_methods
from unlearn.config import RunConfig, conf_dir
from unlearn.data.alternates import CHOICES
from unlearn.gradients.combine import COMBINE, CombineRule, Gram, Losses, Nash, RuleState
from unlearn.objectives.forget import FORGET, NPO
from unlearn.objectives.objective import Objective
from unlearn.objectives.retain import KL, RETAIN
from unlearn.training.optimizer import OPTIMIZERS

__all__ = ["read_conf_once"]

PRESETS = read_methods(conf_dir())

REFUSED = [
    (["method=gdiff", "method/forget=dpo"], "method.alternates: needs refusals, shuffled, retained, perturbed_answer "
     "or a JSON-lines file, because method/forget=dpo takes another answer to the same question; found null"),
    (["method=gdiff", "method/retain=ap"], "method.alternates: needs refusals, "),
    (["method=idk", "method.alternates=null"], "method.alternates: needs refusals, "),
    (["method=idk", "method.alternates=refusal"], "method.alternates: needs refusals, shuffled, retained, "
     "perturbed_answer or a JSON-lines file; found 'refusal', which is no file"),
    (["method=idk", f"method.alternates={Path(__file__).parent}"], "method.alternates: needs refusals, shuffled, "),
    # The change of the weights is negated in the end.
    (["method=task_vector", "method/retain=nll"], "method/retain: needs none: method/forget=task_vector trains on"),
    (["method=ssu", "method/combine=ngdiff"], "method/combine: needs linear: method/forget=ssu trains on"),
    (["method=ssu", "trainer.stop=holdout"], "trainer.stop: needs none or auto: "),
    (["method=ssu", "trainer.stop=reference"], "trainer.stop: needs none or auto: "),
    (["method=task_vector", "trainer.stop_forget_prob=0.1"], "trainer.stop_forget_prob: needs null: "),
    # Ratios and logarithms of losses.
    (["method=rmu", "method/retain=nll", "method/combine=lossnorm"], "method/combine=lossnorm: needs two losses whose "
     "sizes can be compared; found forget=rmu, a distance of activations; "),
    (["method=kl", "method/combine=lossnorm"], "method/combine=lossnorm: needs two losses whose sizes can be compared; "
     "found retain=kl, which is 0 at the start model; "),
    (["method=llmu", "method/combine=lossnorm", "method/retain=nll"], "method/combine=lossnorm: needs two losses whose "
     "sizes can be compared; found forget=llmu, which crosses 0; "),
    (["method=famo", "method/retain=jsd"], "method/combine=famo: needs two losses whose sizes can be compared; found "
     "retain=jsd, which is 0 at the start model; "),
    (["method=famo", "method/retain=none"], "method/combine=famo: needs two losses whose sizes can be compared; found "
     "retain=none; "),
    (["method=famo", "method/forget=ascent"], "method/combine=famo: needs losses that are never negative, for their "
     "logarithms; found forget=ascent; choose another one, as in method/forget=npo"),
    # One gradient only, of which the rule makes nothing; a bound on a loss that is in no nats.
    (["method=gru", "method/forget=none"], "method/forget: needs an objective for method/combine=gru; found none: the "
     "rule gives nll alone the weight 0 and nothing would move; choose one, or method/combine=linear"),
    (["method=ga", "method/combine=blur", "method.combine.gamma=0"], "method/retain: needs an objective for"),
    (["method=pdu", "method/retain=none"], "method/retain: needs a loss in nats per token, as nll, "),
    (["method=pdu", "method/retain=activation"], "method/retain: needs a loss in nats per token, as nll, "),
    # Optimizers: their own words.
    (["method=ngdiff_adam", "optimizer=adamw"], "method.combine=ngdiff_adam: needs optimizer=adamw_pair; found adamw"),
    (["method=gdiff", "optimizer=adamw_pair"], "optimizer=adamw_pair: needs a rule in its metric "),
    (["method=ngdiff_adam", "method.separate_states=true"], "method.separate_states: needs another optimizer; "),
    # Stops.
    (["trainer.stop=reference", "suite=none"], "trainer.stop: reference needs a suite that scores the benchmark; "),
    (["trainer.stop=reference", "model.reference=none"], "trainer.stop: reference needs a reference model; found none"),
    (["method=finetune", "trainer.stop_forget_nll=3"], "trainer.stop_forget_nll: needs a forget objective that takes "
     "part in the steps; found 3.0 with none"),
    (["trainer.stop=reference", "data.requests=2"], "trainer.stop: reference scores the whole forget set, of which a "
     "request is only a part; needs auto, holdout or none with data.requests=2"),
    (["trainer.max_steps=2", "data.requests=3"], "trainer.max_steps: needs a step for each of the 3 requests of "
     "data.requests=3, which share them; found 2"),
    (["data=muse", "data.split=sust", "trainer.max_steps=3"], "trainer.max_steps: needs a step for each of the 4 "
     "requests of data.split=sust, which share them; found 3"),
    (["data=muse", "method=dpo"], "method/forget=dpo: needs questions, to which it teaches another answer"),
    (["data.requests=2", "suite.every_epochs=1", "suite.keep=model_utility"], "suite.keep: needs last with "),
    (["method=task_vector", "suite.every_epochs=1"], "suite.every_epochs: needs null with method/forget=task_vector"),
    (["method=ga", "trainer.stop_retain_ratio=2"], "trainer.stop_retain_ratio: needs a retain objective that takes"),
]  # fmt: skip


@pytest.mark.parametrize(("texts", "expected"), REFUSED, ids=lambda value: " ".join(value) if len(value) < 5 else "")
def test_what_makes_no_sense_is_refused_in_one_line(texts: list[str], expected: str) -> None:
    (line,) = faults(*texts)
    assert line.startswith(expected)
    assert "\n" not in line


WARNED = [
    (["method=npo", "method.alternates=refusals"], ["method.alternates: has no effect, because no objective takes"]),
    (["method=ga", "method.alpha=2"], ["method.alpha: has no effect, because method/retain=none"]),
    (["method=finetune", "method.gamma=2"], ["method.gamma: has no effect, because method/forget=none"]),
    (["method=ngdiff", "method.gamma=2", "method.alpha=2"],
     ["method.alpha: has no effect, because method/combine=ngdiff does not depend on the scale", "method.gamma: has"]),
    (["method=gdiff", "method.gamma=2", "method.alpha=2"], []),
    (["method=undial", "method.lr_scale=2", "optimizer.lr=1e-5"], ["method.lr_scale: has no effect, because opt"]),
    (["method=finetune", "method.sam_rho=0.1"], ["method.sam_rho: has no effect, because method/forget=none"]),
    (["method=ga", "method.separate_states=true"], ["method.separate_states: has no effect, because there is one"]),
    (["method=finetune", "data.requests=2", "trainer.max_steps=1"], ["data.requests: has no effect, because met"]),
    (["method=ga", "data.retain_rows=general"], ["data.retain_rows: has no effect, because method/retain=none"]),
    (["method=gdiff", "data.retain_rows=general"], ["data.retain_rows=general: the rows that are trained on are "]),
    (["method=npo", "trainer.start_model_on_host=true"], ["trainer.start_model_on_host: has no effect, because no "]),
    (["method=kl", "trainer.start_model_on_host=true"], []),
    (["method=kl", "trainer.start_model_on_host=true", "model/adapter=lora"],
     ["trainer.start_model_on_host: has no effect, because model/adapter=lora is switched off"]),
    (["method=none", "method.saliency_std=0", "trainer.stop_forget_nll=3", "model/adapter=lora"],
     ["trainer.stop_forget_nll: has", "model.adapter: has no effect", "method.saliency_std: has no effect"]),
    (["method=finetune", "trainer.stop=reference"], ["trainer.stop: has no effect, because method/forget=none"]),
    (["method=ngdiff", "method/retain=kl"], ["method.combine=ngdiff: the gradient of retain=kl is zero at the start"]),
    (["method=mgda", "method/retain=kl"], ["method.combine=mgda: the gradient of retain=kl is zero at the start"]),
    (["method=rlw", "method/retain=kl"], []),
    (["method=ngdiff", "method/retain=none"], ["method.combine=ngdiff: has one gradient only (method/retain=none): the "
      "forget gradient, at a length of its own"]),
    (["method=ga", "method/combine=pcgrad"], ["method.combine=pcgrad: has one gradient only (method/retain=none): the "
      "forget gradient, and nothing else"]),
    (["method=ssu", "scheduler=autolr"], ["scheduler=autolr: fits the retain loss along a training whose change is"]),
    # What is trained on is scored.
    (["method=idk", "method.alternates=perturbed_answer"], ["method.alternates=perturbed_answer: truth ratio and "]),
    (["method=altpo", "method.alternates=retained"], []),
    (["method=altpo", "suite=none"], []),
    (["method=pdu", "trainer.epochs=5"], ["method.combine=pdu: its weights never move, because they wait for 5 epochs, "
      "and trainer.epochs=5 is no more than that"]),
    (["method=pdu", "trainer.epochs=6"], []),
    (["method=pdu", "trainer.epochs=5", "trainer.max_steps=65"], ["trainer.epochs: has no effect, because "]),
    # Precision and optimizer states.
    (["method=npo_sam", "trainer.precision=bf16", "optimizer.lr=1e-3"], ["method.sam_rho=0.01: is a distance over "]),
    (["method=npo_sam", "trainer.precision=bf16", "model/adapter=lora"], []),
    (["method=dualoptim", "method.gamma=2"], ["method.gamma=2: has no effect, because each of the two states"]),
    (["method=simnpo", "method.separate_states=true"], ["method.gamma=0.125: has no effect, because each of the two"]),
    (["method=simnpo", "method.separate_states=true", "optimizer=sgd"], []),
]  # fmt: skip


@pytest.mark.parametrize(("texts", "expected"), WARNED, ids=lambda value: " ".join(value) if len(value) < 5 else "")
def test_what_has_no_effect_warns(texts: list[str], expected: list[str]) -> None:
    checked = check(texts)
    lines = no_effect(checked.jobs[0], checked.touched)
    assert len(lines) == len(expected), lines
    assert all(any(line.startswith(start) for line in lines) for start in expected), lines


@pytest.mark.parametrize(
    "texts",
    [
        ["method=ngdiff", "method/forget=npo", "method/combine=pcgrad", "model/adapter=lora", "scheduler=autolr"],
        ["method=rmu", "method/combine=ngdiff", "trainer.layers=1", "method.sam_rho=0.01"],
        ["method=altpo", "method/retain=kl", "method/combine=cagrad", "optimizer=sophia"],
        ["method=jensun", "method/retain=ap", "method/combine=pdu", "method.alternates=refusals", "method/retain=nll"],
        ["method=whp", "method/retain=activation", "method/combine=aligned_mtl", "method.separate_states=true"],
        ["method=random_label", "method/retain=prob_weighted", "method/combine=famo", "data.requests=2"],
        ["method=flat", "method/retain=jsd", "method/combine=hamu", "trainer.stop=reference"],
    ],
)
def test_surprising_combinations_pass(texts: list[str]) -> None:
    cfg = config(*texts)
    assert cross_checks(cfg) == []


def test_parts_of_a_preset_of_the_whole_tree_are_exchanged_like_any_others(tmp_path: Path) -> None:
    """munba sets trainer.clip_norm too, so its file is about the whole tree."""
    cfg = config("method=munba", "method/forget=npo", "method.forget.beta=0.2", "trainer.clip_norm=2")
    assert (cfg.method.name, cfg.method.forget, cfg.method.combine) == ("munba", NPO(beta=0.2), Nash())
    assert cfg.trainer.clip_norm == 2
    text = "# @package _global_\ndefaults:\n  - override /method: munba\n  - override /method/retain: kl\n"
    cfg = config("experiment=e", config_dir=write(tmp_path, "experiment/e", text))
    assert (cfg.method.name, cfg.method.retain, cfg.trainer.clip_norm) == ("munba", KL(), 1.0)


def test_what_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unlearn.training.optimizer.find_spec", lambda name: None)
    monkeypatch.setattr("unlearn.models.adapter.find_spec", lambda name: None)
    optimizer, adapter = faults("optimizer=adamw_8bit", "model/adapter=qlora")
    assert optimizer.startswith("optimizer=adamw_8bit: needs bitsandbytes")
    assert adapter.startswith("model/adapter: qlora needs bitsandbytes")


def test_the_checks_know_the_choices_of_alternates() -> None:
    """They are checked without torch."""
    assert ALTERNATES == CHOICES


def combined(base: RunConfig, forget: Objective, retain: Objective, rule: CombineRule) -> RunConfig:
    """The config of any three parts, with the alternates and the optimizer that they need."""
    cfg = copy(base)
    alternates = "refusals" if "alternates" in forget.needs | retain.needs else None
    cfg.method = copy(base.method)
    cfg.method.forget, cfg.method.retain, cfg.method.combine, cfg.method.alternates = forget, retain, rule, alternates
    cfg.optimizer = next(
        option(lr=1e-5) for option in OPTIMIZERS.values() if option.pairs == (rule.metric == "optimizer")
    )
    return cfg


def test_every_forget_goes_with_every_retain_under_every_rule() -> None:
    """Of all combinations only those with a reason are refused, and the reasons are the ones below."""
    base = config("method=gdiff")
    reasons: Counter[str] = Counter()
    passed = 0
    for forget, retain, rule in product(FORGET.values(), RETAIN.values(), COMBINE.values()):
        found = cross_checks(combined(base, forget(), retain(), rule()))
        reasons.update(line.partition(": needs ")[0] + ": " + line.partition(": needs ")[2][:20] for line in found)
        passed += not found
        negated = forget().negation is not None
        weighs_losses = rule().losses != ""
        one_sided = forget().active != retain().active
        assert not found or negated or weighs_losses or (one_sided and rule.__name__ == "GRU"), found
    total = len(FORGET) * len(RETAIN) * len(COMBINE)
    assert passed / total > 0.8
    assert set(reasons) == {
        "method/retain: none: method/forget=",
        "method/combine: linear: method/forge",
        "method/combine=lossnorm: two losses whose siz",
        "method/combine=famo: two losses whose siz",
        "method/combine=famo: losses that are neve",
        "method/retain: a loss in nats per t",
        "method/forget: an objective for met",
    }
    assert total - passed == refused()


def refused() -> int:
    """How many combinations make no sense, counted by the kinds of parts that there are."""
    forgets, retains = [cls() for cls in FORGET.values()], [cls() for cls in RETAIN.values()]
    rules = [cls() for cls in COMBINE.values()]
    free = [part for part in forgets if part.negation is None]

    def fit(parts: list[Objective], kind: str) -> int:
        """Those whose losses a rule of this kind can read."""
        distances = [part for part in parts if "hidden" in part.needs]
        if kind == "retain":
            return sum(part.active and part.unit == "token" and part not in distances for part in parts)
        sized = [part for part in parts if not part.zero_at_start and part not in distances]
        return sum(part.active and part.nonnegative if kind == "logs" else not part.crosses_zero for part in sized)

    def silent(rule: CombineRule, gram: Gram) -> bool:
        return rule.ahead(RuleState()) is None and max(rule.weights(gram, Losses(1, 1), RuleState())) == 0

    pairs = len(free) * len(retains)
    # Negation goes with retain=none under a sum.
    count = (len(forgets) - len(free)) * (len(retains) * len(rules) - sum(rule.fixed is not None for rule in rules))
    for rule in rules:
        if rule.losses == "sizes":
            count += pairs - fit(free, "sizes") * fit(retains, "sizes")
        elif rule.losses == "logs":  # none with none trains nothing
            count += pairs - fit(free, "logs") * fit(retains, "logs") - 1
        elif rule.losses == "retain":
            count += len(free) * (len(retains) - fit(retains, "retain")) - 1
        else:
            count += silent(rule, Gram(1, 0, 0)) * (len(retains) - 1) + silent(rule, Gram(0, 0, 1)) * (len(free) - 1)
    return count


BEYOND = [
    preset.name
    for preset in PRESETS
    if any(not key.startswith("method") for key in (*preset.options, *preset.settings)) or preset.name == "rmu"
]
"""Presets that reach beyond their own group, and one that does not."""


@pytest.mark.parametrize("name", BEYOND)
def test_a_preset_that_sets_more_than_the_method_composes_as_hydra_composes_it(name: str) -> None:
    composer = plain_composer()
    base = composer.base([Choice("method", [name], f"method={name}")])
    hydra = composer.loader.load_configuration("run", [f"method={name}"], RunMode.RUN)
    for part in ("method", "data", "trainer", "scheduler", "optimizer"):
        ours, theirs = select(base.tree, part), select(hydra, part)
        assert OmegaConf.to_container(ours) == OmegaConf.to_container(theirs)
        assert OmegaConf.get_type(ours) is OmegaConf.get_type(theirs)


WARNS = {"data.retain_rows=general", "method.alternates=perturbed_answer"}
"""Of what a preset may warn, since it was published like that: what it trains on is scored."""


def test_every_method_preset_passes_and_composes_to_what_help_reads_in_it() -> None:
    """One sweep, because composing is what takes its time."""
    names = [preset.name for preset in PRESETS]
    checked = check([f"method={','.join(names)}"], multirun=True)
    assert [cfg.method.name for cfg in checked.jobs] == names
    for preset, cfg in zip(PRESETS, checked.jobs, strict=True):
        warned = {line.partition(":")[0] for line in no_effect(cfg, frozenset({"method"}))}
        assert warned == {f"{key}={value}" for key, value in preset.settings.items()} & WARNS
        base = plain_composer().base([Choice("method", [preset.name], f"method={preset.name}")])
        assert base.faults == []
        choices = base.tree.hydra.runtime.choices
        assert {group: choices[group] for group in preset.options} == preset.options
        assert {key: select(base.tree, key) for key in preset.settings} == preset.settings


def test_presets_show_their_command_in_line_1_and_set_no_field_of_a_part() -> None:
    for preset in PRESETS:
        lines = (conf_dir() / "method" / f"{preset.name}.yaml").read_text().splitlines()
        first = lines[1] if lines[0] == "# @package _global_" else lines[0]
        assert first.startswith(f"# unlearn-run method={preset.name}: ")
        assert preset.phrase
        assert preset.family in FAMILIES
        # method=NAME method/forget=OTHER would be refused: the other part has no such field.
        own = [key for key in preset.settings if key.startswith("method.")]
        assert all(key.count(".") == 1 for key in own)


def test_every_objective_and_rule_has_a_preset() -> None:
    used = {group: {preset.options.get(group) for preset in PRESETS} for group in ("method/forget", "method/combine")}
    assert used["method/forget"] >= set(FORGET)
    assert used["method/combine"] >= set(COMBINE)


@pytest.mark.parametrize(
    ("method", "lr", "settings"),
    [
        ("simnpo", 1, {"gamma": 0.125, "forget.beta": 4.5}),
        ("rmu", 5, {"alpha": 1200.0}),
        ("undial", 10, {"forget.beta": 10.0}),
        ("satimp", 1, {"gamma": 0.1, "forget.beta1": 5.0, "forget.beta2": 1.0}),
        ("flat", 0.02, {"alternates": "refusals"}),
        ("llmu", 0.2, {"alternates": "retained", "forget.ascent_weight": 0.5}),
        ("ssu", 10, {"saliency_std": 0.0, "alternates": "shuffled"}),
        ("task_vector", 1, {"forget.scale": 5.0}),
        ("pdu", 1, {"combine.epsilon": 0.3}),
        ("npo_sam", 1, {"sam_rho": 0.01, "forget.beta": 0.1}),
        ("yao_ga_kl_general", 2, {"alternates": None}),
    ],
)
def test_published_settings(method: str, lr: float, settings: dict[str, object]) -> None:
    """Published learning rates as multiples of 1e-5, and what else was published."""
    cfg = config(f"method={method}", "model=llama-3.2-1b-instruct")
    assert cfg.optimizer.lr == pytest.approx(lr * 1e-5)
    tree = OmegaConf.structured(cfg)
    assert {key: OmegaConf.select(tree, f"method.{key}") for key in settings} == settings
