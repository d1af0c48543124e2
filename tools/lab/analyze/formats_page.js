// The page of `mantissa analyze formats`; analyze_verbs.h describes its figures.

const unscaled = styled(recordsOf(figures.formats).filter((format) => format.range), (format) => format.name);

function drawRanges(body) {
  if (unscaled.length === 0) return 'The formats were not tried on this device.';
  const of = (key, text = figure) => ({range}) => text(numberOf(range[key]), 4);
  body.append(figureTable(unscaled, {
    'Format': ({name}) => keyed(name, colorOf(name)),
    'Largest': of('max'),
    'Min normal': of('min_normal'),
    'Smallest': of('min_positive'),
    'Epsilon': of('epsilon'),
    'Range, dB': of('dynamic_range_db', withDefault(Math.round)),
    'Overflow from': of('overflow_from'),
    '0 up to': of('underflow_at'),
    'Rounded by': ({rounded_by: by}) => word(textOf(by)),
  }));
  for (const {name, difference} of unscaled.filter((format) => format.difference))
    body.append(note(`${name} differs from the format’s definition: ${difference}`));
}

function drawUnderflow(body, legend) {
  const lossy = unscaled.filter((format) => recordsOf(format.underflow).some((row) => row.underflow > 0));
  if (lossy.length === 0) return 'No format loses a gradient of these sizes.';
  const style = (i) => ({color: 'var(--ink)', dash: kDashes[i]});
  legend.append(...lineLegend(
      [{name: 'without a loss scale', ...style(0)}, {name: 'with that of its largest gradient', ...style(1)}]));
  const chartOf = ({name, color, underflow}) => (width) => {
    const series = ['underflow', 'scaled_underflow'].map(
        (key, i) => ({
          name: `${name}, ${i === 0 ? 'without a scale' : 'with a scale'}`,
          color,
          dash: kDashes[i],
          points: recordsOf(underflow).map((row) => ({x: row.decade, mean: row[key]})),
        }));
    return lineChart(
        name, series, {xTitle: 'standard deviation', xText: decades, text: share, zero: true, ends: [1]})(width);
  };
  facetGrid(body, 380, lossy.map(chartOf));
}

startPage('number formats', {device: textOf(figures.device), samples: count(numberOf(figures.samples))}, [
  panel(
      'ranges', 'Ranges', 'Ranges',
      'The largest and the smallest numbers of each format, found by trying values on this device.', drawRanges),
  formatErrorPanel(figures),
  panel(
      'underflow', 'Lost gradients', 'Lost gradients by size',
      'The share of normally distributed gradients that become 0, by their standard deviation.', drawUnderflow),
  gemmPanel(figures),
]);
