"""Figures from the times of rounds."""

import math
import statistics

UNIT_ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11}  # largest relative error of one rounding


def spread(values, decimals):
    """ "median (min – max)"."""
    return f"{statistics.median(values):.{decimals}f} ({min(values):.{decimals}f} – {max(values):.{decimals}f})"


def ratios(others, ours):
    """Speed of ours relative to the other program, round by round: its time by ours."""
    return [other / own for other, own in zip(others, ours, strict=True)]


def rates(flops_per_step, step_ms):
    """GFLOP/s of each round."""
    return [1e-6 * flops_per_step / ms for ms in step_ms]


def shares(flops_per_step, step_ms, peaks):
    """Per cent of the peak, by round. peaks: FLOP/s measured in the rounds. The highest counts, since a disturbed
    measurement would flatter the programs."""
    return [100.0 * 1e3 * flops_per_step / ms / max(peaks) for ms in step_ms]


def largest_difference(losses, others, steps):
    """Largest absolute difference over the first steps. ValueError for fewer steps or a loss that is not finite."""
    if min(len(losses), len(others)) < steps:
        raise ValueError(f"expected losses of {steps} steps, got {len(losses)} and {len(others)}")
    differences = [abs(a - b) for a, b in zip(losses[:steps], others[:steps])]
    if not all(math.isfinite(difference) for difference in differences):
        raise ValueError("a loss is not finite")
    return max(differences)


def loss_bound(model, dtype):
    """Largest difference (nats) that rounding alone can make between the losses of two programs with the same work.

    One rounding changes a value by up to u relatively; N independent roundings add up to sqrt(N) u. The difference of two
    programs has the errors of both: a factor of sqrt(2). Logits are at most the ln V nats that distinguish the tokens of
    a vocabulary. Both programs take the same steps to first order: gradient errors in random directions change a loss only
    in second order after AdamW.

    bf16, u = 2^-8, and fp16, u = 2^-11: N = 13 in a block (norm 1, weight and result of qkv, probabilities, attention,
    weight and result of its projection; norm 2, weight and result of up, gelu, weight and result of down) and 4 around
    them. The loss's derivative by a token's logits has a norm of at most sqrt(2), and errors of different tokens are
    independent: sqrt(2 / tokens).
    fp32, u = 2^-24: each addition of a sum rounds, so N is the length of all sums, forward and backward. Approximations
    of exp and tanh have the same error for all tokens, so more tokens do not average it out.
    """
    logit = math.log(model.vocab)
    if dtype in UNIT_ROUNDOFF:
        roundings = 13 * model.layers + 4
        return math.sqrt(2.0 * roundings) * UNIT_ROUNDOFF[dtype] * logit * math.sqrt(2.0 / model.tokens)
    block = 2 * model.width + model.width // model.heads + model.context + model.width + 4 * model.width
    additions = 2 * (model.layers * block + model.width + model.vocab) + model.tokens
    return math.sqrt(2.0 * additions) * 2.0**-24 * logit
