"""The flow of one run, from a typed config to a folder of results.

prepare    data, tokenizer, rows, sources of target and reference: what a user can get wrong ends here
target     the model that knows everything (published, given, or trained once and cached)
reference  the model that never saw the forget set, and its scores
before     evaluation of the start model
train      the optimizer steps
after      evaluation again; records -> metrics -> results.json, report.html, W&B
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearn import ranks
from unlearn.config import RunConfig
from unlearn.console import console, log, logging_to
from unlearn.dry_run import describe
from unlearn.errors import Diverged, UserError
from unlearn.plan import Prepared, prepare
from unlearn.recorder import Recorder
from unlearn.report.summary import print_summary

if TYPE_CHECKING:
    from unlearn.evaluation.comparison import Comparison
    from unlearn.models.stages import Stage, Stages


def run(cfg: RunConfig, warnings: list[str]) -> None:
    """Run once. Raises UserError before anything is loaded, Diverged where training met a step that is not finite."""
    with logging_to(None):
        for warning in warnings:
            log.warning("warning: %s", warning)
        prepared = prepare(cfg)
        if cfg.dry_run:
            print("\n".join(describe(prepared)))
            return
        recorder = Recorder(cfg, prepared)
    with logging_to(recorder.path / "run.log" if ranks.is_main() else None):
        status, exit_code, reason = "done", 0, None
        try:
            unlearn(prepared, recorder)
        except BaseException as error:
            status = "diverged" if isinstance(error, Diverged) else "failed"
            exit_code = getattr(error, "exit_code", 1)
            reason = str(error) if isinstance(error, UserError | Diverged) else f"{type(error).__name__}: {error}"
            raise
        finally:
            recorder.finish(status, exit_code, reason)
            print_summary(console(), recorder.path)


def unlearn(prepared: Prepared, recorder: Recorder) -> None:
    """Stages, training and evaluation, in the order in which they are reported."""
    from unlearn.evaluation.comparison import Comparison
    from unlearn.evaluation.suite import Suite
    from unlearn.models.stages import Stages
    from unlearn.training.step import autocast_for

    cfg, device = prepared.cfg, prepared.device
    log.info("%s on %s %s from %s", cfg.method.name, cfg.data.key, cfg.data.split, prepared.benchmark.source)
    for label in prepared.benchmark.labels:
        log.info("%s", label)
    autocast = autocast_for(cfg.trainer.precision, device)
    suite = Suite(cfg.suite, prepared.encoder, prepared.evaluated, prepared.scored, device, autocast)
    comparison = Comparison(cfg, suite, recorder.path / "records", prepared.sources.reason)
    stages = Stages(cfg, prepared.benchmark, prepared.tokenizer, prepared.encoder, device)
    measured = cfg.suite.measures

    with recorder.stage("target") as facts:
        target = stages.target(prepared.sources)
        facts["cached"] = target.cached
    reference: Stage | None = None
    if measured and prepared.sources.reference is not None:
        with recorder.stage("reference") as facts:
            values, reference = reference_values(prepared, comparison, stages, facts)
            recorder.results("reference", values)
    model = load_start(prepared, target)
    if measured:
        with recorder.stage("before") as facts:
            values, facts["cached"] = comparison.before(target.fingerprint, model)
            recorder.results("before", values)
    if prepared.trains:
        try:
            with recorder.stage("train"):
                train(prepared, model, recorder, comparison)
        except Diverged:
            save_model(prepared, model, recorder)
            raise
    if measured:
        with recorder.stage("after"):
            recorder.results("after", comparison.measure("after", model))
    if prepared.trains:
        save_model(prepared, model, recorder)
    if measured:
        # The reference takes its place on the device.
        del model
        finish(prepared, recorder, comparison, reference)


def finish(prepared: Prepared, recorder: Recorder, comparison: Comparison, reference: Stage | None) -> None:
    """What needs all columns: the generated texts read by the reference, and who bears the brunt."""
    suite = prepared.cfg.suite
    if reference is not None and suite.perplexity and suite.generate:
        with recorder.stage("perplexity"):
            comparison.read_generations(loader(prepared, reference))
            recorder.renew(comparison.values)
    recorder.more(damage=comparison.damage(), canary=comparison.canaries())


def reference_values(
    prepared: Prepared, comparison: Comparison, stages: Stages, facts: dict[str, Any]
) -> tuple[dict[str, Any], Stage | None]:
    """Metrics of the reference, from a log or from a model that is trained where it has to be; and that model."""
    source = prepared.sources.reference
    assert source is not None
    if prepared.sources.reference_is_log:
        return dict(comparison.reference_from_log(Path(source))), None
    stage = stages.reference(prepared.sources)
    facts["cached"] = stage.cached
    return dict(comparison.reference_from_model(stage.fingerprint, loader(prepared, stage))), stage


def loader(prepared: Prepared, stage: Stage, in_4_bits: bool = False) -> Callable[[], Any]:
    """How to get a stage's model onto the device, in the precision of the run."""
    from unlearn.models.load import load_model

    model, device = prepared.cfg.model, prepared.device
    dtype = "bfloat16" if prepared.cfg.trainer.precision == "bf16" else "float32"
    if in_4_bits:
        return lambda: load_model(model, stage.path, dtype, in_4_bits_on=device)
    return lambda: load_model(model, stage.path, dtype).to(device)


