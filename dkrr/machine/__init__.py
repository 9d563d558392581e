"""What this machine or cluster has, and how fast it is: detected at every fit, measured before the first long one."""
