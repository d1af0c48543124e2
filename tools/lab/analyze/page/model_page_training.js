// What training does with the gradients: updates that weights do not notice, the loss scale, and the reduction over
// ranks.

const stagnationFormats = inOrder(
    tensors.flatMap((tensor) => tensor.at.flatMap((record) => Object.keys((record && record.stagnant) || {}))),
    ['fp32', 'bf16', 'fp16']);

function drawStagnation(body, legend) {
  const value = (format) => (record) => (record.stagnant || {})[format];
  const measured = tensors.filter(
      (tensor) => tensor.at.some(
          (record) => record && stagnationFormats.some((format) => numberOf(value(format)(record)) !== null)));
  if (measured.length === 0)
    return body.append(absent('No update was compared with its weight: the analysis made no optimizer step.'));
  legend.append(...checkpointLegend(), html('span', {}, 'horizontal: share of updates, %'));
  const facets = stagnationFormats.map(
      (format) => ({
        format,
        rows: shownRows(
            measured,
            (item) => largest(shownRecords(item).map((record) => (record ? numberOf(value(format)(record)) : null)))),
      }));
  if (facets.every((facet) => facet.rows.length === 0)) return body.append(nothingMatches('update'));
  const draw = ({format, rows}, width) => {
    const describe = (record) => `${share(value(format)(record))} of the updates are lost in ${format}`;
    return rowMarks(
        {title: `weights in ${format}`, kind: 'bar', least: 0, most: 1, text: share, value: value(format), describe},
        rows, width);
  };
  facetGrid(body, facets, 340, draw, 'Stagnant updates');
}

const scaleChart = (checkpoint, width) => lossScaleChart(checkpoint.name, checkpoint.loss_scale, width);

function drawUnderflow(body) {
  if (!checkpoints.some((checkpoint) => checkpoint.loss_scale && listOf(checkpoint.loss_scale.exponents).length)) {
    const compute = textOf(setting.compute);
    return body.append(absent(
        compute && compute !== 'fp16' ?
            `There is no curve: a loss scale is for gradients in fp16, and this model computes in ${
                compute}, which has the range of fp32.` :
            'There is no curve: the analysis recorded no gradient that a loss scale would act on.'));
  }
  facetGrid(body, shownCheckpoints(), 420, scaleChart);
}

function drawWire(body, legend) {
  const measured = wireParameters.filter(
      (p) => p.at.some((record) => record && (numberOf(record.snr_db) ?? numberOf(record.cosine)) !== null));
  if (measured.length === 0) {
    const wire = textOf(setting.wire);
    if (numberOf(setting.ranks) === 1)
      return body.append(absent('There is no wire: one rank has all gradients and sends none.'));
    if (wire === 'fp32') return body.append(absent('Nothing is rounded: gradients go over the wire in fp32.'));
    return body.append(absent('The reduction was not compared: the analysis holds no parameter that was sent.'));
  }
  legend.append(...checkpointLegend(), html('span', {}, 'SNR in dB; 1 − cosine has no unit (logarithmic)'));
  const rows = shownRows(measured, (item) => {
    const worst = smallest(shownRecords(item).map((record) => (record ? numberOf(record.snr_db) : null)));
    return worst === null ? null : -worst;
  });
  if (rows.length === 0) return body.append(nothingMatches('parameter'));
  const snrs = rows.flatMap((row) => row.at.map((record) => (record ? numberOf(record.snr_db) : null)))
                   .filter((value) => value !== null);
  const ends = snrs.length ? [Math.floor(Math.min(...snrs) / 5) * 5, Math.ceil(Math.max(...snrs) / 5) * 5] : [0, 60];
  const describe = (record) =>
      `${decibel(numberOf(record.snr_db))} dB, cosine ${numberOf(record.cosine) === null ? '–' : record.cosine}`;
  const angle = (record) => (numberOf(record.cosine) === null ? null : Math.max(0, 1 - record.cosine));
  const facets = [
    {
      title: 'SNR, dB',
      kind: 'dot',
      least: ends[0],
      most: ends[1],
      text: String,
      value: (record) => record.snr_db,
      describe
    },
    {title: '1 − cosine', kind: 'dot', log: true, text: plain, value: angle, describe},
  ];
  facetGrid(body, facets, 400, (facet, width) => rowMarks(facet, rows, width), 'Error of the reduction');
}
