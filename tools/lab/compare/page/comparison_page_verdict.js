// The head of the page, and the verdict with the intervals of the loss.

function drawHead() {
  const title = textOf(comparison.title) || 'Comparison of precisions';
  document.title = `${title}: comparison of precisions`;
  document.getElementById('title').append(title);
  const say = (word, value) => {
    if (value) document.getElementById('setting').append(html('div', {}, html('dt', {}, word), html('dd', {}, value)));
  };
  say('model', textOf(setting.model));
  say('steps', numberOf(setting.steps) === null ? '' : count(setting.steps));
  say('seeds', listOf(setting.seeds).map(textOf).join(', '));
  say('ranks', textOf(setting.ranks));
  say('device', textOf(setting.device));
  const contents = document.getElementById('contents');
  for (const section of document.querySelectorAll('section'))
    contents.append(html('a', {href: `#${section.id}`}, section.dataset.short));
}

const nameCell = (precision) => html(
    'td', {class: 'name'}, html('i', {class: 'key', style: `background: ${colorOf(precision.index)}`}), precision.name);

const nothingTrained = () => absent('The file of this comparison holds no run.');

const kSigns = {
  better: '▲ better',
  equal: '≈ equal',
  worse: '▼ worse',
  inconclusive: '? inconclusive',
};

function badge(precision) {
  if (precision.runs.length === 0) return html('span', {class: 'badge'}, '– not trained');
  if (precision === baseline) return html('span', {class: 'badge baseline'}, 'baseline');
  const verdict = Object.hasOwn(kSigns, precision.summary.verdict) ? precision.summary.verdict : 'inconclusive';
  return html('span', {class: `badge ${verdict}`}, kSigns[verdict]);
}

function reasonOf(precision) {
  if (precision.refusal) return textOf(precision.refusal);
  const {runs, succeeded, failure} = precision.summary;
  if (failure) return `${count(runs - succeeded)} of ${count(runs)} runs failed: ${textOf(failure)}`;
  if (numberOf(runs) === 1) return 'One run says nothing of chance.';
  return '';
}

const differenceOf = (precision) => (precision === baseline ? null : precision.summary.loss_difference || null);

// The interval of a difference on a scale that all rows share.
function intervalChart(difference, x, width, margin, precision) {
  const height = 30;
  const chart = svg('svg', {width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': 'interval'});
  if (margin > 0) {
    const [from, to] = [x.place(-margin), x.place(margin)];
    chart.append(svg('rect', {class: 'margin', x: at(from), y: 0, width: at(to - from), height}));
  }
  chart.append(svg('line', {class: 'zero', x1: at(x.place(0)), x2: at(x.place(0)), y1: 0, y2: height}));
  if (!difference || numberOf(difference.mean) === null) return chart;
  const interval = difference.interval;
  const color = colorOf(precision.index);
  if (interval) {
    const [from, to] = [at(x.place(interval.low)), at(x.place(interval.high))];
    chart.append(
        svg('line', {class: 'whisker', x1: from, x2: to, y1: 15, y2: 15, stroke: color}),
        ...[from, to].map((end) => svg('line', {class: 'whisker', x1: end, x2: end, y1: 10, y2: 20, stroke: color})));
  }
  chart.append(svg('circle', {class: 'mark', cx: at(x.place(difference.mean)), cy: 15, r: 5, fill: color}));
  return chart;
}

function drawVerdict(body) {
  const how = document.querySelector('#verdict .how');
  how.replaceChildren();
  if (trained.length === 0) {
    how.append('Which precision trains as well as the baseline.');
    return body.append(nothingTrained());
  }
  const margin = numberOf(setting.margin) ?? 0;
  const level = numberOf(setting.level) === null ? '' : `${figure(100 * setting.level, 2)} % `;
  how.append(
      `The final loss of each precision less that of ${
          baseline ? baseline.name : 'the baseline'} with the same seed, in nats a ` +
      `token, with its ${level}interval: to the left is better. Within ±${
          figure(margin, 2)} (shaded) losses count as equal: ` +
      `${
          setting.margin_is_given ?
              'as given.' :
              margin > 0 ?
              'that is the standard deviation of the baseline over seeds, what chance changes anyway.' :
              'its runs are fewer than two, or not all of them got below their first loss.'}`);
  const differences = trained.map(differenceOf).filter((one) => one && numberOf(one.mean) !== null);
  const reach = 1.08 *
      Math.max(
          1e-9, 1.2 * margin,
          ...differences.flatMap((one) => (one.interval ? [one.interval.low, one.interval.high] : [one.mean]))
              .map(Math.abs));
  const width = Math.max(200, Math.min(720, body.clientWidth - 540));
  const x = linearScale(-reach, reach, 8, width - 8, 4, (value) => figure(value, 2).replace('-', '−'));
  const digits = Math.max(2, Math.min(6, 2 - Math.floor(Math.log10(reach))));
  const rows = precisions.map((precision) => {
    const difference = differenceOf(precision);
    const interval = difference && difference.interval;
    const text = !difference || numberOf(difference.mean) === null ?
        '–' :
        `${signed(difference.mean, digits)}${
            interval ? ` (${signed(interval.low, digits)} to ${signed(interval.high, digits)})` : ''}`;
    return html(
        'tr', {}, nameCell(precision), html('td', {class: 'text'}, badge(precision)), html('td', {}, text),
        html('td', {}, intervalChart(difference, x, width, margin, precision)));
  });
  const axis = svg('svg', {width, height: 18, viewBox: `0 0 ${width} 18`}, ...bottomLabels(x, 12, width));
  const head = html(
      'tr', {}, html('th', {class: 'name'}, 'Precision'), html('th', {class: 'text'}, 'Verdict'),
      html('th', {}, 'Difference of the final loss'), html('th', {}, axis));
  body.append(html('div', {class: 'table'}, html('table', {}, html('thead', {}, head), html('tbody', {}, ...rows))));
  for (const precision of precisions) {
    const reason = reasonOf(precision);
    if (reason) body.append(html('p', {class: 'note'}, html('strong', {}, `${precision.name}: `), reason));
  }
}
