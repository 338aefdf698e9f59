"""Contract suites: subclass one for an adapter of your own, and pytest tells whether it keeps its port."""
