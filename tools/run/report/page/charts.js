// Scales and charts. A scale has place(value), in pixels, and ticks; perhaps labels above the chart, {at, text, room}.

const at = (value) => Math.round(value * 10) / 10;  // tenths of a pixel are enough

// About `wanted` ticks at round numbers.
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

// Powers of ten; over few of them also 2 and 5 times each, or else round numbers.
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

// Logarithmic. Values up to `least` count as 0, which has its own place before the smallest.
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

const line = (kind, x1, x2, y1, y2, attributes, ...content) =>
    svg('line', {class: kind, x1: at(x1), x2: at(x2), y1: at(y1), y2: at(y2), ...attributes}, ...content);
const words = (kind, x, y, anchor, ...content) =>
    svg('text', {class: kind, x: at(x), y: at(y), 'text-anchor': anchor}, ...content);

// The width of a text in a chart. `kind`: "name", "soft", "strong" or, for the others, "".
const ruler = document.createElement('canvas').getContext('2d');
const fonts = new Map();
function width_px(text, kind = '') {
  if (!fonts.has(kind)) {
    const sample = document.body.appendChild(svg('svg', {width: 0, height: 0}, svg('text', {class: kind})));
    const {fontWeight, fontSize, fontFamily} = getComputedStyle(sample.firstChild);
    fonts.set(kind, `${fontWeight} ${fontSize} ${fontFamily}`);
    sample.remove();
  }
  ruler.font = fonts.get(kind);
  return ruler.measureText(text).width;
}
const widest_px = (texts, kind) => Math.max(0, ...texts.map((text) => width_px(textOf(text), kind)));

// Long names differ at both ends, so the middle is cut.
function shortened(text, room_px, kind = 'name') {
  const letters = [...text];
  const cutTo = (kept) =>
      letters.slice(0, kept >> 1).join('') + '…' + letters.slice(letters.length - kept + (kept >> 1)).join('');
  let [short, kept] = [text, letters.length];
  while (width_px(short, kind) > room_px && kept > 3) short = cutTo(--kept);
  return short;
}

// Labels of a horizontal scale. They keep within the chart, and a label that would touch the label before is left out.
function bottomLabels(scale, y, right) {
  let free = -Infinity;
  return scale.ticks.flatMap((tick) => {
    const half = width_px(tick.text, 'soft') / 2;
    const x = Math.min(Math.max(tick.at, half), right - half);
    if (x - half < free) return [];
    free = x + half + 6;
    return [words('soft', x, y, 'middle', tick.text)];
  });
}
function topLabels(scale, y) {
  const label = ({at: x, text, room}) =>
      words('soft strong', x, y, 'start', shortened(text, room, 'soft strong'), tooltip(text));
  return listOf(scale.labels).map(label);
}

// A chart with both axes; `title` is also its name for screen readers.
function chart(title, width, {x, y, left, right, bottom, height, xTitle}, ...marks) {
  return [
    html('h3', {}, title),
    svg('svg', {width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title},
        y.ticks.map(
            (tick) =>
                [line('grid', left, right, tick.at, tick.at), words('soft', left - 6, tick.at + 4, 'end', tick.text)]),
        bottomLabels(x, bottom + 17, width), topLabels(x, 13),
        xTitle && words('soft', (left + right) / 2, height - 4, 'middle', xTitle), marks),
  ];
}

// A format has one colour on every page, also within a name: "mxfp8:attention_high", "e4m3 current". Others share one.
const kFormats = ['fp64', 'fp32', 'tf32', 'bf16', 'fp16', 'e4m3', 'e5m2', 'e2m1'];
const kRecipes = ['delayed', 'current', 'block', 'mxfp8', 'nvfp4'];
function colorOf(name) {
  const formats = textOf(name).split(/[ :]/).map((word) => ({fp8: 'delayed', fp4: 'nvfp4'}[word] || word));
  return `var(--${formats.find((word) => [...kFormats, ...kRecipes].includes(word)) || 'other'})`;
}
// The i-th of n things that are no formats.
const shadeOf = (i, n) =>
    `color-mix(in srgb, var(--ink) ${Math.round(90 - (72 * i) / Math.max(1, n - 1))}%, var(--paper))`;

