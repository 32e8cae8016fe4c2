"""docs/metrics.md, made from what the metrics say of themselves: `python -m unlearn.cli.metrics_page docs/metrics.md`.

A metric that several sets have is one entry. torch is not imported.
"""

from __future__ import annotations

import math
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from unlearn.evaluation.intervals import LEVEL, RESAMPLES
from unlearn.evaluation.metric import MUSE_SETS, UTILITY_SETS, WMDP_SETS, Metric
from unlearn.evaluation.metrics import METRICS
from unlearn.evaluation.set_metrics import ANSWERS, FLUENCY, PARAPHRASES

HEAD = f"""\
# Metrics

Made by `make docs` from the code: change that, not this page.

## How a number comes about

1. **Records.** Every model is read once, and what it said is kept: `records/<column>/<set>.parquet` has one row per
   example and answer, with the log-probability of each answer token, whether greedy decoding would have picked it, and
   the text that the model generated of its own accord.
2. **Scores.** Each example's records become its scores: probability, ROUGE, truth ratio and so on. An example that
   cannot be scored has none, and is counted; it is never a 0.
3. **Metrics.** A metric is a function of the scores of all examples, and of nothing else. So `unlearn-report score RUN`
   computes all of them again, without a model, whenever a definition has changed.

The columns are the model `before` unlearning, the model `after` it, and the `reference`: a model that was trained in
the same way without the forget set. The reference shows what "never seen" looks like; being better than it is no aim.
It is trained, downloaded, or named by `model.reference`, which also takes an evaluation log of open-unlearning
(`TOFU_EVAL.json`, `MUSE_EVAL.json`) or of TOFU's authors (`eval_log_aggregated.json`), and the folder of another run.

In `results.json` every column has, for each metric whose sets were scored:

| key | meaning |
|---|---|
| `value` | the number; `null` where it could not be computed |
| `reason` | why it is `null` |
| `n` | examples behind it (of an aggregate: metrics) |
| `dropped` | examples of the sets that could not be scored, where there are any; `note` says why |
| `interval` | bootstrap: between these two lie {LEVEL:.0%} of the values under {RESAMPLES} redraws of the examples |
| `note` | what must be known to read the value ("small n", "over-forgotten") |

An interval says how much the value depends on which examples were asked, not how much it differs from one training to
the next: for that, run several seeds. `damage` in `results.json` lists what single examples lost, because a mean hides
a few that lost everything.

Arrows: ↑ higher is better, ↓ lower is better, ≈ closest to the reference's value is best. They stand for the aim of
unlearning: knowledge of the forget set should go, everything else should stay.

## Sets

| set | benchmark | what is asked |
|---|---|---|
| `forget`, `retain` | TOFU | questions on authors to be forgotten, and on others; 400 of the retain set, as published |
| `holdout` | TOFU | questions that no model has seen: what attacks tell the forget set from |
| `real_authors`, `world_facts` | TOFU | what the model knew before: real authors, the world |
| `forget`, `retain`, `holdout` | MUSE | articles or passages of books, read but not asked |
| `forget_knowmem`, `retain_knowmem` | MUSE | questions on these texts, behind solved examples |
| `forget_verbmem` | MUSE | beginnings of the forget texts, to be continued |
| `wmdp_bio`, `wmdp_cyber`, `wmdp_chem` | WMDP | multiple-choice questions on hazardous knowledge (`suite.wmdp`) |

## Symbols

| symbol | meaning |
|---|---|
| `p`, `log p` | probability of a token under the model, given everything before it; natural logarithm |
| `T` | tokens of an answer; content tokens are those of its text, without the end marker |
| `nll` | mean of `-log p` over the `T` answer tokens, end marker included where one is trained |
| `paraphrase`, `perturbed` | the answer in other words, and wrong answers in the same words (3 or 5 of them) |
| `R` | truth ratio of one example: how likely the wrong answers are, relative to the right one |
| `AUC` | probability that an attack ranks an unseen row above a forget row; 0.5 cannot tell them apart |
"""

SECTIONS = {
    "headline": ("Headline numbers", "What the benchmarks report of a model as a whole."),
    "aggregates": ("Aggregates", "Several metrics in one number. A harmonic mean is near 0 as soon as one term is."),
    "privacy": (
        "Membership inference",
        "Can somebody with the model tell that the forget rows were in its training data? An AUC far from the "
        "reference's in either direction gives them away.",
    ),
    "answers": (
        "Answers",
        "Means over the examples of one set, named `<set>.<metric>`: how likely the right answer is, and what the "
        "model says instead.",
    ),
    "paraphrases": (
        "Paraphrases",
        "The same in other words: a model that only forgot the wording of its training data still knows the answer.",
    ),
    "fluency": ("Generated texts", "Whether what is generated is language at all: forgetting should not break that."),
}
"""Groups of entries with their heading and what they are about; those of single sets by what they look at."""

SUFFIXES = {
    mean.suffix: section
    for section, means in (("answers", ANSWERS), ("paraphrases", PARAPHRASES), ("fluency", FLUENCY))
    for mean in means
}

