"""The typed tree of all settings, and what Hydra needs to know of it.

Hydra merges the groups of conf/ into `RunConfig`: a key that is not a field, or a value of another type, is refused
by the schema. The parts of a method, the schedulers and the optimizers are dataclasses that are group options
themselves; the YAML presets of conf/ set their fields. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from hydra.core.config_store import ConfigStore
from omegaconf import II, MISSING, DictConfig, OmegaConf

from unlearn.gradients.combine import COMBINE
from unlearn.models.adapter import ADAPTERS
from unlearn.objectives.forget import FORGET
from unlearn.objectives.retain import RETAIN
from unlearn.schedulers.autolr import AutoLR
from unlearn.schedulers.schedules import Constant, Cosine, Linear, Schedule
from unlearn.setting import setting
from unlearn.training.optimizer import OPTIMIZERS

SCHEDULERS: dict[str, type[Schedule] | type[AutoLR]] = {
    "constant": Constant,
    "linear": Linear,
    "cosine": Cosine,
    "autolr": AutoLR,
}


def conf_dir() -> Path:
    """The folder of YAML groups: inside the package in an installed wheel, beside it in a checkout."""
    installed = Path(__file__).parent / "conf"
    return installed if installed.is_dir() else Path(__file__).parents[1] / "conf"


@dataclass
class FormatConfig:
    """How a question becomes a prompt."""

    prompt: str | None = setting(None, "template with {question}; null uses the tokenizer's chat template")
    separator: str = setting("", "text put in front of every answer (part of the answer's tokens)")
    system: str | None = setting(None, "system message of the chat template")
    template_args: dict[str, str] = setting({}, "further arguments of the chat template")
    stop: list[str] = setting([], "generation is cut at the first of these")


@dataclass
class FinetuneConfig:
    """How target and reference are trained where they are not published."""

    epochs: int = setting(5, "passes over the training rows", minimum=1)
    lr: float = setting(1e-5, "peak learning rate of AdamW", above=0)
    batch_size: int = setting(32, "rows per optimizer step", minimum=1)
    warmup: float = setting(
        0.1, "share of steps in which the lr rises; it then falls in a line to 0", minimum=0, maximum=1
    )
    weight_decay: float = setting(0.01, "decoupled weight decay", minimum=0)


@dataclass
class TinyConfig:
    """Shape of the embedded model."""

    hidden_size: int = setting(96, "width", minimum=8)
    layers: int = setting(2, "depth", minimum=1)
    heads: int = setting(4, "attention heads", minimum=1)
    vocab_size: int = setting(1024, "size of its byte-level BPE vocabulary", minimum=300)


@dataclass
class Published:
    """Models and references that others have published for a benchmark."""

    target: str | None = setting(None, "hub id of the model trained on the whole benchmark")
    reference: str | None = setting(None, "hub id of the model trained on the retain rows; {retain} is filled in")


@dataclass
class ModelConfig:
    name: str = MISSING
    path: str | None = setting(None, "hub id or folder of the weights to begin with (null: the embedded tiny model)")
    revision: str | None = setting(None, "commit or tag on the hub")
    tokenizer: str | None = setting(None, "hub id or folder of the tokenizer, where it is not beside the weights")
    target: str = setting(
        "auto", "the model that forgets: train (from path), self (path already knows the data), a path, or auto"
    )
    reference: str = setting(
        "auto", "the model that never saw the forget set: train, none, a path or log, or auto (published, else trained)"
    )
    published: dict[str, Published] = setting({}, "published target and reference per benchmark")
    data_source: str = setting("hub", "source of data that this model goes with: embedded or hub")
    lr: float = setting(1e-5, "learning rate that suits the size of the model", above=0)
    max_length: int = setting(512, "longest row in tokens; prompts are cut from the left", minimum=16)
    attention: str = setting("sdpa", "attention kernel", choices=("sdpa", "eager", "flash_attention_2"))
    trust_remote_code: bool = setting(False, "run code that comes with the weights")
    adapter: Any = MISSING
    format: FormatConfig = field(default_factory=FormatConfig)
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    tiny: TinyConfig = field(default_factory=TinyConfig)


@dataclass
class LimitConfig:
    """Shorten a set to its first rows; null keeps it whole."""

    forget: int | None = setting(None, "rows or texts to forget", minimum=1)
    retain: int | None = setting(None, "rows or texts to retain; those that can be scored come first", minimum=1)
    holdout: int | None = setting(None, "rows or texts that no model has seen", minimum=1)
    real_authors: int | None = setting(None, "TOFU's questions about real authors", minimum=1)
    world_facts: int | None = setting(None, "TOFU's questions about the world", minimum=1)
    questions: int | None = setting(None, "MUSE's questions and prompts, of each kind", minimum=1)


@dataclass
class DataConfig:
    name: str = MISSING
    source: str = setting(II("model.data_source"), "embedded, hub, or a folder with the published files")
    hub_id: str = setting(MISSING, "the dataset on the hub")
    split: str = setting(
        "forget10",
        "which rows are forgotten: forget01, forget05 or forget10 of TOFU; raw (all), scal_1 to scal_4 (ever more) or "
        "sust (four requests, one after the other) of MUSE",
    )
    subset: str | None = setting(None, "MUSE's corpus", choices=("news", "books"))
    corpus: str = setting(
        "raw",
        "MUSE's texts to train on: raw, or the privleak texts where the others are missing",
        choices=("raw", "privleak"),
    )
    anchor: str = setting("forget", "set that one epoch visits once", choices=("forget", "retain"))
    requests: int = setting(
        1, "split the forget set into this many removal requests, forgotten one after the other", minimum=1
    )
    retain_rows: str = setting(
        "retain",
        "rows the retain objective sees: retain (in-distribution), general (real_authors, world_facts and background: "
        "knowledge that the forget set is no part of), or a JSON-lines file with question and answer",
    )
    limit: LimitConfig = field(default_factory=LimitConfig)

    @property
    def key(self) -> str:
        """What published models are listed under: "tofu", "muse-news"."""
        return self.name if self.subset is None else f"{self.name}-{self.subset}"


@dataclass
class MethodConfig:
    name: str = MISSING
    forget: Any = MISSING
    retain: Any = MISSING
    combine: Any = MISSING
    gamma: float = setting(1.0, "coefficient of the forget loss", above=0)
    alpha: float = setting(1.0, "coefficient of the retain loss", above=0)
    lr_scale: float = setting(
        1.0, "published learning rate as a multiple of the model's; 1 where none is known", above=0
    )
    alternates: str | None = setting(
        None,
        "other answers to the rows: refusals, shuffled (of other forget rows), retained (of rows to keep), "
        "perturbed_answer (the data's own column), or a JSON-lines file",
    )
    sam_rho: float | None = setting(
        None, "sharpness-aware: forget gradient at the worst point within this distance", above=0
    )
    saliency_std: float | None = setting(
        None, "only weights whose gradient exceeds the mean by this many standard deviations move"
    )
    separate_states: bool = setting(False, "an optimizer state for each of the two gradients (DualOptim)")

    @property
    def sides(self) -> frozenset[str]:
        """Which objectives take part in the steps: "forget", "retain", both, or none where nothing is trained."""
        return frozenset(side for side in ("forget", "retain") if getattr(self, side).active)


@dataclass
class TrainerConfig:
    epochs: int = setting(30, "passes over the anchor set", minimum=1)
    max_steps: int | None = setting(None, "optimizer steps, in place of epochs", minimum=1)
    batch_size: int = setting(32, "examples of each kind per optimizer step", minimum=1)
    micro_batch_size: int | None = setting(None, "examples per forward pass; null takes the whole batch", minimum=1)
    precision: str = setting(
        "fp32",
        "bf16_mixed keeps fp32 master weights, bf16 has none",
        choices=("fp32", "bf16_mixed", "bf16"),
    )
    gradient_checkpointing: bool = setting(False, "recompute activations in the backward pass to save memory")
    clip_norm: float | None = setting(None, "largest L2 norm of the combined gradient", above=0)
    stop: str = setting(
        "auto",
        "holdout ends the run when the forget rows look like unseen ones; auto does so for unbounded objectives; "
        "reference, when after an epoch no more is known of them than the reference knows",
        choices=("auto", "holdout", "reference", "none"),
    )
    stop_forget_nll: float | None = setting(None, "end at this mean forget NLL over one pass, nats per token", above=0)
    stop_forget_prob: float | None = setting(
        None, "end at this mean probability of the forget answers over one pass", above=0, below=1
    )
    stop_retain_ratio: float | None = setting(
        None, "end when the retain NLL over one pass exceeds the start model's by this factor", above=1
    )
    params: str = setting("auto", "regex of the parameters that are trained; auto: all, or those the method names")
    layers: str | None = setting(None, "decoder layers that are trained, as in 5-7; null: all")
    start_model_on_host: bool = setting(False, "keep the frozen copy of the start model in host memory")
    device: str = setting(
        "auto", "cuda, mps or cpu; auto takes the first there is", choices=("auto", "cuda", "mps", "cpu")
    )
    devices: int = setting(1, "processes that share the work, one for each device", minimum=1)
    timeout_s: float = setting(1800.0, "how long the processes wait for one another before the run fails", above=0)
    save_model: bool = setting(True, "keep the final weights in the run folder")


@dataclass
class SuiteConfig:
    name: str = MISSING
    benchmark: bool = setting(True, "score the sets of the benchmark")
    generate: bool = setting(True, "generate answers (ROUGE, model utility)")
    max_new_tokens: int | None = setting(
        None, "longest generated answer in tokens; null: the benchmark's own", minimum=1
    )
    paraphrased_questions: bool = setting(True, "ask the paraphrased questions too, where the benchmark has any")
    perplexity: bool = setting(True, "read the generated answers with the reference model, where there is one")
    tasks: list[str] = setting([], "tasks of lm-evaluation-harness (needs the extra lm-eval)")
    task_folder: str | None = setting(None, "folder with tasks of your own for lm-evaluation-harness")
    task_limit: int | None = setting(None, "examples of each of the tasks; null: all", minimum=1)
    wmdp: list[str] = setting([], "WMDP's multiple-choice questions: bio, cyber, chem")
    wmdp_source: str = setting("hub", "hub, or a folder with WMDP's files")
    every_epochs: int | None = setting(None, "evaluate during training, after every so many epochs", minimum=1)
    keep: str = setting("last", "which evaluated epoch's weights are kept: last, or a metric whose best value decides")
    token_budget: int = setting(8192, "padded tokens per evaluation batch", minimum=1)
    canary: int = setting(
        4, "answers that are also decoded plainly, one token at a time; differences are counted", minimum=0
    )
    allow_missing_reference: bool = setting(False, "score what needs a reference as null where there is none")

    @property
    def measures(self) -> bool:
        return bool(self.benchmark or self.tasks or self.wmdp)


@dataclass
class LoggerConfig:
    name: str = MISSING
    project: str = setting("unlearn-run", "W&B project")
    entity: str | None = setting(None, "W&B team or user")
    mode: str = setting("auto", "auto is online with a login, else offline", choices=("auto", "online", "offline"))
    group: str | None = setting(None, "W&B group")
    tags: list[str] = setting([], "W&B tags")
    required: bool = setting(False, "end the run when W&B fails")


@dataclass
class RunConfig:
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    scheduler: Any = MISSING
    optimizer: Any = MISSING
    suite: SuiteConfig = field(default_factory=SuiteConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    seed: int = setting(0, "seed of data order, and of the tiny model's weights", minimum=0, maximum=2**31 - 1)
    output_dir: str = setting(MISSING, "run folder")
    cache_dir: str = setting(MISSING, "trained targets and references, and their records")
    dry_run: bool = setting(False, "print the plan and end")
    traceback: bool = setting(False, "show the Python traceback of an error")


def register() -> None:
    """Tell Hydra the schema and the group options that are dataclasses, and OmegaConf what `${times:a,b}` is."""
    # 12 digits: 3e-4 times 10 is 0.003 in every file, and not 0.0029999999999999996.
    OmegaConf.register_new_resolver("times", lambda a, b: float(f"{a * b:.12g}"), replace=True)
    store = ConfigStore.instance()
    store.store(name="schema", node=RunConfig)
    for group, options in GROUPS.items():
        for name, node in options.items():
            store.store(group=group, name=name, node=node)


GROUPS: dict[str, dict[str, type[Any]]] = {
    "method/forget": dict(FORGET),
    "method/retain": dict(RETAIN),
    "method/combine": dict(COMBINE),
    "model/adapter": dict(ADAPTERS),
    "scheduler": dict(SCHEDULERS),
    "optimizer": dict(OPTIMIZERS),
}


def to_config(composed: DictConfig) -> RunConfig:
    """The composed tree as dataclasses; objectives, rules, schedulers and optimizers come out as what they are."""
    OmegaConf.resolve(composed)
    cfg = cast(RunConfig, OmegaConf.to_object(composed))
    model = cfg.model
    for key in ("path", "tokenizer", "target", "reference"):
        value = getattr(model, key)
        if value is not None and value.startswith("~"):
            setattr(model, key, str(Path(value).expanduser()))
    weights = model.path or (model.target if model.target not in ("auto", "train", "self") else None)
    if weights is not None and model.name == "tiny":
        # The embedded preset with other weights: tables would name the wrong model.
        model.name = Path(weights).name
    return cfg
