// Scales: from a value to a place in a chart, and where its ticks are.

// Ticks at round numbers, about `wanted` of them.
function roundTicks(least, most, wanted) {
  const rough = (most - least) / Math.max(1, wanted);
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * unit >= rough) * unit;
  const ticks = [];
  for (let i = Math.ceil(least / step); i * step <= most + 1e-9 * step; ++i)
    ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}

function linearScale(least, most, from, to, wanted, text) {
  if (!(most > least)) most = least + 1;
  const place = (value) => from + ((value - least) / (most - least)) * (to - from);
  return {place, ticks: roundTicks(least, most, wanted).map((value) => ({at: place(value), text: text(value)}))};
}

// Powers of ten where there are many, 1, 2 and 5 of each where there are few, and round numbers where there is none of
// those.
function logTicks(low, high, wanted) {
  if (high - low > 2.5) {
    const step = Math.ceil((high - low) / Math.max(2, wanted));
    return roundTicks(low, high, (high - low) / step).filter(Number.isInteger).map((exponent) => 10 ** exponent);
  }
  const ticks = [];
  for (let decade = Math.floor(low); decade <= high; ++decade)
    ticks.push(...[1, 2, 5].map((factor) => Number(`${factor}e${decade}`)));
  const inside = ticks.filter((tick) => Math.log10(tick) >= low && Math.log10(tick) <= high);
  return inside.length >= 2 ? inside : roundTicks(10 ** low, 10 ** high, wanted);
}

// Logarithmic. What is not above `least` is 0 to this scale and has a place of its own before the smallest.
function logScale(values, from, to, wanted, text, least = 0) {
  const logarithms = values.filter((value) => value > least).map(Math.log10);
  const hasZero = values.some((value) => value <= least);
  let [low, high] = logarithms.length ? [Math.min(...logarithms), Math.max(...logarithms)] : [-1, 0];
  const spare = high - low > 2.5 ? 0 : Math.max(0.02, 0.04 * (high - low));
  if (spare === 0) [low, high] = [Math.floor(low + 1e-9), Math.ceil(high - 1e-9)];
  [low, high] = [low - spare, high + spare];
  const start = from + (hasZero ? Math.sign(to - from) * Math.min(28, 0.12 * Math.abs(to - from)) : 0);
  const place = (value) => (value > least ? start + ((Math.log10(value) - low) / (high - low)) * (to - start) : from);
  const ticks = logTicks(low, high, wanted).map((value) => ({at: place(value), text: text(value)}));
  return {place, ticks: hasZero ? [{at: from, text: least > 0 ? '≈ 0' : text(0)}, ...ticks] : ticks};
}

// Lines across a chart at a horizontal scale's ticks, and a vertical one's.
const verticalGrid = (scale, y1, y2) =>
    scale.ticks.map((tick) => svg('line', {class: 'grid', x1: at(tick.at), x2: at(tick.at), y1, y2}));
const horizontalGrid = (scale, x1, x2) =>
    scale.ticks.map((tick) => svg('line', {class: 'grid', x1, x2, y1: at(tick.at), y2: at(tick.at)}));

// Their labels. Those at the ends keep within the chart, and one that would touch the one before it is left out.
function bottomLabels(scale, y, right) {
  let free = -Infinity;
  return scale.ticks.flatMap((tick) => {
    const half = 3.4 * tick.text.length;
    const x = Math.min(Math.max(tick.at, half), right - half);
    if (x - half < free) return [];
    free = x + half + 6;
    return [svg('text', {class: 'soft', x: at(x), y, 'text-anchor': 'middle'}, tick.text)];
  });
}
const leftLabels = (scale, x) =>
    scale.ticks.map((tick) => svg('text', {class: 'soft', x, y: at(tick.at + 4), 'text-anchor': 'end'}, tick.text));

// A line through values, those of `columns` by their index, broken where there is none; one alone is a dot. `x` places
// a column, the scale `y` a value.
function pathOf(values, columns, x, y) {
  let path = '';
  let open = false;
  columns.forEach((column) => {
    const value = numberOf(values[column.index]);
    if (value === null) {
      open = false;
      return;
    }
    const point = `${at(x(column))},${at(y.place(value))}`;
    path += open ? `L${point}` : `M${point}h0`;
    open = true;
  });
  return path;
}