// Adds the name, colour and dashes to each of the items that a chart shows as lines.
const kDashes = [null, '7 4', '2 3', '10 3 2 3', '4 2', '12 4', '1 4', '6 2 1 2'];
const styled = (list, nameOf) => list.map((item, i) => {
  const name = textOf(nameOf(item)) || `no. ${i + 1}`;
  return {...item, name, color: colorOf(name), dash: kDashes[i % kDashes.length]};
});
const strokeOf = ({color, dash}) => ({stroke: color, 'stroke-dasharray': dash});

const keyed = (name, color) => word(html('i', {class: 'key', style: `background: ${color}`}), name);
const nameCell = ({name, format = name}) => keyed(name, colorOf(format));
const lineSample = (style) =>
    svg('svg', {class: 'line-key', width: 30, height: 10, 'aria-hidden': 'true'},
        line('curve', 1, 29, 5, 5, strokeOf(style)));
const lineLegend = (list) => list.map((one) => word(lineSample(one), one.name));

// A path through points, broken where a point has no mean; a single point is a dot.
function pathOf(points, x, y) {
  let path = '', open = false;
  for (const point of points) {
    const isKnown = numberOf(point.mean) !== null;
    const place = isKnown && `${at(x.place(point.x))},${at(y.place(point.mean))}`;
    if (isKnown) path += open ? `L${place}` : `M${place}h0`;
    open = isKnown;
  }
  return path;
}

// series: {name, color (grey without one), dash, points: [{x, mean, low, high}]}. options: xTitle, xText, xLog, or
// `axis` of (left, right) for the horizontal scale; text, log, least (see logScale), ends (values to include), zero (is
// shown), room (above and below) for the vertical one; dots: 'beside' or, as the marks, 'on' lines, or 'alone'; upright
// {x, text} for a vertical line; rug: [{x, color, tip}] for short lines at the bottom; edges (of bands, for spikes).
const lineChart = (title, series, options) => (width) => {
  const points = series.flatMap((one) => one.points.filter((point) => numberOf(point.mean) !== null));
  if (points.length === 0) return [html('h3', {}, title), absent('There is no number to draw.')];
  const [left, right, top, height] = [60, width - 12, options.axis || options.upright ? 24 : 10, options.height || 270];
  const bottom = height - (options.xTitle ? 40 : 24);
  const {text = plain, xText = plain, upright} = options;
  const xs = [...points.map((point) => point.x), ...(upright ? [upright.x] : [])];
  const wanted = (right - left) / 70;
  const x = options.axis ? options.axis(left + 8, right - 8) :
      options.xLog       ? logScale(xs, left + 8, right - 8, wanted, xText) :
                           linearScale(Math.min(...xs), Math.max(...xs), left + 8, right - 8, wanted, xText);
  const ends = numbersOf([...points.flatMap(({low, mean, high}) => [low, mean, high]), ...listOf(options.ends)]);
  if (options.zero) ends.push(0);
  if (options.room) ends.push(Math.min(...ends) - options.room, Math.max(...ends) + options.room);
  const [least, most] = [Math.min(...ends), Math.max(...ends)];
  const pad = most > least ? 0.04 * (most - least) : 0.1 * Math.abs(most);  // a flat line lies in the middle
  const y = options.log ? logScale(ends, bottom, top, 6, text, options.least || 0) :
                          linearScale(least - pad, most + pad, bottom, top, 6, text);
  const marks = [];
  if (options.zero) marks.push(line('zero', left, right, y.place(0), y.place(0)));
  for (const one of series) {
    const banded = one.points.filter((point) => numberOf(point.low) !== null && numberOf(point.high) !== null);
    if (banded.length < 2 || banded.every((point) => point.high <= point.low)) continue;
    const edge = (list, key) => list.map((point) => `${at(x.place(point.x))},${at(y.place(point[key]))}`).join('L');
    const d = `M${edge(banded, 'high')}L${edge([...banded].reverse(), 'low')}Z`;
    marks.push(svg('path', {class: 'band', d, fill: one.color, stroke: options.edges ? one.color : null}));
  }
  const dotsAreMarks = ['on', 'alone'].includes(options.dots);
  for (const one of series) {
    const kind = `curve${dotsAreMarks ? '' : ' mark'}${one.color ? '' : ' quiet'}`;
    if (options.dots !== 'alone')
      marks.push(svg('path', {class: kind, d: pathOf(one.points, x, y), ...strokeOf(one)}, tooltip(one.name)));
    for (const point of options.dots ? one.points.filter(({mean}) => numberOf(mean) !== null) : []) {
      const place = {cx: at(x.place(point.x)), cy: at(y.place(point.mean)), r: 3, fill: one.color};
      const tip = tooltip(`${one.name}: ${text(point.mean)} at ${xText(point.x)}`);
      marks.push(svg('circle', {class: dotsAreMarks ? 'mark' : null, ...place}, tip));
    }
  }
  for (const {x: value, color, tip} of listOf(options.rug).filter((one) => one.x !== null))
    marks.push(line('rug', x.place(value), x.place(value), bottom, bottom - 9, {stroke: color}, tooltip(tip)));
  if (upright) {
    const place = x.place(upright.x), half = width_px(upright.text, 'strong') / 2 + 1;
    marks.push(
        line('upright', place, place, top - 8, bottom),
        words('strong', Math.min(Math.max(place, half), width - half), 12, 'middle', upright.text));
  }
  return chart(title, width, {x, y, left, right, bottom, height, xTitle: options.xTitle}, marks);
};

