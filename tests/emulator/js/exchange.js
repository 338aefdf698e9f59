// Sends single events, arrays and batches, by partition and by key, and receives them all from the start. One event is
// too large.
const { EventHubProducerClient, EventHubConsumerClient, earliestEventPosition } = require("@azure/event-hubs");

async function main(connectionString) {
  const producer = new EventHubProducerClient(connectionString);
  const hub = await producer.getEventHubProperties();
  const batch = await producer.createBatch({ partitionId: "1" });
  for (let number = 0; number < 50; number++) {
    const properties = { color: "green", count: 5, hot: true };
    batch.tryAdd({ body: { number }, properties, messageId: "m", contentType: "text/x" });
  }
  await producer.sendBatch(batch);
  await producer.sendBatch([{ body: "by key" }], { partitionKey: "alphabet" });
  await producer.sendBatch([{ body: "x".repeat(900000) }], { partitionId: "3" });
  await producer.sendBatch([{ body: null }], { partitionId: "2" });
  const tooLarge = await producer.sendBatch([{ body: "x".repeat(2 * 1024 * 1024) }], { partitionId: "2" }).then(
    () => null,
    (error) => error.code,
  );
  const properties = await producer.getPartitionProperties("1");
  await producer.close();

  const consumer = new EventHubConsumerClient("$Default", connectionString);
  const events = [];
  const errors = [];
  await new Promise((resolve) => {
    const subscription = consumer.subscribe(
      {
        processEvents: async (received, context) => {
          for (const event of received) {
            const body = typeof event.body === "string" ? event.body.slice(0, 10) : event.body;
            events.push({
              partition: context.partitionId,
              sequenceNumber: event.sequenceNumber,
              body,
              key: event.partitionKey,
              properties: event.properties,
              messageId: event.messageId,
              contentType: event.contentType,
              lastSequence: context.lastEnqueuedEventProperties.sequenceNumber,
            });
          }
          if (events.length >= 53) subscription.close().then(resolve);
        },
        processError: async (error) => errors.push(error.message),
      },
      { startPosition: earliestEventPosition, maxWaitTimeInSeconds: 1, trackLastEnqueuedEventProperties: true },
    );
  });
  await consumer.close();
  const lastSequence = properties.lastEnqueuedSequenceNumber;
  return { partitionIds: hub.partitionIds, lastSequence, tooLarge, events, errors };
}

require("./report").report(main);
