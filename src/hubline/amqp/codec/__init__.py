"""Bytes to AMQP values and back."""
