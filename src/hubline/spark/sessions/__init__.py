"""Spark sessions with hubline's settings, and the Java they run on."""
