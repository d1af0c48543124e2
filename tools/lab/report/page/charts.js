// Scales and charts. A scale has place(value), in pixels, and ticks; it may have labels of its own, {at, text, room},
// above the chart.

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

const line = (kind, x1, x2, y1, y2, attributes) =>
    svg('line', {class: kind, x1: at(x1), x2: at(x2), y1: at(y1), y2: at(y2), ...attributes});
const words = (kind, x, y, anchor, ...content) =>
    svg('text', {class: kind, x: at(x), y: at(y), 'text-anchor': anchor}, ...content);

// Labels of a horizontal scale. They keep within the chart, and one that would touch the one before is left out.
function bottomLabels(scale, y, right) {
  let free = -Infinity;
  return scale.ticks.flatMap((tick) => {
    const half = 3.4 * tick.text.length;
    const x = Math.min(Math.max(tick.at, half), right - half);
    if (x - half < free) return [];
    free = x + half + 6;
    return [words('soft', x, y, 'middle', tick.text)];
  });
}
const topLabels = (scale, y) =>
    (scale.labels ||
     []).map(({at: x, text, room}) => words('soft strong', x, y, 'start', shortened(text, room), tooltip(text)));

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

// Series have an index, which gives them a colour and dashes.
const colorOf = (index) => `var(--series-${index})`;
const dashOf = (index) => [null, '7 4', '2 3', '10 3 2 3', '4 2', '12 4', '1 4', '6 2 1 2'][index];
const strokeOf = (index) => (index === null ? {} : {stroke: colorOf(index), 'stroke-dasharray': dashOf(index)});

const seriesLegend = (list) =>
    list.map((one) => word(html('i', {class: 'key', style: `background: ${colorOf(one.index)}`}), one.name));
const lineSample = (index) =>
    svg('svg', {class: 'line-key', width: 30, height: 10, 'aria-hidden': 'true'},
        line('curve', 1, 29, 5, 5, strokeOf(index)));
const lineLegend = (list) => list.map((one) => word(lineSample(one.index), one.name));

// A path through points, broken where one has no mean; a single one is a dot.
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

// series: {name, index or null for grey, points: [{x, mean, low, high, tip}]}. options: xTitle, xText, xLog, or `axis`
// of (left, right) for the horizontal scale; text, log, least (see logScale), ends (values to include), zero (is
// shown), room (above and below) for the vertical one; dots, which stand for their lines as marks if 'marks';
// upright {x, text} for a vertical line.
function lineChart(title, series, options, width) {
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
  const pad = 0.04 * (most - least);
  const y = options.log ? logScale(ends, bottom, top, 6, text, options.least || 0) :
                          linearScale(least - pad, most + pad, bottom, top, 6, text);
  const marks = [];
  if (options.zero) marks.push(line('zero', left, right, y.place(0), y.place(0)));
  for (const one of series) {
    const banded = one.points.filter((point) => numberOf(point.low) !== null && numberOf(point.high) !== null);
    if (banded.length < 2 || banded.every((point) => point.high <= point.low)) continue;
    const edge = (list, key) => list.map((point) => `${at(x.place(point.x))},${at(y.place(point[key]))}`).join('L');
    const d = `M${edge(banded, 'high')}L${edge([...banded].reverse(), 'low')}Z`;
    marks.push(svg('path', {class: 'band', d, fill: colorOf(one.index)}));
  }
  const dotsAreMarks = options.dots === 'marks';
  for (const one of series) {
    const kind = `curve${dotsAreMarks ? '' : ' mark'}${one.index === null ? ' quiet' : ''}`;
    marks.push(svg('path', {class: kind, d: pathOf(one.points, x, y), ...strokeOf(one.index)}, tooltip(one.name)));
    for (const point of options.dots ? one.points.filter(({mean}) => numberOf(mean) !== null) : []) {
      const place = {cx: at(x.place(point.x)), cy: at(y.place(point.mean)), r: 3, fill: colorOf(one.index)};
      const tip = tooltip(`${one.name}: ${text(point.mean)} at ${xText(point.x)}`);
      marks.push(svg('circle', {class: dotsAreMarks ? 'mark' : null, ...place}, tip));
    }
  }
  if (upright) {
    const place = x.place(upright.x);
    marks.push(
        line('upright', place, place, top - 8, bottom),
        words('strong', Math.min(Math.max(place, 70), width - 70), 12, 'middle', upright.text));
  }
  return chart(title, width, {x, y, left, right, bottom, height, xTitle: options.xTitle}, marks);
}

