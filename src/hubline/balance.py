"""The balancer: pure functions from a snapshot of the group to a plan."""
