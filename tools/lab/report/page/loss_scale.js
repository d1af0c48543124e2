// What becomes of gradients at each loss scale, and the scale that is recommended.

const kLeastShareOfCurve = 1e-9;  // one element of a thousand million: less is none to a curve
const kShareAlwaysShown = 1e-4;   // so that a chart without losses has an axis

// curve: exponents, underflow, overflow, recommended {exponent, percentile, headroom, underflow, overflow}. `reason`,
// if given, stands in place of the sentence about the recommended scale.
function lossScaleChart(name, curve, width, reason) {
  const title = html('h3', {}, name);
  const exponents = curve ? listOf(curve.exponents) : [];
  if (exponents.length === 0) return [title, absent('No curve was made here.')];
  const [left, right, top, bottom, height] = [62, width - 14, 24, 230, 254];
  const recommended = curve.recommended || {};
  const chosen = numberOf(recommended.exponent);
  const places = exponents.map(numberOf).filter((value) => value !== null);
  const ends = chosen === null ? places : [...places, chosen];
  const x = linearScale(Math.min(...ends), Math.max(...ends), left + 10, right - 6, (right - left) / 55, power);
  const lines =
      [['underflow', listOf(curve.underflow).map(numberOf)], ['overflow', listOf(curve.overflow).map(numberOf)]];
  const y = logScale(
      [1, kShareAlwaysShown, ...lines.flatMap(([, values]) => values.filter((value) => value !== null))], bottom, top,
      7, share, kLeastShareOfCurve);
  const chart =
      svg('svg', {width, height, viewBox: `0 0 ${width} ${height}`}, ...horizontalGrid(y, left, right),
          ...leftLabels(y, left - 6), ...bottomLabels(x, height - 6, width));
  for (const [kind, values] of lines) {
    const columns =
        exponents.map((exponent, index) => ({index, exponent})).filter((column) => numberOf(column.exponent) !== null);
    chart.append(
        svg('path', {class: `line-${kind}`, d: pathOf(values, columns, (column) => x.place(column.exponent), y)}));
    for (const {index, exponent} of columns.filter((column) => numberOf(values[column.index]) !== null)) {
      chart.append(
          svg('circle', {class: `mark dot-${kind}`, cx: at(x.place(exponent)), cy: at(y.place(values[index])), r: 3},
              tooltip(`${kind} at ${power(exponent)}: ${share(values[index])}`)));
    }
  }
  if (chosen === null) return [title, chart, note('No scale is recommended here.')];
  const place = at(x.place(chosen));
  const middle = at(Math.min(Math.max(place, 70), width - 70));
  chart.append(
      svg('line', {class: 'line-recommended', x1: place, x2: place, y1: top - 8, y2: bottom}),
      svg('text', {class: 'strong', x: middle, y: 12, 'text-anchor': 'middle'}, `recommended: ${power(chosen)}`));
  if (reason) return [title, chart, note(reason)];
  return [
    title, chart,
    note(
        `Recommended: ${power(chosen)} = ${chosen < 0 ? figure(2 ** chosen) : count(2 ** chosen)}, which keeps ${
            figure(recommended.percentile, 4)} % ` +
        `of the gradients a factor of ${figure(recommended.headroom, 2)} below the largest number; with it ${
            share(recommended.underflow)} underflow ` +
        `and ${share(recommended.overflow)} overflow.`)
  ];
}
