// A producer and a consumer that are silent for longer than the client's idle time-out go on where they were.
const { EventHubProducerClient, EventHubConsumerClient, latestEventPosition } = require("@azure/event-hubs");
const { report, until } = require("./report");

async function main(connectionString, seconds) {
  const producer = new EventHubProducerClient(connectionString, { retryOptions: { maxRetries: 0 } });
  const consumer = new EventHubConsumerClient("$Default", connectionString, { retryOptions: { maxRetries: 0 } });
  const heard = { bodies: [], errors: [], batches: 0 };
  const subscription = consumer.subscribe(
    "0",
    {
      processEvents: async (events) => {
        heard.batches++;
        heard.bodies.push(...events.map((event) => event.body));
      },
      processError: async (error) => void heard.errors.push(error.message),
    },
    { startPosition: latestEventPosition, maxWaitTimeInSeconds: 1 },
  );
  await until(() => heard.batches);
  await producer.sendBatch([{ body: "before" }], { partitionId: "0" });
  await until(() => heard.bodies.length === 1);
  await new Promise((resolve) => setTimeout(resolve, Number(seconds) * 1000));
  await producer.sendBatch([{ body: "after" }], { partitionId: "0" });
  await until(() => heard.bodies.length === 2 || heard.errors.length);
  await subscription.close();
  await consumer.close();
  await producer.close();
  return heard;
}

report(main);
