"""What the objectives know of the start model: computed once, or asked of a copy that no step changes.

No second model is kept where numbers will do: sequence log-probabilities and adversarial labels are computed once,
before the first step, and kept with their rows. Only objectives that need the whole distribution (or hidden states) of
the start model ask the model itself: the policy with its adapter switched off, or a frozen copy.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from unlearn.config import FinetuneConfig, RunConfig
from unlearn.data.batches import Batch
from unlearn.data.encode import Encoder, Row
from unlearn.data.labels import random_labels, refusal_labels, vocabulary
from unlearn.errors import UserError
from unlearn.models.adapter import disabled, has_adapter
from unlearn.objectives.logprobs import AnswerModel, Answers
from unlearn.objectives.objective import Objective
from unlearn.training.finetune import finetune
from unlearn.training.step import Autocast, sequence_logp

LARGEST_RATIO = {"fp32": 1e-4, "bf16_mixed": 5e-2, "bf16": 5e-2}
"""Largest mean |log pi - log pi_ref| per token at the start: what is left is the noise of another batch shape."""

COMPARED = {"reference_logp", "reference_logits", "reference_hidden"}
"""Needs of objectives that compare policy and start model."""

REFUSAL = "No idea"
"""The refusal that JensUn (2509.02820) repeats over the length of the answer."""


class StartModel:
    """The start model as far as the method's objectives need it."""

    def __init__(self, cfg: RunConfig, policy: AnswerModel, encoder: Encoder, autocast: Autocast) -> None:
        self.policy, self.autocast, self.precision = policy, autocast, cfg.trainer.precision
        objectives = (cfg.method.forget, cfg.method.retain)
        self.needs: frozenset[str] = frozenset().union(*(objective.needs for objective in objectives))
        self.seed, self.depth = cfg.seed, int(policy.model.config.num_hidden_layers)
        self.logp: dict[str, float] = {}
        self.adversarial: dict[str, Tensor] = {}
        self.frozen: AnswerModel | None = None
        self.reinforced: AnswerModel | None = None
        tokenizer = encoder.tokenizer
        self.vocabulary = vocabulary(tokenizer)
        self.refusal_ids = encoder.answer_ids(REFUSAL)

    def remember(self, objective: Objective, batches: Sequence[Batch]) -> None:
        """Compute what the objective needs of these rows and can be computed once."""
        if "reference_logp" in objective.needs:
            self.logp |= sequence_logp(self.policy, batches, self.autocast)
        if objective.targets == "adversarial":
            self.adversarial |= self._adversarial(batches)

    def freeze(self, device: torch.device, on_host: bool) -> None:
        """Keep a copy for the objectives that ask for the whole distribution; an adapter needs none."""
        if not self.needs & {"reference_logits", "reference_hidden"} or has_adapter(self.policy.model):
            return
        frozen = copy.deepcopy(self.policy.model).requires_grad_(False).eval()
        if on_host:
            from accelerate import cpu_offload

            # Layer by layer: weights wait in host memory and visit the device for the time of their own computation.
            frozen = cpu_offload(frozen.to("cpu"), execution_device=device)
        self.frozen = AnswerModel(frozen)

    def reinforce(self, cfg: RunConfig, rows: Sequence[Row], device: torch.device, pad_id: int) -> None:
        """Train a copy further on the forget set: what it says more firmly than the start model is what it knows."""
        model, forget = copy.deepcopy(self.policy.model), cfg.method.forget
        settings = FinetuneConfig(forget.reinforce_epochs, forget.reinforce_lr, cfg.trainer.batch_size)
        title, micro = "training the reinforced model", cfg.trainer.micro_batch_size
        finetune(model, rows, settings, cfg.seed, device, pad_id, title, micro, lr_key="method.forget.reinforce_lr")
        model.zero_grad(set_to_none=True)
        self.reinforced = AnswerModel(model.requires_grad_(False).eval())

    def complete(self, objective: Objective, batch: Batch, step: int) -> Answers:
        """The policy's answers, with everything else that the objective `needs`."""
        needs = objective.needs
        hidden = needs & {"hidden", "reference_hidden"}
        layer = objective.layer_of(self.depth) if hidden else None
        # An objective on the alternates alone has no gradient through the true answers: they are only measured.
        with torch.set_grad_enabled(torch.is_grad_enabled() and objective.unit != "alternate_token"):
            answers: Answers = self.policy(batch, layer)
        if "reference_logp" in needs:
            answers = replace(answers, reference_logp_B=self._logp_of(batch))
        if needs & {"reference_logits", "reference_hidden"}:
            start = self.reference(batch, layer)
            answers = replace(answers, reference_logits_NV=start.logits_NV, reference_hidden_ND=start.hidden_ND)
        if "reinforced_logits" in needs:
            assert self.reinforced is not None
            with torch.no_grad():
                answers = replace(answers, reinforced_logits_NV=self.reinforced(batch).logits_NV)
        if "targets" in needs:
            answers = replace(answers, targets_N=self._targets(objective.targets, batch, step))
        if "alternates" in needs:
            assert batch.alternate is not None
            alternate = self.policy(batch.alternate)
            if "reference_logp" in needs:
                alternate = replace(alternate, reference_logp_B=self._logp_of(batch.alternate))
            answers = replace(answers, alternate=alternate)
        return answers

    @torch.no_grad()
    def reference(self, batch: Batch, layer: int | None = None) -> Answers:
        """The start model's answers, without dropout."""
        if self.frozen is not None:
            frozen: Answers = self.frozen(batch, layer)
            return frozen
        model = self.policy.model
        was_training = model.training
        model.eval()
        with disabled(model):
            answers: Answers = self.policy(batch, layer)
        model.train(was_training)
        return answers

    @torch.no_grad()
    def check(self, objective: Objective, batches: Sequence[Batch]) -> None:
        """The policy must still be the start model: objectives that compare the two begin at a log-ratio of 0.

        Raises UserError where the mean absolute log-ratio of the rows, per token, is above rounding.
        """
        if not batches or not objective.needs & COMPARED:
            return
        start = self.logp
        if "reference_logp" not in objective.needs:
            start = {}
            for batch in batches:
                with self.autocast():
                    answers = self.reference(batch)
                start |= dict(zip(batch.ids, answers.per_row(answers.logp_N).tolist(), strict=True))
        policy = sequence_logp(self.policy, batches, self.autocast)
        n_tokens = sum(batch.n_tokens for batch in batches)
        ratio = sum(abs(policy[id] - start[id]) for id in policy) / n_tokens
        limit = LARGEST_RATIO[self.precision]
        if not ratio <= limit:
            raise UserError(
                f"method {objective.name}: needs a policy that equals its reference before the first step, to "
                f"{limit:g} nats per token; found a mean log-ratio of {ratio:.3g}: something has changed the weights"
            )

    def _logp_of(self, batch: Batch) -> Tensor:
        return torch.tensor([self.logp[id] for id in batch.ids], device=batch.labels_N.device)

    def _targets(self, kind: str, batch: Batch, step: int) -> Tensor:
        device = batch.labels_N.device
        if kind == "random":
            return random_labels(batch, self.vocabulary, self.seed, step).to(device)
        if kind == "refusal":
            return refusal_labels(batch, self.refusal_ids).to(device)
        return torch.cat([self.adversarial[id] for id in batch.ids]).to(device)

    @torch.no_grad()
    def _adversarial(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """The start model's first choice other than the truth, for every answer token of every row."""
        labels: dict[str, Tensor] = {}
        for batch in batches:
            with self.autocast():
                logits_NV = self.policy(batch).logits_NV.float()
            logits_NV.scatter_(1, batch.labels_N[:, None], -torch.inf)
            choice_N = logits_NV.argmax(-1).cpu()
            row_N = batch.row_N.cpu()
            labels |= {id: choice_N[row_N == index] for index, id in enumerate(batch.ids)}
        return labels
