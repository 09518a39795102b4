"""What a teacher uses; no learner's copy has it."""
