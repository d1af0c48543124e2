// How the runs went: losses, success, loss scales and gradient norms.

const seriesOf = (precision, runs) => ({index: precision.index, name: precision.name, ...curveOf(runs)});
const allSteps = (series) =>
    trained.map((precision) => seriesOf(precision, precision.runs.map((run) => listOf(stepsOf(run)[series]))));

function validationSeries(precision) {
  const steps = [...new Set(precision.runs.flatMap((run) => listOf(run.validation).map((one) => one && one.step)))];
  const points = steps.filter((step) => numberOf(step) !== null).sort((a, b) => a - b).map((step) => {
    const losses = precision.runs.flatMap(
        (run) => listOf(run.validation).filter((one) => one && one.step === step).map((one) => one.loss));
    return {x: step, ...(spread(losses) || {mean: null})};
  });
  return {index: precision.index, name: precision.name, points};
}

function drawCurves(body, legend) {
  if (trained.length === 0) return body.append(nothingTrained());
  const losses = allSteps('loss');
  const every = Math.max(1, ...losses.map((one) => one.every));
  legend.append(...lineLegend(trained), ...(every > 1 ? [html('span', {}, `a point of a line: ${every} steps`)] : []));
  const loss = {title: 'Training loss, nats a token', xTitle: 'step'};
  const facets = [{series: losses, options: loss}];
  if (baseline && others.length) {
    const paired = others.map((precision) => seriesOf(precision, pairedRuns(precision, 'loss')));
    const series = paired.filter((one) => one.points.length);
    const title = `Difference to ${baseline.name} with the same seed, nats`;
    facets.push({series, options: {title, xTitle: 'step', zero: true}});
  }
  const validation = trained.map(validationSeries).filter((one) => one.points.length);
  if (validation.length) {
    const title = 'Validation loss, nats a token';
    facets.push({series: validation, options: {title, xTitle: 'steps done', dots: true}});
  }
  facetGrid(body, facets, 380, (facet, width) => lineChart(facet.series, facet.options, width));
}

function drawSuccess(body, legend) {
  if (trained.length === 0) return body.append(nothingTrained());
  legend.append(...seriesLegend(trained));
  const percent = (value) => `${Math.round(100 * value)} %`;
  const success = trained.map((precision) => {
    const {succeeded, runs} = precision.summary;
    const value = numberOf(succeeded) === null || !(runs > 0) ? null : succeeded / runs;
    return {name: precision.name, index: precision.index, value, text: `${count(succeeded)} of ${count(runs)}`};
  });
  const skipped = trained.map((precision) => {
    const [overflow, fault] =
        [precision.summary.overflow_share, precision.summary.fault_share].map((one) => numberOf(one) ?? 0);
    const both = fault > 0 ? `${share(overflow)} overflow, ${share(fault)} faults` : share(overflow);
    const parts = [
      {value: overflow, color: colorOf(precision.index), name: 'overflow', text: `overflow: ${share(overflow)}`},
      {value: fault, color: 'var(--vermilion)', name: 'faults', text: `faults: ${share(fault)}`},
    ];
    return {name: precision.name, index: precision.index, value: overflow + fault, text: both, parts};
  });
  const most = Math.max(0.01, ...skipped.map((row) => row.value));
  facetGrid(
      body,
      [
        {rows: success, options: {title: 'Runs that succeeded', most: 1, xText: percent, xTitle: 'share of runs'}},
        {rows: skipped, options: {title: 'Steps that were skipped', most, xText: share, xTitle: 'share of steps'}},
      ],
      420, (facet, width) => barChart(facet.rows, facet.options, width));
}

function drawScales(body, legend) {
  if (trained.length === 0) return body.append(nothingTrained());
  const scaled = trained.filter(
      (precision) => precision.runs.some((run) => listOf(stepsOf(run).scale).some((scale) => scale !== 1)));
  legend.append(...lineLegend(trained));
  const norms = {series: allSteps('grad_norm'), options: {title: 'Gradient norm', xTitle: 'step', log: true}};
  const exponents = (run) => listOf(stepsOf(run).scale).map((scale) => (scale > 0 ? Math.log2(scale) : null));
  const scales = scaled.map((precision) => seriesOf(precision, [exponents(precision.runs[0])]));
  const text = (exponent) => (Number.isInteger(exponent) ? power(exponent) : '');
  const scale = {series: scales, options: {title: 'Loss scale', xTitle: 'step', text, room: 1}};
  const facets = scaled.length ? [scale, norms] : [norms];
  facetGrid(body, facets, 420, (facet, width) => lineChart(facet.series, facet.options, width));
  if (scaled.length === 0) body.append(note('No run scaled its loss: none of these precisions needs a loss scale.'));
}
