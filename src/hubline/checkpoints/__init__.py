"""Operations on the checkpoints of consumer groups: move, copy, and migrate them from old blobs."""
