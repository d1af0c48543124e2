// Elements, numbers as text, and what every panel has in common. All text goes in as text nodes: names cannot become
// markup.

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith('on'))
      node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined)
      node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
const html = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
    fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);

const at = (value) => Math.round(value * 10) / 10;  // a place in a chart: tenths of a pixel are enough

// Numbers as text; "–" where there is none.
function figure(value, digits = 3) {
  if (numberOf(value) === null) return '–';
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(Math.max(0, digits - 1)).replace('e+', 'e');
  return size >= 10 ** (digits - 1) ? String(Math.round(value)) : value.toPrecision(digits);
}
// A round number, as ticks are.
function plain(value) {
  const short = Number(value.toPrecision(3));
  return short !== 0 && (Math.abs(short) < 1e-3 || Math.abs(short) >= 1e5) ? short.toExponential().replace('e+', 'e') :
                                                                             String(short);
}
function share(value) {
  if (numberOf(value) === null) return '–';
  const percent = 100 * value;
  if (percent >= 0.001 || percent === 0) return `${Number(percent.toPrecision(percent < 10 ? 2 : 3))} %`;
  return `${Number(percent.toPrecision(2)).toExponential()} %`;
}
const count = (value) => (numberOf(value) === null ? '–' : value.toLocaleString('en'));
const decibel = (value) => (numberOf(value) === null ? '–' : value.toFixed(1));
const superscripts = {
  '-': '⁻',
  0: '⁰',
  1: '¹',
  2: '²',
  3: '³',
  4: '⁴',
  5: '⁵',
  6: '⁶',
  7: '⁷',
  8: '⁸',
  9: '⁹'
};
const power = (exponent) => '2' + [...String(exponent)].map((digit) => superscripts[digit] || digit).join('');

// Names are long and differ at both ends: the middle is cut.
function shortened(name, width_px) {
  const room = Math.max(4, Math.floor(width_px / 6.7));
  const letters = [...name];
  if (letters.length <= room) return name;
  const before = (room - 1) >> 1;
  return letters.slice(0, before).join('') + '…' + letters.slice(letters.length - (room - 1 - before)).join('');
}
const longestName_px = (names) => 6.7 * Math.max(0, ...names.map((name) => [...name].length));

const absent = (text) => html('p', {class: 'absent'}, text);
const note = (text) => html('p', {class: 'note'}, text);
const tooltip = (text) => svg('title', {}, text);
const swatch = (kind, text) => html('span', {}, html('i', {class: `swatch ${kind}`}), text);
const label = (text, control) => html('label', {}, text, control);

function choice(options, chosen, onchange, attributes) {
  const select = html('select', {...attributes, onchange: () => onchange(select.value)});
  for (const [value, text] of options) select.append(html('option', {value}, text));
  select.value = chosen;
  return select;
}

// A window for what may be long. It takes the keyboard, so that it scrolls without a mouse.
const scrolling = (name, content) =>
    html('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': name}, content);

// Facets beside each other where there is room for `least_px` each, else below each other. `draw(facet, width_px)`
// gives elements.
function facetGrid(body, facets, least_px, draw, name) {
  const room = body.clientWidth - (name ? 40 : 0);  // the window's padding and scroll bar
  const columns = Math.max(1, Math.min(facets.length, Math.floor((room + 20) / (least_px + 20))));
  const width = Math.min(760, Math.floor((room - 20 * (columns - 1)) / columns));
  const grid = html('div', {class: 'facets', style: `grid-template-columns: repeat(${columns}, ${width}px)`});
  for (const facet of facets) grid.append(html('div', {class: 'facet'}, ...draw(facet, width)));
  body.append(name ? scrolling(name, grid) : grid);
}

// Charts are drawn for the width that there is.
function redrawOnResize(draw) {
  let drawnWidth = window.innerWidth;
  let waiting = 0;
  window.addEventListener('resize', () => {
    if (window.innerWidth === drawnWidth) return;
    drawnWidth = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(draw, 100);
  });
}
