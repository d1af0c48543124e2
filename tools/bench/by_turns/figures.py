"""From times of rounds to what is told about them."""

import math
import statistics

UNIT_ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11}  # largest relative error of one rounding


def spread(values, decimals):
    """ "median (min – max)"."""
    return f"{statistics.median(values):.{decimals}f} ({min(values):.{decimals}f} – {max(values):.{decimals}f})"


def ratios(others, ours):
    """Round by round, how many times as fast ours is: time of the other program by time of ours."""
    return [other / own for other, own in zip(others, ours, strict=True)]


def rates(flops_per_step, step_ms):
    """GFLOP/s of each round."""
    return [1e-6 * flops_per_step / ms for ms in step_ms]


def shares(flops_per_step, step_ms, peaks):
    """Per cent of the peak, by round. peaks: FLOP/s as measured in the rounds; the highest counts, since one that was
    disturbed would flatter the programs."""
    return [100.0 * 1e3 * flops_per_step / ms / max(peaks) for ms in step_ms]


def largest_difference(losses, others, steps):
    """Absolute, over the first steps. ValueError if there are fewer or if one is not a number."""
    if min(len(losses), len(others)) < steps:
        raise ValueError(f"expected losses of {steps} steps, got {len(losses)} and {len(others)}")
    differences = [abs(a - b) for a, b in zip(losses[:steps], others[:steps])]
    if not all(math.isfinite(difference) for difference in differences):
        raise ValueError("a loss is not finite")
    return max(differences)


def loss_bound(model, dtype):
    """How far apart rounding alone may take the losses (nats) of two programs that do the same work.

    One rounding changes a value by up to u relatively; N independent ones on its way add up to sqrt(N) u. What differs
    between two programs has the errors of both: sqrt(2) as much. Logits are not larger than the ln V nats that tell the
    tokens of a vocabulary apart. Both take the same steps to first order: what AdamW makes of gradients that are off in
    random directions is seen by a loss in second order only.

    bf16, u = 2^-8, and fp16, u = 2^-11: N = 13 in a block (norm 1, weight and result of qkv, probabilities, attention, weight and result of its
    projection; norm 2, weight and result of up, gelu, weight and result of down) and 4 around them. The loss's derivative
    by a token's logits has a norm of at most sqrt(2), and errors of different tokens are independent: sqrt(2 / tokens).
    fp32, u = 2^-24: each of the additions of a sum rounds, so N is the length of all sums on the way, forward and
    backward. Approximations of exp and tanh err alike for all tokens, so nothing is gained from their number.
    """
    logit = math.log(model.vocab)
    if dtype in UNIT_ROUNDOFF:
        roundings = 13 * model.layers + 4
        return math.sqrt(2.0 * roundings) * UNIT_ROUNDOFF[dtype] * logit * math.sqrt(2.0 / model.tokens)
    block = 2 * model.width + model.width // model.heads + model.context + model.width + 4 * model.width
    additions = 2 * (model.layers * block + model.width + model.vocab) + model.tokens
    return math.sqrt(2.0 * additions) * 2.0**-24 * logit
