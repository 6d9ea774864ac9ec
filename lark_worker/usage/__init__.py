"""What jobs use of the network, told to where HTCondor's users look: the slot's ad, and the job's ad and history."""
