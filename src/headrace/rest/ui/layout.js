// Where the vertices of a job graph are drawn: layers by longest path, crossings reduced by barycentres, then each
// layer is pulled towards its neighbours. Pure: `along` runs with the data, `across` within a layer, in any unit.

const SWEEPS = 8;

// nodes: [{id}], edges: [{from, to}]; size: {along, across, gapAlong, gapAcross} of a node.
// Returns {along, across, at: Map id -> {along, across}, lines: [{from, to, points}]}: centres of nodes, and of what
// edges run through.
export function layout(nodes, edges, size) {
  const known = new Set(nodes.map((node) => node.id));
  const used = edges.filter((edge) => known.has(edge.from) && known.has(edge.to) && edge.from !== edge.to);
  const depth = depths(nodes, used);
  const layers = [];
  const put = (cell) => {
    layers[cell.layer] ??= [];
    layers[cell.layer].push(cell);
  };
  const cells = new Map();
  for (const node of nodes) {
    const cell = { id: node.id, layer: depth.get(node.id), before: [], after: [] };
    cells.set(node.id, cell);
    put(cell);
  }
  const routes = used.map((edge) => route(cells.get(edge.from), cells.get(edge.to), put));
  order(layers);
  place(layers, size);
  const centre = (cell) => ({
    along: (cell.layer + 0.5) * size.along + cell.layer * size.gapAlong,
    across: cell.position,
  });
  const all = layers.flat();
  const first = Math.min(...all.map((cell) => cell.position - half(cell, size)));
  for (const cell of all) cell.position -= first;
  return {
    along: layers.length * (size.along + size.gapAlong) - size.gapAlong,
    across: Math.max(...all.map((cell) => cell.position + half(cell, size))),
    at: new Map([...cells].map(([id, cell]) => [id, centre(cell)])),
    lines: used.map((edge, i) => ({ ...edge, points: routes[i].map(centre) })),
  };
}

function depths(nodes, edges) {
  const inputs = new Map(nodes.map((node) => [node.id, []]));
  for (const edge of edges) inputs.get(edge.to).push(edge.from);
  const depth = new Map();
  const visit = (id, path) => {
    if (depth.has(id)) return depth.get(id);
    if (path.has(id)) return 0; // no job has a cycle; a document that has one is drawn somehow
    path.add(id);
    const deepest = Math.max(-1, ...inputs.get(id).map((from) => visit(from, path)));
    path.delete(id);
    depth.set(id, deepest + 1);
    return deepest + 1;
  };
  for (const node of nodes) visit(node.id, new Set());
  // A source is drawn just before its first reader, as it runs.
  const outputs = new Map(nodes.map((node) => [node.id, []]));
  for (const edge of edges) outputs.get(edge.from).push(edge.to);
  for (const node of nodes) {
    if (inputs.get(node.id).length === 0 && outputs.get(node.id).length > 0) {
      depth.set(node.id, Math.min(...outputs.get(node.id).map((id) => depth.get(id))) - 1);
    }
  }
  return depth;
}

// The cells that an edge runs through; one that skips layers gets a place in each of them.
function route(from, to, put) {
  const cells = [from];
  for (let layer = from.layer + 1; layer < to.layer; layer += 1) {
    const cell = { id: null, layer, before: [], after: [] };
    put(cell);
    cells.push(cell);
  }
  cells.push(to);
  for (let i = 1; i < cells.length; i += 1) {
    cells[i - 1].after.push(cells[i]);
    cells[i].before.push(cells[i - 1]);
  }
  return cells;
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

function order(layers) {
  const number = (layer) => {
    for (const [i, cell] of layer.entries()) cell.index = i;
  };
  layers.forEach(number);
  const sweep = (layer, side) => {
    const weight = new Map(
      layer.map((cell) => [cell, cell[side].length ? mean(cell[side].map((one) => one.index)) : cell.index]),
    );
    layer.sort((a, b) => weight.get(a) - weight.get(b) || a.index - b.index);
    number(layer);
  };
  for (let i = 0; i < SWEEPS; i += 1) {
    for (const layer of layers) sweep(layer, "before");
    for (const layer of layers.toReversed()) sweep(layer, "after");
  }
}

// An edge that passes through needs less room than a vertex.
const half = (cell, size) => (cell.id === null ? Math.min(size.across / 5, 12) : size.across / 2);

function place(layers, size) {
  const apart = (a, b) => half(a, size) + half(b, size) + size.gapAcross;
  for (const layer of layers) {
    let position = 0;
    layer.forEach((cell, i) => {
      if (i > 0) position += apart(layer[i - 1], cell);
      cell.position = position;
    });
    for (const cell of layer) cell.position -= position / 2;
  }
  const pull = (layer, sides) => {
    const target = layer.map((cell) => {
      const near = sides.flatMap((side) => cell[side]);
      return near.length ? mean(near.map((one) => one.position)) : cell.position;
    });
    // Forwards keeps the distance to the one before, backwards to the one behind; the mean of both keeps it too.
    const forwards = [...target];
    for (let i = 1; i < layer.length; i += 1)
      forwards[i] = Math.max(forwards[i], forwards[i - 1] + apart(layer[i - 1], layer[i]));
    const backwards = [...target];
    for (let i = layer.length - 2; i >= 0; i -= 1)
      backwards[i] = Math.min(backwards[i], backwards[i + 1] - apart(layer[i], layer[i + 1]));
    for (const [i, cell] of layer.entries()) cell.position = (forwards[i] + backwards[i]) / 2;
  };
  for (let i = 0; i < SWEEPS; i += 1) {
    for (const layer of layers) pull(layer, ["before"]);
    for (const layer of layers.toReversed()) pull(layer, ["after"]);
  }
  for (const layer of layers) pull(layer, ["before", "after"]);
}
