"""The compiled core: C over buffers, and the one module that calls it."""
