"""Programs that run as the ranks of an application, and the inputs of those that nobody here wrote."""
