// Runs in a page under test, after its script: reports the page's contents to the surrounding frame.
'use strict';
function facts() {
  const root = document.documentElement;
  const marks = (node, selector) => node.querySelectorAll(selector).length;
  const attributes = (section) => [...section.querySelectorAll('svg *')].flatMap((node) => [...node.attributes]);
  const panel = (section) => ({
    id: section.id,
    heading: section.querySelector('h2').textContent,
    how: section.querySelector('.how').textContent,
    legend: section.querySelector('.legend') ? section.querySelector('.legend').textContent.trim() : '',
    absent: [...section.querySelectorAll('.absent')].map((node) => node.textContent),
    marks: marks(section, 'svg .mark'),
    unknown: marks(section, 'svg .unknown'),
    bands: marks(section, 'svg .band'),
    facets: marks(section, '.facet'),
    rows: marks(section, 'tbody tr'),
    columns: [...section.querySelectorAll('thead th')].map((node) => node.textContent),
    names: [...section.querySelectorAll('tbody td.layer')].map((node) => node.textContent),
    rows_shown: [...section.querySelectorAll('svg text.name title')].map((node) => node.textContent),
    chosen: [...section.querySelectorAll('select')].map((node) => node.selectedOptions[0].textContent),
    text: section.querySelector('.body').textContent,
    // A chart silently drops numbers that it cannot place.
    misplaced: attributes(section).filter((one) => /NaN|Infinity|undefined|null/.test(one.value)).length,
  });
  // Chart text that is too small to read or cut off at the edge.
  const is_cut = (text) => {
    const [inner, outer] = [text.getBoundingClientRect(), text.ownerSVGElement.getBoundingClientRect()];
    return inner.width > 0 &&
        (inner.left < outer.left - 1 || inner.right > outer.right + 1 || inner.top < outer.top - 1 ||
         inner.bottom > outer.bottom + 1);
  };
  const texts = [...document.querySelectorAll('svg text')];
  return {
    small_texts:
        texts.filter((text) => parseFloat(getComputedStyle(text).fontSize) < 11).map((text) => text.textContent),
    cut_texts: texts.filter(is_cut).map((text) => text.textContent),
    width: window.innerWidth,
    scroll_width: Math.max(root.scrollWidth, document.body.scrollWidth),
    title: document.title,
    heading: document.querySelector('h1').textContent,
    setting: document.getElementById('setting').textContent,
    result: document.getElementById('filter-result') ? document.getElementById('filter-result').textContent : '',
    smuggled: window.smuggled === undefined ? null : window.smuggled,
    foreign: document.querySelectorAll('img, iframe, object, embed, link, b:not(.legend b), i:not([class])').length,
    panels: [...document.querySelectorAll('section')].map(panel),
  };
}
// ---- The page as a reader sees it.

function legibility() {
  const nodes = textNodes();
  return {
    overlaps: [...document.querySelectorAll('svg')].flatMap(overlaps),
    broken_words: nodes.flatMap(brokenWords),
    faint: nodes.flatMap(faint),
    hidden_columns: [...document.querySelectorAll('.table, .scroll')]
                        .filter((box) => box.scrollWidth > box.clientWidth + 1)
                        .map((box) => (box.closest('section') || box).id),
    paper: luminance(backdrops(document.body)[0]),
    keys: keys(),
  };
}

// Text that is shown, outside of charts too.
function textNodes() {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || parent.closest('script, style, noscript, title, option')) continue;
    if (parent.checkVisibility()) nodes.push(walker.currentNode);
  }
  return nodes;
}

// Words that a line break divides, except after characters where a break is allowed.
function brokenWords(node) {
  const range = document.createRange();
  const topOf = (i) => {
    range.setStart(node, i);
    range.setEnd(node, i + 1);
    return range.getBoundingClientRect().top;
  };
  range.selectNodeContents(node);
  if (node.parentElement.closest('svg') || range.getClientRects().length < 2) return [];
  return [...node.data.matchAll(/\S+/gu)]
      .filter(({0: text, index}) => {
        for (let i = 1; i < text.length; ++i)
          if (topOf(index + i) > topOf(index + i - 1) + 4 && /^[\p{L}\p{N}]{2}/u.test(text.slice(i - 1))) return true;
        return false;
      })
      .map(([text]) => text);
}

