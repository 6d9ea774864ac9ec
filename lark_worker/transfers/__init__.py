"""The transfers of jobs: the connections by which starters and their plugins move files for a job, in this worker's own
network, where no switch shows whose they are."""
