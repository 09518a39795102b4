"""Programs to copy: each runs alone in an empty folder, with torch and torchvision."""