BENCHMARKS = {
    "TOFU": {"forget", "holdout", *UTILITY_SETS},
    "MUSE": {"forget", "retain", "holdout", *MUSE_SETS},
    "WMDP": set(WMDP_SETS),
}
TEXTS = {"MUSE": {"forget", "retain", "holdout"}}
"""Sets of texts that stand alone: nothing is asked."""

WIDTH = 110
"""Of a formula, which does not wrap on GitHub."""

ARROWS = {"higher": "↑", "lower": "↓", "reference": "≈"}

PAPERS = {
    "TOFU (Maini et al. 2024": "2401.06121",
    "MUSE (Shi et al. 2024": "2407.06460",
    "OpenUnlearning (Dorna et al. 2025": "2506.12618",
    "WMDP (Li et al. 2024": "2403.03218",
    "Yeom et al. 2018": "1709.01604",
    "Carlini et al. 2021": "2012.07805",
    "Shi et al. 2024": "2310.16789",
    "Zhang et al. 2025": "2404.02936",
    "Li et al. 2016": "1510.03055",
}
"""arXiv numbers of what the sources name; a name is looked up before those that it contains."""


class Definition(NamedTuple):
    """What metrics of several sets have in common."""

    title: str
    range: tuple[float, float]
    formula: str
    source: str


def page() -> str:
    """The whole page in Markdown."""
    parts = [HEAD]
    for key, (heading, about) in SECTIONS.items():
        metrics = [metric for metric in METRICS.values() if _section(metric) == key]
        names = list(dict.fromkeys(_short(metric) for metric in metrics))
        entries = {name: [metric for metric in metrics if _short(metric) == name] for name in names}
        parts += [f"## {heading}\n", f"{about}\n", _overview(entries.values())]
        parts += [_entry(name, entry) for name, entry in entries.items()]
    return "\n".join(parts)


def _section(metric: Metric) -> str:
    return SUFFIXES[_short(metric)] if metric.group in metric.sets else metric.group


def _short(metric: Metric) -> str:
    """The name without the set, where the set is nothing but the one that is asked."""
    return metric.name.partition(".")[2] if metric.group in metric.sets else metric.name


def _overview(entries: Iterable[Sequence[Metric]]) -> str:
    lines = ["| metric | what it is | range | benchmarks |", "|---|---|---|---|"]
    for metrics in entries:
        titles = " / ".join(dict.fromkeys(_definition(metric).title for metric in metrics))
        cells = [_linked(_short(metrics[0])), titles, _range(metrics[0].range), _benchmarks(metrics)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _entry(name: str, metrics: Sequence[Metric]) -> str:
    """One name with its definitions, each under the sets that it holds for."""
    lines = [f"### `{name}`\n"]
    for definition in dict.fromkeys(_definition(metric) for metric in metrics):
        held = [metric for metric in metrics if _definition(metric) == definition]
        names = ", ".join(f"`{metric.name}` {ARROWS[metric.direction]}" for metric in held)
        lines += [
            f"{definition.title}: {names}\n" if name != held[0].name else f"{definition.title} {names[-1]}\n",
            "```text",
            *textwrap.wrap(definition.formula, WIDTH, break_on_hyphens=False, break_long_words=False),
            "```\n",
            f"- Range {_range(definition.range)}; on {_benchmarks(held)}.",
            f"- Source: {_text(definition.source)}.\n",
        ]
    return "\n".join(lines)


def _definition(metric: Metric) -> Definition:
    title = metric.title
    if metric.group in metric.sets:
        title = title.partition(": ")[2]
        title = title[:1].upper() + title[1:]
    return Definition(title, metric.range, metric.formula, metric.source)


def _benchmarks(metrics: Sequence[Metric]) -> str:
    return ", ".join(name for name in BENCHMARKS if any(_has(name, metric) for metric in metrics))


def _has(benchmark: str, metric: Metric) -> bool:
    """Whether a benchmark scores all sets of a metric, and asks what it needs asked."""
    sets = set(metric.sets)
    return sets <= BENCHMARKS[benchmark] and not (metric.prompted and sets & TEXTS.get(benchmark, set()))


def _range(bounds: tuple[float, float]) -> str:
    low, high = ("-∞" if x == -math.inf else "∞" if x == math.inf else f"{x:g}" for x in bounds)
    return f"{low} to {high}"


def _linked(name: str) -> str:
    """The name as a link to its entry."""
    return f"[`{name}`](#{name.replace('.', '')})"


def _text(text: str) -> str:
    """Prose for Markdown: signs that would be markup are escaped, papers become links."""
    text = text.replace("*", r"\*").replace("<", "&lt;")
    pattern = "|".join(re.escape(name) for name in PAPERS)

    def link(match: re.Match[str]) -> str:
        prefix, bracket, authors = match[0].rpartition("(")
        return f"{prefix}{bracket}[{authors}](https://arxiv.org/abs/{PAPERS[match[0]]})"

    return re.sub(pattern, link, text)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
