"""GPT-2 in PyTorch, with the mathematics of mantissa's model `gpt`. Runs with PyTorch 1.13 and newer."""

import math

import torch
from torch import nn
from torch.nn import functional


def causal_attention(q, k, v):  # (B, H, T, C / H) each
    """scaled_dot_product_attention from products and a softmax. PyTorch 1 has no other; on a CPU it can be faster."""
    context = q.shape[2]
    hidden = torch.ones(context, context, dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(q.shape[3]))  # (B, H, T, T)
    return functional.softmax(scores.masked_fill(hidden, -math.inf), dim=-1).to(v.dtype) @ v


class Attention(nn.Module):
    def __init__(self, width, heads, fused):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):  # (B, T, C)
        batch, context, width = x.shape
        q, k, v = (
            t.view(batch, context, self.heads, width // self.heads).transpose(1, 2) for t in self.qkv(x).split(width, 2)
        )
        if self.fused:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, H, T, C / H)
        else:
            mixed = causal_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, context, width))


class FeedForward(nn.Module):
    def __init__(self, width, mlp_width):
        super().__init__()
        self.up = nn.Linear(width, mlp_width)
        self.down = nn.Linear(mlp_width, width)

    def forward(self, x):
        return self.down(functional.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width, heads, mlp_width, epsilon, fused_attention):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=epsilon)
        self.attention = Attention(width, heads, fused_attention)
        self.norm2 = nn.LayerNorm(width, eps=epsilon)
        self.mlp = FeedForward(width, mlp_width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt2(nn.Module):
    """Modules have the names of mantissa's parameters. metadata: that of the file of `step --export`."""

    def __init__(self, metadata, fused_attention=True):
        super().__init__()
        layers, width, heads, mlp_width, context, vocab = (
            int(metadata["model." + key]) for key in ("layers", "width", "heads", "mlp_width", "context", "vocab")
        )
        epsilon = float(metadata["model.norm_epsilon"])
        self.token_embedding = nn.Embedding(vocab, width)
        self.position_embedding = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, mlp_width, epsilon, fused_attention) for _ in range(layers))
        self.final_norm = nn.LayerNorm(width, eps=epsilon)

    def forward(self, tokens, targets):  # (B, T) each
        """Cross-entropy, summed over all targets."""
        x = self.token_embedding(tokens) + self.position_embedding.weight
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.final_norm(x), self.token_embedding.weight)  # the head is tied
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")

    def flops_per_token(self):
        """FLOP of a training step: 6 per multiplied parameter + 12 L T C for attention; the causal mask is not discounted."""
        multiplied = [module.weight for module in self.modules() if isinstance(module, nn.Linear)]
        multiplied.append(self.token_embedding.weight)  # the head
        context, width = self.position_embedding.weight.shape
        return 6 * sum(weight.numel() for weight in multiplied) + 12 * len(self.blocks) * context * width
