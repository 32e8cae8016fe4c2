"""Settings of a suite that cannot go together, and those that have no effect."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from unlearn.cli.keys import show
from unlearn.cli.method_warnings import Idle
from unlearn.config import RunConfig, SuiteConfig
from unlearn.data.wmdp import SUBJECTS

LAST = "last"

READ_AT_THE_END = ("perplexity", "gibberish", "fluency", "utility", "overall")
"""Metrics that look at what the reference makes of the generated texts; it reads them all when training is over."""


def suite_faults(cfg: RunConfig) -> list[str]:
    """Settings of the suite that cannot go together, or that name nothing there is, one line each."""
    return [*_task_faults(cfg.suite), *_wmdp_faults(cfg.suite), *_keep_faults(cfg.suite)]


def _task_faults(suite: SuiteConfig) -> list[str]:
    if not suite.tasks:
        if suite.name != "lm_eval":
            return []
        return ["suite.tasks: needs at least one task for suite=lm_eval, as in suite.tasks=[arc_easy]; found []"]
    faults = []
    if find_spec("lm_eval") is None:
        faults.append("suite.tasks: needs lm-eval; install it with pip install 'unlearn-run[lm-eval]'")
    if suite.task_folder is not None and not Path(suite.task_folder).expanduser().is_dir():
        faults.append(f"suite.task_folder: needs a folder with tasks of your own; found {show(suite.task_folder)}")
    return faults


def _wmdp_faults(suite: SuiteConfig) -> list[str]:
    if suite.name == "wmdp" and not suite.wmdp:
        return [f"suite.wmdp: needs at least one of {', '.join(SUBJECTS)} for suite=wmdp; found []"]
    return [
        f"suite.wmdp: needs names from {', '.join(SUBJECTS)}; found {show(name)}"
        for name in suite.wmdp
        if name not in SUBJECTS
    ]


def _keep_faults(suite: SuiteConfig) -> list[str]:
    if suite.keep == LAST:
        return []
    from unlearn.evaluation.metrics import METRICS

    if suite.keep not in METRICS:
        near = get_close_matches(suite.keep, [LAST, *METRICS], 3)
        what = f"; the nearest are {', '.join(near)}" if near else ", as in suite.keep=model_utility"
        return [f"suite.keep: needs last or the name of a metric; found {show(suite.keep)}{what}"]
    if suite.every_epochs is None:
        return [
            f"suite.every_epochs: suite.keep={suite.keep} chooses among evaluated epochs; needs an integer, found null"
        ]
    if suite.perplexity and suite.generate and suite.keep.rpartition(".")[2] in READ_AT_THE_END:
        return [
            f"suite.keep: needs a metric that is known during training; {suite.keep} waits for the reference model to "
            "read the generated texts at the end; choose another one, or leave that out with suite.perplexity=false"
        ]
    return []


def suite_idle(cfg: RunConfig) -> list[Idle]:
    """Settings of the suite that change nothing beside the other ones."""
    suite, trainer = cfg.suite, cfg.trainer
    of_benchmark = ("generate", "max_new_tokens", "paraphrased_questions", "perplexity", "canary")
    of_answers = ("max_new_tokens", "perplexity", "canary")
    no_benchmark = "suite.benchmark is false: only the benchmark's questions are answered freely"
    epochs = trainer.epochs if trainer.max_steps is None else None
    never = suite.every_epochs is not None and epochs is not None and suite.every_epochs > epochs
    return [
        Idle("suite.", not suite.measures, f"suite={suite.name} measures nothing"),
        *(Idle(f"suite.{name}", not suite.benchmark, no_benchmark) for name in of_benchmark),
        *(Idle(f"suite.{name}", not suite.generate, "suite.generate is false") for name in of_answers),
        *(Idle(f"suite.{name}", not suite.tasks, "suite.tasks is empty") for name in ("task_folder", "task_limit")),
        Idle("suite.wmdp_source", not suite.wmdp, "suite.wmdp is empty"),
        *(
            Idle(f"suite.{name}", not cfg.method.sides, "method/forget and method/retain are none: nothing is trained")
            for name in ("every_epochs", "keep")
        ),
        *(
            Idle(f"suite.{name}", never, f"trainer.epochs={epochs} end before the first evaluation")
            for name in ("every_epochs", "keep")
        ),
    ]
