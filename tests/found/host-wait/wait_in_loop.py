"""Eight linear layers in a loop; with the argument a it sleeps for 5 ms and reads a number in every step."""

import sys
import time

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
m = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).eval()
x = torch.randn(64, 512)
with torch.no_grad():
    for _ in range(10):
        y = m(x)
        if sys.argv[1] == "a":
            time.sleep(0.005)
            y.sum().item()
