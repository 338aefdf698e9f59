const { EventHubProducerClient } = require("@azure/event-hubs");
(async () => {
 const words = ["type","source","unit","line","site","count","celsius","ok","trace","at"];
 const p = new EventHubProducerClient(process.argv[2]);
 for (let shape = 0; shape < 42; shape++) {
  const e = { body: Buffer.alloc(200, "x"), properties: {} };
  if (shape % 3 == 0) e.contentType = "application/json";
  if (shape % 4 == 0) e.messageId = "m-" + shape;
  if (shape % 6 == 1) e.correlationId = shape;
  for (let j = 0; j < 1 + shape % 8; j++) {
   const name = words[(shape + 3 * j) % 10] + (shape > 20 ? shape : "");
   e.properties[name] = [`text ${shape * j}`, shape * 1000, 21.5 + shape / 8, j % 2 == 0, 2 ** 40, new Date(1763600000123), null, { a: [1, "b", null], c: { d: 1.25 } }, "plain"][(shape + 2 * j) % 9];
  }
  await p.sendBatch([e], shape % 5 == 0 ? { partitionKey: "key-" + shape } : { partitionId: "0" });
 }
 await p.close();
})().catch((e) => { console.error(e); process.exit(1); });
