"""AMQP 1.0: the codec, from frames on a socket to Arrow columns and back. No I/O here."""
