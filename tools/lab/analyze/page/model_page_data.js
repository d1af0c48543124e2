// The analysis, brought into the shape that the panels draw: a list of tensors, products and parameters in the order of
// the model, each with its record at every checkpoint (null where there is none). Everything may be absent or null.

const analysis = JSON.parse(document.getElementById('analysis').textContent) || {};
const setting = analysis.setting || {};
const formats = listOf(analysis.formats).filter((format) => format && numberOf(format.max) !== null);
const checkpoints =
    listOf(analysis.checkpoints).filter(Boolean).map((checkpoint, index) => ({
                                                       ...checkpoint,
                                                       index,
                                                       name: textOf(checkpoint.name) || `checkpoint ${index + 1}`,
                                                       steps: listOf(checkpoint.steps),
                                                     }));

// The records of a list of every checkpoint, matched by what `identify` says of them; of equal ones the first goes with
// the first.
function matched(list, identify) {
  const items = new Map();
  for (const checkpoint of checkpoints) {
    const seen = new Map();
    for (const record of listOf(checkpoint[list]).filter(Boolean)) {
      const identity = identify(record);
      const name = JSON.stringify(Object.values(identity));
      const occurrence = seen.get(name) || 0;
      seen.set(name, occurrence + 1);
      const key = `${name} ${occurrence}`;
      if (!items.has(key)) items.set(key, {key, ...identity, at: checkpoints.map(() => null)});
      items.get(key).at[checkpoint.index] = record;
    }
  }
  return [...items.values()];
}

const tensors = matched('tensors', (t) => ({role: textOf(t.role) || 'no role', layer: textOf(t.layer) || 'no name'}));
const products = matched('products', (p) => ({product: textOf(p.product), layer: textOf(p.layer) || 'no name'}));
const wireParameters = matched('wire', (w) => ({layer: textOf(w.parameter) || 'no name'}));

const kRoleOrder = ['activation', 'weight', 'gradient', 'parameter gradient', 'update', 'wire'];
const kProductOrder = ['fprop', 'dgrad', 'wgrad'];

const roles = inOrder(tensors.map((tensor) => tensor.role), kRoleOrder);
const productKinds = inOrder(products.map((product) => product.product), kProductOrder);
const layerNames = [...new Set([...tensors, ...products].map((item) => item.layer))];

// The format of an element of "delayed:e4m3", "e4m3 block", "mxfp8", "nvfp4": null for one whose limits are not given.
function elementFormat(name) {
  const given = textOf(name);
  const words = given.split(/[^a-z0-9]+/i);
  const inRecipe = {mxfp8: 'e4m3', nvfp4: 'e2m1'};
  const exact =
      formats.find((format) => format.name === given) || formats.find((format) => words.includes(format.name));
  return exact || formats.find((format) => words.some((word) => inRecipe[word] === format.name)) || null;
}