// A mark in a row from `top`: {kind, from, to, fill, style, tip, lane: [i, n]}. Bars share it in lanes; cells fill it.
function rowMark(mark, scale, top, row_px) {
  const [from, to] = [scale.place(mark.from), scale.place(mark.to ?? mark.from)];
  const middle = top + row_px / 2;
  const tip = mark.tip ? tooltip(mark.tip) : null;
  if (mark.kind === 'line') return line(mark.style, from, to, middle, middle, {stroke: mark.fill});
  if (mark.kind === 'dot')
    return svg('circle', {class: mark.style, cx: at(from), cy: middle, r: mark.radius || 4, fill: mark.fill}, tip);
  const [lane, lanes] = mark.lane || [0, 1];
  const inner = mark.kind === 'cell' ? row_px - 2 : 0.62 * row_px;
  const height = inner / lanes - (lanes > 1 ? 1.5 : 0);
  const width = Math.max(mark.least_px ?? 0.5, Math.abs(to - from) - (mark.kind === 'cell' ? 1 : 0));
  const y = middle - inner / 2 + (lane * inner) / lanes;
  return svg(
      'rect',
      {class: mark.style, x: at(Math.min(from, to)), y: at(y), width: at(width), height: at(height), fill: mark.fill},
      tip);
}

// Named rows of marks on an axis that stays visible while they scroll. rows: {name, marks, text}; the texts are at the
// right. options: axis of (left, right), row_px, zero (is shown), column (the heading of the texts).
function rowChart(title, rows, {axis, row_px = 18, zero, column}, width) {
  const left = Math.ceil(Math.min(0.42 * width, widest_px(rows.map((row) => row.name), 'name'))) + 14;
  const least_px = 60, gap_px = 12;  // of the axis; between its end and the texts, for half of a dot
  const texts_px = Math.min(
      width - left - least_px - gap_px,
      Math.max(widest_px(rows.map((row) => row.text), 'value'), widest_px([column], 'soft')));
  const right = width - texts_px - gap_px;
  const scale = axis(left, right);
  const head_px = scale.labels ? 34 : 20;
  const height = rows.length * row_px + 4;
  const top = (index) => index * row_px + 2;
  const named = (name, index) =>
      words('name', left - 12, top(index) + row_px / 2 + 4, 'end', shortened(name, left - 12), tooltip(name));
  const textAt = (text, index) => text &&
      words('value', width - 1, top(index) + row_px / 2 + 4, 'end', shortened(text, texts_px, 'value'), tooltip(text));
  return [
    html(
        'div', {class: 'facet-head'}, html('h3', {}, title),
        svg('svg', {width, height: head_px}, bottomLabels(scale, head_px - 5, right + 8), topLabels(scale, 14),
            column && words('soft', width - 1, head_px - 5, 'end', column))),
    svg('svg', {width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title},
        rows.map((_, i) => (i % 2 ? svg('rect', {class: 'stripe', x: 0, y: top(i), width, height: row_px}) : null)),
        scale.ticks.map((tick) => line('grid', tick.at, tick.at, 0, height)),
        rows.map((row, i) => row.marks.map((mark) => rowMark(mark, scale, top(i), row_px))),
        rows.map((row, i) => [named(row.name, i), textAt(row.text, i)]),
        zero && line('zero', scale.place(0), scale.place(0), 0, height)),
  ];
}

