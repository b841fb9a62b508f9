// What a vertex or a subtask does with its time and how much passes through it, as REST measures it. Pure.

const KEPT = 120; // points of a trend: a minute of the event stream

export function loadOf({ metrics = {} }) {
  return {
    busy: metrics["busy-ratio"],
    backPressured: metrics["backpressured-ratio"],
    idle: metrics["idle-ratio"],
    busiest: metrics["busy-ratio-max"], // the busiest subtask
    read: metrics["read-records-per-second"],
    written: metrics["write-records-per-second"],
    watermark: metrics["current-watermark"] ?? null,
    lag: metrics["watermark-lag"] ?? null,
  };
}

// The loads of vertices by id, with the trend of the records per second; `before` is the result of the last time.
export function loads(vertices, before) {
  return new Map(
    vertices.map((vertex) => {
      const load = loadOf(vertex);
      const records = Math.max(load.read ?? 0, load.written ?? 0);
      return [vertex.id, { ...load, trend: [...(before.get(vertex.id)?.trend ?? []), records].slice(-KEPT) }];
    }),
  );
}
