// The head of the page and the verdict.

const kLevels = {
  good: '✓ Good: nothing here asks for a change',
  attention: '! Attention: something here deserves a look',
  bad: '✕ Bad: this setting loses what training needs',
};

function drawHead() {
  const title = textOf(analysis.title) || 'Precision analysis';
  document.title = `${title}: precision analysis`;
  document.getElementById('title').append(title);
  const words =
      {compute: 'compute', recipe: 'recipe', wire: 'wire', ranks: 'ranks', batches: 'batches', model: 'model'};
  for (const [key, word] of Object.entries(words)) {
    const value = textOf(setting[key]);
    if (value) document.getElementById('setting').append(html('div', {}, html('dt', {}, word), html('dd', {}, value)));
  }
}

function drawVerdict() {
  const section = document.getElementById('verdict');
  const body = section.querySelector('.body');
  const verdict = analysis.verdict || {};
  const level = Object.hasOwn(kLevels, verdict.level) ? verdict.level : null;
  const lines = listOf(verdict.lines).map(textOf).filter(Boolean);
  if (level === null && lines.length === 0) {
    body.append(absent('The analysis came to no verdict: its file holds none.'));
    return;
  }
  if (level) section.classList.add(level);
  body.append(html('p', {class: 'level'}, level ? kLevels[level] : 'No level was given'));
  if (lines.length) body.append(html('ul', {}, ...lines.map((line) => html('li', {}, line))));
}
