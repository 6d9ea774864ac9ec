"""The worker service: makes and removes each job's network on one worker, and speaks to the controller for it."""
