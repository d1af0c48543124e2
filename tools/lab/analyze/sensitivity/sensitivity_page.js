// The page of `mantissa analyze sensitivity`; sensitivity_analysis.h describes its figures.

const decisions = recordsOf(figures.decisions);
const tried = decisions.filter((one) => !one.refusal);
const nothingTried = 'No decision could be tried: see the verdict.';
const meanOf = (estimate) => numberOf((estimate || {}).mean);
const estimateText = (estimate) => {
  const half = numberOf((estimate || {}).half_width);
  return withMinus(`${figure(meanOf(estimate))}${half === null ? '' : ` ± ${figure(half, 2)}`}`);
};

function drawVerdict(body) {
  const lines = listOf(figures.verdict).map(textOf);
  const refused = decisions.filter((one) => one.refusal).map(({name, refusal}) => `Not tried: ${name}: ${refusal}`);
  if (lines.length + refused.length === 0) return 'The file of this analysis holds no verdict.';
  body.append(html('ul', {}, [...lines, ...refused].map((text) => html('li', {}, text))));
}

// Decisions by falling size of a figure; figures that are not finite come first.
const bySize = (key) => [...tried].sort(
    (a, b) => Math.abs(meanOf(b[key]) ?? Infinity) - Math.abs(meanOf(a[key]) ?? Infinity) || 0);
const effectChart = (title, key) => (width) => {
  const rows = bySize(key).map(({name, format, [key]: estimate}) => {
    const mean = meanOf(estimate), half = numberOf((estimate || {}).half_width) ?? 0, fill = colorOf(format);
    const whisker = {kind: 'line', style: 'whisker', from: mean - half, to: mean + half, fill};
    const marks = [whisker, {kind: 'dot', style: 'mark', from: mean, fill, tip: `${name}: ${estimateText(estimate)}`}];
    return {name, marks: mean === null ? [] : marks, text: mean === null ? 'not finite' : estimateText(estimate)};
  });
  const ends = [0, ...rows.flatMap((row) => row.marks.slice(0, 1).flatMap(({from, to}) => [from, to]))];
  const axis = (left, right) =>
      linearScale(Math.min(...ends), Math.max(...ends), left + 6, right, Math.max(2, (right - left) / 80), plain);
  return rowChart(title, rows, {axis, zero: true, row_px: 20, column: '± 95 %'}, width);
};
const formatLegend = () => [...new Set(tried.map((one) => one.format))].map((format) => keyed(format, colorOf(format)));

function drawEffects(body, legend) {
  if (tried.length === 0) return nothingTried;
  legend.append(...formatLegend());
  const charts =
      [effectChart('Change of the loss', 'loss'), effectChart('Change of the loss after an update', 'update_loss')];
  facetGrid(body, 460, charts, 'Effect on the loss');
}

const kRisks = [['overflow', 'beyond'], ['underflow', 'lost'], ['precision_loss', 'subnormal']];
// Thresholds hold for all formats only where they were given.
const bandsText = () => figures.low_risk === null ?
    'bands as measured for each format; unrated: its share does not predict harm' :
    `below ${share(figures.low_risk)}: low; up to ${share(figures.high_risk)}: mixed; above` +
        `${tried.some((one) => one.format === 'fp16') ? ', or any overflow in fp16' : ''}: fp32`;
function drawRisks(body, legend) {
  const sampled = tried.filter((one) => numberOf(one.overflow) !== null);
  if (sampled.length === 0) return 'No product was sampled.';
  legend.append(
      swatch('beyond', 'overflow'), swatch('lost', 'underflow: becomes 0'),
      swatch('subnormal', 'subnormal: fewer bits'), word(bandsText()));
  const riskOf = (one) => kRisks.reduce((sum, [key]) => sum + one[key], 0);
  const rows = sampled.sort((a, b) => riskOf(b) - riskOf(a)).map((one) => {
    const parts = kRisks.map(([key, range]) => ({
                               value: one[key],
                               fill: `var(--${range === 'beyond' ? 'bad' : range})`,
                               tip: `${one.name}, ${key}: ${share(one[key])}`
                             }));
    return {name: one.name, value: riskOf(one), text: `${share(riskOf(one))}, ${textOf(one.band)}`, parts};
  });
  facetGrid(body, 460, [barChart('Elements at risk', rows, {text: share})], 'Elements at risk');
}

