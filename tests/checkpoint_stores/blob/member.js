// A member of a group with the official JavaScript SDK: node member.js '{...}', the task as member.py has it.
const fs = require("fs");
const { EventHubConsumerClient, earliestEventPosition } = require("@azure/event-hubs");
const { BlobCheckpointStore } = require("@azure/eventhubs-checkpointstore-blob");
const { ContainerClient } = require("@azure/storage-blob");

const task = JSON.parse(process.argv[2]);
const journal = fs.openSync(task.journal, "a");

// Of a hub at a port of its own, as only emulators are, this SDK leaves the port out of the names of blobs, which Python's
// does not. On Azure there is none, and they agree.
class Store extends BlobCheckpointStore {
  listOwnership(_, hub, group) {
    return super.listOwnership(task.namespace, hub, group);
  }
  listCheckpoints(_, hub, group) {
    return super.listCheckpoints(task.namespace, hub, group);
  }
  claimOwnership(claims) {
    return super.claimOwnership(claims.map((claim) => ({ ...claim, fullyQualifiedNamespace: task.namespace })));
  }
  updateCheckpoint(checkpoint) {
    return super.updateCheckpoint({ ...checkpoint, fullyQualifiedNamespace: task.namespace });
  }
}

const store = new Store(new ContainerClient(task.storage, task.container));
const client = new EventHubConsumerClient(task.group, task.hub, store, {
  loadBalancingOptions: {
    strategy: "greedy",
    updateIntervalInMs: task.intervalSeconds * 1000,
    partitionOwnershipExpirationIntervalInMs: task.expirySeconds * 1000,
  },
});

client.subscribe(
  {
    async processEvents(events, context) {
      if (events.length === 0) return;
      for (const event of events) fs.writeSync(journal, `${context.partitionId} ${event.sequenceNumber}\n`);
      await context.updateCheckpoint(events[events.length - 1]);
    },
    async processError() {}, // partitions that are taken are told here, and come as they go
  },
  { startPosition: earliestEventPosition, maxBatchSize: 100, maxWaitTimeInSeconds: 1 },
);
