"""Train a small network on CIFAR-10 in one process. Lesson 06b asks you to make it ready for many.

    python scripts/minimal.py
"""

import torch
from torch import nn
from torch.utils.data import DataLoader

from trainer import data

EPOCHS = 3
BATCH = 64  # images a step
SAVE = "minimal.pt"

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)

# Any Dataset will do, torchvision's too: then leave out collate_fn, which says that ours hands over whole batches.
train_set, test_set = data.get_dataset("auto")
train_loader = DataLoader(train_set, BATCH, shuffle=True, collate_fn=train_set.collate)
test_loader = DataLoader(test_set, BATCH, collate_fn=test_set.collate)

model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),  # [B, 3, 32, 32] to [B, 16, 16, 16]
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),  # to [B, 32, 8, 8]
    nn.Flatten(), nn.Linear(32 * 8 * 8, 10),
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

for epoch in range(EPOCHS):
    sums = torch.zeros(3, device=device)  # losses and images of training, hits of the test
    model.train()
    for images, labels in train_loader:
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sums[0] += loss.detach() * len(labels)
        sums[1] += len(labels)
    model.eval()
    with torch.no_grad():
        for images, labels in test_loader:
            sums[2] += (model(images.to(device)).argmax(1) == labels.to(device)).sum()
    print(f"Epoch: {epoch}, Loss: {sums[0] / sums[1]:.4f}, val acc: {sums[2] / len(test_set):.4f}", flush=True)
torch.save(model.state_dict(), SAVE)
