"""`hubline checkpoints ...`: show, move, reset, copy and migrate checkpoints."""
