"""Forget objectives on the whole distribution at an answer token: another target for it, or a shape.

Shapes: N answer tokens of the batch, V vocabulary. z are logits, pi their softmax.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from omegaconf import II

from unlearn.objectives.objective import Objective
from unlearn.setting import setting

if TYPE_CHECKING:
    from torch import Tensor

    from unlearn.objectives.logprobs import Answers


@dataclass
class Undial(Objective):
    """Self-distillation from the start model with the true token's logit lowered (Dong et al., 2402.10052)."""

    name: str = "undial"
    beta: float = setting(10.0, "how far the true token's logit is lowered; published: 3 to 30", minimum=0)

    needs: ClassVar[frozenset[str]] = frozenset({"reference_logits"})
    formula: ClassVar[str] = "mean_t CE(softmax(z_ref - beta onehot(y_t)), pi)"
    source: ClassVar[str] = "arXiv 2402.10052"
    deviation: ClassVar[str] = "published code averages over prompt and padding too"

    def terms(self, answers: Answers) -> Tensor:
        from torch.nn.functional import cross_entropy

        assert answers.reference_logits_NV is not None
        labels_N1 = answers.labels_N[:, None]
        start_NV = answers.reference_logits_NV.float()
        lowered_NV = start_NV.scatter(1, labels_N1, start_NV.gather(1, labels_N1) - self.beta)
        return cross_entropy(answers.logits_NV.float(), lowered_NV.softmax(-1), reduction="none")


@dataclass
class CEU(Objective):
    """Self-distillation from the model's own distribution without the true token (Yang, 2503.01224).

    The target is held constant, so the gradient in the logits is pi - target: bounded, unlike that of ascent.
    """

    name: str = "ceu"

    formula: ClassVar[str] = "mean_t CE(softmax(z with z[y_t] = -inf), pi), the target held constant"
    source: ClassVar[str] = "arXiv 2503.01224"
    deviation: ClassVar[str] = "published code leaves out the first token of every answer"

    def terms(self, answers: Answers) -> Tensor:
        from torch.nn.functional import cross_entropy

        logits_NV = answers.logits_NV.float()
        without_NV = logits_NV.detach().scatter(1, answers.labels_N[:, None], -math.inf)
        return cross_entropy(logits_NV, without_NV.softmax(-1), reduction="none")


@dataclass
class MaxEntropy(Objective):
    """KL(uniform || policy): at its least, 0, every token of the vocabulary is as likely (Yuan et al., 2410.08109)."""

    name: str = "me"

    formula: ClassVar[str] = "mean_t KL(U || pi) = mean_t [log sum_v exp z_v - mean_v z_v - log V]"
    source: ClassVar[str] = "arXiv 2410.08109"
    deviation: ClassVar[str] = (
        "published code adds 1e-12 to every probability, which stops the gradient of those far below"
    )

    def terms(self, answers: Answers) -> Tensor:
        logits_NV = answers.logits_NV.float()
        return logits_NV.logsumexp(-1) - logits_NV.mean(-1) - math.log(logits_NV.shape[-1])


@dataclass
class IHL(Objective):
    """Inverted hinge loss (Cha et al., 2408.06621): the likeliest other token should lead the true one by 1.

    That margin is all of the probability, so the loss lies between 0 and 2 and the hinge itself never bends.
    """

    name: str = "ihl"

    formula: ClassVar[str] = "mean_t [1 + pi(y_t) - max_{v != y_t} pi(v)]"
    source: ClassVar[str] = "arXiv 2408.06621"

    def terms(self, answers: Answers) -> Tensor:
        labels_N1 = answers.labels_N[:, None]
        p_NV = answers.logits_NV.float().softmax(-1)
        other_N = p_NV.scatter(1, labels_N1, 0.0).amax(-1)
        return 1 + p_NV.gather(1, labels_N1).squeeze(1) - other_N


