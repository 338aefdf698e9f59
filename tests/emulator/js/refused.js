// What a client is told that is not let in.
const { EventHubProducerClient } = require("@azure/event-hubs");

async function main(connectionString) {
  const producer = new EventHubProducerClient(connectionString, { retryOptions: { maxRetries: 0 } });
  const told = await producer.getEventHubProperties().then(
    () => ({ code: null }),
    (error) => ({ code: error.code }),
  );
  await producer.close();
  return told;
}

require("./report").report(main);
