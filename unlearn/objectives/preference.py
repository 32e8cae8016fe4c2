"""Objectives that set another answer to the same question against the true one: a refusal, an alternative, or the
answer of another row.

Shapes: N answer tokens of the batch, B rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from unlearn.objectives.objective import Objective
from unlearn.setting import setting

if TYPE_CHECKING:
    from torch import Tensor

    from unlearn.objectives.logprobs import Answers


@dataclass
class DPO(Objective):
    """Direct preference optimisation of the alternate y_a over the true answer y (Rafailov et al., 2305.18290).

    Log-probabilities are summed over each answer. With the alternate's log-ratio at 0 it is NPO.
    """

    name: str = "dpo"
    beta: float = setting(0.1, "inverse temperature; AltPO was published with 0.05, 0.1 and 0.5", above=0)

    unit: ClassVar[str] = "sequence"
    needs: ClassVar[frozenset[str]] = frozenset({"alternates", "reference_logp"})
    formula: ClassVar[str] = "-(2/beta) log sigmoid(beta (log pi/pi_ref(y_a) - log pi/pi_ref(y)))"
    source: ClassVar[str] = "arXiv 2401.06121 (refusals), 2409.13474 (AltPO: plausible alternatives)"
    deviation: ClassVar[str] = "the first release of TOFU leaves out 2/beta, and overwrote the loss with that of idk"

    def terms(self, answers: Answers) -> Tensor:
        from torch.nn.functional import logsigmoid

        assert answers.alternate is not None
        margin_B = _log_ratio(answers.alternate) - _log_ratio(answers)
        return -2 / self.beta * logsigmoid(self.beta * margin_B)


def _log_ratio(answers: Answers) -> Tensor:
    assert answers.reference_logp_B is not None
    return answers.per_row(answers.logp_N) - answers.reference_logp_B


@dataclass
class IDK(Objective):
    """Cross-entropy of the alternate y_a, as a rule a refusal: "I don't know" (TOFU, 2401.06121)."""

    name: str = "idk"

    unit: ClassVar[str] = "alternate_token"
    needs: ClassVar[frozenset[str]] = frozenset({"alternates"})
    formula: ClassVar[str] = "-mean_t log pi(y_a,t), over the tokens of the alternates"
    source: ClassVar[str] = "arXiv 2401.06121"
    deviation: ClassVar[str] = "TOFU's code takes one mean over the refusals and the retain rows together"

    def terms(self, answers: Answers) -> Tensor:
        assert answers.alternate is not None
        return -answers.alternate.logp_N


@dataclass
class FLAT(Objective):
    """An f-divergence between alternate and answer, maximised in its variational form (Wang et al., 2410.11143).

    P is the mean probability of a token of one row: P_a of the alternate, P_y of the true answer. The formula is
    -g*(P_a) + f*(g*(P_y)), with g* and f* of the divergence.
    """

    name: str = "flat"
    divergence: str = setting("tv", "f-divergence: total variation, KL or Pearson", choices=("tv", "kl", "pearson"))

    unit: ClassVar[str] = "sequence"
    needs: ClassVar[frozenset[str]] = frozenset({"alternates"})
    nonnegative: ClassVar[bool] = False
    crosses_zero: ClassVar[bool] = True
    formula: ClassVar[str] = (
        "tv: (tanh P_y - tanh P_a) / 2; kl: exp(P_y - 1) - P_a; pearson: P_y^2/4 + P_y - P_a; "
        "P: P_y = (1/|y|) sum_t pi(y_t), P_a = (1/|y_a|) sum_t pi(y_a,t)"
    )
    source: ClassVar[str] = "arXiv 2410.11143"
    deviation: ClassVar[str] = (
        "released code averages P over the batch before f* and g*; here each row has its own term"
    )

    def terms(self, answers: Answers) -> Tensor:
        assert answers.alternate is not None
        answer_B, alternate_B = _mean_probability(answers), _mean_probability(answers.alternate)
        if self.divergence == "tv":
            return (answer_B.tanh() - alternate_B.tanh()) / 2
        if self.divergence == "kl":
            return (answer_B - 1).exp() - alternate_B
        return answer_B.square() / 4 + answer_B - alternate_B


def _mean_probability(answers: Answers) -> Tensor:
    return answers.per_row(answers.logp_N.exp()) / answers.length_B


@dataclass
class LLMU(Objective):
    """Ascent on the answer and descent on a mismatched one y_a, that of a row to keep (Yao et al., 2310.10683).

    Two means, each over its own tokens. Its third part, KL on ordinary data, is the retain objective.
    """

    name: str = "llmu"
    ascent_weight: float = setting(0.5, "weight of ascent on the true answer", above=0)
    mismatch_weight: float = setting(1.0, "weight of the cross-entropy of the mismatched answer", above=0)

    needs: ClassVar[frozenset[str]] = frozenset({"alternates"})
    unbounded: ClassVar[bool] = True
    nonnegative: ClassVar[bool] = False
    crosses_zero: ClassVar[bool] = True
    formula: ClassVar[str] = "ascent_weight mean_t log pi(y_t) - mismatch_weight mean_t log pi(y_a,t)"
    source: ClassVar[str] = "arXiv 2310.10683"
    deviation: ClassVar[str] = (
        "here a row has one mismatched answer per step, in released code 5; that code also counts the prompt as part "
        "of them, takes the mean of each row before that of the batch, and its KL is a cross-entropy"
    )

    def parts(self, answers: Answers) -> dict[str, Tensor]:
        assert answers.alternate is not None
        return {
            "token": self.ascent_weight * answers.logp_N,
            "alternate_token": -self.mismatch_weight * answers.alternate.logp_N,
        }


@dataclass
class SSU(Objective):
    """One time step of stable sequential unlearning (Dou et al., 2406.10952): learn, then negate.

    The forget rows are learned, together with answers y_a of other rows of the same request to their questions;
    afterwards the difference of the weights is subtracted from the start. The mask on salient weights is the method's
    setting `saliency_std`.
    """

    name: str = "ssu"
    epsilon: float = setting(1.0, "weight of the mismatched answers", minimum=0)

    needs: ClassVar[frozenset[str]] = frozenset({"alternates"})
    formula: ClassVar[str] = (
        "-mean_t log pi(y_t) - epsilon mean_t log pi(y_a,t), descended; then start - (trained - start)"
    )
    source: ClassVar[str] = "arXiv 2406.10952"
    deviation: ClassVar[str] = (
        "here a row has one mismatched answer per step, in released code 5; that code also counts the prompt as part "
        "of them, and adds the unmasked gradient back onto the masked one"
    )

    @property
    def negation(self) -> float:
        return 1.0

    def parts(self, answers: Answers) -> dict[str, Tensor]:
        assert answers.alternate is not None
        return {"token": -answers.logp_N, "alternate_token": -self.epsilon * answers.alternate.logp_N}


@dataclass
class AnswerPreservation(Objective):
    """Prefer the true answer of a retain row over a refusal y_a (Yuan et al., 2410.08109): a retain objective for idk.

    Log-probabilities are summed over each answer; no start model takes part.
    """

    name: str = "ap"
    beta: float = setting(0.1, "inverse temperature", above=0)

    unit: ClassVar[str] = "sequence"
    needs: ClassVar[frozenset[str]] = frozenset({"alternates"})
    formula: ClassVar[str] = "-(1/beta) log sigmoid(beta (log pi(y) - log pi(y_a)))"
    source: ClassVar[str] = "arXiv 2410.08109"

    def terms(self, answers: Answers) -> Tensor:
        from torch.nn.functional import logsigmoid

        assert answers.alternate is not None
        alternate = answers.alternate
        margin_B = answers.per_row(answers.logp_N) - alternate.per_row(alternate.logp_N)
        return -1 / self.beta * logsigmoid(self.beta * margin_B)
