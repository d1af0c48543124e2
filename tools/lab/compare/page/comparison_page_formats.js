// What the formats do by themselves: error and range, the gradients that they lose, and how fast they are multiplied.

const deviceFormats = comparison.device_formats || {};
const formats = listOf(deviceFormats.formats).filter(Boolean);
const gemm = listOf(deviceFormats.gemm).filter(Boolean);

const decades = (exponent) => '10' + [...String(exponent)].map((digit) => superscripts[digit] || digit).join('');

// With the colours of what they are called.
function colored(list, nameOf) {
  const names = list.map((item) => textOf(nameOf(item)));
  const colors = colorsOf(names);
  return list.map((item, place) => ({...item, name: names[place], index: colors[place]}));
}

const errorSeries = (list) =>
    list.map((format) => ({
               index: format.index,
               name: format.name,
               points: listOf(format.errors).map((row) => ({x: row.decade, mean: numberOf(row.mean)})),
             }));

// From the smallest number to the largest; paler where a number has fewer bits.
function rangeChart(list, width) {
  const title = html('h3', {}, 'Range (paler: with fewer bits)');
  const kRow = 30;
  const names = longestName_px(list.map((format) => format.name)) + 12;
  const [left, right] = [names, width - 8];
  const log = (value) => Math.log10(value);
  const x = linearScale(-48, 40, left, right, 8, decades);
  const height = list.length * kRow + 22;
  const chart =
      svg('svg', {width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': 'range of formats'},
          ...verticalGrid(x, 2, list.length * kRow), ...bottomLabels(x, height - 5, width));
  list.forEach((format, index) => {
    const {range, name} = format;
    const y = index * kRow + 6;
    const [least, normal, most] = [range.min_positive, range.min_normal, range.max].map((value) => x.place(log(value)));
    const what = `${name}: ${figure(range.min_positive)} … ${figure(range.max)}, epsilon ${figure(range.epsilon)}`;
    chart.append(
        svg('text', {class: 'name', x: 0, y: y + 13}, name), svg('rect', {
          class: 'faded',
          x: at(least),
          y,
          width: at(Math.max(0, normal - least)),
          height: 18,
          fill: colorOf(format.index)
        }),
        svg('rect', {
          class: 'mark',
          x: at(normal),
          y,
          width: at(Math.max(1, most - normal)),
          height: 18,
          fill: colorOf(format.index)
        },
            tooltip(what)));
  });
  return [title, chart];
}

function drawFormats(body, legend) {
  if (formats.length === 0) return body.append(absent('The formats were not tried on this device.'));
  const plainOnes = colored(formats.filter((format) => format.range), (format) => format.name);
  const scaled = colored(formats.filter((format) => !format.range), (format) => format.name);
  legend.append(...lineLegend(plainOnes));
  const options = (title) =>
      ({title, xTitle: 'magnitude of the value', xText: decades, log: true, text: share, least: 1e-9});
  const facets = [
    {draw: (width) => lineChart(errorSeries(plainOnes), options('Mean relative error'), width)},
    {draw: (width) => rangeChart(plainOnes, width)},
  ];
  if (scaled.length) {
    facets.push({
      draw: (width) =>
          [...lineChart(errorSeries(scaled), options('Mean relative error, with scales'), width),
           html('p', {class: 'legend'}, ...lineLegend(scaled))],
    });
  }
  facetGrid(body, facets, 380, (facet, width) => facet.draw(width));
}

function drawUnderflow(body) {
  const gradients = comparison.gradients || {};
  const list = listOf(gradients.formats).filter(Boolean);
  const how = document.querySelector('#underflow .how');
  how.replaceChildren(
      'To the left gradients vanish, to the right they overflow; a good loss scale lies in the valley between. ',
      numberOf(gradients.steps) === null ?
          '' :
          `These are the gradients of activations of the first ${count(gradients.steps)} steps in fp32 (${
              count(
                  gradients
                      .elements)} numbers), with one scale for all; recipes that scale each tensor or block by itself lose fewer.`);
  if (list.length === 0) return body.append(absent('The gradients of the model were not looked at.'));
  const draw = (format, width) => {
    const recommended = format.recommended;
    const curve = {...format, exponents: gradients.exponents};
    if (recommended)
      curve.recommended = {...recommended, percentile: gradients.percentile, headroom: gradients.headroom};
    const unscaled =
        recommended && recommended.exponent === 0 && recommended.underflow === 0 && recommended.overflow === 0;
    return lossScaleChart(textOf(format.format), curve, width, unscaled ? 'Nothing is lost without a scale.' : null);
  };
  facetGrid(body, list, 380, draw);
}

function drawGemm(body, legend) {
  if (gemm.length === 0) return body.append(absent('Products were not timed on this device.'));
  const timed = colored(gemm, (one) => one.dtype);
  const aligned = (one) => listOf(one.products).filter((product) => product && product.size % 64 === 0);
  const best = timed.map((one) => {
    const fastest = aligned(one).reduce((a, b) => (a && a.flops >= b.flops ? a : b), null);
    const peak = fastest && numberOf(fastest.share_of_peak) !== null ?
        `, ${Math.round(100 * fastest.share_of_peak)} % of the peak` :
        '';
    return {
      name: one.name,
      index: one.index,
      value: fastest ? fastest.flops * 1e-9 : null,
      text: fastest ? `${figure(fastest.flops * 1e-9, 3)} (${fastest.size}³${peak})` : '–',
    };
  });
  const series =
      timed.map((one) => ({
                  index: one.index,
                  name: one.name,
                  points: aligned(one).map((product) => ({x: product.size, mean: numberOf(product.flops * 1e-9)})),
                }));
  legend.append(...lineLegend(timed));
  facetGrid(
      body,
      [
        {draw: (width) => barChart(best, {title: 'Fastest product, GFLOP/s', xTitle: 'GFLOP/s'}, width)},
        {
          draw: (width) => lineChart(
              series,
              {title: 'By size, GFLOP/s', xTitle: 'rows, columns and depth', xLog: true, zero: true, dots: true}, width)
        },
      ],
      420, (facet, width) => facet.draw(width));
}