def load_start(prepared: Prepared, target: Stage) -> Any:
    """The model that is going to forget, with its adapter, after a check that its output layer is understood.

    A new adapter changes nothing of what the model says.
    """
    from unlearn.data.batches import collate
    from unlearn.models.adapter import attach
    from unlearn.models.trainable import select
    from unlearn.objectives.logprobs import check_output_layer

    cfg = prepared.cfg
    model = loader(prepared, target, cfg.model.adapter.quantized)()
    check_output_layer(model, collate(prepared.rows["forget"][:2], prepared.encoder.pad_id).to(prepared.device))
    if prepared.trains:
        model = attach(model, cfg.model.adapter, cfg.seed).to(prepared.device)
        select(model, cfg.method.forget, cfg.trainer.params, cfg.trainer.layers)
    return model


def train(prepared: Prepared, model: Any, recorder: Recorder, comparison: Comparison) -> None:
    """Train in place and record every step. Raises UserError where nothing changed at all."""
    from unlearn.training.keep import Keeper
    from unlearn.training.loop import Unlearning

    suite = prepared.cfg.suite
    watches = prepared.cfg.trainer.stop == "reference" and "forget" in prepared.cfg.method.sides
    knowledge = comparison.knowledge(model) if watches else None

    def on_epoch(epoch: float, steps: int) -> dict[str, Any]:
        values = comparison.measure(f"epoch-{epoch:g}", model)
        recorder.epoch(epoch, steps, values)
        return dict(values)

    outcome = Unlearning(
        prepared.cfg,
        model,
        rows=prepared.rows,
        alternates=prepared.alternates,
        encoder=prepared.encoder,
        device=prepared.device,
        on_step=recorder.step,
        knowledge=knowledge,
        requests=prepared.requests,
        on_epoch=on_epoch if suite.measures else None,
        keeper=Keeper(suite.keep, recorder.metrics("reference")),
        on_request=(lambda request: comparison.measure(f"request-{request + 1}", model)) if suite.measures else None,
    ).train()
    recorder.outcome(outcome)
    if outcome.stop is not None:
        log.info("stopped after step %d: %s", outcome.stop.step, outcome.stop.reason)
    if outcome.changed_tensors == 0:
        raise UserError(
            f"optimizer.lr: needs steps that change the weights; {outcome.steps} steps changed none of "
            f"{outcome.tensors} tensors at {prepared.cfg.optimizer.lr:g} in {prepared.cfg.trainer.precision}"
        )


def save_model(prepared: Prepared, model: Any, recorder: Recorder) -> None:
    """Keep the weights as they are now, after a diverged run those before the step that was refused."""
    from unlearn.models.adapter import save

    if not prepared.cfg.trainer.save_model:
        return
    try:
        with recorder.stage("save"):
            save(model.to("cpu"), prepared.cfg.model.adapter, prepared.tokenizer, recorder.path / "model")
    except OSError as error:
        raise UserError(f"output_dir: cannot write the model to '{recorder.path}': {error}") from error
