# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate over Ultima: the process group is there before Accelerate looks, and Accelerate takes it.

Start it with `torchrun --nproc-per-node 2 examples/accelerate_cpu.py`.
"""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ultima.torch  # the import registers the backend


def main() -> None:
    dist.init_process_group("ultima")  # the line that is added
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(1)
    inputs = torch.randn(4096, 20)
    wanted = inputs @ torch.randn(20, 1)
    model = nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(inputs, wanted), batch_size=64, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    loss = torch.zeros(())
    for _ in range(3):
        for batch, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch), labels)
            accelerator.backward(loss)
            optimizer.step()
    summary = ultima.torch.receipt_summary()
    accelerator.print(f"{accelerator.num_processes} ranks, {accelerator.distributed_type}, loss {loss.item():.6f}")
    accelerator.print(f"{summary.ops} all-reduces, {summary.complete} of them complete")
    accelerator.end_training()  # which destroys the process group


if __name__ == "__main__":
    main()
