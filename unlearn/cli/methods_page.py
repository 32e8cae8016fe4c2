"""docs/methods.md, made from what the methods say of themselves: `python -m unlearn.cli.methods_page docs/methods.md`.

The words are those of `--help`: docstrings, settings, ranges, presets. torch is not imported.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from unlearn.cli.help import first_sentence, rows_of
from unlearn.cli.presets import FAMILIES, Preset, read_methods
from unlearn.config import MethodConfig, conf_dir
from unlearn.gradients.combine import COMBINE, CombineRule, RuleState
from unlearn.objectives.forget import FORGET
from unlearn.objectives.objective import Objective
from unlearn.objectives.retain import RETAIN
from unlearn.training.optimizer import OPTIMIZERS

HEAD = """\
# Methods

Made by `make docs` from the code and the presets: change those, not this page.

A method is a forget objective, a retain objective and a rule that combines their two gradients. Both objectives are
minimised, and the update follows `d = w_R g_R + w_F g_F`. A preset (`method=NAME`) names three parts and the settings
that it was published with; each part can be exchanged (`method/forget=NAME`, `method/retain=NAME`,
`method/combine=NAME`) and each setting changed (`method.forget.beta=0.2`). A combination that makes no sense is refused
with the reason before a model is loaded.

## Symbols

