"""What teaches: imported by notebooks, tests and scripts, never by the training program at the root."""
