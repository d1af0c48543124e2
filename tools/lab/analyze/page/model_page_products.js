// The signal-to-noise ratio of products by step, and the noise of rounding against that of mini-batches.

const computesInFp32 = () => textOf(setting.compute) === 'fp32' && ['', 'none', 'off'].includes(textOf(setting.recipe));

function noProducts() {
  if (computesInFp32())
    return 'No product was compared: this model computes in fp32, so that its operands are not rounded.';
  return 'No product was compared: the analysis met no linear layer whose operands are rounded.';
}

function drawSnr(body, legend) {
  const series = (record) => listOf(record.snr_db);
  const values = products.flatMap((p) => p.at.flatMap((record) => (record ? series(record) : [])))
                     .map(numberOf)
                     .filter((value) => value !== null);
  if (products.length === 0) return body.append(absent(noProducts()));
  if (values.length === 0)
    return body.append(
        absent('Products were met, but their ratio was measured at no step: there was no noise, or no signal.'));
  const least = Math.floor(Math.min(...values) / 5) * 5;
  const most = Math.max(least + 5, Math.ceil(Math.max(...values) / 5) * 5);
  const ramp = html('i', {class: 'ramp'});
  ramp.style.background = rampImage();
  legend.append(
      html('span', {}, `${least} dB`, ramp, `${most} dB`),
      swatch('unknown', 'no figure: not measured, or no error at all'),
      html('span', {}, 'horizontal: training step; +20 dB: a tenth of the error'));
  const badness = (item) => {
    const middle = median(shownRecords(item).flatMap((record) => (record ? series(record) : [])));
    return middle === null ? null : -middle;
  };
  const facets =
      productKinds.map((kind) => ({title: kind, rows: shownRows(products.filter((p) => p.product === kind), badness)}));
  const filled = facets.filter((facet) => facet.rows.length);
  if (filled.length === 0) return body.append(nothingMatches('product'));
  const draw = (facet, width) =>
      rowCells({title: facet.title, least, most, series, text: decibel, unit: 'dB'}, facet.rows, width);
  facetGrid(body, filled, 340, draw, 'Signal-to-noise ratios');
}

function noNoise() {
  if (products.length === 0) return noProducts();
  const batches = numberOf(setting.batches);
  if (batches !== null && batches < 2) {
    return `The noise of mini-batches shows in how gradients differ between batches; this analysis saw ${
        batches}. Give it two or more.`;
  }
  return 'The noise was estimated for no product: it needs gradients of several batches, and operands that are rounded.';
}

function drawNoise(body, legend) {
  const value = (record) => record.equivalent_batch_loss;
  const measured = products.filter((p) => p.at.some((record) => record && numberOf(value(record)) !== null));
  if (measured.length === 0) return body.append(absent(noNoise()));
  legend.append(...checkpointLegend(), html('span', {}, 'horizontal: equivalent loss of batch size, % (logarithmic)'));
  const describe = (record) => `${share(value(record))} of the batch, noise ratio ${figure(record.noise_ratio)}`;
  const badness = (item) => largest(shownRecords(item).map((record) => (record ? numberOf(value(record)) : null)));
  const facets =
      productKinds.map((kind) => ({title: kind, rows: shownRows(measured.filter((p) => p.product === kind), badness)}));
  const filled = facets.filter((facet) => facet.rows.length);
  if (filled.length === 0) return body.append(nothingMatches('product'));
  facetGrid(
      body, filled, 340,
      (facet, width) =>
          rowMarks({title: facet.title, kind: 'dot', log: true, text: share, value, describe}, facet.rows, width),
      'Quantisation noise');
}
