"""What becomes of dead letters: looked at, exported, discarded, and run or sent again."""
