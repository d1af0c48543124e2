// The largest magnitude of each tensor by step.

// Told apart by colour and by dashes.
const kMovers =
    [['#0072b2', 'none'], ['#d55e00', '7 3'], ['#00785a', '2 3'], ['#8a3c74', '9 3 2 3'], ['#8a6500', '4 2']];
const strokeOf = ([color, dashes]) => `stroke:${color};stroke-width:2.25;stroke-dasharray:${dashes}`;

const seriesOf = (tensor) => shownCheckpoints().flatMap(
    (c) => (tensor.at[c.index] ? listOf(tensor.at[c.index].amax_by_step) : []).map(numberOf));

// The largest over the smallest of its positive values; 1 where it has fewer than two.
function movement(tensor) {
  const values = seriesOf(tensor).filter((value) => value > 0);
  return values.length ? Math.max(...values) / Math.min(...values) : 1;
}

function driftChart(role, width) {
  const drawn = tensors.filter(
      (tensor) =>
          tensor.role === role && matchesLayer(tensor.layer) && seriesOf(tensor).some((value) => value !== null));
  const valuesAt = (tensor, index) => (tensor.at[index] ? listOf(tensor.at[index].amax_by_step) : []);
  const {columns, total: room} =
      stepColumns((index) => Math.max(0, ...drawn.map((tensor) => valuesAt(tensor, index).length)));
  const [left, right, top, bottom, height] = [50, width - 12, 22, 200, 222];
  const x = (column) => left + 8 + ((column.place + 0.5) / room) * (right - left - 16);
  const values = drawn.flatMap(seriesOf).filter((value) => value !== null);
  const y = logScale(values, bottom, top, 6, plain);
  const movers = [...drawn]
                     .sort((a, b) => movement(b) - movement(a))
                     .filter((tensor) => movement(tensor) > 1)
                     .slice(0, kMovers.length);
  const chart =
      svg('svg', {width, height, viewBox: `0 0 ${width} ${height}`}, ...horizontalGrid(y, left, right),
          ...leftLabels(y, left - 6),
          ...bottomLabels({ticks: columns.map((column) => ({at: x(column), text: column.step}))}, height - 6, width));
  for (const tensor of [...drawn.filter((one) => !movers.includes(one)), ...[...movers].reverse()]) {
    const style = movers.includes(tensor) ? strokeOf(kMovers[movers.indexOf(tensor)]) : null;
    for (const checkpoint of shownCheckpoints()) {
      const path = pathOf(valuesAt(tensor, checkpoint.index), columns.filter((c) => c.checkpoint === checkpoint), x, y);
      if (!path) continue;
      chart.append(svg('path', {class: 'mark line', d: path, style}, tooltip(`${tensor.layer}, ${checkpoint.name}`)));
    }
  }
  for (const checkpoint of shownCheckpoints()) {
    const own = columns.filter((column) => column.checkpoint === checkpoint);
    if (own.length === 0) continue;
    const name = shortened(checkpoint.name, 0.4 * width);
    chart.append(svg('text', {class: 'soft strong', x: at(x(own[0])), y: 13}, name, tooltip(checkpoint.name)));
  }
  const names = movers.map(
      (tensor, i) => html(
          'li', {title: tensor.layer},
          svg('svg', {width: 26, height: 8}, svg('path', {d: 'M0,4H26', style: strokeOf(kMovers[i])})),
          `× ${figure(movement(tensor), 2)}  ${shortened(tensor.layer, width - 100)}`));
  return [html('h3', {}, `${role} (${count(drawn.length)})`), chart, html('ul', {class: 'movers'}, ...names)];
}

function drawDrift(body) {
  const known = (record) => record && listOf(record.amax_by_step).some((value) => numberOf(value) !== null);
  const moving = tensors.filter((tensor) => tensor.at.some(known));
  if (moving.length === 0)
    return body.append(
        absent('No amax was recorded by step: the analysis saw no step, or no tensor with a number in it.'));
  const left = moving.filter(
      (tensor) => matchesLayer(tensor.layer) && matchesRole(tensor.role) && shownRecords(tensor).some(known));
  const shown = roles.filter((role) => left.some((tensor) => tensor.role === role));
  if (shown.length === 0) return body.append(nothingMatches('tensor'));
  facetGrid(body, shown, 340, driftChart);
}