@dataclass
class JensUn(Objective):
    """Jensen-Shannon divergence to a refusal's token at each position (Singh et al., 2509.02820).

    To a one-hot distribution it depends on the probability p of that one token alone, and lies between 0 and log 2. Its
    gradient in the logits fades with p log p: a refusal that the model holds for impossible is learned slowly.
    """

    name: str = "jensun"

    needs: ClassVar[frozenset[str]] = frozenset({"targets"})
    targets: ClassVar[str] = "refusal"
    formula: ClassVar[str] = "mean_t JSD(pi, onehot(r_t)) = mean_t [log 2 + (p_t log p_t - (1 + p_t) log(1 + p_t)) / 2]"
    source: ClassVar[str] = "arXiv 2509.02820"
    deviation: ClassVar[str] = (
        "the first release gives probability 1 to every token of the refusal at every position, prompt and padding "
        "included"
    )

    def terms(self, answers: Answers) -> Tensor:
        logp_N = -_target_cross_entropy(answers)
        p_N = logp_N.exp()
        return math.log(2) + (p_N * logp_N - (1 + p_N) * p_N.log1p()) / 2


@dataclass
class RandomLabel(Objective):
    """Cross-entropy of labels drawn uniformly from the vocabulary (Yao et al., 2402.15159)."""

    name: str = "random_label"

    needs: ClassVar[frozenset[str]] = frozenset({"targets"})
    targets: ClassVar[str] = "random"
    formula: ClassVar[str] = "-mean_t log pi(r_t), with r_t uniform over the vocabulary"
    source: ClassVar[str] = "arXiv 2402.15159"

    def terms(self, answers: Answers) -> Tensor:
        return _target_cross_entropy(answers)


@dataclass
class AdversarialLabel(Objective):
    """Cross-entropy of the start model's first choice other than the truth (Yao et al., 2402.15159)."""

    name: str = "adversarial_label"

    needs: ClassVar[frozenset[str]] = frozenset({"targets"})
    targets: ClassVar[str] = "adversarial"
    formula: ClassVar[str] = "-mean_t log pi(a_t), with a_t = argmax_{v != y_t} pi_ref(v)"
    source: ClassVar[str] = "arXiv 2402.15159"
    deviation: ClassVar[str] = "published code labels each token with the choice made for the token after it"

    def terms(self, answers: Answers) -> Tensor:
        return _target_cross_entropy(answers)


def _target_cross_entropy(answers: Answers) -> Tensor:
    from torch.nn.functional import cross_entropy

    assert answers.targets_N is not None
    return cross_entropy(answers.logits_NV.float(), answers.targets_N, reduction="none")


@dataclass
class PDU(Objective):
    """Flat logits (primal-dual unlearning, 2506.05314): the largest logit should not stand above their mean.

    Its constraint on the retain loss is the combination rule of the same name.
    """

    name: str = "pdu"

    formula: ClassVar[str] = "mean_t (max_v z_v - mean_v z_v)^2"
    source: ClassVar[str] = "arXiv 2506.05314"
    deviation: ClassVar[str] = (
        "public code picks the positions with labels that are one token off, and once took them all"
    )

    def terms(self, answers: Answers) -> Tensor:
        logits_NV = answers.logits_NV.float()
        return (logits_NV.amax(-1) - logits_NV.mean(-1)).square()


@dataclass
class WHP(Objective):
    """Who's Harry Potter (Eldan and Russinovich, 2310.02238): towards what a model says that does not know the text.

    A copy of the start model is trained further on the forget rows; the logits that rise there show what the text adds,
    and that much is taken from the start model's own. The replacement of anchor terms needs a dictionary for each text
    and is left out.
    """

    name: str = "whp"
    alpha: float = setting(1.0, "how much of the rise is taken away; 1 in MUSE, 5 in the paper", minimum=0)
    reinforce_epochs: int = setting(10, "passes over the forget rows when the copy is trained", minimum=1)
    reinforce_lr: float = setting(II("model.lr"), "learning rate of the copy", above=0)

    needs: ClassVar[frozenset[str]] = frozenset({"reference_logits", "reinforced_logits"})
    formula: ClassVar[str] = "mean_t CE(softmax(z_ref - alpha relu(z_reinforced - z_ref)), pi)"
    source: ClassVar[str] = "arXiv 2310.02238"
    deviation: ClassVar[str] = "without the paper's anchor terms; MUSE subtracts at decoding and trains nothing"

    def terms(self, answers: Answers) -> Tensor:
        from torch.nn.functional import cross_entropy

        assert answers.reference_logits_NV is not None
        assert answers.reinforced_logits_NV is not None
        start_NV = answers.reference_logits_NV.float()
        risen_NV = (answers.reinforced_logits_NV.float() - start_NV).relu()
        generic_NV = (start_NV - self.alpha * risen_NV).softmax(-1)
        return cross_entropy(answers.logits_NV.float(), generic_NV, reduction="none")
