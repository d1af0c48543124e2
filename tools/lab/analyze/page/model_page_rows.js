// Charts with one row for each layer: bars or dots on a common axis, and cells by step. Their axis stays in sight while
// the rows scroll.

const kRow_px = 18;

// The rows that the filters leave, in the order asked for. `badness` of an item: larger is worse; null comes last.
function shownRows(items, badness) {
  const rows = items.filter((item) => matchesLayer(item.layer) && shownRecords(item).some((record) => record !== null));
  if (filters.order !== 'worst') return rows;
  const known = new Map(rows.map((item) => [item, badness(item)]));
  const rank = (item) => (known.get(item) === null ? -Infinity : known.get(item));
  return rows.sort((a, b) => rank(b) - rank(a) || 0);
}

function rowFrame(rows, width, draw) {
  const names = rows.map((row) => row.layer);
  const left = Math.ceil(Math.min(0.42 * width, longestName_px(names) + 4)) + 6;
  const height = rows.length * kRow_px + 4;
  const body = svg('svg', {width, height, viewBox: `0 0 ${width} ${height}`});
  rows.forEach((row, index) => {
    if (index % 2) body.append(svg('rect', {class: 'stripe', x: 0, y: index * kRow_px + 2, width, height: kRow_px}));
  });
  draw(body, left, height);
  rows.forEach((row, index) => {
    const y = index * kRow_px + 2 + 13;
    body.append(
        svg('text', {class: 'name', x: left - 8, y, 'text-anchor': 'end'}, shortened(row.layer, left - 8),
            tooltip(row.layer)));
  });
  return {left, body};
}

const headOf = (title, drawing) => html('div', {class: 'facet-head'}, html('h3', {}, title), drawing);

// facet: {title, kind: "bar" | "dot", log, least, most, text(value), value(record, item), describe(record)}. A mark for
// each record. Two bars share a row; of dots the difference is a line.
function rowMarks(facet, rows, width) {
  const values =
      rows.flatMap((row) => shownRecords(row).map((record) => (record ? numberOf(facet.value(record, row)) : null)));
  const known = values.filter((value) => value !== null);
  const right = width - 14;
  let scale;
  const frame = rowFrame(rows, width, (body, left, height) => {
    const wanted = Math.max(2, Math.floor((right - left) / 60));
    scale = facet.log ?
        logScale(known, left + 6, right, wanted, facet.text) :
        linearScale(Math.min(facet.least, ...known), Math.max(facet.most, ...known), left, right, wanted, facet.text);
    body.append(...verticalGrid(scale, 0, height));
    rows.forEach((row, index) => body.append(...marksOfRow(facet, row, index, scale, left)));
  });
  const head = svg('svg', {width, height: 20}, ...bottomLabels(scale, 14, width));
  return [headOf(facet.title, head), frame.body];
}

function marksOfRow(facet, row, index, scale, left) {
  const middle = index * kRow_px + 2 + kRow_px / 2;
  const shown = shownCheckpoints().flatMap((checkpoint) => {
    const record = row.at[checkpoint.index];
    const value = record ? numberOf(facet.value(record, row)) : null;
    return value === null ? [] : [{checkpoint, record, value}];
  });
  const marks = [];
  if (facet.kind === 'dot' && shown.length > 1) {
    const places = shown.map((one) => scale.place(one.value));
    marks.push(
        svg('line', {class: 'axis', x1: at(Math.min(...places)), x2: at(Math.max(...places)), y1: middle, y2: middle}));
  }
  const thickness = shownCheckpoints().length > 1 ? 6 : 11;
  for (const {checkpoint, record, value} of shown) {
    const kind = `mark ${checkpointMark(checkpoint.index)}`;
    const tip = tooltip(`${row.layer}, ${checkpoint.name}: ${facet.describe(record)}`);
    const x = scale.place(value);
    if (facet.kind === 'dot') {
      marks.push(svg('circle', {class: kind, cx: at(x), cy: middle, r: 4}, tip));
      continue;
    }
    const place = shownCheckpoints().indexOf(checkpoint);
    const y = shownCheckpoints().length > 1 ? middle - 7 + place * 7.5 : middle - thickness / 2;
    marks.push(
        svg('rect', {
          class: kind,
          'stroke-width': 1,
          x: at(left),
          y: at(y),
          width: at(Math.max(0.5, x - left)),
          height: thickness - 1
        },
            tip));
  }
  return marks;
}