| symbol | meaning |
|---|---|
| `pi`, `pi_ref` | distribution of the model in training, and of the start model: the weights before the first step |
| `z`, `z_ref` | logits of the two, `pi = softmax(z)`, over the `V` words `v` of the vocabulary |
| `x`, `y`, `y_t` | question, answer, and the answer's token `t`; every `pi` is given `x` and the tokens before |
| `p_t` | `pi(y_t)` |
| `log pi(y)` | `sum_t log pi(y_t)`: a sum over the answer, of `\\|y\\|` tokens |
| `y_a`, `r_t`, `a_t` | another answer to the same question (`method.alternates`); another label for a token |
| `h`, `h_ref` | hidden states of one decoder layer, of `D` dimensions `d` |
| `mean_t` | mean over all `N` answer tokens of the optimizer step, whatever the micro-batches |
| `L_R`, `L_F` | values of retain and forget objective, times `method.alpha` and `method.gamma` |
| `g_R`, `g_F` | their gradients over all trained parameters |
| `<a, b>`, `\\|a\\|`, `cos` | inner product, L2 norm, cosine of `g_R` and `g_F` |
| `G` | the matrix of `<g_R, g_R>`, `<g_R, g_F>`, `<g_F, g_F>` |
"""

WRAPPERS = """\
`method.sam_rho` costs one more forward and backward pass over the forget rows in each step, `method.separate_states` a
second optimizer state and one more gradient in memory, `method.saliency_std` one more copy of the weights in each step.
"""

UNITS = {
    "token": "all answer tokens of the step",
    "sequence": "the rows of the step",
    "alternate_token": "all tokens of the alternates",
}

NEEDS = {
    "reference_logp": "the start model's log-probability of each row",
    "reference_logits": "the start model's distribution at every answer token",
    "reinforced_logits": "that of a copy trained further on the forget rows",
    "alternates": "another answer to each question (`method.alternates`)",
    "hidden": "hidden states of one layer",
    "reference_hidden": "the start model's hidden states there",
}

TARGETS = {
    "random": "labels drawn at random",
    "adversarial": "the start model's likeliest wrong label for each token",
    "refusal": "the tokens of a refusal as labels",
}

LOSSES = {
    "sizes": "the sizes of both losses: neither may be 0 at the start model, cross 0 or be a distance of activations",
    "logs": "the logarithms of both losses: neither may be negative, 0 at the start model or a distance of activations",
    "retain": "the retain loss, in nats per token",
}


def page() -> str:
    """The whole page in Markdown."""
    presets = read_methods(conf_dir())
    parts = [
        HEAD,
        "## Presets\n",
        "`lr` is the published learning rate as a multiple of `model.lr` (`method.lr_scale`), 1 where none is known; "
        "models of 1 to 8\nbillion parameters have `model.lr` = 1e-5 as a rule. Batches and epochs are those of "
        "`trainer`, not of the preset.\n",
        *(_family(heading, [each for each in presets if each.family == key]) for key, heading in FAMILIES.items()),
        "## Settings of every method\n",
        _settings(MethodConfig, "method."),
        WRAPPERS,
        "## Forget objectives\n",
        *(_objective(node, "forget") for node in FORGET.values() if node().active),
        "## Retain objectives\n",
        *(_objective(node, "retain") for node in RETAIN.values() if node().active),
        "## Combination rules\n",
        *(_rule(node) for node in COMBINE.values()),
        "## Optimizers\n",
        "\n".join(f"- `{name}`: {_text(first_sentence(node))}" for name, node in OPTIMIZERS.items()) + "\n",
    ]
    return "\n".join(parts)


def _family(heading: str, presets: list[Preset]) -> str:
    lines = [
        f"### {heading[:1].upper()}{heading[1:]}\n",
        "| `method=` | forget | retain | combine | lr | also sets |",
        "|---|---|---|---|---|---|",
    ]
    for preset in presets:
        parts = [preset.options.get(f"method/{part}", "") for part in ("forget", "retain", "combine")]
        settings = dict(preset.settings)
        lr = settings.pop("method.lr_scale", 1.0)
        chosen = [f"`{group}={option}`" for group, option in preset.options.items() if not group.startswith("method/")]
        also = ", ".join([*chosen, *(f"`{key}={_value(value)}`" for key, value in settings.items())])
        lines.append(f"| `{preset.name}` | {' | '.join(parts)} | {lr:g} | {also} |")
    notes = [
        f"- `{preset.name}`: {_text(preset.phrase)}." + (f" {_sentence(preset.note)}" if preset.note else "")
        for preset in presets
    ]
    return "\n".join([*lines, "", *notes, ""])


def _objective(node: type[Objective], side: str) -> str:
    objective = node()
    several = node.parts is not Objective.parts
    units = " and ".join([UNITS["token"], UNITS["alternate_token"]]) if several else UNITS[objective.unit]
    needs = [NEEDS[need] for need in NEEDS if need in objective.needs]
    needs += [TARGETS[objective.targets]] if objective.targets else []
    facts = [
        *([_scale(objective)] if _scale(objective) else []),
        f"Mean over {units}." if not several else f"Sum of two means, over {units}.",
        f"Needs {_list(needs)}." if needs else "Needs nothing but the rows.",
        f"Costs {'; '.join(_costs(objective))}.",
    ]
    return _entry(node, f"method.{side}.", facts)


def _scale(objective: Objective) -> str:
    words = []
    if objective.unbounded:
        words.append("falls without end, so `trainer.stop=auto` watches the holdout")
    if objective.zero_at_start:
        words.append("zero at the start model, and so is its gradient")
    if not objective.nonnegative and not objective.unbounded:
        words.append("may be below 0")
    return f"Value: {'; '.join(words)}." if words else ""


def _costs(objective: Objective) -> list[str]:
    """What an objective costs beyond one forward and one backward pass over its rows in each step."""
    needs, costs = objective.needs, []
    if "alternates" in needs:
        only = " (the answers are measured, without a backward pass)" if objective.unit == "alternate_token" else ""
        costs.append(f"a pass over the alternates in each step{only}")
    if "reference_logp" in needs or objective.targets == "adversarial":
        costs.append("one forward pass over all rows before the first step")
    if needs & {"reference_logits", "reference_hidden"}:
        costs.append(
            "a forward pass of the start model in each step (a frozen copy in memory; with an adapter none: it is "
            "switched off)"
        )
    if "reinforced_logits" in needs:
        costs.append("the training of a copy before the first step, which stays in memory, and its forward passes")
    if objective.negation is not None:
        costs.append("the start weights in host memory, from which the change is subtracted at the end")
    return costs or ["one forward and one backward pass in each step, as all do"]


def _rule(node: type[CombineRule]) -> str:
    rule = node()
    ahead = rule.ahead(RuleState()) is not None
    facts = []
    if rule.scale_free:
        facts.append("Does not depend on the scale of either loss: `method.alpha` and `method.gamma` have no effect.")
    if rule.signed:
        facts.append("A weight may be negative.")
    if rule.common_descent and rule.metric == "optimizer":
        facts.append("With the defaults the step that the optimizer takes raises neither loss, to first order.")
    elif rule.common_descent:
        facts.append(
            "With the defaults the update has no negative inner product with either gradient: a plain gradient step "
            "raises neither loss, to first order; an adaptive optimizer's step may (see `ngdiff_adam`)."
        )
    if rule.losses:
        facts.append(f"Reads {LOSSES[rule.losses]}.")
    if rule.metric == "optimizer":
        pairing = " or ".join(f"`optimizer={name}`" for name, node in OPTIMIZERS.items() if node.pairs)
        facts.append(f"Needs {pairing}.")
    facts.append(
        "Costs nothing: its weights are known ahead, and both losses go into one gradient."
        if ahead
        else "Costs one more gradient in memory."
    )
    return _entry(node, "method.combine.", facts)


def _entry(node: Any, prefix: str, facts: list[str]) -> str:
    """One objective or rule: what it is, formula, settings, facts, source, deviation."""
    said = [" ".join(paragraph.split()) for paragraph in (node.__doc__ or "").split("\n\n")]
    lines = [f"### `{node().name}`\n", *(f"{_text(paragraph)}\n" for paragraph in said)]
    lines += ["```text", *re.split(r"; (?=\w+: )", node.formula), "```\n"]
    settings = _settings(node, prefix)
    lines += [settings] if settings else []
    lines += [f"- {fact}" for fact in facts]
    lines += [f"- Source: {_text(node.source)}."]
    lines += [f"- Deviation. {_sentence(node.deviation)}"] if node.deviation else []
    return "\n".join([*lines, ""])


def _settings(node: Any, prefix: str) -> str:
    rows = list(rows_of(node, prefix))
    if not rows:
        return ""
    lines = [f"| `{row.key}` | {row.default} | {_text(row.meaning)} |" for row in rows]
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *lines, ""])


def _list(items: list[str]) -> str:
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else items[0]


def _value(value: Any) -> str:
    words = {None: "null", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return words[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _sentence(text: str) -> str:
    start = text[:1] if text.startswith("arXiv") else text[:1].upper()
    return _text(start + text[1:].removesuffix(".")) + "."


def _text(text: str) -> str:
    """Prose for Markdown: signs that would be markup are escaped, arXiv numbers become links."""
    text = text.replace("*", r"\*")
    return re.sub(r"(?:arXiv )?(\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", text)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
