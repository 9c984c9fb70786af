"""Training with the SMP API: step, StepOutput, optimizer and amp."""
