"""SMP's API: step, StepOutput, optimizer and amp."""
