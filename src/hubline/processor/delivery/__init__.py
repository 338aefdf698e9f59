"""Between a handler's return and the checkpoint: results are kept, and events that failed are dead letters.

`without_sink` keeps the dead letters, and says how far events are handled; `hubline.processor.checkpointer` then writes
the checkpoint, now or when it is due. `into_sink` commits rows, dead letters and checkpoint together.
"""