// Bars from 0 with their text. rows: {name, value, text, parts: [{value, fill, tip}], runs: [value]}; without a
// value the text says why. options: most, text (of the axis).
const barChart = (title, rows, options = {}) => (width) => {
  const values = numbersOf(rows.flatMap((row) => [row.value, ...listOf(row.runs)]));
  const [least, most] = [Math.min(0, ...values), options.most ?? Math.max(0, ...values)];
  const axis = (left, right) =>
      linearScale(least, most > least ? most : least + 1, left, right, (right - left) / 70, options.text || plain);
  const marksOf = ({name, value, text, parts, runs}) => {
    let end = 0;
    const bars = numberOf(value) === null ? [] : parts || [{value, fill: colorOf(name), tip: `${name}: ${text}`}];
    return [
      ...bars.map((part) => ({
                    kind: 'bar',
                    style: parts ? 'mark part' : 'mark',
                    from: end,
                    to: (end += part.value),
                    least_px: 0,
                    ...part
                  })),
      ...numbersOf(runs).map((run) => ({kind: 'dot', style: 'run', from: run, radius: 3})),
    ];
  };
  return rowChart(
      title, rows.map((row) => ({...row, marks: marksOf(row)})), {axis, row_px: 30, zero: least < 0}, width);
};

// Memory by category, in the order of their shades.
const kMemory = ['packed', 'weights', 'gradients', 'moments', 'activations', 'buffers', 'masters'];
const memoryLegend = () => kMemory.map((key, i) => keyed(key, shadeOf(i, kMemory.length)));
// rows: {name, memory: {category: bytes}}.
const memoryChart = (title, rows) => {
  const barsOf = ({name, memory}) => {
    const parts = kMemory.map((key, i) => {
      const bytes = numberOf((memory || {})[key]) ?? 0;
      return {value: bytes / 2 ** 20, fill: shadeOf(i, kMemory.length), tip: `${name}, ${key}: ${mebibytes(bytes)}`};
    });
    const total = parts.reduce((sum, part) => sum + part.value, 0);
    return {name, value: total > 0 ? total : null, text: total > 0 ? mebibytes(total * 2 ** 20) : '–', parts};
  };
  return barChart(title, rows.map(barsOf));
};

// Underflow and overflow of gradients in a format at each loss scale. curve: {exponents, underflow, overflow,
// recommended: {exponent, percentile, headroom, underflow, overflow}}.
function lossScaleChart(name, format, curve, width) {
  const exponents = listOf(curve && curve.exponents);
  if (exponents.length === 0) return [html('h3', {}, name), absent('No curve was made here.')];
  const recommended = curve.recommended || {};
  const chosen = numberOf(recommended.exponent);
  const series = ['underflow', 'overflow'].map((kind, i) => {
    const points = exponents.map((exponent, i) => ({x: exponent, mean: listOf(curve[kind])[i]}));
    return {
      name: `${format}, ${kind}`,
      color: colorOf(format),
      dash: kDashes[i],
      points: points.filter((point) => numberOf(point.x) !== null)
    };
  });
  const options = {xText: power, text: share, log: true, least: 1e-9, ends: [1e-4, 1], dots: 'on'};
  if (chosen !== null) options.upright = {x: chosen, text: `recommended: ${power(chosen)}`};
  const drawn = lineChart(name, series, options)(width);
  if (chosen === null)
    return [...drawn, note(`Recommended: none${curve.why_none ? `, since ${textOf(curve.why_none)}` : ''}.`)];
  if (chosen === 0 && recommended.underflow === 0 && recommended.overflow === 0)
    return [...drawn, note('Nothing is lost without a scale.')];
  return [
    ...drawn,
    note(
        `Recommended: ${power(chosen)} = ${chosen < 0 ? figure(2 ** chosen) : count(2 ** chosen)}, which keeps ` +
        `${figure(recommended.percentile, 4)} % of the gradients a factor of ${
            figure(recommended.headroom, 2)} below the ` +
        `largest number; with it ${share(recommended.underflow)} underflow and ${
            share(recommended.overflow)} overflow.`),
  ];
}
const kLossScaleLegend = [
  word(lineSample({color: 'var(--ink)', dash: kDashes[0]}), 'underflow: becomes 0'),
  word(lineSample({color: 'var(--ink)', dash: kDashes[1]}), 'overflow: beyond the largest number'),
  'dotted: recommended scale',
  'horizontal: loss scale (power of two); vertical: share of gradients, logarithmic',
];
