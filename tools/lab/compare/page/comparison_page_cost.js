// What a precision costs: time, memory and messages.

const kCategories = [
  ['weights', 'var(--series-1)'],
  ['masters', 'var(--series-6)'],
  ['gradients', 'var(--series-2)'],
  ['moments', 'var(--series-3)'],
  ['activations', 'var(--series-4)'],
  ['buffers', 'var(--series-5)'],
  ['packed', 'var(--series-0)'],
];
const kCategoryNames = {
  packed: 'packed operands'
};

function drawCost(body, legend) {
  if (trained.length === 0) return body.append(nothingTrained());
  const time = trained.map((precision) => {
    const {step_seconds: seconds, time_ratio: ratio} = precision.summary;
    const times = precision === baseline || !ratio ? '' : `, ${ratio.mean.toFixed(2)} times`;
    return {
      name: precision.name,
      index: precision.index,
      value: seconds ? seconds.mean : null,
      text: `${milliseconds(seconds && seconds.mean)}${times}`,
      runs: precision.runs.map((run) => run.median_step_seconds),
    };
  });
  const memory = trained.map((precision) => {
    const found = precision.runs[0].memory || {};
    const parts = kCategories.map(([key, color]) => {
      const bytes = numberOf(found[key]) ?? 0;
      const name = kCategoryNames[key] || key;
      return {value: bytes / 2 ** 20, color, name, text: `${precision.name}, ${name}: ${mebibytes(bytes)}`};
    });
    const total = parts.reduce((sum, part) => sum + part.value, 0);
    const [value, text] = total > 0 ? [total, mebibytes(total * 2 ** 20)] : [null, '–'];
    return {name: precision.name, index: precision.index, value, text, parts};
  });
  legend.append(...kCategories.map(
      ([key, color]) =>
          html('span', {}, html('i', {class: 'key', style: `background: ${color}`}), kCategoryNames[key] || key)));
  facetGrid(
      body,
      [
        {rows: time, options: {title: 'Step time', xText: (value) => plain(1e3 * value), xTitle: 'milliseconds'}},
        {rows: memory, options: {title: 'Memory of a rank', xTitle: 'MiB'}},
      ],
      420, (facet, width) => barChart(facet.rows, facet.options, width));
}

function savings(key, of) {
  const theirs = baseline && numberOf(baseline.summary[key]);
  return others.map((precision) => {
    const ours = numberOf(precision.summary[key]);
    const value = ours === null || !theirs ? null : 1 - ours / theirs;
    const text = value === null ? '–' : `${Math.round(100 * value)} % (${of(ours)} of ${of(theirs)})`;
    return {name: precision.name, index: precision.index, value, text: text.replace('-', '−')};
  });
}

function drawSaving(body, legend) {
  if (trained.length === 0) return body.append(nothingTrained());
  if (!baseline || others.length === 0)
    return body.append(absent('There is nothing beside the baseline to compare with it.'));
  legend.append(...seriesLegend(others), html('span', {}, `100 %: nothing is left of what ${baseline.name} takes`));
  const percent = (value) => `${Math.round(100 * value)} %`.replace('-', '−');
  const options = (title) => ({title, xText: percent, xTitle: 'saved'});
  const facets = [{rows: savings('peak_memory_bytes', mebibytes), options: options('Memory of a rank')}];
  if (baseline.summary.sent_bytes > 0)
    facets.push({rows: savings('sent_bytes', mebibytes), options: options('Bytes that a rank sends in a step')});
  facetGrid(body, facets, 420, (facet, width) => barChart(facet.rows, facet.options, width));
  if (facets.length === 1) body.append(note('One rank sends nothing.'));
}
