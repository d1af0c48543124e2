// The exponent histogram of one tensor at every checkpoint, over what each format can hold at the scale in use.

const histogramState = {
  key: null,
  log: true
};
const kLeastShare = 1e-6;  // where the logarithmic axis begins

function showHistogram(key) {
  histogramState.key = key;
  drawPanel('histograms');
  document.getElementById('histograms').scrollIntoView();
}

// [first, last + 1) of the exponents with a count; null if there is none.
function spanOf(histogram) {
  const first = numberOf(histogram && histogram.first_exponent);
  const counts = histogram ? listOf(histogram.counts) : [];
  const used = counts.map((n, index) => (n > 0 ? index : -1)).filter((index) => index >= 0);
  return first === null || used.length === 0 ? null : [first + used[0], first + used[used.length - 1] + 1];
}

// Where a format's ranges begin and end, in exponents of unscaled values. Half of the smallest number becomes 0.
function edges(format, scaleExponent) {
  const place = (value) => Math.log2(value) - scaleExponent;
  const smallestNumber = numberOf(format.min_subnormal) || numberOf(format.min_normal);
  if (smallestNumber === null || numberOf(format.min_normal) === null) return null;
  return {lost: place(smallestNumber / 2), normal: place(format.min_normal), beyond: place(format.max)};
}
function rangeOf(exponent, limits) {
  if (!limits) return 'normal';
  if (exponent < limits.lost) return 'lost';
  if (exponent < limits.normal) return 'subnormal';
  return exponent < limits.beyond ? 'normal' : 'beyond';
}

// The exponents that are drawn: all that occur, and the own format's limits where they are not far away.
function exponentsShown(spans, limits) {
  let [low, high] = [Math.min(...spans.map((span) => span[0])) - 2, Math.max(...spans.map((span) => span[1])) + 2];
  for (const limit of limits ? [limits.lost, limits.normal, limits.beyond] : []) {
    if (limit > low - 24) low = Math.min(low, Math.floor(limit) - 1);
    if (limit < high + 24) high = Math.max(high, Math.ceil(limit) + 1);
  }
  return [low, high];
}

function bars(record, limits, x, y, bottom) {
  const counts = listOf(record.histogram.counts);
  const all = numberOf(record.elements) || counts.reduce((sum, n) => sum + (numberOf(n) || 0), 0);
  return counts.flatMap((n, index) => {
    if (!(n > 0)) return [];
    const exponent = record.histogram.first_exponent + index;
    const range = rangeOf(exponent + 0.5, limits);
    const [left, right, top] = [x.place(exponent), x.place(exponent + 1), Math.min(bottom - 1, y.place(n / all))];
    const area = {x: at(left + 0.5), y: at(top), width: at(Math.max(1, right - left - 1)), height: at(bottom - top)};
    return [svg(
        'rect', {class: `mark ${range}`, ...area},
        tooltip(`${power(exponent)} to ${power(exponent + 1)}: ${count(n)} elements, ${share(n / all)}`))];
  });
}

// A strip for each format: 0, subnormal, normal, beyond.
function bands(own, scaleExponent, x, [low, high], top) {
  return formats.flatMap((format, index) => {
    const limits = edges(format, scaleExponent);
    if (!limits) return [];
    const y = top + index * 20;
    const stops =
        [low, limits.lost, limits.normal, limits.beyond, high].map((value) => Math.min(high, Math.max(low, value)));
    const places = stops.map(x.place);
    const strip = ['lost', 'subnormal', 'normal', 'beyond'].flatMap(
        (range, i) => (stops[i + 1] <= stops[i] ? [] : [
          svg('rect', {class: `band ${range}`, x: at(places[i]), y, width: at(places[i + 1] - places[i]), height: 13})
        ]));
    const isOwn = format === own;
    const name =
        svg('text', {class: isOwn ? 'strong' : null, x: x.place(low) - 8, y: y + 11, 'text-anchor': 'end'},
            `${isOwn ? '▸ ' : ''}${textOf(format.name)}`);
    return [...strip, name];
  });
}

