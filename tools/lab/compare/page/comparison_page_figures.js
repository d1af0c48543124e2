// The table of all figures.

function spreadText(value, text) {
  if (!value || numberOf(value.mean) === null) return '–';
  return `${text(value.mean)} (${text(value.low)} – ${text(value.high)})`;
}

function intervalText(found, digits) {
  if (!found || numberOf(found.mean) === null) return '–';
  if (!found.interval) return found.mean.toFixed(digits);
  return `${found.mean.toFixed(digits)} (${found.interval.low.toFixed(digits)} – ${
      found.interval.high.toFixed(digits)})`;
}

const kColumns = [
  ['Success', (s) => `${count(s.succeeded)} of ${count(s.runs)}`],
  ['Skipped', (s) => share((numberOf(s.overflow_share) ?? 0) + (numberOf(s.fault_share) ?? 0))],
  ['Final loss', (s) => intervalText(s.final_loss, 4)],
  ['Step', (s) => milliseconds(s.step_seconds && s.step_seconds.mean)],
  ['Times baseline', (s) => spreadText(s.time_ratio, (value) => value.toFixed(2))],
  ['Tokens/s', (s) => (numberOf(s.tokens_per_second) === null ? '–' : count(Math.round(s.tokens_per_second)))],
  ['Grad norm', (s) => figure(s.grad_norm, 3)],
  [
    'Loss scale: least, last, changes',
    (s) => `${scaleText(s.smallest_scale)}, ${scaleText(s.last_scale)}, ${figure(s.scale_changes, 2)}`
  ],
  ['Peak memory', (s) => mebibytes(s.peak_memory_bytes)],
  ['Sent a step', (s) => (s.sent_bytes === 0 ? '0' : mebibytes(s.sent_bytes))],
];

function drawFigures(body) {
  if (trained.length === 0) return body.append(nothingTrained());
  const rows = precisions.map((precision) => {
    const cells = precision.runs.length ?
        kColumns.map(([, text]) => html('td', {}, text(precision.summary))) :
        [html('td', {class: 'reason', colspan: kColumns.length}, `not trained: ${textOf(precision.refusal)}`)];
    return html('tr', {}, nameCell(precision), ...cells);
  });
  const head =
      html('tr', {}, html('th', {class: 'name'}, 'Precision'), ...kColumns.map(([name]) => html('th', {}, name)));
  body.append(html('div', {class: 'table'}, html('table', {}, html('thead', {}, head), html('tbody', {}, ...rows))));
}
