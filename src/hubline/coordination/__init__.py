"""Who owns which partition: leases, load balancing, handover."""
