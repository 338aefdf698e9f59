"""Nexmark over hubs: people, auctions and bids in one stream, and queries over it.

    python -m benchmarks.nexmark                    # all queries over 1,000,000 events; the same as `make nexmark`
    python -m benchmarks.nexmark q5 --events 50000

Each query reads the hub as a stream and once more as a batch, by the same function: the answers have to be the same.
"""