function drawScores(body) {
  if (tried.length === 0) return nothingTried;
  const estimate = (key) => (one) => estimateText(one[key]);
  const mean = (key) => (one) => figure(meanOf(one[key]));
  body.append(scrolling('Scores', figureTable(bySize('loss'), {
                          'Decision': nameCell,
                          'Fisher': estimate('fisher'),
                          'Hessian, nats': estimate('hessian'),
                          'Gradient changes by': mean('gradient_change'),
                          'Update changes by': mean('parameter_change'),
                          'Mutual information, bit': mean('information_bits'),
                          'Entropy, bit': mean('entropy_bits'),
                        })));
}

function drawLayers(body) {
  const layers = recordsOf(figures.layers);
  if (layers.length === 0) return 'Layers were not ranked: --score w1,w2,w3 gives the weights.';
  const number = (key) => (one) => figure(one[key]);
  body.append(scrolling('Layers', figureTable(layers, {
                          'Layer': ({layer}) => word(layer),
                          'Score': number('score'),
                          'Magnitude, rms': number('magnitude'),
                          'Variance over batches': number('variance'),
                          'Change by a step, rms': number('change'),
                        })));
}

function drawCorrelations(body) {
  const names = Object.keys(figures.rank_correlations || {});
  if (names.length === 0) return 'There are no scores to compare.';
  const cells = names.map((name) => [name, (row) => withMinus(figure(figures.rank_correlations[row][name], 2))]);
  body.append(figureTable(names, {'Score': (row) => word(row), ...Object.fromEntries(cells)}));
}

function drawParameters(body) {
  const parameters = recordsOf(figures.parameters);
  if (parameters.length === 0) return 'No parameter was examined.';
  body.append(scrolling('Parameters', figureTable(parameters, {
                          'Parameter': ({name}) => word(name),
                          'Elements': ({elements}) => count(elements),
                          'Gradient, rms': (one) => estimateText(one.gradient_rms),
                          'Its variance over batches': (one) => figure(one.gradient_variance),
                          'Hessian trace': (one) => estimateText(one.hessian_trace),
                          'Hessian diagonal': ({hessian_diagonal: ends}) =>
                              withMinus(numbersOf(ends).map((end) => figure(end)).join(' to ')) || '–',
                        })));
}

const about = Object.fromEntries(['step', 'batches', 'probes', 'ranks'].map((key) => [key, textOf(figures[key])]));
startPage(
    'sensitivity to precision', {...about, loss: estimateText(figures.loss)},
    [
      panel(
          'verdict', 'Verdict', 'Verdict', 'The effect on this training of lowering one thing at a time.', drawVerdict),
      panel(
          'effects', 'Loss', 'Effect on the loss',
          'Each row lowers one layer or product alone, against fp32, in nats per token: to the right is worse. Bars are the 95 % ' +
              'intervals of the mean over batches; one that contains 0 tells nothing.',
          drawEffects),
      panel(
          'risks', 'Risk', 'Elements at risk',
          'The share of a product’s operands that the format could not hold, would turn to 0 or keep with fewer bits.',
          drawRisks),
      panel(
          'scores', 'Scores', 'Scores', 'Scores that predict the effect of a decision, the largest effect first.',
          drawScores),
      panel(
          'layers', 'Layers', 'Layers by their gradients', 'A weighted score of gradients, without lowering anything.',
          drawLayers),
      panel(
          'correlations', 'Correlations', 'Rank correlations between the scores',
          'Spearman’s correlation over these decisions: 1 where two scores rank them alike.', drawCorrelations),
      panel(
          'parameters', 'Parameters', 'Parameters', 'Gradients and curvature of each parameter, in fp32.',
          drawParameters),
    ],
    textOf(figures.target));
