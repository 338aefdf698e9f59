"""Where ownership and checkpoints are kept: a module or folder for each kind of place.

Another one goes here, too: a class with the methods of `hubline.ports.CheckpointStore`. What SQLite and PostgreSQL
share is in `sql_store`, which says which other databases it can serve. `hubline.addresses.store_address` reads the
address of a store, `hubline.adapters` opens it, and `hubline.testing.contracts.store` is the suite that it has to pass.

A store with four methods, outside of hubline, serves as well: see `adapt`.
"""

from hubline.checkpoint_stores.adapted import adapt

__all__ = ["adapt"]
