// The comparison, brought into the shape that the panels draw. Everything may be absent or null.

const comparison = JSON.parse(document.getElementById('figures').textContent) || {};
const setting = comparison.setting || {};

// A precision has one colour on the whole page, and a format that of the precision which it is.
const kSeries = 8;
const kOwnColors = {
  fp32: 0,
  bf16: 1,
  fp16: 2,
  fp8: 3,
  delayed: 3,
  current: 3,
  e4m3: 3,
  mxfp8: 4,
  e5m2: 4,
  nvfp4: 5,
  fp4: 5,
  e2m1: 5,
  tf32: 6,
  block: 7,
};
const colorOf = (index) => `var(--series-${index})`;
const kDashes = [null, '7 4', '2 3', '10 3 2 3', '4 2', '12 4', '1 4', '6 2 1 2'];
const dashOf = (index) => kDashes[index];

// The numbers of their colours: of each name its own one if it is free, else another.
function colorsOf(names) {
  const taken = new Set();
  const take = (index) => {
    taken.add(index);
    return index;
  };
  const own = names.map((name) => {
    const index = Object.hasOwn(kOwnColors, name) ? kOwnColors[name] : null;
    return index === null || taken.has(index) ? null : take(index);
  });
  const free = () => [...Array(kSeries).keys()].find((index) => !taken.has(index));
  return own.map((index, place) => index ?? take(free() ?? place % kSeries));
}

// One that was refused has no runs.
const given = listOf(comparison.precisions).filter(Boolean);
const precisionColors = colorsOf(given.map((precision) => textOf(precision.name)));
const precisions = given.map((precision, place) => ({
                               ...precision,
                               index: precisionColors[place],
                               name: textOf(precision.name) || `no. ${place + 1}`,
                               summary: precision.summary || {},
                               runs: listOf(precision.runs).filter(Boolean),
                             }));
const baseline = precisions.find((precision) => precision.name === textOf(comparison.baseline)) || null;
const trained = precisions.filter((precision) => precision.runs.length > 0);
const others = trained.filter((precision) => precision !== baseline);

const stepsOf = (run) => run.steps || {};
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// Of the numbers among them; nothing if there is none.
function spread(values) {
  const numbers = values.map(numberOf).filter((value) => value !== null);
  if (numbers.length === 0) return null;
  return {mean: mean(numbers), low: Math.min(...numbers), high: Math.max(...numbers)};
}

const kMostPoints = 160;  // of a line: more could not be told apart

// The series of every run as points of a line, each the mean of `every` steps, with what seeds make of it.
function curveOf(runs) {
  const length = Math.max(0, ...runs.map((run) => run.length));
  const every = Math.max(1, Math.ceil(length / kMostPoints));
  const points = [];
  for (let first = 0; first < length; first += every) {
    const bins = runs.map((run) => spread(run.slice(first, first + every)));
    const over = spread(bins.map((bin) => bin && bin.mean));
    const last = Math.min(first + every, length);
    points.push({x: (first + 1 + last) / 2, ...(over || {mean: null})});
  }
  return {points, every};
}

// Candidate minus baseline, of runs with the same seed that both succeeded.
function pairedRuns(precision, series) {
  return precision.runs.flatMap((run) => {
    const twin = baseline && baseline.runs.find((other) => other.seed === run.seed);
    if (!twin || run.failure || twin.failure) return [];
    const [ours, theirs] = [listOf(stepsOf(run)[series]), listOf(stepsOf(twin)[series])];
    return [ours.slice(0, theirs.length).map((value, step) => {
      const [a, b] = [numberOf(value), numberOf(theirs[step])];
      return a === null || b === null ? null : a - b;
    })];
  });
}

const mebibytes = (bytes) => {
  if (numberOf(bytes) === null) return '–';
  return bytes >= 2 ** 30 ? `${figure(bytes / 2 ** 30, 3)} GiB` : `${figure(bytes / 2 ** 20, 3)} MiB`;
};
const milliseconds = (seconds) => (numberOf(seconds) === null ? '–' : `${figure(1e3 * seconds, 3)} ms`);
const signed = (value, digits) => `${value < 0 ? '−' : '+'}${Math.abs(value).toFixed(digits)}`;
// Loss scales are powers of two as a rule.
const scaleText = (scale) => {
  const exponent = Math.log2(scale);
  return numberOf(scale) === null ? '–' : scale >= 1024 && Number.isInteger(exponent) ? power(exponent) : plain(scale);
};
