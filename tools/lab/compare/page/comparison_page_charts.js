// Charts that several panels draw: lines with bands, and bars with names.

const seriesLegend = (list) => list.map(
    (precision) =>
        html('span', {}, html('i', {class: 'key', style: `background: ${colorOf(precision.index)}`}), precision.name));

const lineLegend = (list) => list.map((one) => {
  const line = svg(
      'line',
      {class: 'curve', x1: 1, x2: 29, y1: 5, y2: 5, stroke: colorOf(one.index), 'stroke-dasharray': dashOf(one.index)});
  return html(
      'span', {}, svg('svg', {class: 'line-key', width: 30, height: 10, 'aria-hidden': 'true'}, line), one.name);
});

// A line chart. series: {index, name, points: [{x, mean, low, high}]}; a point without a mean breaks the line.
// options: {title, xTitle, xText, xLog, text, log, least (that is not 0 to log), zero (is shown), room (above and
// below), dots, height}
function lineChart(series, options, width) {
  const title = html('h3', {}, options.title);
  const points = series.flatMap((one) => one.points.filter((point) => numberOf(point.mean) !== null));
  if (points.length === 0) return [title, absent('There is no number to draw.')];
  const height = options.height || 270;
  const [left, right, top, bottom] = [60, width - 12, 10, height - 40];
  const xs = points.map((point) => point.x);
  const count = (right - left) / 70;
  const x = options.xLog ? logScale(xs, left + 8, right - 8, count, plain) :
                           linearScale(Math.min(...xs), Math.max(...xs), left, right, count, options.xText || plain);
  const ends =
      points.flatMap((point) => [point.low, point.mean, point.high].filter((value) => numberOf(value) !== null));
  if (options.zero) ends.push(0);
  if (options.room) ends.push(Math.min(...ends) - options.room, Math.max(...ends) + options.room);
  const text = options.text || plain;
  const pad = 0.04 * (Math.max(...ends) - Math.min(...ends));
  const y = options.log ? logScale(ends, bottom, top, 6, text, options.least || 0) :
                          linearScale(Math.min(...ends) - pad, Math.max(...ends) + pad, bottom, top, 6, text);
  const chart = svg(
      'svg', {width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': options.title},
      ...horizontalGrid(y, left, right), ...leftLabels(y, left - 6), ...bottomLabels(x, bottom + 17, width),
      svg('text', {class: 'soft', x: at((left + right) / 2), y: height - 4, 'text-anchor': 'middle'}, options.xTitle));
  if (options.zero)
    chart.append(svg('line', {class: 'zero', x1: left, x2: right, y1: at(y.place(0)), y2: at(y.place(0))}));
  for (const one of series) {
    const banded = one.points.filter((point) => numberOf(point.low) !== null && numberOf(point.high) !== null);
    if (banded.length > 1 && banded.some((point) => point.high > point.low)) {
      const edge = (list, key) => list.map((point) => `${at(x.place(point.x))},${at(y.place(point[key]))}`).join('L');
      const d = `M${edge(banded, 'high')}L${edge([...banded].reverse(), 'low')}Z`;
      chart.append(svg('path', {class: 'band', d, fill: colorOf(one.index)}));
    }
  }
  for (const one of series) {
    const columns = one.points.map((point, index) => ({index, x: point.x}));
    const d = pathOf(one.points.map((point) => point.mean), columns, (column) => x.place(column.x), y);
    chart.append(
        svg('path', {class: 'curve mark', d, stroke: colorOf(one.index), 'stroke-dasharray': dashOf(one.index)},
            tooltip(one.name)));
    if (!options.dots) continue;
    for (const point of one.points.filter((candidate) => numberOf(candidate.mean) !== null)) {
      chart.append(
          svg('circle',
              {class: 'dot', cx: at(x.place(point.x)), cy: at(y.place(point.mean)), r: 3, fill: colorOf(one.index)},
              tooltip(`${one.name}: ${text(point.mean)} at ${plain(point.x)}`)));
    }
  }
  return [title, chart];
}

// Bars from 0. rows: {name, index, value, text, parts: [{value, color, name}], runs: [value]}; without a value the text
// says why. options: {title, most, xText, xTitle}
function barChart(rows, options, width) {
  const title = html('h3', {}, options.title);
  const kRow = 30;
  const names = Math.min(0.3 * width, longestName_px(rows.map((row) => row.name)) + 10);
  const texts = 6.6 * Math.max(0, ...rows.map((row) => row.text.length)) + 10;
  const [left, right] = [names, Math.max(names + 60, width - texts)];
  const values =
      rows.flatMap((row) => [row.value, ...listOf(row.runs)]).map(numberOf).filter((value) => value !== null);
  const least = Math.min(0, ...values);
  const most = numberOf(options.most) ?? Math.max(0, ...values);
  const height = rows.length * kRow + 36;
  const x =
      linearScale(least, most > least ? most : least + 1, left, right, (right - left) / 70, options.xText || plain);
  const chart = svg(
      'svg', {width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': options.title},
      ...verticalGrid(x, 2, rows.length * kRow + 2), ...bottomLabels(x, rows.length * kRow + 16, width),
      svg('text', {class: 'soft', x: at((left + right) / 2), y: height - 4, 'text-anchor': 'middle'}, options.xTitle));
  rows.forEach((row, index) => {
    const y = index * kRow + 7;
    const value = numberOf(row.value);
    chart.append(svg('text', {class: 'name', x: 0, y: y + 13}, shortened(row.name, names), tooltip(row.name)));
    if (value !== null) {
      let begin = 0;
      for (const part of row.parts || [{value, color: colorOf(row.index), name: row.name}]) {
        const [from, to] = [x.place(begin), x.place(begin + part.value)];
        begin += part.value;
        chart.append(svg(
            'rect',
            {class: 'mark', x: at(Math.min(from, to)), y, width: at(Math.abs(to - from)), height: 18, fill: part.color},
            tooltip(part.text || `${part.name}: ${row.text}`)));
      }
    }
    for (const run of listOf(row.runs).map(numberOf).filter((one) => one !== null))
      chart.append(svg('circle', {class: 'run', cx: at(x.place(run)), cy: y + 9, r: 3}));
    const ends =
        [value === null ? 0 : Math.max(0, value), ...listOf(row.runs).map(numberOf).filter((one) => one !== null)];
    chart.append(svg('text', {class: 'value', x: at(x.place(Math.max(...ends)) + 9), y: y + 13}, row.text));
  });
  if (least < 0)
    chart.append(
        svg('line', {class: 'zero', x1: at(x.place(0)), x2: at(x.place(0)), y1: 2, y2: rows.length * kRow + 2}));
  return [title, chart];
}
