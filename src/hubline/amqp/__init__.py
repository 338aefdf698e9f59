"""AMQP 1.0, from a socket to Arrow columns and back.

The codec, which does no I/O, from the bottom up:

    types           AMQP types that Python does not tell apart
    decoding        bytes to values: every valid encoding, within bounds
    encoding        values to bytes, in the shortest form
    composites      described lists as frozen dataclasses
    performatives   what peers say to each other: open, attach, transfer, ...
    rows            many pieces of one buffer at once
    transfers       simple transfers, found thousands at a time
    frames          a connection's bytes cut into frames; frames to bytes
    text            any value as text
    message         one message with all its sections
    properties      properties of messages, and their types, in a map of text
    events          what hubline takes from a message: the reference
    layouts         how messages are laid out, learned and found thousands at a time
    columns         messages to Arrow columns
    outgoing        Arrow columns to messages, batches and frames
    columnar        Arrow columns as they are, between hubline's own endpoint and client

Upon it: ``handshake``, ``connection``, ``sessions`` and ``links``, which client and endpoint share, and ``endpoint``.
"""
