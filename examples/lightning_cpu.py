# SPDX-License-Identifier: Apache-2.0
"""Lightning over Ultima: a strategy that names the backend.

Start it with `torchrun --nproc-per-node 2 examples/lightning_cpu.py`.
"""

import os

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ultima.torch  # the import registers the backend


class Linear(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(20, 1)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        inputs, wanted = batch
        return nn.functional.mse_loss(self.layer(inputs), wanted)

    def on_train_batch_end(self, outputs: dict[str, torch.Tensor], batch: object, index: int) -> None:
        self.last_loss = outputs["loss"].item()

    def on_train_end(self) -> None:
        if self.global_rank == 0:
            summary = ultima.torch.receipt_summary()
            print(f"{self.trainer.world_size} ranks, loss {self.last_loss:.6f}")
            print(f"{summary.ops} all-reduces, {summary.complete} of them complete")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main() -> None:
    torch.manual_seed(1)
    inputs = torch.randn(4096, 20)
    loader = DataLoader(TensorDataset(inputs, inputs @ torch.randn(20, 1)), batch_size=64, shuffle=True)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy=DDPStrategy(process_group_backend="ultima"),  # the line that changes
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Linear(), loader)


if __name__ == "__main__":
    main()
