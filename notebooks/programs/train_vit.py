"""Train a small vision transformer (ViT-S/16) on 1,000 classes of photographs, on one GPU.

Start it with `python train_vit.py --epochs 90`, or for a short look with
`python train_vit.py --epochs 1 --steps 100 --batch 32`.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_float32_matmul_precision("high")  # matrix products in TF32


class Photographs(Dataset):
    """Stands for a folder of photographs: put your own data set here."""

    def __init__(self, length, size, classes):
        self.length, self.size, self.classes = length, size, classes

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.rand(3, self.size, self.size, generator=generator), index % self.classes


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, places, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, places, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, places, width))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, size, classes, patch=16, width=384, depth=12, heads=6):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.places = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        return self.head(self.norm(self.blocks(x)).mean(1))


def mirror(images):
    """Mirror about half of the photographs."""
    for i in range(len(images)):
        if torch.rand(1, device="cuda") < 0.5:
            images[i] = images[i].flip(-1)
    return images


def train(model, loader, optimizer, epoch, steps):
    total = 0.0
    for step, (images, labels) in enumerate(loader, 1):
        images = images.cuda()
        labels = labels.cuda()
        loss = F.cross_entropy(model(mirror(images)), labels)
        optimizer.zero_grad()
        loss.backward()
        norm = sum(p.grad.norm().item() ** 2 for p in model.parameters()) ** 0.5
        optimizer.step()
        total += loss.item()
        if step % 100 == 0:
            print(f"epoch {epoch}, step {step}: loss {total / step:.3f}, gradient norm {norm:.2f}")
        if step == steps:
            break
    return total / step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, help="stop each epoch after so many steps")
    parser.add_argument("--size", type=int, default=224, help="pixels of a side")
    parser.add_argument("--depth", type=int, default=12)
    args = parser.parse_args()

    torch.manual_seed(0)
    loader = DataLoader(Photographs(1_281_167, args.size, 1000), batch_size=args.batch)
    model = ViT(args.size, 1000, depth=args.depth).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for epoch in range(args.epochs):
        loss = train(model, loader, optimizer, epoch, args.steps)
        print(f"epoch {epoch}: loss {loss:.3f}")


if __name__ == "__main__":
    main()
