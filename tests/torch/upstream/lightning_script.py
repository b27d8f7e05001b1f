"""Lightning trains under DDPStrategy(process_group_backend=$BACKEND): a loss that falls, the same weights on all ranks."""

import os
import tempfile
import warnings

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy

backend = os.environ["BACKEND"]
os.environ["CHORUS_AS_GLOO"] = "0"  # by its own name
if backend == "chorus":
    import chorus_torch  # noqa: F401
warnings.simplefilter("ignore")


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
        self.losses = []

    def loss(self, batch):
        return torch.nn.functional.mse_loss(self.model(batch[0]), batch[0].sum(1, keepdim=True))

    def training_step(self, batch, _):
        loss = self.loss(batch)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, _):
        self.log("validation", self.loss(batch), sync_dist=True)  # the mean of the ranks

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(256, 8)), 16)
line = Line()
with tempfile.TemporaryDirectory() as folder:
    trainer = lightning.Trainer(
        accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), max_epochs=4, default_root_dir=folder, logger=False,
        strategy=DDPStrategy(process_group_backend=backend), enable_progress_bar=False, enable_checkpointing=False)
    trainer.fit(line, data, data)
    assert dist.get_backend() == backend, dist.get_backend()
    assert line.losses[-1] < line.losses[0] / 2, line.losses
    everywhere = [None] * dist.get_world_size()
    mine = [[p.tolist() for p in line.parameters()], trainer.callback_metrics["validation"].item()]
    dist.all_gather_object(everywhere, mine)
    assert all(one == mine for one in everywhere), "the ranks ended with different weights or means"