// A scale of colours from dark blue over grey to yellow, whose lightness grows evenly: it reads without colour as well.
const kRamp =
    [[0, 32, 77], [45, 66, 112], [96, 98, 110], [133, 127, 119], [175, 160, 112], [220, 196, 91], [255, 234, 70]];
function rampColor(part) {
  const place = Math.min(1, Math.max(0, part)) * (kRamp.length - 1);
  const low = Math.min(kRamp.length - 2, Math.floor(place));
  const mixed = kRamp[low].map((from, i) => Math.round(from + (place - low) * (kRamp[low + 1][i] - from)));
  return `rgb(${mixed.join(',')})`;
}
const rampImage = () => `linear-gradient(90deg, ${kRamp.map((_, i) => rampColor(i / (kRamp.length - 1))).join(',')})`;

// Columns of a chart by step: those of every checkpoint that is shown, with a gap between checkpoints.
function stepColumns(lengthAt) {
  const columns = [];
  let place = 0;
  for (const checkpoint of shownCheckpoints()) {
    const length = Math.max(checkpoint.steps.length, lengthAt(checkpoint.index));
    if (length === 0) continue;
    if (columns.length) place += 0.6;
    for (let index = 0; index < length; ++index) {
      const step = numberOf(checkpoint.steps[index]);
      columns.push({checkpoint, index, place: place++, step: step === null ? `#${index + 1}` : String(step)});
    }
  }
  return {columns, total: Math.max(1, place)};
}

// facet: {title, least, most, series(record), text(value), unit}. A cell for each value, and the median of a row to its
// right.
function rowCells(facet, rows, width) {
  const values = (record) => (record ? listOf(facet.series(record)) : []);
  const {columns, total} = stepColumns((index) => Math.max(0, ...rows.map((row) => values(row.at[index]).length)));
  const right = width - 46;
  const frame = rowFrame(rows, width, (body, left) => {
    const cell = (right - left) / total;
    rows.forEach((row, index) => {
      const y = index * kRow_px + 3;
      for (const column of columns) {
        const value = numberOf(values(row.at[column.checkpoint.index])[column.index]);
        const place = {x: at(left + column.place * cell), y, width: at(Math.max(1, cell - 1)), height: kRow_px - 2};
        const color = value === null ? 'url(#unknown)' : rampColor((value - facet.least) / (facet.most - facet.least));
        const what = value === null ? 'no figure' : `${facet.text(value)} ${facet.unit}`;
        body.append(
            svg('rect', {class: value === null ? 'unknown' : 'mark', ...place, fill: color},
                tooltip(`${row.layer}, ${column.checkpoint.name}, step ${column.step}: ${what}`)));
      }
      const middle = facet.text(median(shownRecords(row).flatMap(values)));
      body.append(svg('text', {x: width - 4, y: y + 13, 'text-anchor': 'end'}, middle));
    });
  });
  const cell = (right - frame.left) / total;
  const ticks = columns.map((column) => ({at: frame.left + (column.place + 0.5) * cell, text: column.step}));
  const head =
      svg('svg', {width, height: 34}, ...bottomLabels({ticks}, 30, right + 4),
          svg('text', {class: 'soft', x: width - 4, y: 30, 'text-anchor': 'end'}, 'median'));
  for (const checkpoint of shownCheckpoints()) {
    const own = columns.filter((column) => column.checkpoint === checkpoint);
    if (own.length === 0) continue;
    head.append(
        svg('text', {class: 'soft strong', x: at(frame.left + own[0].place * cell), y: 14},
            shortened(checkpoint.name, own.length * cell), tooltip(checkpoint.name)));
  }
  return [headOf(facet.title, head), frame.body];
}

// The pattern of cells without a figure; once a page.
function unknownPattern() {
  const pattern = svg(
      'pattern', {id: 'unknown', width: 5, height: 5, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)'},
      svg('rect', {width: 5, height: 5, fill: '#fff'}), svg('rect', {width: 1, height: 5, fill: '#c4c9cf'}));
  return svg('svg', {width: 0, height: 0, style: 'position:absolute', 'aria-hidden': 'true'}, svg('defs', {}, pattern));
}