function histogramChart(tensor, checkpoint, spans, width) {
  const record = tensor.at[checkpoint.index];
  const title = html('h3', {}, checkpoint.name);
  if (!record) return [title, absent('This tensor was not recorded at this checkpoint.')];
  const own = elementFormat(record.format);
  const scaleExponent = numberOf(record.scale_exponent) || 0;
  const limits = own && edges(own, scaleExponent);
  const facts = note(
      `${textOf(record.format) || 'format unknown'}, ` +
      `${
          numberOf(record.scale_exponent) === null ? 'no scale of its own (bands: scale 1)' :
                                                     `scale 2^${Number(scaleExponent.toFixed(2))}`}; ` +
      `amax ${figure(record.amax)}; ${count(record.elements)} elements, ${count(record.zeros)} of them 0, ${
          count(record.non_finite)} not finite; ` +
      `underflow ${share(record.underflow)}, subnormal ${share(record.subnormal)}, saturated ${
          share(record.saturated)}`);
  if (!spanOf(record.histogram)) {
    const why = record.histogram ? 'The histogram holds no count: every element is 0 or not finite.' :
                                   'No histogram was recorded for this tensor.';
    return [title, absent(why), facts];
  }
  const [low, high] = exponentsShown(spans, limits);
  const [left, right, top, bottom] = [58, width - 10, 10, 210];
  const x = linearScale(low, high, left, right, (right - left) / 45, String);
  const y = histogramState.log ?
      logScale([kLeastShare, 1], bottom, top, 6, share) :
      linearScale(
          0, largest(listOf(record.histogram.counts).map((n) => (n || 0) / (record.elements || 1))), bottom, top, 5,
          share);
  const height = bottom + 24 + 20 * formats.length + 4;
  const chart =
      svg('svg', {width, height, viewBox: `0 0 ${width} ${height}`}, ...horizontalGrid(y, left, right),
          ...leftLabels(y, left - 6), ...bars(record, limits, x, y, bottom),
          svg('line', {class: 'axis', x1: left, x2: right, y1: bottom, y2: bottom}),
          ...bottomLabels(x, bottom + 15, right), ...bands(own, scaleExponent, x, [low, high], bottom + 24));
  return [title, chart, facts];
}

function drawHistograms(body) {
  if (tensors.length === 0) return body.append(absent('There is no histogram: the analysis recorded no tensor.'));
  const listed = tensors.filter((tensor) => matchesLayer(tensor.layer) && matchesRole(tensor.role));
  if (listed.length === 0) return body.append(nothingMatches('tensor'));
  const drawable = (tensor) => tensor.at.some((record) => record && spanOf(record.histogram));
  const tensor = listed.find((one) => one.key === histogramState.key) || listed.find(drawable) || listed[0];
  const redraw = () => drawPanel('histograms');
  body.append(html(
      'div', {class: 'controls'},
      label(
          'Tensor ',
          choice(
              listed.map((one) => [one.key, `${one.role}: ${one.layer}`]), tensor.key,
              (key) => {
                histogramState.key = key;
                redraw();
              },
              {id: 'histogram-tensor', class: 'tensor-choice'})),
      label(
          'Shares ',
          choice([['log', 'logarithmic'], ['linear', 'linear']], histogramState.log ? 'log' : 'linear', (kind) => {
            histogramState.log = kind === 'log';
            redraw();
          }))));
  if (formats.length === 0) body.append(note('The limits of no format are given: there are no bands.'));
  const spans = tensor.at.map((record) => record && spanOf(record.histogram)).filter(Boolean);
  facetGrid(body, shownCheckpoints(), 420, (checkpoint, width) => histogramChart(tensor, checkpoint, spans, width));
}
