// A reader with an owner level is taken over by one with a higher level; one with a lower level is refused.
const { EventHubConsumerClient, earliestEventPosition } = require("@azure/event-hubs");
const { report, until } = require("./report");

function reader(connectionString, ownerLevel) {
  const consumer = new EventHubConsumerClient("$Default", connectionString, { retryOptions: { maxRetries: 0 } });
  const heard = { batches: 0, errors: [] };
  const subscription = consumer.subscribe(
    "0",
    {
      processEvents: async () => void heard.batches++,
      processError: async (error) => void heard.errors.push({ name: error.name, code: error.code }),
    },
    { startPosition: earliestEventPosition, ownerLevel, maxWaitTimeInSeconds: 1 },
  );
  return { heard, close: () => subscription.close().then(() => consumer.close()) };
}

async function main(connectionString) {
  const low = reader(connectionString, 1);
  await until(() => low.heard.batches);
  const high = reader(connectionString, 2);
  await until(() => low.heard.errors.length);
  await until(() => high.heard.batches);
  const late = reader(connectionString, 1);
  await until(() => late.heard.errors.length);
  const result = { low: low.heard.errors, high: high.heard.errors, late: late.heard.errors };
  await Promise.all([low.close(), high.close(), late.close()]);
  return result;
}

report(main);
