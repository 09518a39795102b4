"""Lesson 14: each strategy is one process's training, what it sends, and the orders of pipelines."""
