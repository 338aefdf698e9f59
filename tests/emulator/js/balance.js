// Two consumers with one checkpoint store, in memory, share the partitions.
const { EventHubConsumerClient, earliestEventPosition } = require("@azure/event-hubs");
const { report, until } = require("./report");

class MemoryStore {
  ownerships = new Map();
  checkpoints = new Map();

  async listOwnership() {
    return [...this.ownerships.values()];
  }

  async claimOwnership(claims) {
    return claims.flatMap((claim) => {
      const current = this.ownerships.get(claim.partitionId);
      if (current && current.etag !== claim.etag) return [];
      const etag = String(Math.random());
      this.ownerships.set(claim.partitionId, { ...claim, etag, lastModifiedTimeInMs: Date.now() });
      return [this.ownerships.get(claim.partitionId)];
    });
  }

  async updateCheckpoint(checkpoint) {
    this.checkpoints.set(checkpoint.partitionId, checkpoint);
  }

  async listCheckpoints() {
    return [...this.checkpoints.values()];
  }
}

async function main(connectionString) {
  const store = new MemoryStore();
  const seen = new Set();
  const consumers = [0, 1].map(() => {
    const options = {
      loadBalancingOptions: {
        strategy: "greedy",
        updateIntervalInMs: 500,
        partitionOwnershipExpirationIntervalInMs: 3000,
      },
    };
    const client = new EventHubConsumerClient("$Default", connectionString, store, options);
    const owned = new Set();
    const subscription = client.subscribe(
      {
        processInitialize: async (context) => void owned.add(context.partitionId),
        processClose: async (_reason, context) => void owned.delete(context.partitionId),
        processEvents: async (events, context) => {
          for (const event of events) seen.add(`${context.partitionId}:${event.body}`);
          if (events.length) await context.updateCheckpoint(events[events.length - 1]);
        },
        processError: async () => {},
      },
      { startPosition: earliestEventPosition, maxWaitTimeInSeconds: 1 },
    );
    return { owned, close: () => subscription.close().then(() => client.close()) };
  });
  await until(() => consumers.every((consumer) => consumer.owned.size === 2) && seen.size === 4);
  const owned = consumers.map((consumer) => [...consumer.owned].sort());
  await Promise.all(consumers.map((consumer) => consumer.close()));
  return { owned, seen: [...seen].sort(), checkpoints: store.checkpoints.size };
}

report(main);
