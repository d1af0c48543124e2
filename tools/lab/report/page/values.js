'use strict';
// Values of which any may be missing: lists, numbers and texts as pages take them.

const listOf = (value) => (Array.isArray(value) ? value : []);
const numberOf = (value) => (typeof value === 'number' && Number.isFinite(value) ? value : null);
const textOf = (value) => (value === null || value === undefined ? '' : String(value));

// The values that occur, the known ones first and in their order.
function inOrder(values, known) {
  const present = [...new Set(values)];
  return [...known.filter((value) => present.includes(value)), ...present.filter((value) => !known.includes(value))];
}

function median(values) {
  const sorted = values.map(numberOf).filter((value) => value !== null).sort((a, b) => a - b);
  if (sorted.length === 0) return null;
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

// Of numbers and nulls; null if there are only nulls.
const largest = (values) => values.reduce((a, b) => (b === null || (a !== null && a >= b) ? a : b), null);
const smallest = (values) => values.reduce((a, b) => (b === null || (a !== null && a <= b) ? a : b), null);
