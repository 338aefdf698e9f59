"""The command line: `hubline COMMAND ...`, one module a command."""
