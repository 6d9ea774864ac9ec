"""The worker service: makes and removes each job's network on one worker, and registers the job with the controller."""
