"""Jobs' use of the network, reported where HTCondor's users look: the slot's ad, and the job's ad and history."""