// Labels of a chart that touch each other or its marks.
function overlaps(chart) {
  const labels = [...chart.querySelectorAll('text')].filter((text) => text.getBBox().width > 0);
  const marks = [...chart.querySelectorAll('circle, rect.mark, rect.unknown, line.whisker')];
  const boxes = new Map([...labels, ...marks].map((node) => [node, node.getBoundingClientRect()]));
  const touch = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2;
  const points = [...chart.querySelectorAll('path.curve')].flatMap((path) => {
    const origin = chart.getBoundingClientRect(), length = path.getTotalLength();
    return Array.from({length: Math.ceil(length / 5)}, (_, i) => path.getPointAtLength(5 * i))
        .map(({x, y}) => ({
               left: origin.left + x - 1,
               right: origin.left + x + 1,
               top: origin.top + y - 1,
               bottom: origin.top + y + 1
             }));
  });
  return labels.flatMap((label, i) => {
    const box = boxes.get(label);
    const others = [...labels.slice(i + 1), ...marks].filter((other) => touch(box, boxes.get(other)));
    const named = others.map(
        (other) =>
            other.tagName === 'text' ? other.firstChild.data : `${other.tagName} ${other.getAttribute('class')}`);
    if (points.some(
            (point) => point.left < box.right && box.left < point.right && point.top < box.bottom - 3 &&
                box.top + 3 < point.bottom))
      named.push('curve');
    return named.map((name) => `${label.firstChild.data} / ${name}`);
  });
}

// ---- Contrast, by the Web Content Accessibility Guidelines.

// "rgb(…)" or "color(srgb …)" as [red, green, blue, opacity], each 0 to 1.
function channels(color) {
  const numbers = color.match(/-?[\d.]+(e-?\d+)?/g).map(Number);
  const unit = color.startsWith('color(') ? 1 : 255;
  return [...numbers.slice(0, 3).map((value) => value / unit), numbers[3] ?? 1];
}
const over = (front, back) => [0, 1, 2].map((i) => front[3] * front[i] + (1 - front[3]) * back[i]).concat(1);
function luminance(color) {
  const [red, green, blue] =
      color.map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
// The colours that may lie behind an element's text: several over a gradient.
function backdrops(element) {
  if (!element) return [[1, 1, 1, 1]];
  const {backgroundColor, backgroundImage} = getComputedStyle(element);
  const own = channels(backgroundColor);
  const behind = own[3] === 1 ? [own] : backdrops(element.parentElement).map((back) => over(own, back));
  const stops = backgroundImage.match(/(rgba?|color)\([^)]*\)/g) || [];
  return behind.flatMap((back) => [...(stops.length ? stops.map((stop) => over(channels(stop), back)) : []), back]);
}
function faint(node) {
  const parent = node.parentElement, style = getComputedStyle(parent);
  const color = channels(parent.closest('svg') ? style.fill : style.color);
  const contrast = Math.min(...backdrops(parent).map((back) => {
    const [a, b] = [luminance(over(color, back)), luminance(back)];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }));
  return contrast < 4.5 ? [`${node.data.trim()}: ${contrast.toFixed(2)}`] : [];
}

// The format, or else "none", and the colour of every series in a legend or a line. fp8 and fp4 stand for
// recipes.
function keys() {
  const formats = [
    'fp64',
    'fp32',
    'tf32',
    'bf16',
    'fp16',
    'e4m3',
    'e5m2',
    'e2m1',
    'delayed',
    'current',
    'block',
    'mxfp8',
    'nvfp4',
  ];
  const formatIn = (name) => name.replace(/\bfp8\b/, 'delayed')
                                 .replace(/\bfp4\b/, 'nvfp4')
                                 .split(/[ :,]/)
                                 .find((word) => formats.includes(word)) ||
      'none';
  const samples = [...document.querySelectorAll('.key')].map(
      (key) => [key.parentElement.textContent, getComputedStyle(key).backgroundColor]);
  const lines = [...document.querySelectorAll('path.curve:not(.quiet)')].map(
      (path) => [path.textContent, getComputedStyle(path).stroke]);
  return [...samples, ...lines].map(([name, color]) => [formatIn(name), color]);
}

function act(selector, value) {
  const node = document.querySelector(selector);
  if (value === undefined) return node.click();
  node.value = value;
  node.dispatchEvent(new Event(node.tagName === 'INPUT' ? 'input' : 'change', {bubbles: true}));
}
