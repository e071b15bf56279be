"""Element-wise work that Inductor fuses into one C++ kernel. Argument: none, inductor or aot_eager."""

import sys

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(256, 256)
        self.n = nn.LayerNorm(256)

    def forward(self, x):
        y = self.l(x)
        return self.n(nn.functional.gelu(y) * torch.tanh(y) + torch.sigmoid(y) * x)


m = M().eval()
x = torch.randn(4096, 256, generator=torch.Generator().manual_seed(1))
f = m if sys.argv[1] == "none" else torch.compile(m, backend=sys.argv[1])
with torch.no_grad():
    for _ in range(12):
        f(x)
