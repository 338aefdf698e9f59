"""Where ownership and checkpoints are kept: a module or folder for each kind of place.

Another one goes here, too: a class with the methods of `hubline.ports.CheckpointStore`, which `hubline.adapters` opens.
The suite that it has to pass is `hubline.testing.contracts.store`.
"""
