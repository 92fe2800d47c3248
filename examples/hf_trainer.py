"""The Hugging Face transformers Trainer over MPI.

paceline run -n 2 -- examples/hf_trainer.py

Needs: pip install transformers accelerate
"""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainingArguments

import paceline.torch_backend  # noqa: F401
from paceline.data import digits
from paceline.models.mnist import MNISTNetwork


class Classifier(MNISTNetwork):
    """The Trainer expects a loss from the model; models in transformers return one."""

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = super().forward(images)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


def load(part: str) -> list[dict]:
    images, labels = digits.load(part).arrays()
    pairs = zip(digits.normalise(images), labels, strict=True)
    return [{"images": image, "labels": label} for image, label in pairs]


dist.init_process_group("mpi4py")
arguments = TrainingArguments(
    output_dir="runs/hf_trainer",
    use_cpu=True,  # uses the existing process group; ddp_backend would be refused
    num_train_epochs=2,
    per_device_train_batch_size=64,
    per_device_eval_batch_size=500,
    learning_rate=0.002,
    ddp_find_unused_parameters=False,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
model = Classifier()
trainer = Trainer(model, arguments, train_dataset=load("train"), eval_dataset=load("validation"))
trainer.train()
trainer.evaluate()  # each rank evaluates its shard; prints the total over all ranks
everything = trainer.data_collator(trainer.eval_dataset)
with torch.no_grad():
    loss = model(**everything)["loss"].item()
rank, ranks = dist.get_rank(), dist.get_world_size()
share = f"{len(trainer.get_train_dataloader())} batches per epoch"
print(f"rank {rank} of {ranks} over {dist.get_backend()}, {share}: loss {loss:.6f}")
