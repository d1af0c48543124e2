// The table: by tensor, or by layer with the worst of its tensors. Sorted by a click on a heading.

const tableState = {
  view: 'layer',
  column: null,
  descending: true
};

const worstShare = (records, field) => largest(records.map((record) => numberOf(record[field])));
const total = (records, field) => {
  const known = records.map((record) => numberOf(record[field])).filter((value) => value !== null);
  return known.length ? known.reduce((a, b) => a + b, 0) : null;
};
const nameColumn = (onclick) => ({title: 'Layer', kind: 'layer', value: (row) => row.layer, onclick});
const checkpointColumn = {
  title: 'Checkpoint',
  kind: 'text',
  value: (row) => row.checkpoint.name
};
const shareColumn = (title, value) => ({title, kind: 'share', value, show: share});

function tensorTable() {
  const rows = tensors.filter((tensor) => matchesLayer(tensor.layer) && matchesRole(tensor.role))
                   .flatMap(
                       (tensor) => shownCheckpoints().map(
                           (checkpoint) => ({...tensor, checkpoint, record: tensor.at[checkpoint.index]})))
                   .filter((row) => row.record);
  const field = (title, name, show) => ({title, kind: 'number', value: (row) => numberOf(row.record[name]), show});
  const shareOf = (title, name) => shareColumn(title, (row) => numberOf(row.record[name]));
  const columns = [
    nameColumn((row) => showHistogram(row.key)),
    {title: 'Role', kind: 'text', value: (row) => row.role},
    checkpointColumn,
    {title: 'Format', kind: 'text', value: (row) => textOf(row.record.format) || '–'},
    field('Scale, 2^', 'scale_exponent', (value) => (value === null ? '–' : String(Number(value.toFixed(1))))),
    field('amax', 'amax', figure),
    shareOf('Underflow', 'underflow'),
    shareOf('Subnormal', 'subnormal'),
    shareOf('Saturated', 'saturated'),
    field('Not finite', 'non_finite', count),
    field('Zeros', 'zeros', count),
    field('Elements', 'elements', count),
  ];
  return {rows, columns};
}

function layerTable() {
  const rows = [];
  for (const layer of layerNames.filter(matchesLayer)) {
    for (const checkpoint of shownCheckpoints()) {
      const recordsOf = (items) => items.filter((item) => item.layer === layer && item.at[checkpoint.index]);
      const own = recordsOf(tensorsByLayer.get(layer) || []).filter((tensor) => matchesRole(tensor.role));
      const made = recordsOf(productsByLayer.get(layer) || []);
      if (own.length + made.length === 0) continue;
      const records = own.map((tensor) => tensor.at[checkpoint.index]);
      const key = (own.find((tensor) => tensor.at[checkpoint.index].histogram) || own[0] || {}).key;
      rows.push({layer, checkpoint, records, key, made});
    }
  }
  const snr = (kind) => ({
    title: `SNR ${kind}`,
    kind: 'number',
    value: (row) =>
        median(row.made.filter((p) => p.product === kind).flatMap((p) => listOf(p.at[row.checkpoint.index].snr_db))),
    show: decibel,
  });
  const columns = [
    nameColumn((row) => row.key && showHistogram(row.key)),
    checkpointColumn,
    ...productKinds.map(snr),
    shareColumn('Underflow', (row) => worstShare(row.records, 'underflow')),
    shareColumn('Subnormal', (row) => worstShare(row.records, 'subnormal')),
    shareColumn('Saturated', (row) => worstShare(row.records, 'saturated')),
    {title: 'Not finite', kind: 'number', value: (row) => total(row.records, 'non_finite'), show: count},
    ...stagnationFormats.map(
        (format) => shareColumn(
            `Stagnant in ${format}`,
            (row) => largest(row.records.map((record) => numberOf((record.stagnant || {})[format]))))),
    shareColumn(
        'Batch loss',
        (row) => largest(row.made.map((p) => numberOf(p.at[row.checkpoint.index].equivalent_batch_loss)))),
  ];
  return {rows, columns};
}

function cellOf(column, row) {
  const value = column.value(row);
  if (column.kind === 'layer') {
    return html(
        'td', {class: 'text layer', title: value},
        html('button', {type: 'button', onclick: () => column.onclick(row)}, value));
  }
  if (column.kind === 'text') return html('td', {class: 'text', title: value}, value);
  const cell = html('td', {}, column.show(value));
  if (column.kind === 'share' && value > 0) {
    const part = at(100 * Math.min(1, value));
    cell.style.background = `linear-gradient(90deg, #cfe3f2 ${part}%, transparent ${part}%)`;
  }
  return cell;
}

// Numbers by size, those that are absent last in both directions; names as they are written.
function compareRows(column, descending) {
  return (a, b) => {
    const [x, y] = [column.value(a), column.value(b)];
    if (x === null || y === null) return (x === null) - (y === null);
    const order = typeof x === 'number' ? x - y : x.localeCompare(y, 'en', {numeric: true});
    return descending ? -order : order;
  };
}

function drawLayers(body) {
  if (layerNames.length === 0)
    return body.append(absent('No tensor was recorded: the analysis holds neither tensors nor products.'));
  const redraw = () => drawPanel('layers');
  body.append(html(
      'div', {class: 'controls'},
      label('Rows ', choice([['layer', 'layers'], ['tensor', 'tensors']], tableState.view, (view) => {
              Object.assign(tableState, {view, column: null});
              redraw();
            }, {id: 'layers-view'}))));
  const {rows, columns} = tableState.view === 'layer' ? layerTable() : tensorTable();
  if (rows.length === 0) return body.append(nothingMatches('row'));
  const sorted = columns.find((column) => column.title === tableState.column);
  if (sorted) rows.sort(compareRows(sorted, tableState.descending));
  const head = columns.map((column) => {
    const direction = column === sorted ? (tableState.descending ? 'descending' : 'ascending') : 'none';
    const sort = () => {
      const descending = column === sorted ? !tableState.descending : !['text', 'layer'].includes(column.kind);
      Object.assign(tableState, {column: column.title, descending});
      redraw();
    };
    const kind = column.kind === 'layer' ? 'text layer' : column.kind === 'text' ? 'text' : '';
    return html(
        'th', {scope: 'col', class: kind, 'aria-sort': direction},
        html('button', {type: 'button', onclick: sort}, column.title));
  });
  const lines = rows.map((row) => html('tr', {}, ...columns.map((column) => cellOf(column, row))));
  body.append(scrolling(
      'Table of layers', html('table', {}, html('thead', {}, html('tr', {}, ...head)), html('tbody', {}, ...lines))));
}
