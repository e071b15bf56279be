"""Plain torch: MLP + attention block, 10 calls under no_grad."""

import torch, numpy as np, os

torch.set_num_threads(1)
torch.manual_seed(0)
D, H, T, B = 64, 4, 32, 2


class Block(torch.nn.Module):
    def __init__(s):
        super().__init__()
        s.ln1 = torch.nn.LayerNorm(D)
        s.qkv = torch.nn.Linear(D, 3 * D)
        s.proj = torch.nn.Linear(D, D)
        s.ln2 = torch.nn.LayerNorm(D)
        s.fc = torch.nn.Linear(D, 4 * D)
        s.out = torch.nn.Linear(4 * D, D)

    def forward(s, x):
        q, k, v = s.qkv(s.ln1(x)).split(D, -1)
        q, k, v = (t.view(B, T, H, D // H).transpose(1, 2) for t in (q, k, v))
        a = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + s.proj(a.transpose(1, 2).reshape(B, T, D))
        return x + s.out(torch.nn.functional.gelu(s.fc(s.ln2(x)), approximate="tanh"))


m = torch.nn.Sequential(Block(), Block()).eval()
x = torch.randn(B, T, D)
g = m.__call__
with torch.no_grad():
    for i in range(12):
        y = g(x)
print(y.sum().item())
