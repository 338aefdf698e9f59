"""Send 5,000 payments of 100 accounts: `python send_payments.py`."""

import asyncio
import json
import os

import hubline

HUB = os.environ.get("HUB", "local:./data/payments")
PAYMENTS = [{"account": f"account-{number % 100:02d}", "cents": number} for number in range(1, 5_001)]


async def send() -> None:
    async with hubline.Producer(HUB) as producer:
        await producer.send(
            {"body": json.dumps(payment).encode(), "partitionKey": payment["account"]} for payment in PAYMENTS
        )


asyncio.run(send())
print(f"sent {len(PAYMENTS):,} payments, {sum(payment['cents'] for payment in PAYMENTS):,} cents")
