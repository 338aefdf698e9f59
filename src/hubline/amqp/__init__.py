"""AMQP 1.0, from a socket to Arrow columns and back.

`codec` turns bytes into values and messages and back, without I/O; `events` turns many messages at a time into Arrow
columns and back; `transport` has connections, sessions and links, which the client (`hubs/eventhubs`) and the
endpoint (`emulator`) share. Names on the wire are in `conditions` (of errors) and `service_names` (of Event Hubs).
"""
