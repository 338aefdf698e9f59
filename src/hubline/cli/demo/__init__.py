"""`hubline demo`: two processors share a hub, and one of them is killed."""
