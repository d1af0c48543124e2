// The table of layers or tensors of `mantissa analyze model`'s page.

// Columns: [title, kind, value(row), show(value)]. Rows are tensors, or layers with the worst of tensors and products.
const kLayer = ['Layer', 'layer', (row) => row.layer];
const kCheckpoint = ['Checkpoint', 'text', (row) => row.checkpoint.name];

function tensorTable() {
  const field = (title, name, show) => [title, 'number', (row) => numberOf(row.record[name]), show];
  const shareOf = (title, name) => [title, 'share', (row) => numberOf(row.record[name]), share];
  const rowsOf = (tensor) =>
      shownCheckpoints().map((checkpoint) => ({...tensor, checkpoint, record: tensor.at(checkpoint)}));
  const columns = [
    kLayer,
    ['Role', 'text', (row) => row.role],
    kCheckpoint,
    ['Format', 'text', (row) => textOf(row.record.format) || '–'],
    field('Scale, 2^', 'scale_exponent', withDefault((value) => String(Number(value.toFixed(1))))),
    field('amax', 'amax', figure),
    shareOf('Underflow', 'underflow'),
    shareOf('Subnormal', 'subnormal'),
    shareOf('Saturated', 'saturated'),
    field('Not finite', 'non_finite', count),
    field('Zeros', 'zeros', count),
    field('Elements', 'elements', count),
  ];
  return {columns, rows: tensors.filter(isChosen).flatMap(rowsOf).filter((row) => row.record)};
}

function layerTable() {
  const rowsOf = (layer) => shownCheckpoints().map((checkpoint) => {
    const own = tensors.filter((one) => one.layer === layer && isChosen(one) && one.at(checkpoint));
    const made = products.filter((one) => one.layer === layer && one.at(checkpoint)).map((one) => one.at(checkpoint));
    const key = (own.find((one) => one.at(checkpoint).histogram) || own[0] || {}).key;
    return {layer, checkpoint, key, made, records: own.map((one) => one.at(checkpoint))};
  });
  const worst = (title, value, list = 'records') => [title, 'share', (row) => largest(row[list].map(value)), share];
  const snrOf = (kind) => ({made}) =>
      median(made.filter((one) => textOf(one.product) === kind).flatMap((one) => listOf(one.snr_db)));
  const notFinite = ({records}) => {
    const counts = numbersOf(records.map((record) => record.non_finite));
    return counts.length ? counts.reduce((a, b) => a + b) : null;
  };
  const columns = [
    kLayer,
    kCheckpoint,
    ...productKinds.map((kind) => [`SNR ${kind}`, 'number', snrOf(kind), decibel]),
    worst('Underflow', (record) => record.underflow),
    worst('Subnormal', (record) => record.subnormal),
    worst('Saturated', (record) => record.saturated),
    ['Not finite', 'number', notFinite, count],
    ...stagnationFormats.map((format) => worst(`Stagnant in ${format}`, (record) => stagnantOf(record)[format])),
    worst('Batch loss', (product) => product.equivalent_batch_loss, 'made'),
  ];
  const rows = layerNames.filter(isNamed).flatMap(rowsOf);
  return {columns, rows: rows.filter((row) => row.records.length + row.made.length)};
}

function cellOf([, kind, valueOf, show], row) {
  const value = valueOf(row);
  const histogramButton = () =>
      html('button', {type: 'button', onclick: () => row.key && showHistogram(row.key)}, value);
  if (kind === 'layer') return html('td', {class: 'text layer', title: value}, histogramButton());
  if (kind === 'text') return html('td', {class: 'text', title: value}, value);
  const part = at(100 * Math.min(1, value));
  const bar = `background: linear-gradient(90deg, var(--share) ${part}%, transparent ${part}%)`;
  return html('td', {style: kind === 'share' && value > 0 ? bar : null}, show(value));
}

// Numbers by size, missing ones last in both directions; names in their natural order.
const compareRows = ([, , valueOf]) => (a, b) => {
  const [x, y] = [valueOf(a), valueOf(b)];
  if (x === null || y === null) return (x === null) - (y === null);
  const order = typeof x === 'number' ? x - y : x.localeCompare(y, 'en', {numeric: true});
  return layersTable.descending ? -order : order;
};

function drawLayers(body) {
  if (layerNames.length === 0) return 'No tensor was recorded: the analysis holds neither tensors nor products.';
  const {rows, columns} = layersTable.view === 'layer' ? layerTable() : tensorTable();
  const change = changer('layers', layersTable);
  const views = [['layer', 'layers'], ['tensor', 'tensors']];
  const view =
      choice('Rows ', views, layersTable.view, (one) => change({view: one, column: null}), {id: 'layers-view'});
  body.append(html('div', {class: 'controls'}, view));
  if (rows.length === 0) return nothingMatches('row');
  const sorted = columns.find(([title]) => title === layersTable.column);
  if (sorted) rows.sort(compareRows(sorted));
  const head = columns.map((column) => {
    const [title, kind] = column;
    const isText = ['text', 'layer'].includes(kind);
    const descending = column === sorted ? !layersTable.descending : !isText;
    const direction = column !== sorted ? 'none' : layersTable.descending ? 'descending' : 'ascending';
    const button = html('button', {type: 'button', onclick: () => change({column: title, descending})}, title);
    return html('th', {scope: 'col', class: `${isText ? 'text ' : ''}${kind}`, 'aria-sort': direction}, button);
  });
  const lines = rows.map((row) => html('tr', {}, columns.map((column) => cellOf(column, row))));
  body.append(scrolling('Table of layers', table(head, lines)));
}
