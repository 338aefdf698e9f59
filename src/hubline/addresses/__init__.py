"""What people type, parsed in one place: addresses, names, positions, durations, sizes."""
