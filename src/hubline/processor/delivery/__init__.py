"""Between a handler's return and the checkpoint: what came of a batch is kept, and what failed.

`without_sink` writes the checkpoint after the handler. `into_sink` commits rows, dead letters and checkpoint together.
"""
