"""Producers: sending from Python.

producer.py     waits until the hub has kept the events
buffered.py     sends in the background, within bounds, and reports what failed
outlet.py       the hub that both send to
lanes.py        one send after the other in each partition; Spark's sink uses it, too
routing.py      which partition an event goes to
room.py         how much may wait
"""

from hubline.errors import FailedSend
from hubline.producer.buffered import BufferedProducer
from hubline.producer.producer import Producer

__all__ = ["BufferedProducer", "FailedSend", "Producer"]
