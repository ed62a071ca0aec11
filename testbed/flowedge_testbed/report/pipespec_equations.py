"""The analysis of PipeSpec: equations 1 to 6 and theorem 1 of its section 3.3.

Of two consecutive models, alpha is the probability that a token of the first is the second's own token too.
gamma is the number of draft tokens that the second takes at a time. rho is the probability that it has draft
tokens to verify in a step; in another step it generates one token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Acceptance:
    """One verifying model, and the tokens of the model before it.

    Attributes:
        alpha: 0 to 1; gamma: 0 or more, a mean where steps differ.
    """

    alpha: float
    gamma: float

    def __post_init__(self) -> None:
        """Raise ValueError for what is no probability, or no number of tokens."""
        if not 0 <= self.alpha <= 1 or self.gamma < 0:
            raise ValueError(
                f"alpha is {self.alpha} and gamma {self.gamma}; give 0 <= alpha <= 1 and gamma >= 0"
            )


def verified_tokens(pair: Acceptance) -> float:
    """Return the mean tokens of a step that verifies: (1 - alpha^(gamma + 1)) / (1 - alpha).

    This is the geometric sum of equations 1, 4, 5 and 6, after Leviathan et al. With alpha = 1 all drafts
    survive, and the step gives gamma + 1 tokens.
    """
    if pair.alpha == 1:
        return pair.gamma + 1
    return float((1 - pair.alpha ** (pair.gamma + 1)) / (1 - pair.alpha))


def next_rho(rho: float, pair: Acceptance) -> float:
    """Return rho of a step from that of the step before it (equation 2); rho of the first step is alpha.

    A step verifies if all drafts of a verifying step and its bonus token, or the one token of another step,
    agree with the model before.
    """
    return float(rho * pair.alpha ** (pair.gamma + 1) + (1 - rho) * pair.alpha)


def steady_rho(pair: Acceptance) -> float:
    """Return the mean of rho over all steps: alpha / (1 - alpha^(gamma + 1) + alpha) (equation 3)."""
    return float(pair.alpha / (1 - pair.alpha ** (pair.gamma + 1) + pair.alpha))


def tokens_per_step(pair: Acceptance, rho: float | None = None) -> float:
    """Return the mean tokens that a model generates in a step, E(N) (equation 1).

    Of the target it is the speed-up over plain decoding of a pipeline that never waits (equation 4). By
    theorem 1 it is above 1 where alpha is between 0 and 1 and gamma is above 0.

    Args:
        rho: that of equation 3 if not given.
    """
    rho = steady_rho(pair) if rho is None else rho
    return (1 - rho) + rho * verified_tokens(pair)


def synchronous_speedup(pair: Acceptance, speed_ratio: float) -> float:
    """Return the speed-up of standard speculative decoding (equation 5).

    Args:
        speed_ratio: c, how many tokens the draft model generates in the time of one of the target's; above 0.
    """
    return verified_tokens(pair) / (pair.gamma / speed_ratio + 1)


def ideal_speedup(pair: Acceptance) -> float:
    """Return the speed-up that PipeSpec approaches where alpha is high (equation 6): rho is taken as 1."""
    return verified_tokens(pair)


def synchronous_hierarchy_speedup(pairs: Sequence[Acceptance], seconds: Sequence[float]) -> float:
    """Return equation 5 for any number of models, which the paper gives for two.

    A model together with all models before it is the draft model of the next: it takes the time of its own
    step and of the draft tokens for it, and generates `verified_tokens` in that time.

    Args:
        pairs: of the verifying models, the target last.
        seconds: of a token of each model, the drafter's first and the target's last; one more than pairs.
    """
    of_token = seconds[0]
    for pair, own in zip(pairs, seconds[1:], strict=True):
        of_token = (pair.gamma * of_token + own) / verified_tokens(pair)
    return seconds[-1] / of_token
