// Panels on number formats, from the figures of `mantissa analyze formats`; other pages show them as well.

// From the smallest number of each format to its largest; paler where a number has fewer bits.
function rangeRow({name, color, range}) {
  const [least, normal, most] = [range.min_positive, range.min_normal, range.max].map(Math.log10);
  const tip = `${name}: ${figure(range.min_positive)} … ${figure(range.max)}, epsilon ${figure(range.epsilon)}`;
  const bar = (style, from, to) => ({kind: 'bar', style, from, to, fill: color, tip});
  return {name, marks: [bar('faded', least, normal), bar('mark', normal, most)]};
}
const decades = (exponent) => `10${raised(exponent)}`;
const rangeChart = (unscaled) => (width) => rowChart(
    'Range (paler: with fewer bits)', unscaled.map(rangeRow),
    {axis: (left, right) => linearScale(-48, 40, left, right, 8, decades), row_px: 30}, width);

// `found`: figures of the verb, perhaps none.
function formatErrorPanel(found) {
  const formats = styled(recordsOf(found.formats), (format) => format.name);
  const [unscaled, scaled] = [formats.filter((format) => format.range), formats.filter((format) => !format.range)];
  const options = {xTitle: 'magnitude of the value', xText: decades, log: true, text: share, least: 1e-9};
  const pointOf = (row) => ({x: row.decade, mean: row.mean});
  const errors = (title, list) => (width) => {
    const series = list.map((format) => ({...format, points: recordsOf(format.errors).map(pointOf)}));
    return [...lineChart(title, series, options)(width), html('p', {class: 'legend'}, lineLegend(list))];
  };
  const draw = (body) => {
    if (formats.length === 0) return 'The formats were not tried on this device.';
    const charts = [errors('Mean relative error', unscaled), rangeChart(unscaled)];
    if (scaled.length) charts.push(errors('Mean relative error, with scales', scaled));
    facetGrid(body, 380, charts);
  };
  return panel(
      'format-error', 'Formats', 'Error and range of the formats',
      'The cost of storing a value, tried with values of every size on this device: flat where a format has its full ' +
          'precision, rising to the left where it runs out of exponents.',
      draw);
}

function gemmPanel(found) {
  const timed = styled(recordsOf(found.gemm), (one) => one.dtype).map((one) => {
    const aligned = recordsOf(one.products).filter(({size}) => size % 64 === 0);
    return {...one, points: aligned.map((product) => ({...product, x: product.size, mean: 1e-9 * product.flops}))};
  });
  const fastest = ({name, points}) => {
    const best = points.reduce((a, b) => (a.mean >= b.mean ? a : b), {mean: null});
    const peak = numberOf(best.share_of_peak) === null ? '' : `, ${wholePercent(best.share_of_peak)} of the peak`;
    return {name, value: best.mean, text: best.mean === null ? '–' : `${figure(best.mean)} (${best.x}³${peak})`};
  };
  const options = {xTitle: 'rows, columns and depth', xLog: true, zero: true, dots: 'beside'};
  const draw = (body, legend) => {
    if (timed.length === 0) return 'Products were not timed on this device.';
    legend.append(...lineLegend(timed));
    facetGrid(body, 420, [
      barChart('Fastest product, GFLOP/s', timed.map(fastest)),
      lineChart('By size, GFLOP/s', timed, options),
    ]);
  };
  return panel(
      'gemm', 'GEMM', 'Throughput of matrix products by format',
      'Square products on this device, as linear layers make them. Formats that it cannot multiply are multiplied in one ' +
          'that it can.',
      draw);
}
