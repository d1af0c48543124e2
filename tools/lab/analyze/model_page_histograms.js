// The histograms of exponents of `mantissa analyze model`'s page.

function showHistogram(key) {
  changer('histograms', histogram)({key});
  document.getElementById('histograms').scrollIntoView();
}

// The element format of "delayed:e4m3" or "bf16"; nothing if its limits are not given.
const elementFormat = (name) => formats.find((format) => textOf(name).split(':').includes(format.name));

// The exponents with a count, [first, last + 1); null if there is none.
function spanOf(record) {
  const {first_exponent: first, counts} = (record && record.histogram) || {};
  const used = listOf(counts).flatMap((n, i) => (n > 0 ? [first + i] : []));
  return numberOf(first) === null || used.length === 0 ? null : [used[0], used[used.length - 1] + 1];
}

// The begins of a format's ranges, in exponents of unscaled values, or null. Half of the smallest number becomes 0.
const kRanges = ['lost', 'subnormal', 'normal', 'beyond'];
function edgesOf(format, scaleExponent) {
  const {min_subnormal: subnormal, min_normal: normal, max} = format || {};
  if (numberOf(normal) === null) return null;
  const limits = [(numberOf(subnormal) || normal) / 2, normal, max];
  return [-Infinity, ...limits.map((value) => Math.log2(value) - scaleExponent), Infinity];
}

function histogramBars({histogram: {first_exponent: first, counts}, elements}, edges, x, y, bottom) {
  const all = numberOf(elements) || numbersOf(counts).reduce((sum, n) => sum + n, 0);
  return counts.map((n, i) => {
    if (!(n > 0)) return null;
    const exponent = first + i;
    const [left, right, top] = [x.place(exponent), x.place(exponent + 1), Math.min(bottom - 1, y.place(n / all))];
    const area = {x: at(left + 0.5), y: at(top), width: at(Math.max(1, right - left - 1)), height: at(bottom - top)};
    const range = edges ? kRanges[edges.findLastIndex((edge) => exponent + 0.5 >= edge)] : 'normal';
    const tip = `${power(exponent)} to ${power(exponent + 1)}: ${count(n)} elements, ${share(n / all)}`;
    return svg('rect', {class: `mark ${range}`, ...area}, tooltip(tip));
  });
}

// A strip for each format, of its ranges at the scale in use.
const formatBands = (own, scaleExponent, x, [low, high], top) => formats.map((format, index) => {
  const edges = edgesOf(format, scaleExponent);
  const y = top + index * 20;
  const places = listOf(edges).map((edge) => x.place(Math.min(high, Math.max(low, edge))));
  const strip = kRanges.map((range, i) => {
    const width = places[i + 1] - places[i];
    return width > 0 ? svg('rect', {class: `band ${range}`, x: at(places[i]), y, width: at(width), height: 13}) : null;
  });
  const [kind, name] = format === own ? ['strong', `▸ ${format.name}`] : [null, textOf(format.name)];
  return edges && [strip, words(kind, x.place(low) - 8, y + 11, 'end', name)];
});

function histogramChart(tensor, checkpoint, width) {
  const record = tensor.at(checkpoint);
  const title = html('h3', {}, checkpoint.name);
  if (!record) return [title, absent('This tensor was not recorded at this checkpoint.')];
  const own = elementFormat(record.format);
  const scaleExponent = numberOf(record.scale_exponent) || 0;
  const hasScale = numberOf(record.scale_exponent) !== null;
  const scale = hasScale ? `scale 2^${Number(scaleExponent.toFixed(2))}` : 'no scale of its own (bands: scale 1)';
  const facts = note(
      `${textOf(record.format) || 'format unknown'}, ${scale}; amax ${figure(record.amax)}; `,
      `${count(record.elements)} elements, ${count(record.zeros)} of them 0, ${count(record.non_finite)} not finite; `,
      `underflow ${share(record.underflow)}, subnormal ${share(record.subnormal)}, `,
      `saturated ${share(record.saturated)}`);
  if (!record.histogram) return [title, absent('No histogram was recorded for this tensor.'), facts];
  if (!spanOf(record)) return [title, absent('The histogram holds no count: every element is 0 or not finite.'), facts];
  // All exponents that occur, and the own format's limits unless they are far away.
  const spans = recordsOf(tensor.all.map(spanOf));
  const edges = edgesOf(own, scaleExponent);
  let [low, high] = [smallest(spans.map(([first]) => first)) - 2, largest(spans.map(([, end]) => end)) + 2];
  for (const edge of edges ? edges.slice(1, 4) : []) {
    if (edge > low - 24) low = Math.min(low, Math.floor(edge) - 1);
    if (edge < high + 24) high = Math.max(high, Math.ceil(edge) + 1);
  }
  const [left, right, top, bottom] = [58, width - 10, 10, 210];
  const x = linearScale(low, high, left, right, (right - left) / 45, String);
  const most = largest(listOf(record.histogram.counts).map((n) => (n || 0) / (record.elements || 1)));
  const y = histogram.log ? logScale([1e-6, 1], bottom, top, 6, share) : linearScale(0, most, bottom, top, 5, share);
  const height = bottom + 30 + 20 * formats.length;
  const marks = [
    histogramBars(record, edges, x, y, bottom),
    line('axis', left, right, bottom, bottom),
    formatBands(own, scaleExponent, x, [low, high], bottom + 26),
  ];
  return [chart(checkpoint.name, width, {x, y, left, right, bottom, height}, marks), facts];
}

function drawHistograms(body) {
  if (tensors.length === 0) return 'There is no histogram: the analysis recorded no tensor.';
  const listed = tensors.filter(isChosen);
  if (listed.length === 0) return nothingMatches('tensor');
  const tensor =
      listed.find((one) => one.key === histogram.key) || listed.find((one) => one.all.some(spanOf)) || listed[0];
  const change = changer('histograms', histogram);
  const names = listed.map((one) => [one.key, `${one.role}: ${one.layer}`]);
  const kinds = [['log', 'logarithmic'], ['linear', 'linear']];
  body.append(html(
      'div', {class: 'controls'},
      choice('Tensor ', names, tensor.key, (key) => change({key}), {id: 'histogram-tensor'}),
      choice('Shares ', kinds, histogram.log ? 'log' : 'linear', (kind) => change({log: kind === 'log'}))));
  if (formats.length === 0) body.append(note('The limits of no format are given: there are no bands.'));
  facetGrid(body, 420, shownCheckpoints().map((checkpoint) => (width) => histogramChart(tensor, checkpoint, width)));
}
