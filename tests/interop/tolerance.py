"""How far the logits of halfbyte (FP32) and of transformers (FP64 matrices) may lie apart by rounding alone.

Every operation's error bound is known: halfbyte's from docs/numbers.md, with sum32 over n elements within
gamma(ceil(n/32) + 5) of the sum of absolute values. transformers converts to FP32 for RMSNorm and softmax also in an FP64
model, and adds there in an order that is not written down: gamma(n). What such errors make of a logit is found by the
model itself: it runs once more with an error of the size of the bound added to each result of each operation, of random
sign. The tolerance is the largest change of any logit in a few such runs. Real errors are far smaller than
their bounds, so this is generous for rounding to FP32, and much too small for a rounding to BF16 (2^-8) anywhere, or a
wrong scale.
"""

import math

import torch
from common import U, logits
from transformers import AttentionInterface

RUNS = 3


def gamma(n):
    return n * U / (1 - n * U)


def sum32(n):
    return math.ceil(n / 32) + 5


def signs(*shape):
    return torch.randint(0, 2, shape, generator=generator, dtype=torch.float64) * 2 - 1


generator = torch.Generator()


def linear(module, inputs, y):
    # fl(sum32(x·(code·SF)) · D), beside FP32 weights fl(code·SF·D) for transformers
    x, w = inputs[0].abs(), module.weight.abs()
    return y + signs(*y.shape) * gamma(sum32(x.shape[-1]) + 2) * (x @ w.T)


def residual(norm, inputs):
    # the input of a norm is the sum with the residual, and goes on as the next residual
    inputs[0].mul_(1 + signs(*inputs[0].shape) * gamma(1))


def rms_norm(module, inputs, y):
    # Sums of squares, halved by the square root, err for a whole row; then /K, + eps, sqrt, 1/, · and · in both programs.
    k = y.shape[-1]
    return y * (1 + signs(*y.shape[:-1], 1) * gamma((k + sum32(k)) / 2 + 6) + signs(*y.shape) * gamma(6))


def silu_mul(module, inputs, y):
    return y * (1 + signs(*y.shape) * gamma(5))  # exp within 1 ulp = 2 U, 1 +, /, ·


def rope_table(module, inputs, table):
    # FP32 angles position · f, f within a few ulp of theta^(-2i/d); cosine and sine are rounded to FP32 in both.
    cos, sin = table
    angle = torch.arange(cos.shape[1]).double()[:, None] * torch.cat([module.inv_freq] * 2).double()
    turn = signs(*cos.shape) * gamma(8) * angle
    return cos - turn * sin + signs(*cos.shape) * gamma(2), sin + turn * cos + signs(*sin.shape) * gamma(2)


def attention(module, q, k, v, mask, scaling, **_):
    k, v = (x.repeat_interleave(module.num_key_value_groups, dim=1) for x in (k, v))
    d, t = k.shape[-1], k.shape[-2]

    def rotated(x):  # fl(fl(a·cos) -+ fl(b·sin)), |a| + |b| at most twice the two results
        return x + signs(*x.shape) * gamma(2) * 2 * (x.abs() + x.abs().roll(d // 2, -1))
    q, k = rotated(q), rotated(k)
    scores = q @ k.mT * scaling
    scores = scores + signs(*scores.shape) * gamma(sum32(d) + 2) * scaling * (q.abs() @ k.abs().mT)
    mask = torch.full((t, t), -torch.inf).triu(1)
    away = (scores - (scores + mask).amax(-1, keepdim=True)).abs()  # rounding s - max is an error of e relative to it
    e = torch.softmax(scores + mask, -1)
    e = e * (1 + signs(*e.shape[:-1], 1) * gamma(t + sum32(t) + 2) + signs(*e.shape) * (gamma(5) + 2 * U * away))
    o = e @ v
    return (o + signs(*o.shape) * gamma(sum32(t) + 1) * (e @ v.abs())).transpose(1, 2).contiguous(), None


AttentionInterface.register("halfbyte_tolerance", attention)


def tolerance(model, ids):
    """model: FP64. The largest change of a logit over RUNS runs with errors of the size of the bounds."""
    exact, kept = logits(model, ids), model.config._attn_implementation
    hooks = [model.model.rotary_emb.register_forward_hook(rope_table)]
    for module in model.modules():
        kind = type(module).__name__
        if kind == "Linear":
            hooks.append(module.register_forward_hook(linear))
        elif kind == "LlamaRMSNorm":
            hooks += [module.register_forward_pre_hook(residual), module.register_forward_hook(rms_norm)]
        elif kind == "LlamaMLP":
            hooks.append(module.act_fn.register_forward_hook(silu_mul))
    model.set_attn_implementation("halfbyte_tolerance")
    largest = 0.0
    for seed in range(RUNS):
        generator.manual_seed(seed)
        largest = max(largest, (logits(model, ids) - exact).abs().max().item())
    model.set_attn_implementation(kept)
    for hook in hooks:
        hook.remove()
    return largest