// A mark in a row from `top`: {kind, from, to, fill, style, tip, lane: [i, n]}. Bars share a row in lanes; cells fill
// it; dots and lines lie in its middle.
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
  const left = Math.ceil(Math.min(0.42 * width, namesWidth_px(rows.map((row) => row.name)) + 4)) + 6;
  const texts_px = 6.6 * Math.max(0, ...[column, ...rows.map((row) => row.text)].map((text) => (text || '').length));
  const right = Math.max(left + 60, width - 14 - texts_px);
  const scale = axis(left, right);
  const head_px = scale.labels ? 34 : 20;
  const height = rows.length * row_px + 4;
  const top = (index) => index * row_px + 2;
  const named = (name, index) =>
      words('name', left - 8, top(index) + row_px / 2 + 4, 'end', shortened(name, left - 8), tooltip(name));
  return [
    html(
        'div', {class: 'facet-head'}, html('h3', {}, title),
        svg('svg', {width, height: head_px}, bottomLabels(scale, head_px - 5, right + 8), topLabels(scale, 14),
            column && words('soft', width - 4, head_px - 5, 'end', column))),
    svg('svg', {width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title},
        rows.map((_, i) => (i % 2 ? svg('rect', {class: 'stripe', x: 0, y: top(i), width, height: row_px}) : null)),
        scale.ticks.map((tick) => line('grid', tick.at, tick.at, 0, height)),
        rows.map((row, i) => row.marks.map((mark) => rowMark(mark, scale, top(i), row_px))),
        rows.map((row, i) => [named(row.name, i), words('value', width - 4, top(i) + row_px / 2 + 4, 'end', row.text)]),
        zero && line('zero', scale.place(0), scale.place(0), 0, height)),
  ];
}

// Bars from 0 with their text. rows: {name, index, value, text, parts: [{value, fill, tip}], runs: [value]}; without a
// value the text says why. options: most, text (of the axis).
function barChart(title, rows, options, width) {
  const values = numbersOf(rows.flatMap((row) => [row.value, ...listOf(row.runs)]));
  const [least, most] = [Math.min(0, ...values), options.most ?? Math.max(0, ...values)];
  const axis = (left, right) =>
      linearScale(least, most > least ? most : least + 1, left, right, (right - left) / 70, options.text || plain);
  const marksOf = ({name, index, value, text, parts, runs}) => {
    let end = 0;
    const bars = numberOf(value) === null ? [] : parts || [{value, fill: colorOf(index), tip: `${name}: ${text}`}];
    return [
      ...bars.map((part) => ({kind: 'bar', style: 'mark', from: end, to: (end += part.value), least_px: 0, ...part})),
      ...numbersOf(runs).map((run) => ({kind: 'dot', style: 'run', from: run, radius: 3})),
    ];
  };
  return rowChart(
      title, rows.map((row) => ({...row, marks: marksOf(row)})), {axis, row_px: 30, zero: least < 0}, width);
}

// Underflow and overflow of gradients at each loss scale. curve: {exponents, underflow, overflow,
// recommended: {exponent, percentile, headroom, underflow, overflow}}.
function lossScaleChart(name, curve, width) {
  const exponents = listOf(curve && curve.exponents);
  if (exponents.length === 0) return [html('h3', {}, name), absent('No curve was made here.')];
  const recommended = curve.recommended || {};
  const chosen = numberOf(recommended.exponent);
  const series = [['underflow', 1], ['overflow', 2]].map(([kind, index]) => {
    const points = exponents.map((exponent, i) => ({x: exponent, mean: listOf(curve[kind])[i]}));
    return {name: kind, index, points: points.filter((point) => numberOf(point.x) !== null)};
  });
  const options = {xText: power, text: share, log: true, least: 1e-9, ends: [1e-4, 1], dots: 'marks'};
  if (chosen !== null) options.upright = {x: chosen, text: `recommended: ${power(chosen)}`};
  const drawn = lineChart(name, series, options, width);
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
  word(lineSample(1), 'underflow: becomes 0'),
  word(lineSample(2), 'overflow: beyond the largest number'),
  'dotted: recommended scale',
  'horizontal: loss scale (power of two); vertical: share of gradients, logarithmic',
];
